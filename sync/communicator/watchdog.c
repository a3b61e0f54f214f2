/*
 * watchdog.c — a limit on the time inside a blocking MPI call.
 *
 * All ranks have passed the gate when one enters such a call, so it lasts milliseconds unless a
 * rank stops in the middle of it. MPI offers no way out of the call then, so this thread ends the
 * process with ERROR_PEER's exit code, and the launcher ends the other ranks. While the rank is
 * inside the call, this thread writes to the gate's page that the rank waits. If the rank's process
 * is stopped, this thread is stopped too and writes nothing.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "sync/communicator/ranks.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static unsigned users;
static bool stopping;
static const communicator *watched;
static void (*exit_hook)(void *context, const char *why);
static void *exit_context;

/* Arming reads no clock: the shortest exchanges last a quarter of a microsecond. The thread takes
 * the time when it first sees a call, at most a quarter of a second late. */
static _Atomic unsigned call; /* the number of the call that is watched; 0: none */
static _Atomic double limit_s;
static _Atomic(const char *) doing;

static void end_process(uint64_t waited_ns)
{
    struct text why = {0};
    if (watched != NULL)
        ranks_add_timeout(watched, &watched->ranks->gate, waited_ns, atomic_load(&doing), true,
                          &why);
    else
        text_add(&why, "%s did not end within %.1f s: a rank stopped in the middle of it",
                 atomic_load(&doing), (double)waited_ns * 1e-9);
    log_error("%s", why.at);
    if (exit_hook != NULL)
        exit_hook(exit_context, why.at);
    _exit(ERROR_PEER);
}

/* A quarter of a second: other ranks count a rank as missing if its time is a second old. */
static void sleep_briefly(void)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 250000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_clockwait(&wake, &lock, CLOCK_MONOTONIC, &until);
}

static void *watch(void *unused)
{
    uint64_t since = 0;
    unsigned seen = 0;
    bool warned = false;
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!stopping) {
        sleep_briefly();
        const unsigned number = atomic_load(&call);
        const uint64_t now = clock_ns();
        if (number != seen) {
            seen = number;
            since = now;
            warned = false;
        }
        if (number == 0)
            continue;
        if (watched != NULL)
            ranks_mark_waiting(&watched->ranks->gate);
        const double waited_s = (double)(now - since) * 1e-9;
        if (waited_s > atomic_load(&limit_s))
            end_process(now - since);
        if (waited_s > 5 && !warned) {
            log_warning(
                "%s has taken %.0f s: a rank stopped in the middle of it, or the processors "
                "are busy with something else",
                atomic_load(&doing), waited_s);
            warned = true;
        }
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

status watchdog_open(void)
{
    status result = OK;
    pthread_mutex_lock(&lock);
    if (users == 0) {
        stopping = false;
        TRY(thread_start(&thread, watch, NULL, "the watchdog's thread"));
    }
    users++;
done:
    pthread_mutex_unlock(&lock);
    return result;
}

void watchdog_close(void)
{
    pthread_mutex_lock(&lock);
    bool last = --users == 0;
    if (last) {
        stopping = true;
        pthread_cond_signal(&wake);
    }
    pthread_mutex_unlock(&lock);
    if (last)
        pthread_join(thread, NULL);
}

/* One thread at a time calls these two: the owner of the communicator, or its helper thread. */
void watchdog_arm(double seconds, const char *what)
{
    static unsigned calls;
    calls += calls == UINT_MAX ? 2 : 1;
    atomic_store_explicit(&limit_s, seconds, memory_order_relaxed);
    atomic_store_explicit(&doing, what, memory_order_relaxed);
    atomic_store_explicit(&call, calls, memory_order_release);
}

void watchdog_disarm(void)
{
    atomic_store_explicit(&call, 0, memory_order_release);
}

void watchdog_watch(const communicator *c)
{
    pthread_mutex_lock(&lock);
    watched = c;
    pthread_mutex_unlock(&lock);
}

void sync_set_exit_hook(void (*hook)(void *context, const char *why), void *context)
{
    pthread_mutex_lock(&lock);
    exit_hook = hook;
    exit_context = context;
    pthread_mutex_unlock(&lock);
}
