/*
 * `gradlag run hosts=…`: one command starts a run on several hosts. hosts.sh simulates hosts as
 * namespaces, as root; a script replaces ssh.
 */
#include "base/clock.h"
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#define SMALL                                                                                      \
    "dataset=gaussian dataset.size=8 dataset.samples=1000 model=softmax samples=600 batch=10 "     \
    "evaluate_every=0 "
/* A run that does not end by itself. */
#define LONG                                                                                       \
    "dataset=gaussian dataset.size=8 dataset.samples=1000 model=softmax epochs=100000 batch=10 "   \
    "evaluate_every=0 pace=gamma pace.mean_ms=5 "
#define ON(host) "on_host $hosts " #host " gradlag run "

/* Runs `script` with three hosts, as $hosts. Then no process may be left on them. */
static int with_hosts(struct process_rig *r, const char *script)
{
    struct text all = {0};
    char tree[4096];
    assert_non_null(getcwd(tree, sizeof tree));
    text_add(
        &all,
        "set -o pipefail; . '%s/tests/rigs/hosts.sh'; hosts=gradlag-one-%d\n"
        "trap 'hosts_remove $hosts 3' EXIT\n"
        "hosts_make $hosts 3 >hosts 2>&1 || exit 99\n"
        "hosts_agent $hosts\n"
        "ended() { for _ in $(seq 100); do [ -z \"$(for i in 1 2 3; do ip netns pids "
        "$hosts-$i; done)\" ] && return; sleep 0.1; done; echo 'processes are left' >&2; exit "
        "98; }\n"
        "await_rows() { for _ in $(seq 300); do [ \"$(gradlag query \"SELECT count(*) > 5 FROM $1 "
        "WHERE run_id = $2\" --csv 2>&1 | tail -n 1)\" = 1 ] && return; sleep 0.1; "
        "done; exit 97; }\n"
        "(%s)\ncode=$?; ended; exit $code",
        tree, (int)getpid(), script);
    int code = geteuid() == 0 ? process_shell(r, all.at) : 99;
    text_free(&all);
    if (code == 99) {
        print_message("skipped: simulated hosts need root, `ip` and unshare\n");
        skip();
    }
    return code;
}

static void one_command_trains_asynchronously_on_three_hosts(void **state)
{
    struct process_rig *r = *state;
    if (with_hosts(r, ON(1) "hosts=10.79.0.1:1,10.79.0.2:2,10.79.0.3:1 mode=async " SMALL) != OK)
        fail_msg("%s", process_errors(r));
    process_expect_answer(r, "SELECT status, workers FROM run", "finished,4");
    process_expect_answer(r, "SELECT count(DISTINCT worker) FROM push", "4");
    process_expect_answer(r, "SELECT host ->> '$.network' FROM run", "encrypted (curve)");
}

static void a_trusted_network_is_not_encrypted_and_may_be_chosen(void **state)
{
    struct process_rig *r = *state;
    if (with_hosts(
            r, "printf '10.79.0.2 slots=2 # %700s\\n' 'the only one' >list; " ON(
                   1) "hosts=list mode=async trusted_network=yes network.interface=eth0 " SMALL) !=
        OK)
        fail_msg("%s", process_errors(r));
    process_expect_answer(r, "SELECT status, workers FROM run", "finished,2");
    process_expect_answer(r, "SELECT host ->> '$.network' FROM run",
                          "unencrypted (trusted_network=yes)");
}

static void several_servers_are_on_the_host_of_the_command(void **state)
{
    struct process_rig *r = *state;
    if (with_hosts(r, ON(1) "hosts=10.79.0.2:1,10.79.0.3:1 mode=async servers=2 " SMALL) != OK)
        fail_msg("%s", process_errors(r));
    process_expect_answer(r, "SELECT status, workers FROM run", "finished,2");
}

/* Rank 0, which writes the results, is on the second host of the list. */
static void one_command_trains_synchronously_with_the_bits_of_one_host(void **state)
{
    struct process_rig *r = *state;
    if (with_hosts(r, ON(2) "hosts=10.79.0.1:1,10.79.0.2:2 mode=sync reduction=ordered " SMALL) !=
        OK)
        fail_msg("%s", process_errors(r));
    assert_int_equal(
        process_shell(r, "exec gradlag run mode=sync workers=3 reduction=ordered " SMALL), OK);
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'finished'", "2");
    process_expect_answer(r, "SELECT host ->> '$.host' FROM run WHERE id = 1", "host2");
    process_expect_answer(r, "SELECT count(DISTINCT parameters_sha256) FROM run", "1");
}

