/* carrier.c — see carrier.h. */
#include "sync/carrier.h"

#include "sync/ranks.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

/* So long it looks for more without a pause: a wake-up takes tens of microseconds. */
enum { KEEN_NS = 200000 };

struct carrier {
    communicator *c;
    struct part {
        float *data;
        size_t count;
    } * parts; /* the n-th begun is at n modulo c->parts_most */
    atomic_uint begun, complete;
    atomic_bool finishes; /* the owner waits for them, and does what nobody does yet */
    atomic_bool asleep, ends;
    sem_t wake;
    pthread_t thread;
    bool started;
    pthread_mutex_t turn; /* to call MPI; over all below */
    uint64_t hidden_ns;
    status failed;
    struct error why;
};

/* With the turn. */
static void carry_next(carrier *r)
{
    const unsigned n = atomic_load(&r->complete);
    const struct part *p = &r->parts[n % r->c->parts_most];
    status result = ranks_mean(r->c, p->data, p->count);
    if (result != OK) {
        r->failed = result;
        r->why = error_kept();
    } else {
        atomic_store(&r->complete, n + 1);
    }
}

static bool is_work(const carrier *r)
{
    return !atomic_load(&r->finishes) && atomic_load(&r->begun) != atomic_load(&r->complete);
}

static void wait_for_work(carrier *r)
{
    const uint64_t since = clock_ns();
    while (!is_work(r) && !atomic_load(&r->ends) && clock_ns() - since < KEEN_NS)
        sched_yield();
    for (;;) {
        atomic_store(&r->asleep, true); /* before the last look: who begins a part then wakes it */
        if (is_work(r) || atomic_load(&r->ends))
            break;
        sem_wait(&r->wake);
    }
    atomic_store(&r->asleep, false);
}

static void *body(void *context)
{
    carrier *r = context;
    for (;;) {
        wait_for_work(r);
        if (atomic_load(&r->ends))
            return NULL;
        pthread_mutex_lock(&r->turn);
        const uint64_t began = clock_ns();
        if (r->failed != OK)
            atomic_store(&r->ends, true);
        else if (is_work(r))
            carry_next(r);
        if (!atomic_load(&r->finishes))
            r->hidden_ns += clock_ns() - began;
        pthread_mutex_unlock(&r->turn);
    }
}

status carrier_open(carrier **out, communicator *c)
{
    status result = OK;
    carrier *r = NULL;
    *out = NULL;
    TRY(memory_new(&r, 1, sizeof *r, "the thread that exchanges gradients"));
    r->c = c;
    pthread_mutex_init(&r->turn, NULL);
    sem_init(&r->wake, 0, 0);
    TRY(memory_new(&r->parts, c->parts_most, sizeof *r->parts, "the parts of a gradient"));
    TRY(thread_start(&r->thread, body, r, "the thread that exchanges gradients"));
    r->started = true;
    *out = r;
    r = NULL;
done:
    carrier_close(&r);
    return result;
}

void carrier_close(carrier **p)
{
    carrier *r = *p;
    *p = NULL;
    if (r == NULL)
        return;
    if (r->started) {
        atomic_store(&r->ends, true);
        sem_post(&r->wake);
        pthread_join(r->thread, NULL);
    }
    sem_destroy(&r->wake);
    pthread_mutex_destroy(&r->turn);
    memory_free(r->parts);
    memory_free(r);
}

void carrier_begin(carrier *r, float *data, size_t count)
{
    const unsigned n = atomic_load(&r->begun);
    REQUIRE(n - atomic_load(&r->complete) < r->c->parts_most);
    r->parts[n % r->c->parts_most] = (struct part){data, count};
    atomic_store(&r->begun, n + 1);
    if (atomic_exchange(&r->asleep, false))
        sem_post(&r->wake);
}

/* The thread is at a part, most of which may be done, and has a processor, as its owner has. */
static void take_turn(carrier *r)
{
    const uint64_t since = clock_ns();
    while (pthread_mutex_trylock(&r->turn) != 0) {
        if (clock_ns() - since > 10 * KEEN_NS) {
            pthread_mutex_lock(&r->turn);
            return;
        }
        sched_yield();
    }
}

status carrier_finish(carrier *r, uint64_t *hidden_ns)
{
    atomic_store(&r->finishes, true);
    take_turn(r);
    while (r->failed == OK && atomic_load(&r->complete) != atomic_load(&r->begun))
        carry_next(r);
    const status result = r->failed;
    if (result != OK)
        error_put_back(&r->why);
    *hidden_ns = r->hidden_ns;
    r->hidden_ns = 0;
    atomic_store(&r->finishes, false);
    pthread_mutex_unlock(&r->turn);
    return result;
}
