/* clock.h — wall clock, processor time, and sleeping. */
#ifndef GRADLAG_BASE_CLOCK_H
#define GRADLAG_BASE_CLOCK_H

#include "base/status.h"

#include <signal.h>
#include <stdint.h>

uint64_t clock_ns(void);                  /* monotonic, nanoseconds; comparable on one host */
double clock_seconds(void);               /* the same in seconds */
double clock_thread_cpu_seconds(void);    /* processor time of this thread */
double clock_process_cpu_seconds(void);   /* processor time of all threads of this process */
void clock_sleep_until_ns(uint64_t when); /* sleeps to an absolute clock_ns() time */
/* The same, but returns at the latest 0.1 s after *stop has become non-zero. NULL: never earlier.
 */
void clock_sleep_until_stop(uint64_t when, const volatile sig_atomic_t *stop);
/* UTC now as "2026-11-21T10:15:00.123Z" */
void clock_utc(char out[32]);

#endif
