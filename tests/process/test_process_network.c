/*
 * Ranks and the network: on one host they listen only on loopback; on several hosts the first
 * contact has a limit, and `gradlag check` measures the links. hosts.sh simulates hosts as
 * namespaces, as root.
 */
#include "base/clock.h"
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one host -----------------------------------------------------------------------------------
 */

/* The inodes of a process's sockets. */
static unsigned sockets_of(pid_t pid, unsigned long *out, unsigned room)
{
    char folder[64], path[128], target[64];
    unsigned count = 0;
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
    DIR *files = opendir(folder);
    for (struct dirent *f; files != NULL && (f = readdir(files)) != NULL && count < room;) {
        snprintf(path, sizeof path, "%s/%.32s", folder, f->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        count += sscanf(target, "socket:[%lu]", &out[count]) == 1;
    }
    if (files != NULL)
        closedir(files);
    return count;
}

static bool is_loopback(const char *address)
{
    return strcmp(address, "0100007F") == 0 ||
           strcmp(address, "00000000000000000000000001000000") == 0 ||
           strcmp(address, "0000000000000000FFFF00000100007F") == 0;
}

/* The number of these sockets that listen. Fails the test if one listens on an address off
 * loopback. */
static unsigned listeners(const char *table, const unsigned long *sockets, unsigned count)
{
    char line[512], address[40], state[8];
    unsigned port, found = 0;
    unsigned long inode;
    FILE *file = fopen(table, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, " %*s %39[0-9A-F]:%x %*s %7s %*s %*s %*s %*s %*s %lu", address, &port,
                   state, &inode) != 4 ||
            strcmp(state, "0A") != 0)
            continue;
        for (unsigned i = 0; i < count; i++) {
            if (sockets[i] == inode) {
                found++;
                assert_true(port > 0);
                if (!is_loopback(address))
                    fail_msg("%s: port %u listens on %s", table, port, address);
            }
        }
    }
    if (file != NULL)
        fclose(file);
    return found;
}

static unsigned expect_loopback_alone(pid_t pid)
{
    unsigned long sockets[64];
    unsigned count = sockets_of(pid, sockets, COUNT_OF(sockets));
    return listeners("/proc/net/tcp", sockets, count) + listeners("/proc/net/tcp6", sockets, count);
}

static void expect_all_on_loopback(const struct process_rig *r, const char *role)
{
    pid_t mpirun, ranks[2];
    process_await(r, "-n", &mpirun, 1);
    process_await(r, role, ranks, 2);
    /* mpirun listens for PMIx; a count of 0 would mean that nothing was checked. */
    assert_true(expect_loopback_alone(mpirun) > 0);
    expect_loopback_alone(ranks[0]);
    expect_loopback_alone(ranks[1]);
}

static void ranks_of_one_host_listen_on_loopback_alone(void **state)
{
    struct process_rig *r = *state;
    static const char *const modes[] = {"mode=sync", "mode=pipeline"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        process_start(r, (const char *const[]){"run", RIG_LONG, "model=mlp", "workers=2", modes[i],
                                               "communicator=auto", "tag=long", NULL});
        process_await_row(r, "SELECT count(*) >= 10 FROM step WHERE run_id = (SELECT max(id) FROM "
                             "run)");
        expect_all_on_loopback(r, "rank");
        kill(r->pid, SIGTERM);
        assert_int_equal(process_wait(r), STOPPED);
    }
    process_expect_answer(r, "SELECT host ->> '$.network' FROM run WHERE mode = 'sync'",
                          "shared memory");
    process_expect_answer(r, "SELECT host ->> '$.communicator' FROM run WHERE mode = 'sync'",
                          "shared");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=2", "mode=sync", "communicator=mpi"),
                     OK);
    process_expect_answer(r,
                          "SELECT host ->> '$.network' LIKE 'shared memory; one MPI_Allreduce%' "
                          "FROM run WHERE communicator = 'mpi'",
                          "1");
}

static void a_benchmark_of_ranks_listens_on_loopback_alone(void **state)
{
    struct process_rig *r = *state;
    process_start(r, (const char *const[]){"bench", "allreduce", "sizes=1000,25600000",
                                           "repeats=10", "variants=mpi", NULL});
    /* This process executes mpirun. */
    pid_t ranks[2];
    process_await(r, "bench", ranks, 2);
    for (double until = clock_seconds() + RIG_LIMIT_S; process_output(r)[0] == '\0';) {
        assert_true(clock_seconds() < until);
        usleep(20000);
    }
    assert_true(expect_loopback_alone(r->pid) > 0);
    expect_loopback_alone(ranks[0]);
    expect_loopback_alone(ranks[1]);
    assert_int_equal(process_wait(r), OK);
}

