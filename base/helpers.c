/* helpers.c — see helpers.h. One queue of jobs under one lock. helpers_run() queues one job for
 * each helper it invites; each takes blocks until none is left. The caller withdraws the
 * invitations that no helper has accepted, then waits for the helpers that are still in their last
 * block. */
#include "base/helpers.h"

#include "base/memory.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum {
    SPINS = 2000, /* about 20 µs, the duration of a block */
    FOR_MOST = 64 /* most threads of helpers_for */
};

struct helper {
    helpers *of;
    pthread_t thread;
    struct helper_job invitation; /* the job that helpers_run queues */
};

struct helpers {
    unsigned cores, free; /* free: cores that no other thread uses, including the caller's */
    unsigned count;
    struct helper *helper; /* [count] */
    pthread_mutex_t lock;
    pthread_cond_t queued, done;
    struct helper_job *first, *last; /* the queue; the lock protects it and the states of jobs */
    atomic_uint running;
    bool stop;
};

/* ---- the queue: under the lock ------------------------------------------------------------------
 */

static void enqueue(helpers *c, struct helper_job *job)
{
    REQUIRE(job->state == JOB_IDLE);
    job->state = JOB_QUEUED;
    job->next = NULL;
    if (c->last != NULL)
        c->last->next = job;
    else
        c->first = job;
    c->last = job;
}

static struct helper_job *take_first(helpers *c)
{
    struct helper_job *job = c->first;
    c->first = job->next;
    c->last = c->first == NULL ? NULL : c->last;
    job->state = JOB_RUNNING;
    atomic_fetch_add(&c->running, 1);
    return job;
}

static void withdraw(helpers *c, struct helper_job *job)
{
    struct helper_job *before = NULL;
    if (job->state != JOB_QUEUED)
        return;
    for (struct helper_job *j = c->first; j != job; j = j->next)
        before = j;
    if (before == NULL)
        c->first = job->next;
    else
        before->next = job->next;
    c->last = c->last == job ? before : c->last;
    job->state = JOB_IDLE;
}

/* Computes the first job of the queue, without the lock. */
static void compute_first(helpers *c, unsigned thread)
{
    struct helper_job *job = take_first(c);
    pthread_mutex_unlock(&c->lock);
    job->work(job->context, thread);
    pthread_mutex_lock(&c->lock);
    job->state = JOB_DONE;
    atomic_fetch_sub(&c->running, 1);
}

/* ---- threads ------------------------------------------------------------------------------- */

static void *help(void *argument)
{
    struct helper *h = argument;
    helpers *c = h->of;
    const unsigned thread = (unsigned)(h - c->helper);
    pthread_mutex_lock(&c->lock);
    while (true) {
        while (!c->stop && c->first == NULL)
            pthread_cond_wait(&c->queued, &c->lock);
        if (c->stop)
            break;
        compute_first(c, thread);
        pthread_cond_signal(&c->done);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

status helpers_open(helpers **out, unsigned count)
{
    status result = OK;
    helpers *c = NULL;
    *out = NULL;
    TRY(memory_new(&c, 1, sizeof *c, "helper threads"));
    c->cores = processor_count();
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->queued, NULL);
    pthread_cond_init(&c->done, NULL);
    TRY(memory_new(&c->helper, count + 1, sizeof *c->helper, "helper threads"));
    for (unsigned i = 0; i < count; i++) {
        c->helper[i].of = c;
        if (thread_start(&c->helper[i].thread, help, &c->helper[i], "a helper thread") != OK)
            break;
        c->count++;
    }
    *out = c;
    c = NULL;
done:
    helpers_close(&c);
    return result;
}

status helpers_open_for_cores(helpers **out)
{
    const unsigned others = processor_count() - 1;
    return helpers_open(out, others < HELPERS_MOST ? others : HELPERS_MOST);
}

void helpers_close(helpers **p)
{
    helpers *c = *p;
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->queued);
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < c->count; i++)
        pthread_join(c->helper[i].thread, NULL);
    pthread_cond_destroy(&c->done);
    pthread_cond_destroy(&c->queued);
    pthread_mutex_destroy(&c->lock);
    memory_free(c->helper);
    memory_free(c);
    *p = NULL;
}

unsigned helpers_count(const helpers *c)
{
    return c->count;
}

/* ---- single jobs --------------------------------------------------------------------------- */

void helpers_submit(helpers *c, struct helper_job *job)
{
    if (c->count == 0)
        return;
    pthread_mutex_lock(&c->lock);
    enqueue(c, job);
    pthread_cond_signal(&c->queued);
    pthread_mutex_unlock(&c->lock);
}

