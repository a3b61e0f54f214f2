#include "base/thread.h"

#include "base/text.h"

#include <limits.h>
#include <math.h>
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
        FAIL(ERROR_OTHER,
             "cannot start %s: %s; a likely cause is the limit of processes and threads (ulimit "
             "-u): raise it, or use fewer workers or threads",
             what, strerror(code));
    }
done:
    return result;
}

enum { SIGNAL_STACK_BYTES = 65536 }; /* a signal frame holds up to 11 KiB of registers (AMX) */

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

void thread_flush_subnormals(void)
{
#if defined(__x86_64__)
    const unsigned results_are_0 = 1 << 15, operands_are_0 = 1 << 6; /* FTZ and DAZ of MXCSR */
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | results_are_0 | operands_are_0);
#endif
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

/* Reads a quota and, if it has one, its period. A file that is missing or says "max" has no quota.
 */
static double quota_in(const char *quota_file, const char *period_file)
{
    double quota = 0, period = 1;
    FILE *f = fopen(quota_file, "re"), *g = period_file != NULL ? fopen(period_file, "re") : NULL;
    const bool readable = f != NULL && (period_file == NULL || g != NULL);
    const bool known = readable && fscanf(f, "%lf", &quota) == 1 && quota > 0; /* -1: none */
    if (known && (fscanf(g != NULL ? g : f, "%lf", &period) != 1 || period <= 0))
        period = 1; /* a limit in bytes has no period */
    if (f != NULL)
        fclose(f);
    if (g != NULL)
        fclose(g);
    return known ? quota / period : INFINITY;
}

double group_quota(const char *root, const char *group, const char *name)
{
    struct text path = {0};
    double least = INFINITY;
    for (size_t length = strlen(group);; length--) {
        if (length > 0 && group[length] != '\0' && group[length] != '/')
            continue;
        path.length = 0;
        text_add(&path, "%s%.*s/%s", root, (int)length, group, name);
        least = fmin(least, quota_in(path.at, NULL));
        if (length == 0)
            break;
    }
    text_free(&path);
    return least;
}

unsigned processor_quota(const char *root, const char *group)
{
    struct text quota = {0}, period = {0};
    text_add(&quota, "%s/cpu/cpu.cfs_quota_us", root); /* control groups, version 1 */
    text_add(&period, "%s/cpu/cpu.cfs_period_us", root);
    const double least = fmin(quota_in(quota.at, period.at), group_quota(root, group, "cpu.max"));
    text_free(&quota);
    text_free(&period);
    return (unsigned)fmin(ceil(least), UINT_MAX);
}

/* The control group (version 2) of this process; "": unknown. */
static const char *own_group(char line[static 4096])
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    bool found = false;
    while (f != NULL && !found && fgets(line, 4096, f) != NULL)
        found = strncmp(line, "0::/", 4) == 0;
    if (f != NULL)
        fclose(f);
    line[found ? strcspn(line, "\n") : 0] = '\0';
    return found ? line + 3 : "";
}

double memory_bytes(void)
{
    char line[4096];
    return fmin((double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE),
                group_quota("/sys/fs/cgroup", own_group(line), "memory.max"));
}

unsigned processor_count(void)
{
    static atomic_uint quota; /* 0: not read yet */
    char line[4096];
    if (atomic_load(&quota) == 0)
        atomic_store(&quota, processor_quota("/sys/fs/cgroup", own_group(line)));
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned count = allowed_processors();
    if (count == 0)
        count = online > 0 ? (unsigned)online : 1;
    return count < atomic_load(&quota) ? count : atomic_load(&quota);
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
