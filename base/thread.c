#include "base/thread.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

status thread_start(pthread_t *out, void *(*body)(void *), void *argument, const char *what)
{
    status result = OK;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(out, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        FAIL(ERROR_OTHER, "cannot start %s: %s; too many threads (ulimit -u)?", what,
             strerror(code));
    }
done:
    return result;
}

enum { SIGNAL_STACK_BYTES = 65536 }; /* a frame has up to 11 KiB of registers (AMX) */

void signal_handle(int number, const struct sigaction *action)
{
    static char memory[SIGNAL_STACK_BYTES] __attribute__((aligned(64)));
    const stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    struct sigaction apart = *action;
    stack_t now;
    if (sigaltstack(NULL, &now) == 0 && (now.ss_flags & SS_ONSTACK) == 0)
        REQUIRE(sigaltstack(&stack, NULL) == 0);
    apart.sa_flags |= SA_ONSTACK;
    sigaction(number, &apart, NULL);
}

static atomic_uint abandoned;

void thread_abandon(pthread_t thread)
{
    pthread_detach(thread);
    atomic_fetch_add(&abandoned, 1);
}

unsigned threads_abandoned(void)
{
    return atomic_load(&abandoned);
}

/* Processors that this thread may use; 0: unknown. */
static unsigned allowed_processors(void)
{
    for (int room = CPU_SETSIZE; room <= 1 << 16; room *= 2) { /* the kernel's mask may be longer */
        cpu_set_t *set = CPU_ALLOC(room);
        const size_t bytes = CPU_ALLOC_SIZE(room);
        if (set == NULL)
            return 0;
        const bool known = sched_getaffinity(0, bytes, set) == 0;
        const int count = known ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (known)
            return (unsigned)count;
    }
    return 0;
}

unsigned processor_count(void)
{
    const unsigned allowed = allowed_processors();
    if (allowed > 0)
        return allowed;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (unsigned)online : 1;
}

void processor_name(char *out, size_t bytes)
{
    struct utsname system;
    snprintf(out, bytes, "unknown processor");
    if (uname(&system) == 0) /* ARM's cpuinfo has no model name */
        snprintf(out, bytes, "unknown processor (%s)", system.machine);
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *colon = strstr(line, ": ");
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(out, bytes, "%s", colon + 2);
            break;
        }
    }
    if (f != NULL)
        fclose(f);
}
