/*
 * external_process.h — the program of model.command: its start, its messages, its end.
 *
 * Messages are JSON objects, one a line, over a socket that the program inherits. The program's
 * stdout and stderr are read while gradlag waits for an answer; they are logged at level debug, and
 * every error about the program contains their last lines.
 *
 * One thread at a time uses a process. The thread that started it must not end before the process
 * does.
 */
#ifndef GRADLAG_WORKER_EXTERNAL_EXTERNAL_PROCESS_H
#define GRADLAG_WORKER_EXTERNAL_EXTERNAL_PROCESS_H

#include "base/status.h"

#include <jansson.h>
#include <signal.h>

typedef struct external_process external_process;

/* Starts `command` in a shell. The program finds the socket as the file descriptor that
 * GRADLAG_SOCKET_FD names. Libraries that read OMP_NUM_THREADS and the like use `threads` threads.
 * The limit for an answer is 20 times the longer of `timeout_s` and the longest answer so far.
 * After *stop becomes non-zero (NULL: never), the limit is timeout_s, counted from then or from a
 * later request. */
status external_process_start(external_process **out, const char *command, unsigned threads,
                              double timeout_s, const volatile sig_atomic_t *stop) MUST_CHECK;
/* Ends the program: closes the socket, reads output for 2 s, then kills its process group.
 * NULL-safe. */
void external_process_end(external_process **p);

/* Sends `request` and waits for the answer, an object (the caller's reference). `what` names the
 * request in errors.
 * ERROR_PEER: the program ended, or sent nothing in time. ERROR_DATA: no JSON object, or
 * {"error": "…"}, the program's own message. */
status external_process_ask(external_process *p, const char *what, const json_t *request,
                            json_t **answer) MUST_CHECK;
/* An ERROR_DATA about an answer: "model.command 'python3 m.py': message", and on
 * further lines its last lines of output. */
status external_process_fail(external_process *p, const char *format, ...) PRINTF_LIKE(2, 3);

#endif