#define OF_TWO_NODES                                                                               \
    "export SLURM_JOBID=77 SLURM_JOB_ID=77 SLURM_NODELIST=nodea,nodeb "                            \
    "SLURM_JOB_NODELIST=nodea,nodeb SLURM_NNODES=2 SLURM_JOB_NUM_NODES=2 SLURM_NTASKS=2 "          \
    "SLURM_TASKS_PER_NODE='1(x2)' SLURM_JOB_CPUS_PER_NODE='1(x2)' SLURM_CPUS_ON_NODE=1; "
#define SMALL                                                                                      \
    "dataset=gaussian dataset.size=8 dataset.samples=1000 model=softmax samples=600 batch=10 "     \
    "evaluate_every=0 "

static void a_run_inside_an_allocation_of_two_nodes_may_stay_on_this_host(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(process_shell(r, OF_TWO_NODES
                                   "exec gradlag run hosts=localhost mode=sync workers=2 " SMALL),
                     OK);
    process_expect_answer(r, "SELECT status FROM run", "finished");
}

static void a_tmpdir_without_space_for_mpirun_is_an_error_at_once(void **state)
{
    struct process_rig *r = *state;
    if (process_shell(r, "mkdir full && unshare --mount true") != OK) {
        print_message("skipped: mounts need root\n");
        skip();
    }
    const double begun = clock_seconds();
    assert_int_equal(process_shell(r, "exec unshare --mount bash -c 'mount -t tmpfs -o size=64k "
                                      "none full && TMPDIR=$PWD/full exec gradlag run mode=sync "
                                      "workers=2 timeout_s=1000 " SMALL "'"),
                     ERROR_OTHER);
    assert_true(clock_seconds() - begun < 20 * PATIENCE);
    process_expect_error(r, "TMPDIR");
    process_expect_answer(r, "SELECT status FROM run", "failed");
}

/* As in a container: Open MPI's segments go elsewhere. */
static void a_small_shared_memory_folder_is_not_used_for_ranks(void **state)
{
    struct process_rig *r = *state;
    if (process_shell(r, "unshare --mount true") != OK) {
        print_message("skipped: mounts need root\n");
        skip();
    }
    assert_int_equal(process_shell(r, "exec unshare --mount bash -c 'mount -t tmpfs -o size=64k "
                                      "none /dev/shm && exec gradlag run mode=sync workers=2 " SMALL
                                      "'"),
                     OK);
    process_expect_answer(r, "SELECT status FROM run", "finished");
}

/* ---- several hosts ------------------------------------------------------------------------------
 */

/* Runs `script` with the functions of hosts.sh and $hosts; removes the hosts at the end. */
static int with_hosts(struct process_rig *r, unsigned count, const char *bridge, const char *script)
{
    struct text all = {0};
    char tree[4096];
    assert_non_null(getcwd(tree, sizeof tree));
    text_add(
        &all,
        "set -o pipefail; . '%s/tests/rigs/hosts.sh'; hosts=gradlag-net-%d; trap 'hosts_remove "
        "$hosts %u' EXIT\n"
        "hosts_make $hosts %u %s >hosts 2>&1 || exit 99\n%s",
        tree, (int)getpid(), count, count, bridge, script);
    int code = geteuid() == 0 ? process_shell(r, all.at) : 99;
    text_free(&all);
    if (code == 99) {
        print_message("skipped: simulated hosts need root, `ip` and unshare\n");
        skip();
    }
    return code;
}

/* Through a pipe, because lines of mpirun and its ranks would overwrite each other in a file. */
#define SAY   " 2>&1 | cat >&2"
#define RANKS "hosts_mpirun $hosts 2 gradlag rank mode=sync workers=2 timeout_s=4 " SMALL

static void ranks_that_cannot_reach_each_other_fail_in_time(void **state)
{
    struct process_rig *r = *state;
    const double begun = clock_seconds();
    assert_int_equal(with_hosts(r, 2, "shared0", RANKS SAY), ERROR_PEER);
    assert_true(clock_seconds() - begun <
                40 * PATIENCE);                  /* less than LIVENESS_FACTOR times timeout_s */
    process_expect_errors_contain(r, "error: "); /* of either rank */
    process_expect_errors_contain(r, "btl_tcp_if_include");
    process_expect_errors_contain(r, "shared0 172.17.0.1");
    r->ended = 0; /* Open MPI's message is too long to print */
}

static void the_network_between_hosts_can_be_chosen(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(with_hosts(r, 2, "shared0",
                                RANKS "network.interface=eth0 && " RANKS
                                      "network.interface=10.79.0.0/24"),
                     OK);
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'finished'", "2");
    process_expect_answer(
        r, "SELECT min(host ->> '$.network' LIKE 'tcp eth0 (10.79.0.1); MPI_Iallreduce%') FROM run",
        "1");
    process_expect_answer(r, "SELECT DISTINCT host ->> '$.communicator' FROM run", "mpi");
    assert_int_equal(with_hosts(r, 2, "shared0", RANKS "network.interface=eth7" SAY), ERROR_USAGE);
    process_expect_errors_contain(r, "eth7");
    process_expect_errors_contain(r, "eth0 10.79.0.");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "network.interface=eth0"), ERROR_USAGE);
}

