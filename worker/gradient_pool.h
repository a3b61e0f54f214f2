/*
 * gradient_pool.h — gradients of many workers, computed in one process on the available cores: for
 * simulations, where a worker is not a process.
 *
 * `threads` worker objects, one of them the calling thread's, compute for any of `workers` workers.
 * They share one dataset, except external models, whose data are in their programs. A gradient is a
 * pure function of its job, so its bits do not depend on the thread that computes it, nor on the
 * time.
 *
 * One thread calls all functions. Jobs are the caller's memory and stay in place until done.
 */
#ifndef GRADLAG_WORKER_GRADIENT_POOL_H
#define GRADLAG_WORKER_GRADIENT_POOL_H

#include "base/helpers.h"
#include "worker/worker.h"

typedef struct gradient_pool gradient_pool;

struct gradient_job { /* zero-initialise; one per worker at most at a time */
    unsigned worker;
    uint64_t batch;
    const float *parameters; /* stay as they are until the job is done */
    float *gradient;
    /* Computes a job of more than one gradient with the given worker object and shard, and fills in
     * gradient and stats. NULL: worker_gradient_as(). */
    status (*compute)(struct gradient_job *job, worker *w, worker_shard *shard);
    struct step_stats stats; /* filled in once computed */
    /* of gradient_pool.c */
    gradient_pool *pool;
    struct helper_job queued;
    status code;
    char *message; /* owned; of an error that was not returned yet */
};

/* `workers`: number of shards. Worker numbers are 0 … workers_max − 1; workers_max 0: as `workers`.
 * `threads` 0: one for each core. Reads the keys of worker_open(). Shards open at first use.
 * ERROR_USAGE: there are fewer samples than workers. `stop`: as in struct worker_options. */
status gradient_pool_open(gradient_pool **out, const options *settings, unsigned workers,
                          unsigned workers_max, unsigned threads,
                          const volatile sig_atomic_t *stop) MUST_CHECK;
void gradient_pool_close(gradient_pool **p); /* NULL-safe; queued jobs are dropped */

unsigned gradient_pool_threads(const gradient_pool *p);
/* The calling thread's worker: for parameters and evaluations. */
worker *gradient_pool_own(gradient_pool *p);

/* Processor time that the pool's threads spent on gradients so far, in seconds. Not included: the
 * backend's other threads (key threads > 1), and the program of an external model. */
double gradient_pool_computing_s(gradient_pool *p);

/* As helpers_submit(), helpers_finish() and helpers_cancel(). The job must be idle at submission. A
 * finished job has its stats; its error is returned and names the worker. */
void gradient_pool_submit(gradient_pool *p, struct gradient_job *job);
status gradient_pool_finish(gradient_pool *p, struct gradient_job *job) MUST_CHECK;
void gradient_pool_cancel(gradient_pool *p, struct gradient_job *job);

#endif
