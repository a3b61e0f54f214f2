/* Server and workers started by hand: wrong settings, wrong programs, deaths, and stopping a
 * process that waits. */
#include "base/clock.h"
#include "base/thread.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void expect_end(struct process_rig *r, int expected, const char *part)
{
    int code = process_wait(r);
    if (code != expected)
        fail_msg("exit %d in place of %d: %s", code, expected, process_errors(r));
    if (part != NULL)
        process_expect_error(r, part);
}

/* ---- who answers instead of the server ------------------------------------------------------ */

/* Opens a listening socket of this test; writes its endpoint as a setting. */
static int listen_somewhere(char endpoint[64])
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof own;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &length), 0);
    snprintf(endpoint, 64, "endpoint=tcp://127.0.0.1:%d", ntohs(own.sin_port));
    return fd;
}

static int await_caller(int listening)
{
    struct pollfd caller = {.fd = listening, .events = POLLIN};
    assert_int_equal(poll(&caller, 1, 1000 * RIG_LIMIT_S), 1);
    return accept(listening, NULL, NULL);
}

static void a_worker_that_waits_for_its_server_can_be_stopped(void **state)
{
    struct process_rig *r = *state;
    char endpoint[64];
    int listening = listen_somewhere(endpoint);
    process_start(r, (const char *const[]){"worker", RIG_SMALL, "worker=0", endpoint, "run_token=1",
                                           "timeout_s=1000", NULL});
    int caller = await_caller(listening);
    kill(r->pid, SIGTERM);
    expect_end(r, STOPPED, NULL);
    close(caller);
    close(listening);
}

static void a_listening_check_can_be_stopped(void **state)
{
    struct process_rig *r = *state;
    process_start(r,
                  (const char *const[]){"check", "--listen", "endpoint=tcp://127.0.0.1:*", NULL});
    for (int i = 0; i < 100 * RIG_LIMIT_S; i++) {
        if (strstr(process_errors(r), "listening on ") != NULL)
            break;
        usleep(10000);
    }
    kill(r->pid, SIGINT);
    expect_end(r, STOPPED, NULL);
}

