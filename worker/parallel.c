#include "worker/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { THREADS = 64 };

struct team {
    status (*job)(void *context, size_t item);
    void *context;
    size_t count;
    atomic_size_t next;
    atomic_bool failed;
    /* Under the lock. Items are begun in order, so the lowest that fails is always among those
     * that were begun: the error does not depend on the number of threads. */
    pthread_mutex_t lock;
    size_t failed_item;
    status code;
    char message[2048];
};

static void *take_part(void *context)
{
    struct team *team = context;
    size_t item;
    while (!atomic_load(&team->failed) && (item = atomic_fetch_add(&team->next, 1)) < team->count) {
        status code = team->job(team->context, item);
        if (code == OK) {
            continue;
        }
        pthread_mutex_lock(&team->lock);
        if (team->code == OK || item < team->failed_item) {
            team->code = code;
            team->failed_item = item;
            snprintf(team->message, sizeof team->message, "%s", error_message());
        }
        pthread_mutex_unlock(&team->lock);
        atomic_store(&team->failed, true);
    }
    return NULL;
}

status parallel_for(size_t count, unsigned threads, status (*job)(void *context, size_t item),
                    void *context)
{
    status result = OK;
    struct team team = {.job = job, .context = context, .count = count};
    pthread_t handles[THREADS];
    unsigned started = 0;

    REQUIRE(pthread_mutex_init(&team.lock, NULL) == 0);
    /* A thread that cannot be had is done without. */
    while (started + 1 < threads && started + 1 < count && started < THREADS &&
           pthread_create(&handles[started], NULL, take_part, &team) == 0) {
        started++;
    }
    (void)take_part(&team);
    for (unsigned t = 0; t < started; t++) {
        REQUIRE(pthread_join(handles[t], NULL) == 0);
    }
    if (team.code != OK) {
        FAIL(team.code, "%s", team.message);
    }
done:
    pthread_mutex_destroy(&team.lock);
    return result;
}
