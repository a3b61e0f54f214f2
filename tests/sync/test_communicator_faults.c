/*
 * test_communicator_faults.c — ranks that are late, dead or missing, and the processor time of
 * waiting.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "sync/pipeline/pipeline_link.h"
#include "tests/rigs/patience.h"
#include "tests/sync/sync_rig.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

enum { COUNT = 1000 };

/* ---- in a rank ----------------------------------------------------------------------------------
 */

static status open_one(communicator **c, const char *kind)
{
    status result = OK;
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "communicator", kind));
    TRY(communicator_open(c, o, COUNT, NULL));
done:
    options_close(&o);
    return result;
}

/* Rank 1 arrives 6 s late; the others warn after 0.6 s and time out after 4 s. */
static status case_late(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "auto"));
    c->timeout_s = 4;
    c->warn_after_s = 0.6;
    if (rank == 1)
        clock_sleep_until_ns(clock_ns() + 6000000000u);
    TRY(communicator_allreduce_mean(c, communicator_buffer(c), 100));
done:
    communicator_close(&c);
    return result;
}

static status case_death(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "auto"));
    c->timeout_s = 1000;
    TRY(communicator_barrier(c));
    if (rank == 1)
        raise(SIGKILL);
    TRY(communicator_barrier(c));
done:
    communicator_close(&c);
    return result;
}

/* Rank 1 fails; without its end the others would wait for 1000 s. */
static status case_failure(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "mpi"));
    c->timeout_s = 1000;
    if (rank == 1)
        FAIL(ERROR_DATA, "this rank fails");
    TRY(communicator_barrier(c));
done:
    if (result != ERROR_DATA)
        communicator_close(&c);
    return result;
}

static status case_diverged(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    FAIL(ERROR_DIVERGED, "all ranks fail");
done:
    return result;
}

static long processor_us(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 + used.ru_utime.tv_usec +
           used.ru_stime.tv_usec;
}

/* Rank 0 does other work for 0.6 s, as in an evaluation; the others must not spin meanwhile. */
static status case_idle(unsigned rank, unsigned size)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "auto"));
    TRY(communicator_barrier(c));
    long before = processor_us();
    if (rank == 0)
        clock_sleep_until_ns(clock_ns() + 600000000u);
    TRY(communicator_barrier(c));
    long burnt = processor_us() - before;
    if (burnt > 60000)
        FAIL(ERROR_OTHER, "rank %u of %u used %ld us of processor time in 600 ms of waiting", rank,
             size, burnt);
done:
    communicator_close(&c);
    return result;
}

/* After frequent exchanges rank 0 becomes slow: the others soon wait without processor time. If a
 * busy machine pauses a rank during an exchange, the others spin meanwhile: the best of some parts
 * counts. */
static status case_slow_after_often(unsigned rank, unsigned size)
{
    enum { OFTEN = 600, SLOW = 260, PART = 100, PARTS = 5 };
    status result = OK;
    communicator *c = NULL;
    long before = 0, burnt = LONG_MAX;
    TRY(open_one(&c, "mpi"));
    for (unsigned i = 0; i < OFTEN + SLOW + PART * PARTS; i++) {
        if (i >= OFTEN + SLOW && (i - OFTEN - SLOW) % PART == 0)
            before = processor_us();
        if (i >= OFTEN && rank == 0)
            clock_sleep_until_ns(clock_ns() + 4000000);
        TRY(communicator_allreduce_mean(c, communicator_buffer(c), 4));
        if (i >= OFTEN + SLOW && (i - OFTEN - SLOW) % PART == PART - 1 &&
            processor_us() - before < burnt)
            burnt = processor_us() - before;
    }
    if (burnt > 120000)
        FAIL(ERROR_OTHER, "rank %u of %u used %ld us of processor time in 400 ms of waiting", rank,
             size, burnt);
done:
    communicator_close(&c);
    return result;
}

/* Rank 1 opens late, as after loading data; rank 0 closes late, as after writing results. Opening
 * and closing need some processor time themselves. */