static void another_program_at_the_endpoint_is_a_protocol_error(void **state)
{
    static const char page[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    struct process_rig *r = *state;
    char endpoint[64];
    int listening = listen_somewhere(endpoint);
    pid_t other = fork();
    assert_true(other >= 0);
    if (other == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (other == 0) {
        int caller = accept(listening, NULL, NULL);
        (void)send(caller, page, sizeof page - 1, MSG_NOSIGNAL);
        close(caller);
    }
    close(listening);
    int code = RIG_RUN(r, "worker", RIG_SMALL, "worker=0", endpoint, "run_token=1", "timeout_s=20");
    assert_int_equal(code, ERROR_PROTOCOL);
    process_expect_error(r, endpoint + strlen("endpoint="));
    assert_int_equal(RIG_RUN(r, "keygen", "keys"), OK);
    code = RIG_RUN(r, "worker", RIG_SMALL, "worker=0", endpoint, "run_token=1", "timeout_s=20",
                   "curve=keys");
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    assert_int_equal(code, ERROR_PROTOCOL);
    process_expect_error(r, endpoint + strlen("endpoint="));
}

static void a_worker_without_an_answer_learns_how_to_write_ipv6(void **state)
{
    struct process_rig *r = *state;
    char endpoint[64];
    int listening = listen_somewhere(endpoint);
    assert_int_equal(
        RIG_RUN(r, "worker", RIG_SMALL, "worker=0", endpoint, "run_token=1", "timeout_s=1"),
        ERROR_PEER);
    process_expect_error(r, "tcp://[ADDRESS]:PORT");
    assert_int_equal(RIG_RUN(r, "check", endpoint, "trusted_network=yes", "timeout_s=1"),
                     ERROR_PEER);
    process_expect_error(r, "tcp://[ADDRESS]:PORT");
    close(listening);
}

static void a_server_on_all_ipv6_addresses_trains(void **state)
{
    struct process_rig *r = *state;
    char endpoint[RIG_ENDPOINT_BYTES], token[64], port[64];
    void *more;
    if (process_shell(r, "grep -q ' lo$' /proc/net/if_inet6") != OK) {
        print_message("skipped: no IPv6 here\n");
        skip();
    }
    process_set_up(&more);
    struct process_rig *worker = more;
    process_start(r, (const char *const[]){"server", RIG_SMALL, "endpoint=tcp://[::]:*",
                                           "trusted_network=yes", NULL});
    process_await_endpoint(r, endpoint, token);
    snprintf(port, sizeof port, "endpoint=tcp://[::1]%s", strrchr(endpoint, ':'));
    assert_int_equal(
        RIG_RUN(worker, "worker", RIG_SMALL, "trusted_network=yes", "worker=0", port, token), OK);
    assert_int_equal(process_wait(r), OK);
    process_expect_answer(r, "SELECT status FROM run", "finished");
    process_tear_down(&more);
}

/* A worker may need longer than the timeout to load its data. */
static void a_worker_may_join_later_than_the_timeout(void **state)
{
    struct process_rig *r = *state;
    char endpoint[RIG_ENDPOINT_BYTES], token[64];
    void *more;
    process_set_up(&more);
    struct process_rig *worker = more;
    process_start(r, (const char *const[]){"server", RIG_SMALL, "timeout_s=1.5", NULL});
    process_await_endpoint(r, endpoint, token);
    usleep(2500000);
    assert_int_equal(
        RIG_RUN(worker, "worker", RIG_SMALL, "timeout_s=1.5", "worker=0", endpoint, token), OK);
    assert_int_equal(process_wait(r), OK);
    process_expect_answer(r, "SELECT status FROM run", "finished");
    process_tear_down(&more);
}

/* The second step lasts ten minutes. */
static void a_worker_in_a_long_step_can_be_stopped(void **state)
{
    static const char trace[] = "worker,compute_us\n0,1000\n0,600000000\n";
    struct process_rig *r = *state;
    char endpoint[RIG_ENDPOINT_BYTES], token[64];
    void *more;
    process_set_up(&more);
    struct process_rig *worker = more;
    process_write(r, "steps.csv", trace);
    process_write(worker, "steps.csv", trace);
#define LONG_STEP RIG_DATA, "epochs=100", "batch=10", "pace=trace", "pace.path=steps.csv"
    process_start(r, (const char *const[]){"server", LONG_STEP, NULL});
    process_await_endpoint(r, endpoint, token);
    process_start(worker,
                  (const char *const[]){"worker", LONG_STEP, "worker=0", endpoint, token, NULL});
    process_await_row(r, "SELECT count(*) FROM push");
    kill(worker->pid, SIGTERM);
    expect_end(worker, STOPPED, NULL);
    assert_int_equal(process_wait(r), STOPPED);
    process_tear_down(&more);
}

/* ---- deaths and hangups --------------------------------------------------------------------- */

static void a_worker_names_its_killed_server_and_the_run_failed(void **state)
{
    struct process_rig *r = *state;
    char endpoint[RIG_ENDPOINT_BYTES], token[64];
    void *more;
    process_set_up(&more);
    struct process_rig *worker = more;
    process_start(r, (const char *const[]){"server", RIG_LONG, NULL});
    process_await_endpoint(r, endpoint, token);
    process_start(worker,
                  (const char *const[]){"worker", RIG_LONG, "worker=0", endpoint, token, NULL});
    process_await_row(r, "SELECT count(*) >= 10 FROM push");
    kill(r->pid, SIGKILL);
    expect_end(worker, ERROR_PEER, "server");
    assert_int_equal(process_wait(r), 128 + SIGKILL);
    process_expect_answer(r, "SELECT status FROM run", "failed");
    process_tear_down(&more);
}

static void sighup_stops_a_server_in_order(void **state)
{
    struct process_rig *r = *state;
    char endpoint[RIG_ENDPOINT_BYTES], token[64];
    process_start(r, (const char *const[]){"server", RIG_LONG, NULL});
    process_await_endpoint(r, endpoint, token);
    kill(r->pid, SIGHUP);
    expect_end(r, STOPPED, NULL);
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "stopped");
}

static void nohup_keeps_a_run_alive(void **state)
{
    struct process_rig *r = *state;
    char more[64];
    signal(SIGHUP, SIG_IGN); /* as nohup does; child processes inherit it */
    process_start(r, (const char *const[]){"run", RIG_LONG, NULL});
    signal(SIGHUP, SIG_DFL);
    process_await_row(r, "SELECT count(*) >= 10 FROM push");
    kill(r->pid, SIGHUP);
    usleep(100000);
    snprintf(more, sizeof more, "SELECT count(*) > %d FROM push",
             100 + atoi(process_ask(r, "SELECT count(*) FROM push")));
    process_await_row(r, more);
    kill(r->pid, SIGINT);
    expect_end(r, STOPPED, NULL);
    process_expect_nothing_left(r);
}

/* Each worker gives up the stopped server, and each time the run continues without that worker. */
static void a_hanging_server_ends_a_run_with_on_lost_continue(void **state)
{
    struct process_rig *r = *state;
    pid_t server;
    process_start(r, (const char *const[]){"run", RIG_LONG, "workers=2", "on_lost=continue",
                                           "timeout_s=3", NULL});
    process_await(r, "server", &server, 1);
    process_await_row(r, "SELECT count(*) >= 10 FROM push");
    kill(server, SIGSTOP);
    process_await_verdict(r);
    kill(server, SIGCONT);
    expect_end(r, ERROR_PEER, "timeout_s");
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "failed");
    process_expect_nothing_left(r);
}