static void a_host_that_cannot_be_reached_ends_the_run(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(with_hosts(r, ON(1) "hosts=10.79.0.1:1,10.79.0.9:1 mode=async " LONG),
                     ERROR_PEER);
    process_expect_errors_contain(r, "10.79.0.9");
    process_expect_answer(r, "SELECT status FROM run", "failed");
}

/* The error of a worker without a status pipe. The data exist on host 1 alone. */
static void an_error_on_another_host_keeps_its_code_and_names_the_host(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(
        with_hosts(
            r, "mkdir data empty; cp /usr/share/datasets/fashion-mnist/* data; "
               "sed -i 's|; exec|; [ $0 != 2 ] \\|\\| mount --bind empty data; exec|' agent; " ON(
                   1) "hosts=10.79.0.1:1,10.79.0.2:1 mode=async dataset=fashion-mnist "
                      "dataset.path=$PWD/data samples=600 "),
        ERROR_DATA);
    process_expect_errors_contain(r, "host 10.79.0.2: worker 1");
}

static void a_lost_host_ends_the_run(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(with_hosts(r,
                                ON(1) "hosts=10.79.0.1:1,10.79.0.2:1 mode=async timeout_s=4 " LONG
                                      "& await_rows push 1; ip netns pids $hosts-2 | xargs kill "
                                      "-9; wait $!"),
                     ERROR_PEER);
    process_expect_errors_contain(r, "10.79.0.2");
}

/* When mpirun is killed, its daemon asks its worker to stop. The run itself was not asked to
 * stop. */
static void a_killed_mpirun_is_a_lost_host_and_the_run_restarts(void **state)
{
    struct process_rig *r = *state;
    if (with_hosts(r, ON(1) "tag=$hosts hosts=10.79.0.1:1,10.79.0.2:1,10.79.0.3:1 mode=async "
                            "dataset=gaussian dataset.size=8 dataset.samples=1000 model=softmax "
                            "updates=1000 batch=10 evaluate_every=0 pace=constant pace.mean_ms=20 "
                            "timeout_s=10 restarts=1 checkpoint=at-{version}.safetensors "
                            "checkpoint_every=0.1 & await_rows push 1; await_rows checkpoint 1; "
                            "pkill -9 -f \"^mpirun .*10.79.0.2:1 .*tag=$hosts \"; wait $!") != OK)
        fail_msg("%s", process_errors(r));
    process_expect_errors_contain(r, "killed by signal 9");
    process_expect_answer(r, "SELECT group_concat(status, ' ') FROM run", "failed finished");
    process_expect_answer(
        r, "SELECT error LIKE '%host 10.79.0.2 %killed by signal 9%' FROM run WHERE id = 1", "1");
    process_expect_answer(r, "SELECT host ->> '$.resumed.version' > 0 FROM run WHERE id = 2", "1");
}

static void with_on_lost_a_run_continues_without_a_host(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(
        with_hosts(
            r,
            ON(1) "tag=$hosts hosts=10.79.0.1:1,10.79.0.2:1 mode=async timeout_s=4 "
                  "on_lost=continue " LONG
                  "& await_rows push 1; ip netns pids $hosts-2 | xargs kill -9; "
                  "for _ in $(seq 300); do gradlag query \"SELECT count(*) FROM event "
                  "WHERE code = 'worker_lost'\" --csv | grep -q 1 && "
                  "break; sleep 0.1; done; pkill -TERM -f \"^gradlag run tag=$hosts \"; wait $!"),
        STOPPED);
    process_expect_answer(r, "SELECT count(*) FROM event WHERE code = 'worker_lost'", "1");
    process_expect_answer(r, "SELECT status FROM run", "stopped");
}

