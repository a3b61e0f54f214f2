/*
 * forked_call.h — calls a function in a copy of this process (fork()), and returns its result. For
 * libraries that leave something behind in the process that initialises them: CUDA keeps memory on
 * the device until this process ends, and does not work in later copies of this process.
 */
#ifndef GRADLAG_BASE_FORKED_CALL_H
#define GRADLAG_BASE_FORKED_CALL_H

#include "base/status.h"

#include <signal.h>

enum { FORKED_CALL_BYTES = 1024 }; /* the largest result */

struct forked_call {
    status (*call)(const void *argument, void *out); /* fills `out` if it returns OK */
    const void *argument;
    /* Texts for messages. what: the call, "the trial of precision=auto"; work: what the call does,
     * logged if it takes seconds; advice: what to do if it fails. */
    const char *what, *work, *advice;
    double timeout_s;                  /* limit of the call: 20 times timeout_s */
    const volatile sig_atomic_t *stop; /* non-zero ends the call; NULL: nothing sets it */
};

/* The copy has one thread, the caller's, and must use no results file. `bytes` is at most
 * FORKED_CALL_BYTES; `out` may be NULL if it is 0. Returns the error of the call with its message.
 * STOPPED: `stop` was set. ERROR_PEER: the copy died, or did not end in time. */
status forked_call(const struct forked_call *c, void *out, size_t bytes) MUST_CHECK;

#endif
