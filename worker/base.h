/*
 * base.h — what every file of the house may use: errors, log, clock, memory, small text.
 *
 * Errors. A function that can fail returns `status` and leaves its results in out-parameters.
 * Inside it, `TRY(call)` passes an error on and `FAIL(code, "what: %d", …)` makes one; both need a
 * local `status result = OK;` and jump to the one label `done:`. The message is kept per thread.
 * A message says what failed, where, the likely cause and what to do next.
 *
 * Contracts. `REQUIRE(condition)` guards arguments that come from our own code. It is on in every
 * build and aborts. What comes from a network, a file or a user is never a contract: it is an
 * error.
 */
#ifndef GRADLAG_WORKER_BASE_H
#define GRADLAG_WORKER_BASE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The values are the program's exit codes. */
typedef enum status {
    OK = 0,
    ERROR_OTHER = 1,    /* anything not below: out of memory, a failed system call */
    ERROR_USAGE = 2,    /* the command line, a configuration or an experiment file */
    ERROR_DATA = 3,     /* a dataset or checkpoint: missing, truncated, of the wrong shape */
    ERROR_PEER = 4,     /* another process was lost, or did not answer in time */
    ERROR_PROTOCOL = 5, /* a peer's message is malformed, or it is not allowed in */
    ERROR_DIVERGED = 6, /* a loss or gradient is not finite */
    ERROR_RESULTS = 7,  /* the results file */
    STOPPED = 75,       /* stopped on request, state kept */
} status;

#define MUST_CHECK        __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define UNUSED            __attribute__((unused))
#define COUNT_OF(array)   (sizeof(array) / sizeof((array)[0]))

/* Remembers the message of this thread's current error; returns `code`. */
status error_set(status code, const char *file, int line, const char *format, ...)
    PRINTF_LIKE(4, 5);
/* Puts "text: " before the current message (to say what was being done); returns `code`. */
status error_add_context(status code, const char *format, ...) PRINTF_LIKE(2, 3);
/* The message of this thread's last error, without newline; never NULL. */
const char *error_message(void);
/* file:line where the last error was made (for the log at debug level). */
const char *error_origin(void);
/* The last error as it is, and put back: around what may fail on the way out and hide it. */
struct error {
    char message[2048], origin[128];
};
struct error error_kept(void);
void error_put_back(const struct error *kept);
const char *status_name(status code);

#define FAIL(code, ...)                                                                            \
    do {                                                                                           \
        result = error_set((code), __FILE__, __LINE__, __VA_ARGS__);                               \
        goto done;                                                                                 \
    } while (0)
#define TRY(call)                                                                                  \
    do {                                                                                           \
        result = (call);                                                                           \
        if (result != OK)                                                                          \
            goto done;                                                                             \
    } while (0)