static status case_ends(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    const uint64_t busy_ns = 1000000000;
    long before = processor_us();
    if (rank == 1)
        clock_sleep_until_ns(clock_ns() + busy_ns);
    TRY(open_one(&c, "auto"));
    long opening = processor_us() - before;
    if (rank == 0)
        clock_sleep_until_ns(clock_ns() + busy_ns);
    before = processor_us();
    communicator_close(&c);
    long closing = processor_us() - before;
    if (opening > 500000 || closing > 500000)
        FAIL(ERROR_OTHER,
             "rank %u used %ld us of processor time in 1 s of opening, %ld us of closing", rank,
             opening, closing);
done:
    communicator_close(&c);
    return result;
}

/* Two stages, two replicas: stage 1 of replica 1 (rank 3) is missing at the mean over replicas. */
static status case_replica(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    struct pipeline_link l = {0};
    float own[8] = {0};
    TRY(open_one(&c, "auto"));
    c->timeout_s = rank == 1 ? 1 : 4; /* rank 1 times out before ranks that close meanwhile */
    TRY(link_open(&l, c, 2, COUNT_OF(own)));
    if (rank == 3)
        clock_sleep_until_ns(clock_ns() + 2500000000u);
    else
        TRY(link_mean(&l, own, COUNT_OF(own)));
done:
    link_close(&l);
    communicator_close(&c);
    return result;
}

/* Rank 1 never opens its communicator. */
static status case_absent(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "timeout_s", "0.1"));
    if (rank == 1)
        clock_sleep_until_ns(clock_ns() + 200000000000u);
    TRY(communicator_open(&c, o, COUNT, NULL));
done:
    options_close(&o);
    communicator_close(&c);
    return result;
}

/* A message arrives at rank 0 while the rank ends after a timeout. The memory for this message may
 * be freed by then. */
static _Atomic float place;

static void *watch_place(void *unused)
{
    const uint64_t until = clock_ns() + 6000000000u;
    while (clock_ns() < until && place == 0)
        clock_sleep_until_ns(clock_ns() + 1000000);
    if (place != 0)
        log_error("the place was written after the timeout");
    return unused;
}

static status case_stray(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    MPI_Request request;
    pthread_t watcher;
    const float one = 1;
    TRY(open_one(&c, "mpi"));
    if (rank == 1) {
        clock_sleep_until_ns(clock_ns() + 1200000000u);
        MPI_Send(&one, 1, MPI_FLOAT, 0, 0, c->ranks->world);
        c->failed = true;
    } else {
        c->timeout_s = 0.3;
        TRY(thread_start(&watcher, watch_place, NULL, "a thread"));
        TRY(ranks_check(MPI_Irecv((float *)&place, 1, MPI_FLOAT, 1, 0, c->ranks->world, &request),
                        "a message"));
        TRY(ranks_wait(c, &request, 1, "a message"));
    }
done:
    communicator_close(&c);
    return result;
}

/* Rank 1 arrives 6 s late. The ranks share no page, as on several hosts. Ranks 0 and 2 have limits
 * of 0.3 s and 0.8 s and then make their roll calls. */
static status case_far(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    uint64_t since;
    TRY(open_one(&c, "mpi"));
    c->timeout_s = rank == 0 ? 0.3 : 0.8;
    (void)sync_rig_set_gate(c, NULL);
    if (rank == 1)
        clock_sleep_until_ns(clock_ns() + 6000000000u);
    since = clock_ns();
    result = communicator_allreduce_mean(c, communicator_buffer(c), 100);
    if (result == ERROR_PEER) {
        const uint64_t pause_ns = rank == 2 ? 200000000u : 0;
        clock_sleep_until_ns(clock_ns() + pause_ns);
        missing_ranks_leave();
        log_info("ends the others %.3f s after its limit",
                 (double)(clock_ns() - since) * 1e-9 - c->timeout_s);
        clock_sleep_until_ns(clock_ns() + 5 * pause_ns); /* rank 0 ends the run */
    }
done:
    communicator_close(&c);
    return result;
}

