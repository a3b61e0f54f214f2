/*
 * correction.h — a change of the gradient itself, from the distance that the parameters moved since
 * it was computed, or from earlier gradients.
 *
 * Damping uses the staleness of a gradient; a correction uses the parameters. `now` are the
 * parameters that the update will change, `read_at` those the gradient was computed at. A
 * correction is one function in ps/rules/correction/correction_NAME.c and one line in
 * correction.def. It works element by element and may be called block by block. It runs before the
 * damping's scale is applied.
 *
 * A rule may keep state vectors from one gradient to the next: shared ones, and one per worker. A
 * rule writes them to a second copy, which becomes valid when the update is made
 * (correction_commit). So a gradient that is not finite changes nothing. Memory, in vectors of the
 * parameters' size: two per shared vector; with a vector per worker, one per worker and one per
 * gradient that an update may have.
 */
#ifndef GRADLAG_PS_RULES_CORRECTION_CORRECTION_H
#define GRADLAG_PS_RULES_CORRECTION_CORRECTION_H

#include "base/registry.h"

enum { CORRECTION_PARAMETERS = 4, CORRECTION_SHARED = 2 };

/* The scalars of one gradient. */
struct correction_context {
    unsigned worker;
    uint64_t version; /* of `now` */
    double scale;     /* the damping's */
    double lr;        /* of the update, without the scale */
};

/* One block of each vector. An input and an output may be the same vector. */
struct correction_vectors {
    const float *gradient, *now, *read_at;
    const float *shared_in[CORRECTION_SHARED], *own_in;
    float *shared_out[CORRECTION_SHARED], *own_out;
    float *out; /* overlaps no other vector */
};

/* One gradient during its correction. */
struct correction_call {
    const double *parameters;
    struct correction_context context;
    double decay;              /* λ: the optimizer adds λ · now to what the rule writes */
    bool parameters_changed;   /* since the last corrected gradient */
    double rate, largest_rate; /* learning rate of the update that made `now`; the largest so far */
    struct correction_vectors whole;
};

struct correction_rule {
    struct about about; /* options of type OPTION_REAL or OPTION_INTEGER, in parameter order */
    unsigned shared;    /* shared state vectors; all state starts at zero */
    bool own;           /* one state vector per worker */
    bool scales;        /* the rule applies the damping's scale: its state holds scaled gradients */
    bool scales_decay;  /* the rule does so if call.decay ≠ 0: the scale must not affect decay */
    bool single_gradient; /* requires that every update has one gradient */
    bool own_momentum;    /* the rule keeps the momentum; requires optimizer=sgd */
    /* Returns the optimizer's momentum, from key momentum. NULL: unchanged. */
    double (*momentum)(const double *parameters, unsigned workers, double momentum);
    /* Returns the optimizer's momentum after an update, from key momentum (`set`), the momentum of
     * that update (`last`) and the measured total momentum (ps/core/total_momentum.h). NULL:
     * unchanged. Requires single_gradient. */
    double (*adjust)(const double *parameters, double set, double last, double measured);
    /* Writes `out` and the state outputs of one block. The result must not depend on block
     * boundaries. NULL: the gradient is not changed. */
    void (*block)(const struct correction_call *call, size_t count,
                  const struct correction_vectors *v);
};
extern const struct registry correction_registry;

struct correction {
    const struct correction_rule *rule;
    double parameters[CORRECTION_PARAMETERS];
    double decay; /* of every call */
    bool scales;  /* the rule applies the damping's scale */
    size_t count; /* elements of a vector */
    unsigned workers, spares;
    float *shared[CORRECTION_SHARED][2]; /* two copies of each */
    unsigned current;                    /* the valid copy of the two */
    float **own;      /* [workers + spares]: the valid vector of each worker, then spare vectors */
    unsigned *owner;  /* [spares]: the worker whose next state the spare vector holds */
    unsigned pending; /* gradients corrected since the last commit */
    bool started;     /* a gradient has been corrected */
    uint64_t version; /* context.version of the last gradient */
    double rate, largest_rate; /* learning rate of the last update; the largest so far */
};
/* Reads key correction and its dotted keys. If the outer rule has as_step (ps/rules/outer/outer.h),
 * that rule is used instead. ERROR_USAGE: the correction excludes the optimizer or the outer rule.
 */
status correction_open(struct correction *out, const options *o) MUST_CHECK;
/* Checks the settings as correction_open does, without the outer rule. */
status correction_check(const options *o) MUST_CHECK;
/* ERROR_USAGE: the rule requires updates of one gradient. */
status correction_check_sums(const struct correction_rule *rule) MUST_CHECK;
/* Allocates the state. `together`: the most gradients between two commits, of different workers. */
status correction_allocate(struct correction *c, unsigned workers, unsigned together,
                           size_t count) MUST_CHECK;
/* The optimizer's momentum at the start: key momentum, unless the rule changes it. */
double correction_momentum(const struct correction *c, unsigned workers, const options *o);
void correction_close(struct correction *c);

/* Starts the next gradient. All vectors and `c` are borrowed until the last block of the call. */
void correction_begin(struct correction *c, const struct correction_context *context,
                      const float *gradient, const float *now, const float *read_at,
                      struct correction_call *call);
/* Returns the corrected elements [at, at + count): in `scratch`, or in the gradient itself if the
 * rule has no block function. Call it once for each element. For each element the gradients of one
 * update must come in order. */
const float *correction_block(const struct correction *c, const struct correction_call *call,
                              size_t at, size_t count, float *scratch);
/* The gradients since the last commit are used: their state becomes valid. If an update fails, the
 * run ends, so there is no rollback. */
void correction_commit(struct correction *c);
/* Writes the valid state vectors to `out` (at most CORRECTION_SHARED + workers): shared ones first,
 * then one per worker. Returns their number. */
unsigned correction_state_vectors(const struct correction *c, float **out);
/* An update was made with this learning rate; call it after the commit. */
void correction_updated(struct correction *c, double rate);

#endif
