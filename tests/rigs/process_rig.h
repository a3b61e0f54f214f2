/*
 * process_rig.h — runs the real program in a folder of its own and looks at what it leaves behind.
 */
#ifndef GRADLAG_TESTS_RIGS_PROCESS_RIG_H
#define GRADLAG_TESTS_RIGS_PROCESS_RIG_H

#include "tests/rigs/patience.h"

#include <sys/types.h>

enum { RIG_LIMIT_S = 90 * PATIENCE }; /* of every wait for a program */

struct process_rig {
    char folder[64]; /* current folder and TMPDIR of the processes; removed at the end */
    pid_t pid;       /* of the program that runs now, or 0 */
    int output_fd;   /* its stdout; 0: the file "stdout" */
    int ended; /* what process_wait() last returned: not 0 is told with its errors at the end */
};

/* cmocka's set-up and tear-down; *state is the struct process_rig. */
int process_set_up(void **state);
int process_tear_down(void **state);

/* A short run that any machine ends in a moment, to put before other settings. */
#define RIG_DATA  "dataset=gaussian", "dataset.size=8", "dataset.samples=1000", "model=softmax"
#define RIG_SMALL RIG_DATA, "samples=600", "batch=10", "evaluate_every=0"
/* One that does not end by itself. */
#define RIG_LONG RIG_DATA, "epochs=10000", "batch=10", "pace=gamma", "pace.mean_ms=5"

/* Starts `gradlag arguments…` (ended by NULL); its output goes to files. */
void process_start(struct process_rig *r, const char *const *arguments);
/* Waits for it, with a limit: its exit code, or 128 + signal. */
int process_wait(struct process_rig *r);
/* Both. */
int process_run(struct process_rig *r, const char *const *arguments);
#define RIG_RUN(r, ...) process_run(r, (const char *const[]){__VA_ARGS__, NULL})
/* The same by a fork of this process that does what the program's main() does: loading the program
 * is most of what a short run takes. Not for what starts processes, which would be this one again.
 */
int process_run_inside(struct process_rig *r, const char *const *arguments);
#define RIG_RUN_INSIDE(r, ...) process_run_inside(r, (const char *const[]){__VA_ARGS__, NULL})

/* `script` by bash, in the rig's folder and with the program's folder first on PATH; likewise. */
int process_shell(struct process_rig *r, const char *script);
void process_start_shell(struct process_rig *r, const char *script);
/* The program under test, as a path from the build directory. "gradlag" unless a test changes it.
 */
extern const char *process_program_name;
/* Its whole path; valid until the next call. */
const char *process_program(void);

/* What the last one wrote to stderr or stdout; valid until the next call. */
const char *process_errors(struct process_rig *r);
const char *process_output(struct process_rig *r);
/* Fails the test unless stderr has exactly one "error: " and contains `part`: a key, value, name or
 * number that the test put in, not words of a sentence. */
void process_expect_error(struct process_rig *r, const char *part);
/* Fails the test unless stderr contains `part`. */
void process_expect_errors_contain(struct process_rig *r, const char *part);
/* Fails the test unless one line of stdout contains both. */
void process_expect_line(struct process_rig *r, const char *first, const char *second);

/* Process ids of all descendants of the running program whose first argument is `role` ("worker",
 * or "-n" of mpirun); how many there are, at most `room`. */
unsigned process_find(const struct process_rig *r, const char *role, pid_t *out, unsigned room);
/* The rank that mpirun gave to this process, from its environment. */
unsigned process_rank(pid_t pid);
/* Waits until there are `count` of them. */
void process_await(const struct process_rig *r, const char *role, pid_t *out, unsigned count);
/* Waits until the results file has `sql` yield 1 or more. */
void process_await_row(struct process_rig *r, const char *sql);

/* Where a `gradlag server` says that it listens, and what it wants to be shown, as settings. */
void process_await_endpoint(struct process_rig *r, char endpoint[128], char token[64]);

/* One value of the results file as text; valid until the next call. "" for NULL or no row. */
const char *process_ask(struct process_rig *r, const char *sql);
/* Fails the test where the answer is another one. */
void process_expect_answer(struct process_rig *r, const char *sql, const char *answer);
/* No process with this folder as its current one; it is given five seconds to end. */
void process_expect_none_running(struct process_rig *r);
/* Nor a private folder, nor anything in shared memory. */
void process_expect_nothing_left(struct process_rig *r);
/* "FOLDER/name"; valid until the next call. */
const char *process_path(struct process_rig *r, const char *name);
void process_write(struct process_rig *r, const char *name, const char *text);

#endif
