/*
 * status.h — errors and contracts.
 *
 * Errors. A function that can fail returns `status` and writes its results to out-parameters.
 * Inside such a function, `TRY(call)` passes an error on and `FAIL(code, "what: %d", …)` creates
 * one. Both need a local `status result = OK;` and jump to the label `done:`. The message is kept
 * per thread. A message says what failed, on what, the likely cause and what to do next.
 *
 * Contracts. `REQUIRE(condition)` checks arguments that come from our own code. It is on in every
 * build and aborts. Data from a network, a file or a user is never checked by a contract: bad data
 * is an error.
 */
#ifndef GRADLAG_BASE_STATUS_H
#define GRADLAG_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The values are the exit codes of the program. */
typedef enum status {
    OK = 0,
    ERROR_OTHER = 1,    /* any other error: out of memory, a failed system call */
    ERROR_USAGE = 2,    /* the command line, a configuration or an experiment file */
    ERROR_DATA = 3,     /* a dataset or checkpoint: missing, truncated, of the wrong shape */
    ERROR_PEER = 4,     /* another process was lost, or did not answer in time */
    ERROR_PROTOCOL = 5, /* a message of a peer is malformed, or the peer is not authorised */
    ERROR_DIVERGED = 6, /* a loss or gradient is not finite */
    ERROR_RESULTS = 7,  /* the results file */
    STOPPED = 75,       /* stopped on request; a checkpoint was written if one was asked for */
} status;

#define MUST_CHECK        __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define UNUSED            __attribute__((unused))
#define COUNT_OF(array)   (sizeof(array) / sizeof((array)[0]))

/* Sets the error message of this thread; returns `code`. */
status error_set(status code, const char *file, int line, const char *format, ...)
    PRINTF_LIKE(4, 5);
/* Puts "text: " in front of the current message; returns `code`. */
status error_add_context(status code, const char *format, ...) PRINTF_LIKE(2, 3);
/* The message of the last error of this thread, without newline; never NULL. */
const char *error_message(void);
/* file:line that created the last error (for the log at debug level). */
const char *error_origin(void);
/* Save and restore the last error around cleanup code that may fail and overwrite it. */
struct error {
    char message[2048], origin[128];
};
struct error error_save(void);
void error_restore(const struct error *saved);
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
/* Aborts. For branches that cannot be reached: UNREACHABLE("unknown command"). */
#define UNREACHABLE(what) contract_broken(what, __FILE__, __LINE__, __func__)
_Noreturn void contract_broken(const char *text, const char *file, int line, const char *function);

#endif
