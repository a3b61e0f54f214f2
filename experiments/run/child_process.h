/*
 * child_process.h — processes that this one starts, and their private folder.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_CHILD_PROCESS_H
#define GRADLAG_EXPERIMENTS_RUN_CHILD_PROCESS_H

#include "base/status.h"

#include <sched.h>
#include <sys/types.h>

struct child {
    pid_t pid; /* 0: never started */
    bool running;
    int wait_status; /* as waitpid gives it, once it has ended */
};

/* Starts argv[0] (found on PATH), ended by NULL, with NULL-ended "NAME=value" additions to the
 * environment, in a process group of its own, standard input closed, and dead when this process
 * dies. `error_fd`: −1, or what becomes its stderr. Its stdout becomes stderr: stdout is data. */
status child_start(struct child *c, const char *const *argv, const char *const *environment,
                   int error_fd) MUST_CHECK;
/* The same, but its stdout is this process's own. */
status child_start_speaking(struct child *c, const char *const *argv,
                            const char *const *environment, int error_fd) MUST_CHECK;
/* child_start() on these cores alone (NULL: on all of this process's). */
status child_start_on(struct child *c, const char *const *argv, const char *const *environment,
                      int error_fd, const cpu_set_t *cores) MUST_CHECK;
/* Notices whether it has ended; true if it did just now. */
bool child_poll(struct child *c);
void child_signal(const struct child *c, int number);
/* Kills its process group and waits for it. */
void child_kill(struct child *c);
/* "was killed by signal 9 (Killed)" or "ended with exit code 3" */
void child_describe(int wait_status, char out[96]);

/* Lets this process, and those that it starts from now on, have the files open that looking after
 * so many others takes: the usual limit of 1 024 may be raised. ERROR_USAGE: not so far. */
status files_allow(unsigned processes) MUST_CHECK;

/* SIGINT and SIGTERM from now on call `handler`, and so does SIGHUP, unless it is ignored: then
 * nohup has seen to it. */
void signals_catch(void (*handler)(int));

/* A private folder under `base` (NULL: $TMPDIR or /tmp), held by the lock on its file `lock`, which
 * names its maker. Making one removes those whose makers died before they could. */
struct folder {
    char path[96];
    int lock;
};
status folder_make(struct folder *f, const char *base) MUST_CHECK;
/* Removes it with all that is in it; does nothing for one that was not made. */
void folder_remove(struct folder *f);

#endif
