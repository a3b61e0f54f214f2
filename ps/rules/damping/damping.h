/*
 * damping.h — a damping rule: the scale s(τ) on one gradient's learning rate.
 *
 * A rule is one pure function in ps/rules/damping/damping_NAME.c and one line in
 * ps/rules/damping/damping.def. Its file states the paper, the equation, the defaults and where we
 * differ. `s` multiplies the gradient before it enters the optimizer (v ← μ v + s(τ) g), unless the
 * rule's file says otherwise. A scale of exactly 0 with `drop` set means that the gradient is not
 * applied and takes no version.
 *
 * Some rules look at what came before. What they may see is a running account of whole numbers that
 * are in each push's record too (staleness, worker, compute time in microseconds), so that the same
 * pushes in the same order give the same scales, whoever runs the rule.
 */
#ifndef GRADLAG_PS_RULES_DAMPING_DAMPING_H
#define GRADLAG_PS_RULES_DAMPING_DAMPING_H

#include "base/registry.h"

enum {
    DAMPING_PARAMETERS = 4,
    DAMPING_AGES = 4096, /* that are told apart; older ones count as DAMPING_AGES − 1 */
};

/* All gradients that came to the rule in this run, the one being scaled included. */
struct damping_history {
    unsigned workers;
    uint64_t count;
    uint64_t *ages;       /* [DAMPING_AGES]: gradients of each staleness */
    uint64_t *computed;   /* [workers]: gradients of each worker */
    uint64_t *compute_us; /* [workers]: their compute times added up, each a whole number of µs */
};

struct damping_input {
    uint64_t staleness;   /* τ ≥ 0 */
    unsigned workers;     /* in the run */
    unsigned worker;      /* whose gradient it is */
    unsigned concurrency; /* workers here: each computes a gradient or has just handed one in */
    double norm; /* ‖g‖₂ of the gradient as it came; only where the rule needs_norm */
    const struct damping_history *history; /* NULL unless the rule needs_history */
};

struct damping_rule {
    struct about about; /* its options, all OPTION_REAL or OPTION_INTEGER, in parameter order */
    bool needs_norm;    /* costs one more pass over each gradient */
    bool needs_history;
    bool ageless;  /* scales gradients that are not stale, too; else s(0) = 1 */
    bool balances; /* makes up for workers whose gradients count more often than others' */
    /* s(τ) ≥ 0, finite. *drop may be set to true. NULL: 1, always. */
    double (*scale)(const double parameters[DAMPING_PARAMETERS], const struct damping_input *input,
                    bool *drop);
};
extern const struct registry damping_registry;

struct damping {
    const struct damping_rule *rule;
    double parameters[DAMPING_PARAMETERS];
    struct damping_history history;
};
/* Reads key damping and its dotted keys. */
status damping_open(struct damping *out, const options *o) MUST_CHECK;
/* Sets memory for the history aside if the rule needs it: 32 KiB and 16 bytes per worker. */
status damping_remember(struct damping *d, unsigned workers) MUST_CHECK;
void damping_close(struct damping *d);

/* A gradient has come: to be called once for each, before its scale is asked for. */
void damping_observe(struct damping *d, unsigned worker, uint64_t staleness, double compute_us);
/* input.history is filled in here. */
double damping_scale(const struct damping *d, const struct damping_input *input, bool *drop);

#endif
