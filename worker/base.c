#include "worker/base.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <malloc.h>
#include <sys/mman.h>

/* ---- errors -------------------------------------------------------------------------------------
 */

static _Thread_local struct error current;

status error_set(status code, const char *file, int line, const char *format, ...)
{
    /* The arguments may point into the old message: build beside it. */
    char fresh[sizeof current.message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fresh, sizeof fresh, format, arguments);
    va_end(arguments);
    memcpy(current.message, fresh, sizeof fresh);
    snprintf(current.origin, sizeof current.origin, "%s:%d", file, line);
    return code;
}

status error_add_context(status code, const char *format, ...)
{
    char context[sizeof current.message];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(context, sizeof context, format, arguments);
    va_end(arguments);
    if (length >= 0 && (size_t)length < sizeof context) {
        snprintf(context + length, sizeof context - (size_t)length, ": %s", current.message);
    }
    memcpy(current.message, context, sizeof context);
    return code;
}

const char *error_message(void)
{
    return current.message;
}

const char *error_origin(void)
{
    return current.origin;
}

struct error error_kept(void)
{
    return current;
}

void error_put_back(const struct error *kept)
{
    current = *kept;
}

const char *status_name(status code)
{
    switch (code) {
    case OK:
        return "ok";
    case ERROR_OTHER:
        return "error";
    case ERROR_USAGE:
        return "usage";
    case ERROR_DATA:
        return "data";
    case ERROR_PEER:
        return "peer lost";
    case ERROR_PROTOCOL:
        return "protocol";
    case ERROR_DIVERGED:
        return "diverged";
    case ERROR_RESULTS:
        return "results file";
    case STOPPED:
        return "stopped";
    }
    return "unknown";
}

void contract_broken(const char *text, const char *file, int line, const char *function)
{
    log_write(LOG_ERROR,
              "%s:%d: %s: broken contract: %s. This is a bug in gradlag; please report it with the "
              "command line that led here",
              file, line, function, text);
    abort();
}

/* ---- log ----------------------------------------------------------------------------------------
 */

static int log_level = -1; /* not yet read from the environment */
static char log_name[64];

void log_set_level(enum log_level level)
{
    log_level = (int)level;
}

void log_set_name(const char *name)
{
    snprintf(log_name, sizeof log_name, "%s", name);
}

/* -1: GRADLAG_LOG names none. Empty is as unset. */
static int log_level_from_environment(void)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    const char *wanted = getenv("GRADLAG_LOG");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (wanted != NULL && strcmp(wanted, names[i]) == 0) {
            return (int)i;
        }
    }
    return wanted == NULL || wanted[0] == '\0' ? LOG_INFO : -1;
}

status log_check_environment(void)
{
    status result = OK;
    if (log_level_from_environment() < 0) {
        FAIL(ERROR_USAGE,
             "GRADLAG_LOG=%s: there is no such level; set it to error, warning, info or debug, or "
             "unset it",
             getenv("GRADLAG_LOG"));
    }
done:
    return result;
}

void log_write(enum log_level level, const char *format, ...)
{
    static const char *const prefix[] = {"error: ", "warning: ", "", "debug: "};
    if (log_level < 0) {
        log_level = log_level_from_environment();
        log_level = log_level < 0 ? LOG_INFO : log_level;
    }
    if ((int)level > log_level) {
        return;
    }
    char line[2400];
    int length = snprintf(line, sizeof line, "gradlag%s%s: %s", log_name[0] ? " " : "", log_name,
                          prefix[level]);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length, format, arguments);
    va_end(arguments);
    size_t end = length < 0 ? 0 : (size_t)length;
    if (end > sizeof line - 2) {
        end = sizeof line - 2;
    }
    /* Names from files and peers must not steer the reader's terminal. */
    for (size_t i = 0; i < end; i++) {
        if (((unsigned char)line[i] < 0x20 && line[i] != '\n' && line[i] != '\t') ||
            line[i] == 0x7f) {
            line[i] = '?';
        }
    }
    line[end++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, end);
    (void)written; /* there is nowhere left to complain */
}

/* ---- clock --------------------------------------------------------------------------------------
 */

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

void clock_utc(char out[32])
{
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t length = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out + length, 32 - length, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

/* ---- threads ------------------------------------------------------------------------------------
 */

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

/* ---- memory -------------------------------------------------------------------------------------
 */

void *memory_allocate(size_t bytes)
{
    enum { LINE = 64, HUGE_PAGE = 2 << 20 };
    if (bytes == 0 || bytes > SIZE_MAX - HUGE_PAGE) {
        return NULL;
    }
    /* Large ones in huge pages: what streams through them is more than the processor can keep 4 KiB
     * translations of. */
    const size_t unit = bytes < HUGE_PAGE / 4 ? LINE : HUGE_PAGE;
    const size_t rounded = (bytes + unit - 1) / unit * unit;
    void *p = aligned_alloc(unit, rounded);
    if (p != NULL) {
        if (unit == HUGE_PAGE) {
            (void)madvise(p, rounded, MADV_HUGEPAGE); /* it is only faster */
        }
        memset(p, 0, rounded);
    }
    return p;
}

void memory_free(void *p)
{
    free(p);
}

status memory_new(void *out, size_t count, size_t size, const char *what)
{
    size_t bytes;
    void *p = NULL;
    if (!__builtin_mul_overflow(count, size, &bytes)) {
        p = memory_allocate(bytes == 0 ? 1 : bytes);
    }
    memcpy(out, &p, sizeof p);
    if (p == NULL) {
        return error_set(ERROR_OTHER, __FILE__, __LINE__,
                         "out of memory: %zu × %zu bytes for %s; use a smaller model, batch or "
                         "number of workers",
                         count, size, what);
    }
    return OK;
}

void *memory_append(void *list, size_t *count, size_t size)
{
    char *at;
    memcpy(&at, list, sizeof at);
    if ((*count & (*count - 1)) == 0) { /* none, or as many as there is room for */
        char *grown = realloc(at, (*count == 0 ? 1 : 2 * *count) * size);
        REQUIRE(grown != NULL);
        memcpy(list, &grown, sizeof grown);
        at = grown;
    }
    return memset(at + (*count)++ * size, 0, size);
}

void memory_keep_large_blocks(void)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 64 << 20);
}

