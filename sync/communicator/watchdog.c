/*
 * watchdog.c — a limit on the time inside a blocking MPI call.
 *
 * All ranks have passed the gate when one enters such a call, so it lasts milliseconds unless a
 * rank stops in the middle of it. MPI offers no way out of the call then, so this thread ends the
 * process with ERROR_PEER's exit code, and the launcher ends the other ranks. While the rank is
 * inside the call, this thread writes to the gate's page that the rank waits; a stopped rank does
 * not.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "sync/communicator/ranks.h"

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

static _Atomic uint64_t armed_at; /* 0: not armed */
static _Atomic uint64_t limit_ns;
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

/* A quarter of a second: other ranks count a rank as missing whose time is a second old. */
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
    uint64_t warned = 0;
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!stopping) {
        sleep_briefly();
        uint64_t since = atomic_load(&armed_at), now = clock_ns();
        if (since == 0 || now < since)
            continue;
        if (watched != NULL)
            ranks_mark_waiting(&watched->ranks->gate);
        if (now - since > atomic_load(&limit_ns))
            end_process(now - since);
        if (now - since > 5000000000u && warned != since) {
            log_warning(
                "%s has taken %.0f s: a rank stopped in the middle of it, or the processors "
                "are busy with something else",
                atomic_load(&doing), (double)(now - since) * 1e-9);
            warned = since;
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

void watchdog_arm(double limit_s, const char *what)
{
    atomic_store_explicit(&limit_ns, (uint64_t)(limit_s * 1e9), memory_order_relaxed);
    atomic_store_explicit(&doing, what, memory_order_relaxed);
    atomic_store_explicit(&armed_at, clock_ns(), memory_order_release);
}

void watchdog_disarm(void)
{
    atomic_store_explicit(&armed_at, 0, memory_order_release);
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