static void print_reason(void *context, const char *why)
{
    printf("rank %u hook: %s\n", *(unsigned *)context, why);
    fflush(stdout);
}

/* The others are inside a blocking MPI call that rank 1 does not complete. */
static status case_stuck(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    float nothing;
    TRY(open_one(&c, "mpi"));
    sync_set_exit_hook(print_reason, &rank);
    if (rank == 1)
        clock_sleep_until_ns(clock_ns() + 200000000000u);
    watchdog_arm(1.5, "the sum"); /* more than the second after which rank 1 counts as missing */
    MPI_Recv(&nothing, 1, MPI_FLOAT, 1, 0, c->ranks->world, MPI_STATUS_IGNORE);
done:
    communicator_close(&c);
    return result;
}

/* The GPU's queue is full, so queueing 8 steps takes longer than the limit of one. */
static status case_queueing(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    const struct communicator_kind *nccl =
        (const struct communicator_kind *)registry_find(&communicator_registry, "nccl");
    TRY(open_one(&c, "mpi"));
    c->timeout_s = 1;
    TRY(nccl->device_begin(c, 8));
    clock_sleep_until_ns(clock_ns() + 2500000000u);
    watchdog_disarm();
    c->timeout_s = 30;
done:
    communicator_close(&c);
    return result;
}

/* After exchanges without a gate, rank 1 never comes to the next one. */
static status case_stuck_often(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "mpi"));
    c->timeout_s = 1.5;
    for (unsigned i = 0; i < 1000; i++)
        TRY(communicator_allreduce_mean(c, communicator_buffer(c), 4));
    if (rank == 1)
        clock_sleep_until_ns(clock_ns() + 200000000000u);
    TRY(communicator_allreduce_mean(c, communicator_buffer(c), 4));
done:
    communicator_close(&c);
    return result;
}

/* Rank 1 is late at the end: closing times out, but must keep the error message that rank 0 has. */
static status case_close_after_error(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "auto"));
    c->timeout_s = 0.02; /* times COMMUNICATOR_PATIENCE */
    if (rank == 1) {
        clock_sleep_until_ns(clock_ns() + 1200000000u);
        c->failed = true;
    }
    (void)error_set(STOPPED, __FILE__, __LINE__, "stopped after 7 updates");
    communicator_close(&c);
    if (strcmp(error_message(), "stopped after 7 updates") != 0)
        FAIL(ERROR_OTHER, "the message became '%s'", error_message());
done:
    return result;
}

/* Prints its process id and waits to be killed. */
static status case_orphan(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "auto"));
    TRY(communicator_barrier(c));
    printf("pid %d\n", (int)getpid());
    fflush(stdout);
    clock_sleep_until_ns(clock_ns() + 200000000000u);
done:
    communicator_close(&c);
    return result;
}

static const struct sync_case CASES[] = {
    {"late", case_late},
    {"far", case_far},
    {"death", case_death},
    {"failure", case_failure},
    {"diverged", case_diverged},
    {"idle", case_idle},
    {"slow after often", case_slow_after_often},
    {"ends", case_ends},
    {"absent", case_absent},
    {"orphan", case_orphan},
    {"replica", case_replica},
    {"stray", case_stray},
    {"close after error", case_close_after_error},
    {"stuck", case_stuck},
    {"stuck often", case_stuck_often},
    {"queueing", case_queueing},
    {NULL, NULL},
};

/* ---- tests --------------------------------------------------------------------------------------
 */

/* Cases whose ranks mostly sleep run at the same time, before all tests. */
static const struct sync_start TOGETHER[] = {{3, "late"},       {4, "replica"}, {3, "failure"},
                                             {2, "absent"},     {2, "stray"},   {3, "stuck"},
                                             {2, "stuck often"}};
static struct sync_run runs[COUNT_OF(TOGETHER)];

static int run_together(void **state UNUSED)
{
    sync_rig_run_together(TOGETHER, COUNT_OF(TOGETHER), 30, runs);
    return 0;
}

