/*
 * correction.h — a change of the gradient itself, from the distance travelled since it was
 * computed, or from what came before it.
 *
 * Damping asks how old a gradient is; a correction asks how far the parameters have moved
 * meanwhile: `now` are the parameters that the gradient is about to change, `read_at` those it was
 * computed at. A correction is one function in ps/rules/correction/correction_NAME.c and one line
 * in correction.def. It works element by element, so that it can be called block by block, and
 * comes before the damping's scale.
 *
 * A rule may keep vectors from one gradient to the next: shared ones, and one for each worker. They
 * are written to a second copy, which counts only once the update was made (correction_commit): a
 * gradient that is not finite changes nothing. Memory, in vectors of the parameters' size: two for
 * each shared one, and where each worker has its own one per worker and one for each gradient that
 * may be in an update.
 */
#ifndef GRADLAG_PS_RULES_CORRECTION_CORRECTION_H
#define GRADLAG_PS_RULES_CORRECTION_CORRECTION_H

#include "base/registry.h"

enum { CORRECTION_PARAMETERS = 4, CORRECTION_SHARED = 2 };

/* One gradient, beside its vectors. */
struct correction_context {
    unsigned worker;
    uint64_t staleness, version; /* version: of `now` */
    double scale;                /* the damping's */
    double lr;                   /* of the update, without the scale */
};

struct correction_vectors { /* one block of each; in and out may be the same vector */
    const float *gradient, *now, *read_at;
    const float *shared_in[CORRECTION_SHARED], *own_in;
    float *shared_out[CORRECTION_SHARED], *own_out;
    float *out; /* overlaps nothing */
};

/* One gradient on its way through a rule. */
struct correction_call {
    const double *parameters;
    struct correction_context context;
    double decay;      /* λ: the optimizer adds λ · now to what the rule writes */
    bool moved_on;     /* the parameters have changed since the last gradient that was corrected */
    double rate, most; /* learning rate of the update that made `now`, and the largest so far */
    struct correction_vectors whole;
};

struct correction_rule {
    struct about about; /* its options, all OPTION_REAL or OPTION_INTEGER, in parameter order */
    unsigned shared;    /* state vectors that all workers share; all states start at zero */
    bool own;           /* and one for each worker */
    bool scales;        /* applies the damping's scale itself: a state holds what has been scaled */
    bool scales_decay;  /* does so where call.decay is not 0, which the scale is not for */
    bool alone;         /* has a meaning only where each gradient is an update of its own */
    bool momentum_of_its_own; /* so that it goes with optimizer=sgd alone */
    /* The momentum that the optimizer is to use; NULL: that which is set. */
    double (*momentum)(const double *parameters, unsigned workers, double momentum);
    /* The optimizer's momentum after an update: from the one that is set, that of this update, and
     * the total that was measured (total_momentum.h). NULL: it stays. Needs `alone`. */
    double (*adjust)(const double *parameters, double set, double last, double measured);
    /* Writes out and the states of one block, alike for any block boundary. NULL: the gradient
     * stays as it is. */
    void (*block)(const struct correction_call *call, size_t count,
                  const struct correction_vectors *v);
};
extern const struct registry correction_registry;

struct correction {
    const struct correction_rule *rule;
    double parameters[CORRECTION_PARAMETERS];
    double decay; /* of every call */
    bool scales;  /* the rule applies the damping's scale itself */
    size_t count;
    unsigned workers, spares;
    float *shared[CORRECTION_SHARED][2];
    unsigned current;  /* which of the two counts */
    float **own;       /* [workers + spares]: each worker's, then free ones */
    unsigned *owner;   /* [spares]: whose next state a free one holds */
    unsigned pending;  /* gradients corrected since the last commit */
    bool begun;        /* any corrected yet */
    uint64_t version;  /* that the last one met */
    double rate, most; /* learning rate of the last update; the largest so far */
};
/* Reads key correction and its dotted keys; what an outer rule does to a difference
 * (ps/rules/outer/outer.h) is done in its place. ERROR_USAGE: it does not go with the optimizer, or
 * with key outer. */
status correction_open(struct correction *out, const options *o) MUST_CHECK;
/* Whether the correction goes with the other settings, without opening it. */
status correction_check(const options *o) MUST_CHECK;
/* ERROR_USAGE: the rule has no meaning where an update is the mean of several gradients. */
status correction_check_sums(const struct correction_rule *rule) MUST_CHECK;
/* Sets its states aside. At most `together` gradients, of different workers, come between two
 * commits. */
status correction_remember(struct correction *c, unsigned workers, unsigned together,
                           size_t count) MUST_CHECK;
/* The momentum that the optimizer is to use: key momentum, unless the rule says otherwise. */
double correction_momentum(const struct correction *c, unsigned workers, const options *o);
void correction_close(struct correction *c);

/* The next gradient; `c` must outlive the call. */
void correction_begin(struct correction *c, const struct correction_context *context,
                      const float *gradient, const float *now, const float *read_at,
                      struct correction_call *call);
/* The gradient to use for elements [at, at + count): the gradient's own, or scratch[0..count)
 * filled by the rule. Each element once; gradients of one update in order for each. */
const float *correction_block(const struct correction *c, const struct correction_call *call,
                              size_t at, size_t count, float *scratch);
/* The gradients since the last of these calls have changed the parameters. If they have not, as
 * they were not finite, nothing is corrected any more. */
void correction_commit(struct correction *c);
/* The state vectors that count, as of the last commit: shared ones, then each worker's. Fills `out`
 * (CORRECTION_SHARED + workers at most) and returns how many there are. */
unsigned correction_kept(const struct correction *c, float **out);
/* An update was made, of gradients that have been committed, with this learning rate. */
void correction_updated(struct correction *c, double rate);

#endif
