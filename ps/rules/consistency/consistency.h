/*
 * consistency.h — when the server applies gradients and when it releases a worker.
 *
 * A policy is one file ps/rules/consistency/consistency_NAME.c with up to three decisions, and one
 * line in consistency.def:
 *   - arrive     hold, take or drop a gradient that arrived?
 *   - apply_now  apply all held or taken gradients now, as one update?
 *   - may_go     release a worker whose gradient no longer waits?
 *
 * A policy sees counts, staleness and clocks, never floats. The core stores the pushes and does the
 * arithmetic. The worker of a held push is blocked until the push is applied or dropped. A taken
 * gradient is added to a running sum at once, in order of arrival, and its worker is released with
 * the latest version. The version does not change between a gradient's arrival and its update, so
 * its staleness does not change either. Decisions are pure functions: replay depends on this.
 *
 * A policy may divide the workers into groups. Then the counts of a view are those of one group,
 * an update has the held gradients of that group alone, and the staleness of the other groups' held
 * gradients grows.
 */
#ifndef GRADLAG_PS_RULES_CONSISTENCY_CONSISTENCY_H
#define GRADLAG_PS_RULES_CONSISTENCY_CONSISTENCY_H

#include "base/registry.h"

enum { CONSISTENCY_PARAMETERS = 4 };

struct consistency_view {
    unsigned workers;   /* configured */
    unsigned expected;  /* workers of the group not lost: joined, or expected to join */
    unsigned held;      /* pushes of the group whose workers are blocked */
    unsigned taken;     /* gradients in the running sum */
    uint64_t staleness; /* of the push that arrived; arrive only */
    /* may_go only. A worker's clock counts its pushes, whatever their outcome. `slowest` is the
     * lowest clock of workers not lost. A worker that joins again after a loss starts at the lowest
     * clock of the others. */
    uint64_t clock, slowest;
};

enum consistency_decision { CONSISTENCY_HOLD, CONSISTENCY_TAKE, CONSISTENCY_DROP };

struct consistency_policy {
    struct about about;
    /* holds: may hold more than one push; takes: may take a push. Either makes the core allocate a
     * vector for the mean. At most one of them is set, so an update has held or taken gradients. */
    bool holds, takes;
    /* Every applied gradient has staleness 0. So corrections have no effect, and damping has one
     * only if its rule has scales_fresh. */
    bool never_stale;
    bool even;  /* every update has one gradient of each worker */
    bool drops; /* `arrive` may drop; with read=torn each server would drop different gradients */
    /* The number of groups, 1 … workers. Worker w is in group ⌊w × groups / workers⌋. NULL: 1.
     * Contract: `holds`. */
    unsigned (*groups)(const double *parameters, unsigned workers);
    /* Gradients in an update of the largest group if no worker is lost and no gradient is dropped.
     * For a policy that takes, no update has more. For one that holds, an update may have up to
     * `workers`. 0: the options do not fit this number of workers. NULL: 1. */
    unsigned (*per_update)(const double *parameters, unsigned workers);
    /* Called before the push is counted in `held` or `taken`. NULL: hold. */
    enum consistency_decision (*arrive)(const double *parameters,
                                        const struct consistency_view *view);
    /* Called while pushes are held or taken: after a push, which is counted already, and after a
     * loss. NULL: true. */
    bool (*apply_now)(const double *parameters, const struct consistency_view *view);
    /* Called at the end of every event for each worker that is ready. Contract: true for the
     * slowest worker. NULL: true. */
    bool (*may_go)(const double *parameters, const struct consistency_view *view);
};
extern const struct registry consistency_registry;

struct consistency {
    const struct consistency_policy *policy;
    double parameters[CONSISTENCY_PARAMETERS];
};
/* Reads key consistency and its dotted keys. ERROR_USAGE: unknown policy. */
status consistency_open(struct consistency *out, const options *o) MUST_CHECK;
/* See per_update. ERROR_USAGE: the options do not fit this number of workers. */
status consistency_per_update(const struct consistency *c, unsigned workers,
                              unsigned *out) MUST_CHECK;
/* The mean number of gradients in an update if no worker is lost, no gradient is dropped, and all
 * workers are alike: groups may differ in size. Errors: those of consistency_per_update. */
status consistency_mean_gradients(const struct consistency *c, unsigned workers,
                                  double *out) MUST_CHECK;
/* See groups. */
unsigned consistency_groups_of(const struct consistency *c, unsigned workers);
/* See apply_now. */
bool consistency_applies_now(const struct consistency *c, const struct consistency_view *view);
/* True if each push is applied and its worker released in the event of its arrival. */
bool consistency_immediate(const struct consistency *c);

#endif