static const struct sync_run *together(const char *case_name)
{
    size_t i = 0;
    while (strcmp(TOGETHER[i].case_name, case_name) != 0)
        i++;
    return &runs[i];
}

static void a_wait_for_a_late_rank_warns_and_times_out(void **state UNUSED)
{
    const struct sync_run *run = together("late");
    if (run->exit_code != ERROR_PEER)
        fail_msg("exit %d:\n%s", run->exit_code, run->output);
    assert_int_equal(sync_rig_lines(run, "rank 0: warning: ", "rank 1"), 1);
    assert_int_equal(sync_rig_lines(run, "rank 2: warning: ", ""), 0); /* one rank warns */
    sync_rig_expect_timeout(run, 4, 10, "rank 1");
}

/* Rank 0 listens for a second. Rank 2, whose wait timed out half a second later, then receives rank
 * 0's second message and stops listening. It reports its error, and rank 0 ends the run. */
static bool names_the_missing_rank_alone(const struct sync_run *run)
{
    double after_s = 99;
    char host[65] = "";
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    const char *ends = strstr(run->output, "rank 0: ends the others ");
    return run->exit_code == ERROR_PEER && sync_rig_lines(run, "rank 0: error: ", "rank 1") == 1 &&
           sync_rig_lines(run, "rank 0: error: ", host) == 1 &&
           sync_rig_lines(run, "rank 0: error: ", "rank 2") == 0 &&
           sync_rig_lines(run, "rank 2: error: ", "rank 0") == 0 && ends != NULL &&
           sscanf(ends, "rank 0: ends the others %lf s", &after_s) == 1 && after_s > 1.1 &&
           after_s < 1.6;
}

/* The ranks meet within half a second, so a busy machine gets three tries. */
static void a_missing_rank_of_another_host_is_named_with_its_host(void **state UNUSED)
{
    static struct sync_run run;
    int tries = 0;
    do
        sync_rig_run(3, "far", 20, &run);
    while (!names_the_missing_rank_alone(&run) && ++tries < 3);
    if (tries == 3)
        fail_msg("exit %d after %.1f s:\n%s", run.exit_code, run.seconds, run.output);
}

static void a_timeout_between_replicas_names_ranks_of_the_run(void **state UNUSED)
{
    const struct sync_run *run = together("replica");
    if (run->exit_code != ERROR_PEER || sync_rig_lines(run, "rank 1: error: ", "rank 3") != 1)
        fail_msg("exit %d:\n%s", run->exit_code, run->output);
    sync_rig_expect_timeout(run, 1, 5, "rank 3");
}

static void a_rank_that_dies_ends_the_others(void **state UNUSED)
{
    static struct sync_run run;
    sync_rig_run(3, "death", 20, &run);
    assert_true(run.exit_code > 0);
}

static void a_rank_that_fails_alone_ends_the_others_with_its_code(void **state UNUSED)
{
    const struct sync_run *run = together("failure");
    if (run->exit_code != ERROR_DATA)
        fail_msg("exit %d:\n%s", run->exit_code, run->output);
}

static void ranks_that_fail_together_end_with_their_code(void **state UNUSED)
{
    static struct sync_run run;
    sync_rig_run(3, "diverged", 20, &run);
    if (run.exit_code != ERROR_DIVERGED)
        fail_msg("exit %d:\n%s", run.exit_code, run.output);
    assert_null(strstr(run.output, "MPI_ABORT"));
}

static void waiting_costs_no_processor_time(void **state UNUSED)
{
    sync_rig_expect_ok(2, "idle");
    sync_rig_expect_ok(9, "idle");
    sync_rig_expect_ok(2, "slow after often");
    sync_rig_expect_ok(3, "slow after often");
    sync_rig_expect_ok(2, "ends");
}

static void a_rank_that_never_opens_is_not_waited_for(void **state UNUSED)
{
    const struct sync_run *run = together("absent");
    if (run->exit_code != ERROR_PEER)
        fail_msg("exit %d:\n%s", run->exit_code, run->output);
    assert_int_equal(sync_rig_lines(run, "rank 0: error: ", ""), 1);
    sync_rig_expect_timeout(run, 2, 6, NULL);
}