#define REQUIRE(condition)                                                                         \
    ((condition) ? (void)0 : contract_broken(#condition, __FILE__, __LINE__, __func__))
/* Here nobody comes: NEVER("a command of no known kind"). */
#define NEVER(what) contract_broken(what, __FILE__, __LINE__, __func__)
_Noreturn void contract_broken(const char *text, const char *file, int line, const char *function);

/* ---- log: to stderr; stdout is data ------------------------------------------------------------
 */
enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };
/* Lines above this level are dropped. Initially LOG_INFO, or GRADLAG_LOG=error|warning|info|debug.
 */
void log_set_level(enum log_level level);
/* ERROR_USAGE: GRADLAG_LOG is set to none of these. */
status log_check_environment(void) MUST_CHECK;
/* A name put before each line, e.g. "worker 3"; copied. */
void log_set_name(const char *name);
/* Writes one whole line (added newline) with one write(2), so that processes do not interleave.
 * Control characters come out as '?'. */
void log_write(enum log_level level, const char *format, ...) PRINTF_LIKE(2, 3);
#define log_error(...)   log_write(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_WARNING, __VA_ARGS__)
#define log_info(...)    log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...)   log_write(LOG_DEBUG, __VA_ARGS__)

/* ---- clock --------------------------------------------------------------------------------------
 */
uint64_t clock_ns(void);                  /* monotonic, nanoseconds; comparable on one host */
double clock_seconds(void);               /* the same in seconds */
double clock_thread_cpu_seconds(void);    /* processor time of this thread, or of this */
double clock_process_cpu_seconds(void);   /* process with all of its threads, so far */
void clock_sleep_until_ns(uint64_t when); /* sleeps to an absolute clock_ns() time */
/* UTC now as "2026-11-21T10:15:00.123Z" */
void clock_utc(char out[32]);

/* ---- threads ------------------------------------------------------------------------------------
 */
/* Starts a thread to which no signals come: they are the main thread's, whose sleeps they end.
 * ERROR_OTHER naming `what` ("the heartbeat's thread"). */
status thread_start(pthread_t *out, void *(*body)(void *), void *argument,
                    const char *what) MUST_CHECK;
/* For one that hangs: nobody waits for it any more. What it may touch is not to be freed from then
 * on, and the process ends without it (command_main()). */
void thread_abandon(pthread_t thread);
unsigned threads_abandoned(void);

/* ---- memory -------------------------------------------------------------------------------------
 */
/* Zeroed, 64-byte aligned (cache line, AVX-512), in huge pages from half a MiB on. NULL only if
 * `bytes` is 0 or memory is out. */
void *memory_allocate(size_t bytes);
void memory_free(void *p); /* NULL-safe */
/* memory_allocate of count×size into *out, or ERROR_OTHER naming `what`. */
status memory_new(void *out, size_t count, size_t size, const char *what) MUST_CHECK;
/* One more element, zeroed, at the end of a list that begins as NULL and 0: `list` is the address
 * of the pointer to it, which may move; free() it. The memory of a list is not expected to run out.
 */
void *memory_append(void *list, size_t *count, size_t size);
/* Makes glibc keep freed large blocks instead of returning them to the kernel: a fresh 100 MB block
 * per message costs 2–3× in page faults. Called once at program start. */
void memory_keep_large_blocks(void);

/* ---- text: a growing buffer, used for JSON, SQL results and messages
 * -------------------------------- */
struct text {
    char *at; /* NUL-terminated, or NULL while empty */
    size_t length, capacity;
};
void text_add(struct text *t, const char *format, ...) PRINTF_LIKE(2, 3);
/* The shortest decimal that reads back as the same finite number. */
void text_add_real(struct text *t, double value);
void text_add_bytes(struct text *t, const char *bytes, size_t length);
/* A JSON string literal with quotes and escapes; NULL becomes null. */
void text_add_json(struct text *t, const char *value);
void text_free(struct text *t);
/* A copy of s owned by the caller (memory_free). */
char *text_copy(const char *s);
/* A text that is a whole number, or a finite one, from its beginning to its end; else false. */
bool text_to_integer(const char *text, int64_t *out);
bool text_to_real(const char *text, double *out);
/* Optimal string alignment distance: letters inserted, removed, replaced, or neighbours swapped. */
size_t text_distance(const char *a, const char *b);

/* What there is where a name was not found: the names that were added, and the nearest of them. */
struct text_names { /* set `wanted`; the rest begins as zeros */
    const char *wanted, *nearest;
    size_t distance;
    struct text all; /* "a, b, c" */
};
void text_names_add(struct text_names *n, const char *name);
/* ERROR_USAGE "FORMAT 'WANTED'. Did you mean 'NEAREST'? There is: a, b, c"; where the list is too
 * long for that, `instead` says where it stands, else it is NULL. Frees the list. */
status text_names_fail(struct text_names *n, const char *instead, const char *format, ...)
    PRINTF_LIKE(3, 4);

/* Online processors this process may use (its affinity mask), at least 1. */
unsigned processor_count(void);
/* "Intel(R) Xeon(R) …", or "unknown processor". */
void processor_name(char *out, size_t bytes);

/* SHA-256 as 64 hex digits + NUL. Used for parameters, checkpoints and configurations. */
struct sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
};
void sha256_begin(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t bytes);
void sha256_end(struct sha256 *s, char hex[65]);

#endif
