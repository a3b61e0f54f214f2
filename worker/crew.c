/* crew.c — see crew.h. Helpers join a piece of work under the lock and only while it is open; the
 * caller closes it when no block is left and waits for those that joined, who each have one block
 * to finish. */
#include "worker/crew.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SPINS = 2000 }; /* some 20 µs: as long as a block takes */

struct crew {
    unsigned cores, helpers, free; /* free: cores that nobody uses, the caller's among them */
    pthread_t threads[CREW_HELPERS];
    pthread_mutex_t lock;
    pthread_cond_t wanted, left;
    bool stop;
    unsigned places; /* helpers that may still join */
    atomic_uint joined;
    atomic_size_t next; /* block that nobody has taken */
    size_t blocks;
    crew_work *work;
    void *context;
};

static void do_blocks(crew *c)
{
    for (size_t block; (block = atomic_fetch_add(&c->next, 1)) < c->blocks;)
        c->work(c->context, block);
}

static void *help(void *argument)
{
    crew *c = argument;
    pthread_mutex_lock(&c->lock);
    while (true) {
        while (!c->stop && c->places == 0)
            pthread_cond_wait(&c->wanted, &c->lock);
        if (c->stop)
            break;
        c->places--;
        atomic_fetch_add(&c->joined, 1);
        pthread_mutex_unlock(&c->lock);
        do_blocks(c);
        pthread_mutex_lock(&c->lock);
        if (atomic_fetch_sub(&c->joined, 1) == 1)
            pthread_cond_signal(&c->left);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

status crew_open(crew **out)
{
    status result = OK;
    crew *c = NULL;
    TRY(memory_new(&c, 1, sizeof *c, "a crew"));
    c->cores = processor_count();
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wanted, NULL);
    pthread_cond_init(&c->left, NULL);
    while (c->helpers < CREW_HELPERS && c->helpers + 1 < c->cores &&
           thread_start(&c->threads[c->helpers], help, c, "a helper's thread") == OK)
        c->helpers++;
done:
    *out = c;
    return result;
}

void crew_close(crew **p)
{
    crew *c = *p;
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->wanted);
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < c->helpers; i++)
        pthread_join(c->threads[i], NULL);
    pthread_cond_destroy(&c->left);
    pthread_cond_destroy(&c->wanted);
    pthread_mutex_destroy(&c->lock);
    memory_free(c);
    *p = NULL;
}

void crew_keep_off(crew *c, unsigned busy)
{
    if (c != NULL)
        c->free = busy < c->cores ? c->cores - busy : 0;
}

static void invite(crew *c, unsigned places)
{
    pthread_mutex_lock(&c->lock);
    c->places = places;
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < places; i++)
        pthread_cond_signal(&c->wanted);
}

/* Nobody joins any more; those that did end. */
static void wait_for_all(crew *c)
{
    pthread_mutex_lock(&c->lock);
    c->places = 0;
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < SPINS; i++)
        if (atomic_load(&c->joined) == 0)
            return;
    pthread_mutex_lock(&c->lock);
    while (atomic_load(&c->joined) > 0)
        pthread_cond_wait(&c->left, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

void crew_run(crew *c, size_t blocks, crew_work *work, void *context)
{
    unsigned places = 0;
    if (c != NULL && c->free > 1 && blocks > 1)
        places = c->free - 1 < c->helpers ? c->free - 1 : c->helpers;
    if (places == 0) {
        for (size_t block = 0; block < blocks; block++)
            work(context, block);
        return;
    }
    atomic_store(&c->next, 0);
    c->blocks = blocks;
    c->work = work;
    c->context = context;
    invite(c, places);
    do_blocks(c);
    wait_for_all(c);
}
