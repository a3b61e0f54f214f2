/* mover.c — see mover.h. */
#include "sync/mover.h"

#include <pthread.h>

struct mover {
    mover_function *move;
    void *context;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool under_way, ends; /* under the lock */
};

static void *body(void *context)
{
    mover *m = context;
    pthread_mutex_lock(&m->lock);
    while (!m->ends) {
        if (m->under_way)
            m->under_way = m->move(m->context);
        if (!m->under_way && !m->ends)
            pthread_cond_wait(&m->wake, &m->lock);
        pthread_mutex_unlock(&m->lock);
        clock_sleep_until_ns(clock_ns() + MOVER_PERIOD_NS);
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

status mover_open(mover **out, mover_function *move, void *context)
{
    status result = OK;
    mover *m = NULL;
    *out = NULL;
    TRY(memory_new(&m, 1, sizeof *m, "the thread that moves gradients"));
    m->move = move;
    m->context = context;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->wake, NULL);
    TRY(thread_start(&m->thread, body, m, "the thread that moves gradients"));
    m->started = true;
    *out = m;
    m = NULL;
done:
    mover_close(&m);
    return result;
}

void mover_close(mover **p)
{
    mover *m = *p;
    *p = NULL;
    if (m == NULL)
        return;
    if (m->started) {
        pthread_mutex_lock(&m->lock);
        m->ends = true;
        pthread_cond_signal(&m->wake);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->thread, NULL);
    }
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    memory_free(m);
}

void mover_lock(mover *m)
{
    if (m != NULL)
        pthread_mutex_lock(&m->lock);
}

void mover_unlock(mover *m, bool under_way)
{
    if (m == NULL)
        return;
    if (under_way && !m->under_way)
        pthread_cond_signal(&m->wake);
    m->under_way = under_way;
    pthread_mutex_unlock(&m->lock);
}
