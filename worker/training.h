/*
 * training.h — what both trainers take from, and give back to, whoever starts them.
 */
#ifndef GRADLAG_WORKER_TRAINING_H
#define GRADLAG_WORKER_TRAINING_H

#include "worker/worker.h"

#include <signal.h>

struct training_progress {
    uint64_t updates, samples_used, total_samples;
    double seconds;        /* of training, evaluation excluded */
    double loss;           /* smoothed over recent gradients; NaN before the first */
    double test_accuracy;  /* of the last evaluation; NaN before it */
    double mean_staleness; /* over all applied gradients so far; 0 in synchronous mode */
};

/* Where training stands: what a checkpoint keeps, and where a resumed run begins. */
struct training_state {
    uint64_t updates, samples;    /* applied; used */
    double seconds;               /* of training */
    const float *parameters;      /* borrowed */
    const float *optimizer_state; /* whole flat vectors, NULL: none; borrowed */
    size_t optimizer_state_count; /* in elements */
    double loss_sum;              /* of the gradients since the last evaluation, … */
    uint64_t loss_count;          /* … and how many there were */
    /* mode=sync: */
    uint64_t skipped;      /* batches of each rank of which no update was made */
    uint64_t skipped_last; /* updates left out since the last one that was made */
    double sent_bytes;     /* as in struct training_outcome */
    const float *waiting;  /* double_buffering: the mean gradient to be applied next; NULL: none */
    uint64_t waiting_version; /* it was computed at */
    const float *ranks;       /* what each rank has of its own (sync/kept.h), rank after rank */
    size_t rank_count;        /* floats of one rank; 0: none */
    /* mode=async: */
    uint64_t computed;       /* samples of all gradients that came */
    const uint64_t *batches; /* [workers]: where each begins (ps/server_core_kept.c); NULL: anew */
    const float *const *vectors; /* what rules keep, each of the parameters' length */
    size_t vector_count;
    const double *account; /* and in numbers */
    size_t account_count;
    /* Given to the hook alone: */
    bool goes_on; /* training goes on after this checkpoint; else it is the last */
};

/* Wired in by experiments/. Every function may be NULL except evaluate. One is called at a time,
 * but the parameter server calls evaluate and checkpoint from a thread each, and where it is told
 * to stop while it evaluates it does not wait for that for long with its checkpoint. */
struct training_hooks {
    void *context;
    /* Evaluates parameters; its time is not training time. */
    status (*evaluate)(void *context, const float *parameters, struct evaluation *out);
    /* The gradient of a worker's batch at any parameters; its time is not training time. From the
     * thread that evaluates. Where it is NULL, gradients cannot be probed. */
    status (*gradient)(void *context, unsigned worker, uint64_t batch, const float *parameters,
                       float *out);
    /* About four times a second. */
    void (*progress)(void *context, const struct training_progress *p);
    /* At checkpoints and at the end. Where training goes on it reports a failure itself and returns
     * OK: the next checkpoint is another try. */
    status (*checkpoint)(void *context, const struct training_state *now);
    /* Non-zero: stop soon, keep what there is (STOPPED). Set by a signal handler. */
    const volatile sig_atomic_t *stop;
};
static inline bool training_stop_wanted(const struct training_hooks *hooks)
{
    return hooks->stop != NULL && *hooks->stop != 0;
}

/* Of gradients that went into updates. */
struct staleness_sum {
    uint64_t gradients, most;
    double sum;
};

struct training_outcome {
    uint64_t updates, samples_used, samples_computed;
    struct staleness_sum staleness; /* no gradients: it was not counted */
    double train_seconds;
    /* Of gradients, in messages between all ranks together; 0 where there are no ranks. */
    double sent_bytes;
    char parameters_sha256[65]; /* of the final parameters as little-endian float32, or "" */
};

/* How many samples training uses, from keys epochs | samples | updates (the one that was set), and
 * how many between evaluations, from evaluate_every (in epochs; 0: only at the end).
 * `update_samples`: samples per update. ERROR_USAGE where more than one of them was set. */
struct training_length {
    uint64_t total_samples, evaluate_every;
};
status training_length_of(const options *o, uint64_t epoch_samples, uint64_t update_samples,
                          struct training_length *out) MUST_CHECK;
/* Samples between checkpoints, from key checkpoint_every (in epochs), as evaluate_every; 0: none on
 * the way. */
uint64_t training_checkpoint_every(const options *o, uint64_t epoch_samples);

#endif