/* ---- roles that do not fit together --------------------------------------------------------- */

static void malformed_numbers_and_tokens_are_usage_errors(void **state)
{
    struct process_rig *r = *state;
    static const struct {
        const char *role, *setting, *more, *part;
    } cases[] = {
        {"worker", "seed=1", "run_token=1", "worker="},
        {"worker", "worker=first", "run_token=1", "worker=first"},
        {"worker", "worker=4096", "run_token=1", "worker=4096"},
        {"worker", "worker=1", "run_token=1", "worker"},
        {"worker", "worker=0", "run_token=-1", "run_token=-1"},
        {"worker", "worker=0", "seed=1", "run_token="},
        {"server", "server=-1", "seed=1", "server=-1"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(RIG_RUN(r, cases[i].role, RIG_SMALL, cases[i].setting, cases[i].more,
                                 "endpoint=ipc://x"),
                         ERROR_USAGE);
        process_expect_error(r, cases[i].part);
    }
}

static void a_single_server_refuses_a_follower(void **state)
{
    struct process_rig *r = *state;
    void *more;
    char endpoint[160];
    process_set_up(&more);
    struct process_rig *second = more;
    snprintf(endpoint, sizeof endpoint, "endpoint=ipc://%s/0", r->folder);
    process_start(r, (const char *const[]){"server", RIG_SMALL, endpoint, "run_token=1", NULL});
    snprintf(endpoint, sizeof endpoint, "endpoint=ipc://%s/0,ipc://%s/1", r->folder, r->folder);
    process_start(second, (const char *const[]){"server", RIG_SMALL, endpoint, "run_token=1",
                                                "servers=2", "server=1", NULL});
    expect_end(second, ERROR_PROTOCOL, "server 0");
    kill(r->pid, SIGTERM);
    assert_int_equal(process_wait(r), STOPPED);
    process_tear_down(&more);
}

/* The variables are those of `mpirun -n 2 gradlag run` and `srun -n 2 gradlag run`. */
static void a_run_under_a_launcher_is_refused_with_advice(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(process_shell(r, "OMPI_COMM_WORLD_SIZE=2 gradlag run mode=sync workers=2"),
                     ERROR_USAGE);
    process_expect_error(r, "gradlag rank mode=sync");
    assert_int_equal(process_shell(r, "OMPI_COMM_WORLD_SIZE=2 gradlag run mode=async workers=2"),
                     ERROR_USAGE);
    process_expect_error(r, "mpirun");
    assert_int_equal(process_shell(r, "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 gradlag rank"),
                     ERROR_USAGE);
    process_expect_error(r, "mode=sync");
    assert_int_equal(process_shell(r, "SLURM_STEP_NUM_TASKS=2 gradlag run mode=sync workers=2"),
                     ERROR_USAGE);
    process_expect_error(r, "leave srun out");
    assert_int_equal(access(process_path(r, "results.db"), F_OK), -1);
    const char *accepted[] = {"SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_NUM_TASKS=2 SLURM_PTY_PORT=7"};
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        char script[256];
        snprintf(script, sizeof script,
                 "%s gradlag run mode=async dataset=gaussian dataset.size=8 "
                 "dataset.samples=1000 model=softmax samples=600 batch=10",
                 accepted[i]);
        assert_int_equal(process_shell(r, script), OK);
    }
}