static void ranks_of_a_lost_host_go_on_elsewhere_with_the_same_bits(void **state)
{
    struct process_rig *r = *state;
    if (with_hosts(
            r,
            "S='mode=sync reduction=ordered dataset=gaussian dataset.size=8 dataset.samples=1000 "
            "model=softmax samples=6000 batch=10 evaluate_every=0 pace=constant pace.mean_ms=20 "
            "checkpoint_every=0.1 timeout_s=5 restarts=2'; " ON(
                1) "hosts=10.79.0.1:1,10.79.0.2:1,10.79.0.3:1 $S "
                   "checkpoint=a-{version}.safetensors & "
                   "await_rows step 1; await_rows checkpoint 1; ip netns pids $hosts-2 | xargs "
                   "kill -9; "
                   "ip -n $hosts-2 link set eth0 down; wait $! || exit $?; " ON(
                       1) "hosts=localhost workers=3 $S checkpoint=b.safetensors") != OK)
        fail_msg("%s", process_errors(r));
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'finished'", "2");
    process_expect_answer(r, "SELECT count(*) FROM event WHERE code = 'restarted'", "1");
    process_expect_answer(r, "SELECT count(DISTINCT parameters_sha256) FROM run", "1");
}

static void a_host_that_comes_back_gets_its_worker_again(void **state)
{
    struct process_rig *r = *state;
    if (with_hosts(
            r, ON(1) "hosts=10.79.0.1:1,10.79.0.2:1 mode=async timeout_s=2 on_lost=continue "
                     "restarts=5 "
                     "dataset=gaussian dataset.size=8 dataset.samples=1000 model=softmax "
                     "samples=20000 "
                     "batch=10 evaluate_every=0 pace=constant pace.mean_ms=10 & await_rows push 1; "
                     "ip netns pids $hosts-2 | xargs kill -9; wait $!") != OK)
        fail_msg("%s", process_errors(r));
    process_expect_answer(r, "SELECT status FROM run", "finished");
    process_expect_answer(
        r, "SELECT count(*) FROM event WHERE code = 'worker_joined' AND worker = 1", "2");
}

static void ctrl_c_ends_all_processes_on_all_hosts(void **state)
{
    struct process_rig *r = *state;
    static const char *const modes[][2] = {{"async", "push"}, {"sync", "step"}};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        struct text script = {0};
        text_add(&script,
                 ON(1) "tag=$hosts hosts=10.79.0.1:1,10.79.0.2:2 mode=%s timeout_s=10 " LONG
                       "& await_rows %s %zu; pkill -TERM -f \"^gradlag run tag=$hosts \"; wait $!",
                 modes[i][0], modes[i][1], i + 1);
        assert_int_equal(with_hosts(r, script.at), STOPPED);
        text_free(&script);
    }
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'stopped'", "2");
}

static void impossible_hosts_are_refused(void **state)
{
    struct process_rig *r = *state;
    static const char *const wrong[] = {
        "hosts=a:0",  "hosts=a:1,a:1",        "hosts=a:x",
        "hosts=a;b",  "hosts=none/such/file", "hosts=localhost:1,127.0.0.1:1",
        "hosts=slurm"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, wrong[i]), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "hosts=192.0.2.1:2", "workers=3"), ERROR_USAGE);
    process_expect_error(r, "hosts=");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "hosts=192.0.2.1:2", "mode=sync"), ERROR_USAGE);
    static const char *const unreachable[] = {"endpoint=tcp://127.0.0.1:*", "endpoint=ipc:///tmp/s",
                                              "endpoint=tcp://localhost:5555"};
    for (size_t i = 0; i < COUNT_OF(unreachable); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "hosts=192.0.2.1:2", unreachable[i]),
                         ERROR_USAGE);
        process_expect_error(r, "hosts=192.0.2.1:2");
    }
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "hosts=localhost:2"), OK);
    process_expect_answer(r, "SELECT workers FROM run WHERE status = 'finished'", "2");
}

#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(one_command_trains_asynchronously_on_three_hosts),
        PROCESS_TEST(a_trusted_network_is_not_encrypted_and_may_be_chosen),
        PROCESS_TEST(several_servers_are_on_the_host_of_the_command),
        PROCESS_TEST(one_command_trains_synchronously_with_the_bits_of_one_host),
        PROCESS_TEST(a_host_that_cannot_be_reached_ends_the_run),
        PROCESS_TEST(an_error_on_another_host_keeps_its_code_and_names_the_host),
        PROCESS_TEST(a_lost_host_ends_the_run),
        PROCESS_TEST(a_killed_mpirun_is_a_lost_host_and_the_run_restarts),
        PROCESS_TEST(with_on_lost_a_run_continues_without_a_host),
        PROCESS_TEST(ranks_of_a_lost_host_go_on_elsewhere_with_the_same_bits),
        PROCESS_TEST(a_host_that_comes_back_gets_its_worker_again),
        PROCESS_TEST(ctrl_c_ends_all_processes_on_all_hosts),
        PROCESS_TEST(impossible_hosts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
