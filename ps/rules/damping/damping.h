/*
 * damping.h — a damping rule: the scale s(τ) on one gradient's learning rate.
 *
 * A rule is one pure function in ps/rules/damping/damping_NAME.c and one line in damping.def. Its
 * file states the paper, the equation, the defaults and where we differ. `s` multiplies the
 * gradient before it enters the optimizer (v ← μ v + s(τ) g), unless the rule's file states
 * otherwise. It multiplies the learning rate of optimizers that ignore a gradient's scale
 * (`scale_free` in worker/optimizer/optimizer.h). A rule may also drop the gradient: it is not
 * applied, and no version is made of it.
 *
 * Some rules use the history of the run. It consists of integers that are also in the record of
 * each push (staleness, worker, compute time in µs). So the same pushes in the same order give the
 * same scales in the server, in simulation and in replay.
 */
#ifndef GRADLAG_PS_RULES_DAMPING_DAMPING_H
#define GRADLAG_PS_RULES_DAMPING_DAMPING_H

#include "base/registry.h"

enum {
    DAMPING_PARAMETERS = 4,
    DAMPING_AGES = 32768, /* counted staleness values; larger ones count as DAMPING_AGES − 1 */
};

/* All gradients that the rule has seen in this run, the current one included. */
struct damping_history {
    unsigned workers;
    uint64_t count;
    uint64_t *ages;       /* [DAMPING_AGES] gradients of each staleness */
    uint64_t *computed;   /* [workers] gradients of each worker */
    uint64_t *compute_us; /* [workers] sum of their compute times, each rounded to µs */
};

struct damping_input {
    uint64_t staleness;   /* τ */
    unsigned workers;     /* workers of the run */
    unsigned worker;      /* the worker of the gradient */
    unsigned concurrency; /* workers that have joined and are not lost */
    double norm;          /* ‖g‖₂ before any correction; set if the rule has needs_norm */
    const struct damping_history *history; /* NULL unless the rule has needs_history */
};

struct damping_rule {
    struct about about; /* options of type OPTION_REAL or OPTION_INTEGER, in parameter order */
    bool needs_norm;    /* costs one more pass over each gradient */
    bool needs_history;
    bool scales_fresh;      /* s(0) may differ from 1 */
    bool equalizes_workers; /* compensates for workers whose gradients are applied more often */
    /* Whether `scale` may drop; with read=torn each server would drop different gradients. NULL:
     * false. */
    bool (*drops)(const double parameters[DAMPING_PARAMETERS]);
    /* Returns s(τ) ≥ 0, finite. Sets *drop to true only if `drops` is true. NULL: s = 1. */
    double (*scale)(const double parameters[DAMPING_PARAMETERS], const struct damping_input *input,
                    bool *drop);
};
extern const struct registry damping_registry;

struct damping {
    const struct damping_rule *rule;
    double parameters[DAMPING_PARAMETERS];
    struct damping_history history;
};
/* Reads key damping and its dotted keys. ERROR_USAGE: unknown rule. */
status damping_open(struct damping *out, const options *o) MUST_CHECK;
/* Allocates the history if the rule needs it: 256 KiB and 16 bytes per worker. */
status damping_allocate(struct damping *d, unsigned workers) MUST_CHECK;
void damping_close(struct damping *d);

/* Whether this rule with these options may drop gradients. */
bool damping_drops(const struct damping *d);
/* Adds a gradient to the history. Call it once for each gradient, before damping_scale. */
void damping_observe(struct damping *d, unsigned worker, uint64_t staleness, double compute_us);
/* Returns the scale, or 0 with *drop set. Ignores input->history and uses its own. */
double damping_scale(const struct damping *d, const struct damping_input *input, bool *drop);

#endif
