/*
 * helpers.h — helper threads: threads that compute jobs beside the thread that opened them.
 *
 * Three ways to use them:
 *   - helpers_for     one job over many items, once, such as decoding a dataset
 *   - helpers_run     one pass over large vectors, block by block, repeated
 *   - helpers_submit  single jobs whose results the caller needs later (helpers_finish)
 *
 * In all three the calling thread computes too, so a helper that wakes late delays nothing. The
 * result of a block must not depend on the thread that computes it. Then numbers do not depend on
 * the number of helpers.
 *
 * One thread calls all functions of one `helpers`. Helper threads block all signals.
 */
#ifndef GRADLAG_BASE_HELPERS_H
#define GRADLAG_BASE_HELPERS_H

#include "base/status.h"

typedef struct helpers helpers;

/* Starts `count` threads, or as many as the system allows; they sleep. */
status helpers_open(helpers **out, unsigned count) MUST_CHECK;
/* Likewise with one thread for each core except that of the caller, at most HELPERS_MOST. */
enum { HELPERS_MOST = 3 };
status helpers_open_for_cores(helpers **out) MUST_CHECK;
void helpers_close(helpers **p); /* NULL-safe; queued jobs are dropped */
unsigned helpers_count(const helpers *c);

/* ---- blocks -------------------------------------------------------------------------------- */

/* Computes block `block`. Any thread calls it, once for each block. */
typedef void helpers_work(void *context, size_t block);

/* Tells helpers_run that other threads occupy `busy` cores; it uses only the rest. Before the first
 * call helpers_run uses no helper. NULL-safe. */
void helpers_keep_off(helpers *c, unsigned busy);
/* Computes blocks 0 … blocks − 1 and returns when all are done. `c` may be NULL: the calling thread
 * then computes all blocks. */
void helpers_run(helpers *c, size_t blocks, helpers_work *work, void *context);

/* Calls job(context, i) for every i below count, on at most `threads` threads, the caller among
 * them, and returns when all calls have ended. After a failure it begins no higher item. The error
 * is that of the lowest item that failed, whatever the number of threads. */
status helpers_for(size_t count, unsigned threads, status (*job)(void *context, size_t item),
                   void *context) MUST_CHECK;

/* ---- single jobs --------------------------------------------------------------------------- */

enum helper_job_state { JOB_IDLE, JOB_QUEUED, JOB_RUNNING, JOB_DONE };

/* Owned by the caller, which zero-initialises it and must not move it until it is idle again. */
struct helper_job {
    /* `thread`: the helper that computes it, or helpers_count() for the caller. */
    void (*work)(void *context, unsigned thread);
    void *context;
    enum helper_job_state state; /* `state` and `next` belong to helpers.c */
    struct helper_job *next;
};

/* Queues an idle job; helpers compute jobs in this order. Does nothing without helpers. */
void helpers_submit(helpers *c, struct helper_job *job);
/* Returns when the job is computed: by a helper that has begun it, otherwise by the caller. While a
 * helper computes it, the caller computes queued jobs. The job is idle afterwards. */
void helpers_finish(helpers *c, struct helper_job *job);
/* Makes the job idle: takes it out of the queue, or waits for the helper that computes it. */
void helpers_cancel(helpers *c, struct helper_job *job);

#endif