static void a_run_without_length_is_an_error_and_too_many_threads_a_warning(void **state)
{
    struct process_rig *r = *state;
    char threads[32];
    assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "epochs=0"), ERROR_USAGE);
    process_expect_error(r, "epochs");
    process_expect_error(r, "updates");
    snprintf(threads, sizeof threads, "threads=%u", processor_count() + 1);
    assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "samples=20", "batch=10", threads), OK);
    process_expect_errors_contain(r, "warning: ");
    assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "samples=20", "batch=10", "threads=1"), OK);
    process_expect_errors_contain(r, "warmup_epochs=1");
    assert_int_equal(
        RIG_RUN(r, "run", RIG_DATA, "samples=20", "batch=10", "threads=1", "warmup_epochs=0"), OK);
    assert_null(strstr(process_errors(r), "warning: "));
}

static void a_sweep_warns_if_training_is_not_longer_than_its_warm_up(void **state)
{
    struct process_rig *r = *state;
    static const char *const lengths[][3] = {{"epochs=2,1", "warmup_epochs=1", "2 of 4"},
                                             {"updates=9,8", "warmup_updates=8", "2 of 4"},
                                             {"seconds=3,2", "warmup_seconds=3", "4 of 4"},
                                             {"search=tpe", "epochs=1", "warmup_epochs=1"}};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        assert_int_equal(RIG_RUN(r, "sweep", RIG_DATA, lengths[i][0], lengths[i][1],
                                 "momentum=0,0.9", "--dry-run"),
                         OK);
        process_expect_errors_contain(r, lengths[i][2]);
    }
    assert_int_equal(RIG_RUN(r, "sweep", RIG_DATA, "epochs=2,3", "momentum=0,0.9", "--dry-run"),
                     OK);
    assert_null(strstr(process_errors(r), "warning: "));
}

static void a_list_may_have_spaces_between_its_values(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", "damping=none, inverse", "seed= 1 ,2 ", "--dry-run"), OK);
    static const char *const listed[][2] = {{"damping=none ", "seed=1"},
                                            {"damping=none ", "seed=2"},
                                            {"damping=inverse ", "seed=1"},
                                            {"damping=inverse ", "seed=2"}};
    for (size_t i = 0; i < COUNT_OF(listed); i++)
        process_expect_line(r, listed[i][0], listed[i][1]);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_list_may_have_spaces_between_its_values),
        TEST(a_sweep_warns_if_training_is_not_longer_than_its_warm_up),
        TEST(a_run_without_length_is_an_error_and_too_many_threads_a_warning),
        TEST(a_run_under_a_launcher_is_refused_with_advice),
        TEST(a_worker_that_waits_for_its_server_can_be_stopped),
        TEST(a_listening_check_can_be_stopped),
        TEST(a_worker_without_an_answer_learns_how_to_write_ipv6),
        TEST(a_server_on_all_ipv6_addresses_trains),
        TEST(a_worker_may_join_later_than_the_timeout),
        TEST(a_worker_in_a_long_step_can_be_stopped),
        TEST(another_program_at_the_endpoint_is_a_protocol_error),
        TEST(a_worker_names_its_killed_server_and_the_run_failed),
        TEST(sighup_stops_a_server_in_order),
        TEST(nohup_keeps_a_run_alive),
        TEST(a_hanging_server_ends_a_run_with_on_lost_continue),
        TEST(malformed_numbers_and_tokens_are_usage_errors),
        TEST(a_single_server_refuses_a_follower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
