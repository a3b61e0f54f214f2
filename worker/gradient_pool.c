/* gradient_pool.c — see gradient_pool.h. */
#include "worker/gradient_pool.h"

#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"

#include <stdatomic.h>
#include <time.h>

struct gradient_pool {
    const options *settings;
    unsigned workers, workers_max;
    helpers *helpers;
    worker **computing;             /* [helpers + 1]: of each helper, then of the calling thread */
    worker_shard **shards;          /* [workers_max]: NULL until first used */
    struct gradient_job **busy;     /* [workers_max]: submitted and not yet idle; NULL: none */
    atomic_uint_least64_t total_ns; /* processor time: gradient_pool_computing_s() */
};

static uint64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void run_job(void *context, unsigned thread)
{
    struct gradient_job *job = context;
    gradient_pool *p = job->pool;
    worker *w = p->computing[thread];
    worker_shard **shard = &p->shards[job->worker];
    const uint64_t began = thread_ns();
    job->code = OK;
    if (*shard == NULL) {
        job->code =
            worker_shard_open(shard, gradient_pool_own(p), p->settings, job->worker, p->workers);
    }
    if (job->code == OK) {
        job->code = job->compute != NULL
                        ? job->compute(job, w, *shard)
                        : worker_gradient_as(w, *shard, job->parameters, job->batch, job->gradient,
                                             &job->stats);
    }
    if (job->code != OK)
        job->message = text_copy(error_message());
    atomic_fetch_add(&p->total_ns, thread_ns() - began);
}

status gradient_pool_open(gradient_pool **out, const options *settings, unsigned workers,
                          unsigned workers_max, unsigned threads, const volatile sig_atomic_t *stop)
{
    status result = OK;
    gradient_pool *p = NULL;
    struct worker_options own = {.settings = settings, .count = workers, .stop = stop};
    *out = NULL;
    TRY(memory_new(&p, 1, sizeof *p, "a pool of workers"));
    p->settings = settings;
    p->workers = workers;
    p->workers_max = workers_max > 0 ? workers_max : workers;
    REQUIRE(p->workers_max >= workers);
    threads = threads > 0 ? threads : processor_count();
    threads = threads > p->workers_max ? p->workers_max : threads;
    TRY(helpers_open(&p->helpers, threads - 1));
    TRY(memory_new(&p->computing, gradient_pool_threads(p), sizeof(worker *), "workers"));
    TRY(memory_new(&p->shards, p->workers_max, sizeof(worker_shard *), "shards"));
    TRY(memory_new(&p->busy, p->workers_max, sizeof(struct gradient_job *), "jobs of workers"));
    for (unsigned i = gradient_pool_threads(p); i-- > 0;) {
        TRY(worker_open(&p->computing[i], &own));
        own.dataset_of = gradient_pool_own(p);
    }
    /* If any shard is empty, the last worker's is, so opening that one detects it. */
    TRY(worker_shard_open(&p->shards[workers - 1], gradient_pool_own(p), settings, workers - 1,
                          workers));
    *out = p;
    p = NULL;
done:
    gradient_pool_close(&p);
    return result;
}

void gradient_pool_close(gradient_pool **out)
{
    gradient_pool *p = *out;
    if (p == NULL)
        return;
    const unsigned threads = p->helpers != NULL ? gradient_pool_threads(p) : 0;
    helpers_close(&p->helpers);
    for (unsigned w = 0; p->shards != NULL && w < p->workers_max; w++)
        worker_shard_close(&p->shards[w]);
    for (unsigned i = 0; p->computing != NULL && i < threads; i++) /* the dataset's owner is last */
        worker_close(&p->computing[i]);
    memory_free(p->shards);
    memory_free(p->busy);
    memory_free(p->computing);
    memory_free(p);
    *out = NULL;
}

unsigned gradient_pool_threads(const gradient_pool *p)
{
    return helpers_count(p->helpers) + 1;
}

double gradient_pool_computing_s(gradient_pool *p)
{
    return (double)atomic_load(&p->total_ns) * 1e-9;
}

worker *gradient_pool_own(gradient_pool *p)
{
    return p->computing[helpers_count(p->helpers)];
}

static struct helper_job *queued(gradient_pool *p, struct gradient_job *job)
{
    REQUIRE(job->worker < p->workers_max);
    if (job->queued.context != job) { /* set once: a helper may be reading the fields */
        job->pool = p;
        job->queued.work = run_job;
        job->queued.context = job;
    }
    return &job->queued;
}

static void forget(gradient_pool *p, struct gradient_job *job)
{
    memory_free(job->message);
    job->message = NULL;
    if (p->busy[job->worker] == job)
        p->busy[job->worker] = NULL;
}

void gradient_pool_submit(gradient_pool *p, struct gradient_job *job)
{
    struct helper_job *queue = queued(p, job);
    REQUIRE(p->busy[job->worker] == NULL); /* one thread at a time may use a shard */
    p->busy[job->worker] = job;
    helpers_submit(p->helpers, queue);
}

status gradient_pool_finish(gradient_pool *p, struct gradient_job *job)
{
    status result = OK;
    struct helper_job *queue = queued(p, job);
    REQUIRE(p->busy[job->worker] == NULL || p->busy[job->worker] == job);
    helpers_finish(p->helpers, queue);
    if (job->code != OK)
        FAIL(job->code, "worker %u: %s", job->worker, job->message);
done:
    forget(p, job);
    return result;
}

void gradient_pool_cancel(gradient_pool *p, struct gradient_job *job)
{
    helpers_cancel(p->helpers, queued(p, job));
    forget(p, job);
}