static void no_message_is_written_after_a_timeout(void **state UNUSED)
{
    const struct sync_run *run = together("stray");
    if (run->exit_code != ERROR_PEER ||
        sync_rig_lines(run, "error: ", "the place was written") != 0)
        fail_msg("exit %d:\n%s", run->exit_code, run->output);
}

static void a_blocking_call_times_out(void **state UNUSED)
{
    const struct sync_run *run = together("stuck");
    char host[65] = "";
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    static const char *const begins[] = {"rank 0: error: ", "rank 0 hook: "};
    for (size_t i = 0; i < COUNT_OF(begins); i++)
        if (run->exit_code != ERROR_PEER || sync_rig_lines(run, begins[i], "rank 1") != 1 ||
            sync_rig_lines(run, begins[i], "rank 2") != 0 ||
            sync_rig_lines(run, begins[i], host) != 1)
            fail_msg("exit %d after %.1f s:\n%s", run->exit_code, run->seconds, run->output);
    sync_rig_expect_timeout(run, 1.5, 5, "rank 1");
}

static void a_missing_rank_between_frequent_exchanges_times_out(void **state UNUSED)
{
    const struct sync_run *run = together("stuck often");
    assert_int_equal(run->exit_code, ERROR_PEER);
    sync_rig_expect_timeout(run, 1.5, 5, "rank 1");
}

static void steps_are_queued_within_their_limits_together(void **state UNUSED)
{
    if (strcmp(sync_nccl_version(), "built without NCCL") == 0)
        skip();
    sync_rig_expect_ok(2, "queueing");
}

static void closing_keeps_the_error_message(void **state UNUSED)
{
    sync_rig_expect_ok(2, "close after error");
}

static void no_rank_outlives_its_launcher(void **state UNUSED)
{
    int fd, pids[2], found = 0;
    char output[4096] = "";
    size_t length = 0;
    uint64_t deadline = clock_ns() + PATIENCE * 60000000000u;
    pid_t launcher = sync_rig_start(2, "orphan", &fd);

    while (found < 2 && clock_ns() < deadline) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        ssize_t n = poll(&readable, 1, 100) > 0 ? read(fd, output + length, 4095 - length) : 0;
        length += n > 0 ? (size_t)n : 0;
        output[length] = '\0';
        found = 0;
        for (const char *at = output; (at = strstr(at, "pid ")) != NULL && found < 2; at += 4)
            found += strchr(at, '\n') != NULL && sscanf(at, "pid %d", &pids[found]) == 1;
    }
    kill(launcher, SIGKILL);
    waitpid(launcher, NULL, 0);
    close(fd);
    assert_int_equal(found, 2);
    for (int i = 0; i < 2; i++) {
        while (kill(pids[i], 0) == 0 && clock_ns() < deadline)
            clock_sleep_until_ns(clock_ns() + 10000000);
        assert_int_not_equal(kill(pids[i], 0), 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_for_a_late_rank_warns_and_times_out),
        cmocka_unit_test(a_missing_rank_of_another_host_is_named_with_its_host),
        cmocka_unit_test(a_timeout_between_replicas_names_ranks_of_the_run),
        cmocka_unit_test(a_rank_that_dies_ends_the_others),
        cmocka_unit_test(a_rank_that_fails_alone_ends_the_others_with_its_code),
        cmocka_unit_test(ranks_that_fail_together_end_with_their_code),
        cmocka_unit_test(waiting_costs_no_processor_time),
        cmocka_unit_test(a_rank_that_never_opens_is_not_waited_for),
        cmocka_unit_test(no_message_is_written_after_a_timeout),
        cmocka_unit_test(a_blocking_call_times_out),
        cmocka_unit_test(a_missing_rank_between_frequent_exchanges_times_out),
        cmocka_unit_test(steps_are_queued_within_their_limits_together),
        cmocka_unit_test(closing_keeps_the_error_message),
        cmocka_unit_test(no_rank_outlives_its_launcher),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, run_together, NULL);
}
