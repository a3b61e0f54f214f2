/*
 * process_rig.h — runs the real program in its own folder and checks what it leaves behind.
 */
#ifndef GRADLAG_TESTS_RIGS_PROCESS_RIG_H
#define GRADLAG_TESTS_RIGS_PROCESS_RIG_H

#include "tests/rigs/patience.h"

#include <sys/types.h>

enum { RIG_LIMIT_S = 90 * PATIENCE }; /* limit of each wait for a program */

struct process_rig {
    char folder[64]; /* current folder and TMPDIR of the processes; removed at the end */
    pid_t pid;       /* the running program, or 0 */
    int output_fd;   /* file descriptor for stdout; 0: the file "stdout" */
    int ended;       /* last result of process_wait(); if not 0, the tear-down prints stderr */
};

/* cmocka's set-up and tear-down; *state is the struct process_rig. */
int process_set_up(void **state);
int process_tear_down(void **state);

/* A run of less than a second. Put it before other settings. */
#define RIG_DATA  "dataset=gaussian", "dataset.size=8", "dataset.samples=1000", "model=softmax"
#define RIG_SMALL RIG_DATA, "samples=600", "batch=10", "evaluate_every=0"
/* A run that does not end by itself. */
#define RIG_LONG RIG_DATA, "epochs=10000", "batch=10", "pace=gamma", "pace.mean_ms=5"

/* Starts `gradlag arguments…` (ended by NULL); stdout and stderr go to files. */
void process_start(struct process_rig *r, const char *const *arguments);
/* Waits for the program, at most RIG_LIMIT_S. Returns its exit code, or 128 + signal. */
int process_wait(struct process_rig *r);
/* Starts the program and waits for it. */
int process_run(struct process_rig *r, const char *const *arguments);
#define RIG_RUN(r, ...) process_run(r, (const char *const[]){__VA_ARGS__, NULL})
/* Like process_run(), but in a fork of this process. It does not load the program, and loading
 * takes most of the time of a short run. Not for commands that start processes: they would start
 * this test again. */
int process_run_inside(struct process_rig *r, const char *const *arguments);
#define RIG_RUN_INSIDE(r, ...) process_run_inside(r, (const char *const[]){__VA_ARGS__, NULL})

/* A command line that ends with NULL: `run`, the settings, then `last` unless it is NULL. */
struct process_arguments {
    const char *at[40];
};
struct process_arguments process_run_arguments(const char *const *settings, const char *last);
#define RIG_WITH(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Runs `script` with bash in the rig's folder, with the program's folder first on PATH. */
int process_shell(struct process_rig *r, const char *script);
void process_start_shell(struct process_rig *r, const char *script);
/* The tested program, relative to the build directory: "gradlag" unless a test changes it. */
extern const char *process_program_name;
/* The absolute path of the program; valid until the next call. */
const char *process_program(void);

/* stderr and stdout of the last program; valid until the next call. */
const char *process_errors(struct process_rig *r);
const char *process_output(struct process_rig *r);
/* Fails the test unless stderr has exactly one "error: " and contains `part`: a key, value, name or
 * number that the test put in, not words of a sentence. */
void process_expect_error(struct process_rig *r, const char *part);
/* Fails the test unless stderr contains `part`. */
void process_expect_errors_contain(struct process_rig *r, const char *part);
/* Fails the test unless one line of stdout contains both. */
void process_expect_line(struct process_rig *r, const char *first, const char *second);

/* Finds all descendants of the running program whose first argument is `role` ("worker", or "-n"
 * of mpirun). Writes at most `room` process ids and returns their number. */
unsigned process_find(const struct process_rig *r, const char *role, pid_t *out, unsigned room);
/* The rank that mpirun gave to this process, from its environment. */
unsigned process_rank(pid_t pid);
/* Waits until there are `count` such processes. */
void process_await(const struct process_rig *r, const char *role, pid_t *out, unsigned count);
/* Waits until `sql` yields 1 or more in the results file. */
void process_await_row(struct process_rig *r, const char *sql);
/* Waits until the starter of a run has told its server why the run fails. */
void process_await_verdict(struct process_rig *r);

enum { RIG_ENDPOINT_BYTES = 512 }; /* "endpoint=…" of several servers */
/* Waits until `gradlag server` listens; writes "endpoint=…" and "run_token=…" from its log. */
void process_await_endpoint(struct process_rig *r, char endpoint[128], char token[64]);

/* One value of the results file as text; valid until the next call. "" for NULL or no row. */
const char *process_ask(struct process_rig *r, const char *sql);
/* Fails the test unless process_ask() returns `answer`. */
void process_expect_answer(struct process_rig *r, const char *sql, const char *answer);
/* Fails the test unless `gradlag replay last` succeeds and ends in the recorded parameters. */
void process_expect_replayed(struct process_rig *r);
/* Fails the test if a process still runs in this folder after 15 seconds. */
void process_expect_none_running(struct process_rig *r);
/* The same, and fails if a private folder or shared memory is left. */
void process_expect_nothing_left(struct process_rig *r);
/* "FOLDER/name"; valid until the next call. */
const char *process_path(struct process_rig *r, const char *name);
void process_write(struct process_rig *r, const char *name, const char *text);

#endif