/* ---- text ---------------------------------------------------------------------------------------
 */

static void text_reserve(struct text *t, size_t more)
{
    if (t->length + more + 1 <= t->capacity) {
        return;
    }
    size_t capacity = t->capacity == 0 ? 256 : t->capacity;
    while (capacity < t->length + more + 1) {
        capacity *= 2;
    }
    char *grown = realloc(t->at, capacity);
    REQUIRE(grown != NULL);
    t->at = grown;
    t->capacity = capacity;
}

void text_add_real(struct text *t, double value)
{
    char digits[32];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) {
            break;
        }
    }
    text_add(t, "%s", digits);
}

void text_add_bytes(struct text *t, const char *bytes, size_t length)
{
    text_reserve(t, length);
    memcpy(t->at + t->length, bytes, length);
    t->length += length;
    t->at[t->length] = '\0';
}

void text_add(struct text *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    REQUIRE(length >= 0);
    text_reserve(t, (size_t)length);
    va_start(arguments, format);
    vsnprintf(t->at + t->length, (size_t)length + 1, format, arguments);
    va_end(arguments);
    t->length += (size_t)length;
}

void text_add_json(struct text *t, const char *value)
{
    if (value == NULL) {
        text_add(t, "null");
        return;
    }
    text_add(t, "\"");
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            text_add(t, "\\%c", *c);
        } else if ((unsigned char)*c < 0x20) {
            text_add(t, "\\u%04x", (unsigned)*c);
        } else {
            text_add_bytes(t, c, 1);
        }
    }
    text_add(t, "\"");
}

void text_free(struct text *t)
{
    free(t->at);
    *t = (struct text){0};
}

char *text_copy(const char *s)
{
    size_t bytes = strlen(s) + 1;
    char *copy = memory_allocate(bytes);
    REQUIRE(copy != NULL);
    memcpy(copy, s, bytes);
    return copy;
}

bool text_to_integer(const char *text, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0;
}

bool text_to_real(const char *text, double *out)
{
    char *end = NULL;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out);
}

size_t text_distance(const char *a, const char *b)
{
    enum { LONGEST = 63 };
    size_t row[LONGEST + 1], before[LONGEST + 1] = {0}; /* of a's first i and i - 1 letters */
    size_t m = strlen(a), n = strlen(b);
    if (m > LONGEST || n > LONGEST) {
        return strcmp(a, b) == 0 ? 0 : LONGEST;
    }
    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= m; i++) {
        size_t earlier[LONGEST + 1]; /* of i - 2 letters */
        memcpy(earlier, before, sizeof earlier);
        memcpy(before, row, sizeof before);
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t least = before[j - 1] + (a[i - 1] != b[j - 1]);
            least = least < before[j] + 1 ? least : before[j] + 1;
            least = least < row[j - 1] + 1 ? least : row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                least = least < earlier[j - 2] + 1 ? least : earlier[j - 2] + 1;
            }
            row[j] = least;
        }
    }
    return row[n];
}

static size_t near_enough(const struct text_names *n)
{
    return 1 + strlen(n->wanted) / 3;
}

void text_names_add(struct text_names *n, const char *name)
{
    enum { BEGINNING = 4 };
    size_t length = strlen(n->wanted), distance = text_distance(n->wanted, name);
    if (length >= BEGINNING && distance > near_enough(n) && strncmp(name, n->wanted, length) == 0) {
        distance = near_enough(n); /* the rest was left out */
    }
    bool swapped = distance == n->distance && strlen(name) == length; /* modle: model, not mode */
    if (n->nearest == NULL || distance < n->distance || (swapped && strlen(n->nearest) != length)) {
        n->nearest = name;
        n->distance = distance;
    }
    text_add(&n->all, "%s%s", n->all.length > 0 ? ", " : "", name);
}

status text_names_fail(struct text_names *n, const char *instead, const char *format, ...)
{
    bool near = n->nearest != NULL && n->distance <= near_enough(n);
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    const char *all = n->all.at != NULL ? n->all.at : "none";
    status result =
        error_set(ERROR_USAGE, __FILE__, __LINE__, "%s '%s'.%s%s%s %s%s", what, n->wanted,
                  near ? " Did you mean '" : "", near ? n->nearest : "", near ? "'?" : "",
                  instead != NULL ? instead : "There is: ", instead != NULL ? "" : all);
    text_free(&n->all);
    return result;
}

unsigned processor_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
        return (unsigned)CPU_COUNT(&set);
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (unsigned)online : 1;
}

void processor_name(char *out, size_t bytes)
{
    snprintf(out, bytes, "unknown processor");
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
    if (f != NULL) {
        fclose(f);
    }
}