/* True: a helper has computed the job. False: the caller must compute it. */
static bool await(helpers *c, struct helper_job *job, bool compute_meanwhile)
{
    pthread_mutex_lock(&c->lock);
    withdraw(c, job);
    while (job->state == JOB_RUNNING)
        if (compute_meanwhile && c->first != NULL)
            compute_first(c, c->count);
        else
            pthread_cond_wait(&c->done, &c->lock);
    const bool done = job->state == JOB_DONE;
    job->state = JOB_IDLE;
    pthread_mutex_unlock(&c->lock);
    return done;
}

void helpers_finish(helpers *c, struct helper_job *job)
{
    if (!await(c, job, true))
        job->work(job->context, c->count);
}

void helpers_cancel(helpers *c, struct helper_job *job)
{
    (void)await(c, job, false);
}

/* ---- blocks -------------------------------------------------------------------------------- */

struct pass {
    atomic_size_t next; /* first block that no thread has taken */
    size_t blocks;
    helpers_work *work;
    void *context;
};

static void do_blocks(void *context, unsigned thread UNUSED)
{
    struct pass *p = context;
    for (size_t block; (block = atomic_fetch_add(&p->next, 1)) < p->blocks;)
        p->work(p->context, block);
}

static void invite(helpers *c, unsigned places, struct pass *pass)
{
    pthread_mutex_lock(&c->lock);
    for (unsigned i = 0; i < places; i++) {
        c->helper[i].invitation.work = do_blocks;
        c->helper[i].invitation.context = pass;
        enqueue(c, &c->helper[i].invitation);
    }
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < places; i++)
        pthread_cond_signal(&c->queued);
}

static void wait_for_all(helpers *c, unsigned places)
{
    pthread_mutex_lock(&c->lock);
    for (unsigned i = 0; i < places; i++)
        withdraw(c, &c->helper[i].invitation);
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < SPINS && atomic_load(&c->running) > 0; i++)
        continue;
    for (unsigned i = 0; i < places; i++)
        helpers_cancel(c, &c->helper[i].invitation);
}

static void run_on(helpers *c, unsigned places, size_t blocks, helpers_work *work, void *context)
{
    struct pass pass = {.blocks = blocks, .work = work, .context = context};
    if (places > 0)
        invite(c, places, &pass);
    do_blocks(&pass, 0);
    if (places > 0)
        wait_for_all(c, places);
}

void helpers_keep_off(helpers *c, unsigned busy)
{
    if (c != NULL)
        c->free = busy < c->cores ? c->cores - busy : 0;
}

void helpers_run(helpers *c, size_t blocks, helpers_work *work, void *context)
{
    unsigned places = 0;
    if (c != NULL && c->free > 1 && blocks > 1)
        places = c->free - 1 < c->count ? c->free - 1 : c->count;
    run_on(c, places, blocks, work, context);
}

/* ---- items that may fail ------------------------------------------------------------------- */

struct items {
    status (*job)(void *context, size_t item);
    void *context;
    atomic_size_t failed; /* the lowest item that failed; SIZE_MAX: none */
    /* The error of that item; the lock protects it. */
    pthread_mutex_t lock;
    status code;
    char message[2048];
};

/* An item is skipped only if a lower one has failed, so the lowest failing item always runs. */
static void do_item(void *context, size_t item)
{
    struct items *all = context;
    status code = item < all->failed ? all->job(all->context, item) : OK;
    if (code == OK)
        return;
    pthread_mutex_lock(&all->lock);
    if (item < all->failed) {
        all->failed = item;
        all->code = code;
        snprintf(all->message, sizeof all->message, "%s", error_message());
    }
    pthread_mutex_unlock(&all->lock);
}

status helpers_for(size_t count, unsigned threads, status (*job)(void *context, size_t item),
                   void *context)
{
    status result = OK;
    helpers *c = NULL;
    struct items all = {.job = job, .context = context, .failed = SIZE_MAX};
    pthread_mutex_init(&all.lock, NULL);
    threads = threads < FOR_MOST ? threads : FOR_MOST;
    threads = threads < count ? threads : (unsigned)count;
    TRY(helpers_open(&c, threads > 1 ? threads - 1 : 0));
    run_on(c, c->count, count, do_item, &all);
    if (all.code != OK)
        FAIL(all.code, "%s", all.message);
done:
    helpers_close(&c);
    pthread_mutex_destroy(&all.lock);
    return result;
}
