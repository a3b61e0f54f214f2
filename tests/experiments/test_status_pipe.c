/* Messages from the processes of a run to their starter, which may be suspended meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "experiments/run/status_pipe.h"
#include "tests/rigs/patience.h"
#include "tests/rigs/scratch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* In a folder of its own, so that tests can run side by side. */
static char folder[128];

static void open_box(struct status_pipe *box)
{
    snprintf(folder, sizeof folder, "%s/glpipe-XXXXXX", scratch_folder());
    assert_non_null(mkdtemp(folder));
    assert_int_equal(status_pipe_open(box, folder), OK);
    setenv(STATUS_PIPE_VARIABLE, box->path, 1);
}

static void close_box(struct status_pipe *box)
{
    status_pipe_close(box);
    assert_int_equal(rmdir(folder), 0);
}

static void the_end_of_a_process_arrives_though_the_pipe_is_full_of_progress(void **state)
{
    (void)state;
    enum { PROGRESS = 100, WORKERS = 3 };
    struct status_pipe box;
    struct status_message m = {.kind = STATUS_PROGRESS, .role = ROLE_SERVER}, got;
    unsigned ended = 0;
    open_box(&box);
    for (unsigned i = 0; i < PROGRESS; i++)
        status_pipe_send(&m);
    for (unsigned w = 0; w < WORKERS; w++) {
        status_pipe_send(
            &(struct status_message){.kind = STATUS_ENDED, .role = ROLE_WORKER, .index = w});
    }
    assert_true(status_pipe_receive(&box, &got));
    assert_int_equal(got.kind, STATUS_PROGRESS);
    while (status_pipe_receive(&box, &got))
        ended += got.kind == STATUS_ENDED && got.index == ended;
    assert_int_equal(ended, WORKERS);
    close_box(&box);
}

/* ---- the gate: workers wait until all servers listen -------------------------------------------
 */

static const volatile sig_atomic_t none, stop = 1;

/* Forks a process that waits at the gate. Its exit code: 0 the gate opened, 1 it did not. */
static pid_t wait_at_gate(const struct status_pipe *box, unsigned limit_s,
                          const volatile sig_atomic_t *stopped)
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(box->gate); /* as after exec: only the starter holds the gate open */
        _exit(status_pipe_await_gate(limit_s, stopped) ? 0 : 1);
    }
    return pid;
}

static int code_of(pid_t pid)
{
    int state;
    assert_int_equal(waitpid(pid, &state, 0), pid);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

static bool still_waits(pid_t pid)
{
    return waitpid(pid, NULL, WNOHANG) == 0;
}

static void workers_pass_the_gate_when_it_opens_and_at_any_time_afterwards(void **state UNUSED)
{
    struct status_pipe box;
    pid_t early[3];
    open_box(&box);
    for (size_t i = 0; i < COUNT_OF(early); i++)
        early[i] = wait_at_gate(&box, 60, &none);
    clock_sleep_until_ns(clock_ns() + 100000000);
    for (size_t i = 0; i < COUNT_OF(early); i++)
        assert_true(still_waits(early[i]));
    status_pipe_open_gate(&box);
    for (size_t i = 0; i < COUNT_OF(early); i++)
        assert_int_equal(code_of(early[i]), 0);
    assert_int_equal(code_of(wait_at_gate(&box, 60, &none)), 0);
    status_pipe_open_gate(&box); /* a second call has no effect */
    close_box(&box);
}

static void nobody_waits_at_the_gate_for_ever(void **state UNUSED)
{
    struct status_pipe box;
    open_box(&box);
    const uint64_t began = clock_ns();
    assert_int_equal(code_of(wait_at_gate(&box, 1, &none)), 1);
    assert_true(clock_ns() - began >= 900000000);
    assert_true(code_of(wait_at_gate(&box, 60, &stop)) <= 1); /* asked to stop: returns at once */
    assert_true(clock_ns() - began < PATIENCE * 20000000000ULL);
    close_box(&box);
}

/* The kernel closes the starter's end of the gate when the starter dies. */
static void the_gate_opens_if_its_starter_dies(void **state UNUSED)
{
    struct status_pipe box;
    open_box(&box);
    const pid_t waits = wait_at_gate(&box, 60, &none);
    clock_sleep_until_ns(clock_ns() + 1000000000); /* the child waits at the gate now */
    close(box.gate);                               /* like the starter's death: the file stays */
    box.gate = -1;
    assert_int_equal(code_of(waits), 0); /* a worker would then fail to reach the server */
    char path[160];
    snprintf(path, sizeof path, "%s.gate", box.path);
    unlink(path);
    close_box(&box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_process_arrives_though_the_pipe_is_full_of_progress),
        cmocka_unit_test(workers_pass_the_gate_when_it_opens_and_at_any_time_afterwards),
        cmocka_unit_test(nobody_waits_at_the_gate_for_ever),
        cmocka_unit_test(the_gate_opens_if_its_starter_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
