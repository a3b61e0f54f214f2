/*
 * consistency.h — when the server applies gradients and when it lets a worker go on.
 *
 * A policy is one file ps/rules/consistency/consistency_NAME.c with up to three decisions, and one
 * line in consistency.def:
 *   - arrive     is the gradient that came held, taken or dropped?
 *   - apply_now  are all gradients that are held or taken applied now, as one update?
 *   - may_go     is a worker whose gradient no longer waits released?
 *
 * It sees counts, versions and clocks, never floats. The core keeps the pushes and does the
 * arithmetic. The worker of a held push waits until it was applied or dropped; the gradient of a
 * taken one is added to a running sum at once, in order of arrival, and its worker goes on with the
 * latest version. The version does not change between a gradient's arrival and its update, so its
 * staleness is the same at both. Decisions are pure: replay depends on it.
 */
#ifndef GRADLAG_PS_RULES_CONSISTENCY_CONSISTENCY_H
#define GRADLAG_PS_RULES_CONSISTENCY_CONSISTENCY_H

#include "base/registry.h"

enum { CONSISTENCY_PARAMETERS = 4 };

struct consistency_view {
    unsigned workers;  /* configured */
    unsigned expected; /* of them those not lost: here, or yet to say hello */
    unsigned held;     /* pushes whose workers wait until they are applied */
    unsigned taken;    /* gradients in the running sum, whose workers went on */
    uint64_t version;
    uint64_t staleness; /* of the push that came; arrive only */
    /* may_go only. A worker's clock counts the gradients it has handed in, whatever became of them;
     * `slowest` is the least of all that are not lost. One that comes back after a loss starts at
     * the least of the others. */
    uint64_t clock, slowest;
};

enum consistency_fate { CONSISTENCY_HOLD, CONSISTENCY_TAKE, CONSISTENCY_DROP };

struct consistency_policy {
    struct about about;
    /* May hold more than one push, or takes any: the core sets a vector aside for their mean. A
     * policy does one or the other, so that an update is made of held or of taken gradients. */
    bool holds, takes;
    /* No gradient it applies is ever stale, so correction, and damping but for rules that are
     * ageless, have no effect. */
    bool never_stale;
    bool even;          /* every update is made of one gradient of each worker */
    bool drops_slowest; /* drops the gradients that come last of each version's */
    /* Gradients in an update while nobody is lost and none is dropped; no update is made of more
     * than that if the policy takes, or than `workers` if it holds. 0: the parameters do not fit
     * this number of workers. NULL: 1. */
    unsigned (*per_update)(const double *parameters, unsigned workers);
    /* Asked before the push is counted. NULL: all are held. */
    enum consistency_fate (*arrive)(const double *parameters, const struct consistency_view *view);
    /* Asked after a push came in, that one counted, and after a worker was lost, while any is held
     * or taken. NULL: always. */
    bool (*apply_now)(const double *parameters, const struct consistency_view *view);
    /* Asked at the end of every event for each worker that could go on. Must let the slowest go.
     * NULL: all go. */
    bool (*may_go)(const double *parameters, const struct consistency_view *view);
};
extern const struct registry consistency_registry;

struct consistency {
    const struct consistency_policy *policy;
    double parameters[CONSISTENCY_PARAMETERS];
};
/* Reads key consistency and its dotted keys. */
status consistency_open(struct consistency *out, const options *o) MUST_CHECK;
/* See per_update. ERROR_USAGE: the policy does not fit so many workers. */
status consistency_per_update(const struct consistency *c, unsigned workers,
                              unsigned *out) MUST_CHECK;
/* See apply_now. */
bool consistency_applies_now(const struct consistency *c, const struct consistency_view *view);
/* Whether each gradient is applied when it comes and its worker released by the same event. */
bool consistency_immediate(const struct consistency *c);

#endif
