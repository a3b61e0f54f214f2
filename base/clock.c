#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double seconds_of(clockid_t which)
{
    struct timespec t = {0};
    (void)clock_gettime(which, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double clock_thread_cpu_seconds(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

double clock_process_cpu_seconds(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

double clock_seconds(void)
{
    return (double)clock_ns() * 1e-9;
}

void clock_sleep_until_ns(uint64_t when)
{
    struct timespec until = {.tv_sec = (time_t)(when / 1000000000u),
                             .tv_nsec = (long)(when % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
}

void clock_sleep_until_stop(uint64_t when, const volatile sig_atomic_t *stop)
{
    static const uint64_t SLICE_NS = 100000000;
    while (stop == NULL || *stop == 0) {
        const uint64_t now = clock_ns();
        if (stop == NULL || when <= now + SLICE_NS) {
            clock_sleep_until_ns(when);
            return;
        }
        clock_sleep_until_ns(now + SLICE_NS);
    }
}

void clock_utc(char out[32])
{
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t length = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out + length, 32 - length, ".%03dZ", (int)(now.tv_nsec / 1000000));
}
