/*
 * child_process.h — starting and ending child processes, their signals, and a private folder.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_CHILD_PROCESS_H
#define GRADLAG_EXPERIMENTS_RUN_CHILD_PROCESS_H

#include "base/status.h"

#include <poll.h>
#include <sched.h>
#include <sys/types.h>

enum { CHILD_NOT_STARTED = 127 }; /* exit code: the program cannot be executed */

struct child {
    pid_t pid; /* 0: never started */
    bool running;
    int wait_status; /* from waitpid(); valid after the end */
    int pidfd;       /* readable when the child has ended; −1: the kernel has none. Valid while it
                        runs */
};

/* Starts argv[0], found on PATH, in a new process group. `argv` ends with NULL, and so does
 * `environment`, a list of "NAME=value" additions (NULL: none). stdin is /dev/null. `error_fd`
 * becomes its stderr (−1: inherited). Its stdout goes to its stderr, because our stdout is for
 * data. The kernel kills the child when this process dies. */
status child_start(struct child *c, const char *const *argv, const char *const *environment,
                   int error_fd) MUST_CHECK;
/* child_start(), but the child inherits stdout. */
status child_start_with_stdout(struct child *c, const char *const *argv,
                               const char *const *environment, int error_fd) MUST_CHECK;
/* child_start(), limited to these cores (NULL: the cores of this process). */
status child_start_on(struct child *c, const char *const *argv, const char *const *environment,
                      int error_fd, const cpu_set_t *cores) MUST_CHECK;
/* Runs `work` in a copy of this process, in a new process group, without starting a program. This
 * process must have one thread, and `work` must not use results files that this process has
 * open. */
status child_fork(struct child *c, void (*work)(const void *context),
                  const void *context) MUST_CHECK;
/* True, once, when the child has ended. Does not block. */
bool child_poll(struct child *c);
/* The source for poll() that becomes readable when the child ends; its fd is −1 if the child does
 * not run. */
struct pollfd child_source(const struct child *c);
void child_signal(const struct child *c, int number);
/* Kills the process group and waits for the child. */
void child_kill(struct child *c);
/* "was killed by signal 9 (Killed)" or "ended with exit code 3" */
void child_describe(int wait_status, char out[96]);

/* Raises the soft limit of open files for a run of `processes` processes, `servers` of them
 * servers: to the hard limit, but no further than is plenty. Children inherit the limit.
 * ERROR_USAGE: the hard limit is too low. */
status open_files_allow(unsigned processes, unsigned servers) MUST_CHECK;

/* Installs `handler` for SIGINT, SIGTERM and SIGHUP. SIGHUP stays ignored if it was ignored at the
 * start of the program (nohup). */
void signals_catch(void (*handler)(int));

/* A private folder under `base` (NULL: $TMPDIR or /tmp). The creator holds a lock on its file
 * `lock`. folder_make also removes folders of this user whose creator has died. */
struct folder {
    char path[96];
    int lock;
};
status folder_make(struct folder *f, const char *base) MUST_CHECK;
/* Removes the folder and its contents; does nothing if folder_make did not succeed. */
void folder_remove(struct folder *f);

#endif