static void bridges_of_containers_are_not_used(void **state)
{
    struct process_rig *r = *state;
    if (with_hosts(r, 2, "docker0", RANKS) != OK)
        fail_msg("%s", process_errors(r));
    process_expect_answer(r, "SELECT status FROM run", "finished");
}

/* ---- gradlag check ------------------------------------------------------------------------------
 */

/* The value of one line of `check --json`. */
static double measured(struct process_rig *r, const char *about, const char *what)
{
    struct text row = {0};
    text_add(&row, "{\"check\":\"%s\",\"what\":\"%s\",\"value\":", about, what);
    const char *at = strstr(process_output(r), row.at);
    if (at == NULL)
        fail_msg("%s is not in:\n%s", row.at, process_output(r));
    double value = atof(at + row.length);
    text_free(&row);
    return value;
}

/* The link is listed as slow. */
static void expect_slow(struct process_rig *r, const char *link)
{
    struct text row = {0};
    text_add(&row, "{\"check\":\"SLOW\",\"what\":\"%s\"", link);
    const char *at = strstr(process_output(r), row.at);
    if (at == NULL)
        fail_msg("%s is not slow in:\n%s", link, process_output(r));
    text_free(&row);
}

static void links_between_hosts_are_measured_and_the_slow_one_is_named(void **state)
{
    struct process_rig *r = *state;
    if (with_hosts(r, 3, "",
                   "slow() { tc -n $hosts-$1 qdisc add dev eth0 root tbf rate $2 burst 128kb "
                   "latency 100ms || exit 99; }\n"
                   "slow 1 600mbit; slow 2 600mbit; slow 3 60mbit\n"
                   "hosts_mpirun $hosts 3 gradlag check --links --json") != OK)
        fail_msg("%s", process_errors(r));
    assert_true(measured(r, "latency", "host1 - host2") > 0);
    const double fast = measured(r, "bandwidth", "host1 -> host2");
    assert_true(fast > 0.1 && fast < 0.63);
    const double slow = measured(r, "bandwidth", "host1 <- host3");
    assert_true(slow > 0.01 && slow < 0.066);
    assert_true(measured(r, "allreduce", "3 ranks, mpi") > 0);
    assert_true(measured(r, "zeromq", "the same, encrypted (curve)") > 0);
    expect_slow(r, "host1 <- host3");
    expect_slow(r, "host2 <- host3");
    assert_non_null(strstr(process_output(r), "\"what\":\"host2\",\"text\":\"tcp eth0 "));
    process_expect_errors_contain(r, "host1 - host3");
}

static void a_link_is_measured_through_zeromq_with_the_keys_of_a_run(void **state)
{
    struct process_rig *r = *state;
    if (with_hosts(r, 2, "",
                   "gradlag keygen keys\n"
                   "on_host $hosts 1 gradlag check --listen curve=keys 'endpoint=tcp://*:5599' &\n"
                   "on_host $hosts 2 gradlag check curve=keys endpoint=tcp://10.79.0.1:5599 "
                   "--json || exit 1\n"
                   "wait $!") != OK)
        fail_msg("%s", process_errors(r));
    assert_true(measured(r, "latency", "tcp://10.79.0.1:5599") > 0);
    assert_true(measured(r, "bandwidth", "to tcp://10.79.0.1:5599") > 0);
    assert_true(measured(r, "bandwidth", "from tcp://10.79.0.1:5599") > 0);
}

static void a_missing_peer_and_missing_keys_are_errors(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "check", "--listen", "endpoint=tcp://*:*"), ERROR_USAGE);
    process_expect_error(r, "curve=");
    assert_int_equal(process_shell(r, "exec gradlag check endpoint=ipc://$PWD/none timeout_s=1"),
                     ERROR_PEER);
    process_expect_error(r, "--listen");
    assert_int_equal(
        process_shell(r, "exec gradlag check --listen endpoint=ipc://$PWD/none timeout_s=0.1"),
        ERROR_PEER);
    process_expect_error(r, "timeout_s");
}

#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(ranks_of_one_host_listen_on_loopback_alone),
        PROCESS_TEST(a_benchmark_of_ranks_listens_on_loopback_alone),
        PROCESS_TEST(a_run_inside_an_allocation_of_two_nodes_may_stay_on_this_host),
        PROCESS_TEST(a_tmpdir_without_space_for_mpirun_is_an_error_at_once),
        PROCESS_TEST(a_small_shared_memory_folder_is_not_used_for_ranks),
        PROCESS_TEST(ranks_that_cannot_reach_each_other_fail_in_time),
        PROCESS_TEST(the_network_between_hosts_can_be_chosen),
        PROCESS_TEST(bridges_of_containers_are_not_used),
        PROCESS_TEST(links_between_hosts_are_measured_and_the_slow_one_is_named),
        PROCESS_TEST(a_link_is_measured_through_zeromq_with_the_keys_of_a_run),
        PROCESS_TEST(a_missing_peer_and_missing_keys_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
