/* thread.h — starting threads, handling signals, subnormal numbers, the number of processors, and
 * memory. */
#ifndef GRADLAG_BASE_THREAD_H
#define GRADLAG_BASE_THREAD_H

#include "base/status.h"

#include <pthread.h>
#include <signal.h>

/* Starts a thread with all signals blocked, so that signals reach the main thread and interrupt its
 * sleep. ERROR_OTHER naming `what` ("the heartbeat thread"). */
status thread_start(pthread_t *out, void *(*body)(void *), void *argument,
                    const char *what) MUST_CHECK;
/* Like sigaction(), but the handler runs on a separate stack. Call it in the main thread. While a
 * matrix product of oneDNN 2.6 runs, the stack pointer is in a heap buffer, and a handler on the
 * same stack would overwrite the heap. */
void signal_handle(int number, const struct sigaction *action);
/* Detaches a thread that hangs. Memory that the thread may use must not be freed afterwards; the
 * process exits without joining it (command_main()). */
void thread_abandon(pthread_t thread);
unsigned threads_abandoned(void);
/* From now on this thread, and each thread that it starts, computes with subnormal numbers as 0:
 * Intel's processors compute with them 100 times slower. Only on x86-64. */
void thread_flush_subnormals(void);

/* Online processors in the affinity mask of this process, but no more than the CPU quota of its
 * container allows; at least 1. */
unsigned processor_count(void);
/* Processors that the quotas of control group `group` ("/a/b", below folder `root`) and of its
 * parents allow, rounded up. UINT_MAX: no quota. */
unsigned processor_quota(const char *root, const char *group);
/* The least number in file `name` ("memory.max") of that group and its parents. INFINITY: none. */
double group_quota(const char *root, const char *group, const char *name);
/* Bytes of memory of this machine, but no more than its control group (version 2) allows. */
double memory_bytes(void);
/* "Intel(R) Xeon(R) …", or "unknown processor (aarch64)". */
void processor_name(char *out, size_t bytes);

/* Tells the processor that this loop waits. */
static inline void processor_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
