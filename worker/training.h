/*
 * training.h — the interface between both trainers and their caller: hooks, state, outcome, length.
 */
#ifndef GRADLAG_WORKER_TRAINING_H
#define GRADLAG_WORKER_TRAINING_H

#include "worker/worker.h"

#include <signal.h>

struct training_progress {
    uint64_t updates, samples_used, total_samples;
    double seconds;        /* training time, without evaluation */
    double loss;           /* smoothed over recent gradients; NaN before the first */
    double test_accuracy;  /* of the last evaluation; NaN before the first */
    double mean_staleness; /* over all applied gradients; 0 in synchronous mode */
};

/* Position of training: saved in a checkpoint, and the start of a resumed run. */
struct training_state {
    uint64_t updates, samples;    /* updates applied; samples used */
    double seconds;               /* training time */
    const float *parameters;      /* borrowed */
    const float *optimizer_state; /* `optimizer_state_count` elements; NULL: none; borrowed */
    size_t optimizer_state_count; /* in elements */
    const float *const *vectors;  /* state of rules, each vector with parameter count elements */
    size_t vector_count;
    double loss_sum;     /* sum of losses since the last evaluation */
    uint64_t loss_count; /* number of gradients in loss_sum */
    double sent_bytes;   /* as in struct training_outcome */
    /* Only mode=sync: */
    uint64_t skipped;      /* batches of each rank that led to no update */
    uint64_t skipped_last; /* skipped updates since the last applied one */
    size_t waiting;        /* mean gradients that wait (key delay): the first of `vectors` */
    const float *ranks;    /* state of each rank (sync/rank_state.h), rank after rank */
    size_t rank_count;     /* floats of one rank; 0: none */
    /* Only mode=async: */
    uint64_t computed; /* samples of all gradients that reached the server */
    const uint64_t
        *batches; /* [workers]: first batch of each (ps/core/server_core_checkpoint.c); NULL: 0 */
    const double *account; /* scalar state of rules */
    size_t account_count;
    /* Only for the checkpoint hook: */
    bool goes_on; /* true: training continues after this checkpoint; false: final checkpoint */
};

/* Callbacks that experiments/ provides. Every function may be NULL except evaluate. Calls do not
 * overlap, with one exception: the parameter server calls evaluate from one thread and checkpoint
 * from another. If the server is asked to stop during an evaluation, it waits only briefly before
 * it writes its checkpoint. */
struct training_hooks {
    void *context;
    /* Evaluates parameters, on at most `threads` threads (0: the hook decides). If training pauses
     * meanwhile, this time does not count as training time. */
    status (*evaluate)(void *context, const float *parameters, unsigned threads,
                       struct evaluation *out);
    /* Computes the gradient of a worker's batch at any parameters. This time does not count as
     * training time. Called from the evaluation thread. NULL: gradients cannot be probed. */
    status (*gradient)(void *context, unsigned worker, uint64_t batch, const float *parameters,
                       float *out);
    /* Called about four times a second. */
    void (*progress)(void *context, const struct training_progress *p);
    /* Writes a checkpoint. If training continues, the hook reports a failure itself and returns OK;
     * the next checkpoint is the next attempt. */
    status (*checkpoint)(void *context, const struct training_state *now);
    /* True if the process of `worker` has ended, so that it will not join. NULL: not known. */
    bool (*worker_ended)(void *context, unsigned worker);
    /* `worker` is lost, and training goes on without it. NULL: the loss is not reported. */
    void (*lost)(void *context, unsigned worker);
    /* Non-zero: stop soon and keep the results so far (STOPPED). A signal handler sets it. */
    const volatile sig_atomic_t *stop;
};
static inline bool training_stop_wanted(const struct training_hooks *hooks)
{
    return hooks->stop != NULL && *hooks->stop != 0;
}

/* Staleness of the gradients that went into updates. */
struct staleness_sum {
    uint64_t gradients, most;
    double sum;
};

struct training_outcome {
    uint64_t updates, samples_used, samples_computed;
    struct staleness_sum staleness; /* gradients 0: staleness was not counted */
    double train_seconds;
    /* Synchronous mode: bytes of gradients in messages between all ranks. Asynchronous mode: bytes
     * of parameters and of gradients (or their codes) in frames. */
    double sent_bytes;
    char parameters_sha256[65]; /* of the final parameters as little-endian float32; "": unknown */
};

/* Length of the training, from the one key of epochs | samples | updates | seconds that is set, and
 * samples between evaluations, from evaluate_every (in epochs; 0: evaluate only at the end).
 * `update_samples`: mean samples per update. ERROR_USAGE: more than one of the four keys is set, or
 * the length is 0 samples, or 2^62 or more. */
struct training_length {
    uint64_t total_samples, evaluate_every;
    double seconds; /* key seconds; total_samples is then TRAINING_ENDLESS. 0: length in samples */
};
#define TRAINING_ENDLESS (UINT64_C(1) << 62)

/* True: training time is over. A gradient that arrives at or after the end is not used. */
static inline bool training_time_is_over(const struct training_length *l, double seconds)
{
    return l->seconds > 0 && seconds >= l->seconds;
}
/* `seconds`, but at most the end of training: the time of the last state. */
static inline double training_time_within(const struct training_length *l, double seconds)
{
    return training_time_is_over(l, seconds) ? l->seconds : seconds;
}
/* Expected samples of the whole training, for the progress display; 0: unknown. */
static inline uint64_t training_expected_samples(const struct training_length *l, uint64_t samples,
                                                 double seconds)
{
    if (l->seconds == 0)
        return l->total_samples;
    return seconds > 0 ? (uint64_t)((double)samples * l->seconds / seconds) : 0;
}
status training_length_of(const options *o, uint64_t epoch_samples, double update_samples,
                          struct training_length *out) MUST_CHECK;
/* Samples between checkpoints, from key checkpoint_every (in epochs); 0: no periodic checkpoints.
 */
uint64_t training_checkpoint_every(const options *o, uint64_t epoch_samples);

#endif
