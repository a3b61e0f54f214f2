/*
 * Runs the recipes of scripts/launch on this host. mpirun is the real one. Scripts replace srun and
 * scontrol; they start the same processes with the same variables. Of the Kubernetes manifests, the
 * containers' commands run.
 */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SMALL                                                                                      \
    "dataset=gaussian dataset.size=8 dataset.samples=1000 model=softmax samples=600 batch=10 "     \
    "evaluate_every=0"

/* In the range of ports that slurm-async uses. */
static int free_port(void)
{
    for (int port = 20000 + (int)getpid() % 10000; port < 40000; port++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0);
        int bound = bind(fd, (struct sockaddr *)&at, sizeof at);
        close(fd);
        if (bound == 0)
            return port;
    }
    fail_msg("no port is free");
    return 0;
}

/* Runs the script with $launch and $port; ranks may share cores. */
static int try_shell(struct process_rig *r, const char *script)
{
    char all[8192], tree[4096];
    assert_non_null(getcwd(tree, sizeof tree));
    int length = snprintf(all, sizeof all,
                          "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                          "OMPI_MCA_rmaps_base_oversubscribe=1 "
                          "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe\n" /* Open MPI 5 */
                          "launch='%s/scripts/launch' port=%d\n%s",
                          tree, free_port(), script);
    assert_in_range(length, 1, sizeof all - 1);
    return process_shell(r, all);
}

static void expect_shell(struct process_rig *r, const char *script)
{
    int code = try_shell(r, script);
    if (code != OK)
        fail_msg("exit code %d of: %s\n%s", code, script, process_errors(r));
}

static void expect_trained(struct process_rig *r, const char *mode, const char *from,
                           const char *workers)
{
    char sql[128];
    process_expect_answer(r, "SELECT group_concat(status || ' ' || samples_used) FROM run",
                          "finished 600");
    process_expect_answer(r, "SELECT mode FROM run", mode);
    snprintf(sql, sizeof sql, "SELECT count(DISTINCT worker) FROM %s", from);
    process_expect_answer(r, sql, workers);
    expect_shell(r, "! ls -d gradlag-keys-*");
}

static void mpirun_async_starts_a_server_here_and_workers_by_mpirun(void **state)
{
    struct process_rig *r = *state;
    expect_shell(r, "GRADLAG_HOST=127.0.0.1 GRADLAG_PORT=$port $launch/mpirun-async 2 -- " SMALL);
    expect_trained(r, "async", "push", "2");
    assert_int_equal(try_shell(r, "$launch/mpirun-async --hostfile hosts -- " SMALL), ERROR_USAGE);
    process_expect_errors_contain(r, "mpirun-async");
}

static void mpirun_async_ends_if_mpirun_starts_no_worker(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "mpirun", "#!/bin/sh\nexit 1\n");
    expect_shell(r, "chmod +x mpirun");
    assert_int_equal(try_shell(r, "PATH=$PWD:$PATH; GRADLAG_HOST=127.0.0.1 GRADLAG_PORT=$port "
                                  "timeout 60 $launch/mpirun-async 2 -- " SMALL),
                     ERROR_PEER);
    process_expect_errors_contain(r, "mpirun-async");
    expect_shell(r, "! ls -d gradlag-keys-*");
}

static void mpirun_async_names_the_variable_if_the_host_has_no_name(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "hostname", "#!/bin/sh\nexit 1\n");
    assert_int_equal(try_shell(r, "chmod +x hostname; PATH=$PWD:$PATH; unset GRADLAG_HOST; "
                                  "$launch/mpirun-async 2 -- " SMALL),
                     ERROR_USAGE);
    process_expect_errors_contain(r, "GRADLAG_HOST");
    expect_shell(r, "! ls -d gradlag-keys-*");
}

/* The port of the server is in use, by a program that does not answer the workers. */
static void mpirun_async_ends_with_its_server(void **state)
{
    struct process_rig *r = *state;
    char script[512];
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    snprintf(
        script, sizeof script,
        "GRADLAG_HOST=127.0.0.1 GRADLAG_PORT=%d $launch/mpirun-async 2 -- timeout_s=600 " SMALL,
        ntohs(at.sin_port));
    assert_int_equal(try_shell(r, script), ERROR_OTHER); /* 128 + SIGKILL after RIG_LIMIT_S */
    process_expect_errors_contain(r, "endpoint");
    close(fd);
}

static void processes_of_a_killed_mpirun_async_end(void **state)
{
    struct process_rig *r = *state;
    if (process_shell(r, "setpriv --pdeathsig TERM true && pgrep -V") != OK)
        skip();
    expect_shell(r, "export GRADLAG_HOST=127.0.0.1 GRADLAG_PORT=$port\n"
                    "$launch/mpirun-async 1 -- " SMALL " samples=1000000 pace=constant "
                    "pace.mean_ms=20 & script=$!\n"
                    "rows() { gradlag query 'SELECT count(*) > 0 FROM push' --csv | grep -qx 1; }\n"
                    "until rows; do sleep 0.1; done\n"
                    "kill -9 $script\n"
                    "for i in $(seq 300); do pgrep -f \":$port( |\\$)\" >/dev/null || exit 0; "
                    "sleep 0.1; done\n"
                    "pkill -9 -f \":$port( |\\$)\"; exit 1");
    process_expect_answer(r, "SELECT status FROM run", "stopped");
}

static void the_slurm_recipes_refuse_to_run_outside_a_job(void **state)
{
    struct process_rig *r = *state;
    static const char *const recipes[] = {"slurm-async", "slurm-sync"};
    for (size_t i = 0; i < COUNT_OF(recipes); i++) {
        char script[128];
        snprintf(script, sizeof script, "unset SLURM_JOB_ID SLURM_NTASKS; $launch/%s model=softmax",
                 recipes[i]);
        assert_int_equal(try_shell(r, script), ERROR_USAGE);
        process_expect_errors_contain(r, "sbatch");
    }
}

/* Scripts that act as Slurm on one host. */
static void write_slurm(struct process_rig *r)
{
    process_write(r, "scontrol", "#!/bin/sh\necho 127.0.0.1\n");
    process_write(r, "srun",
                  "#!/bin/bash\n"
                  "tasks=$SLURM_NTASKS\n"
                  "echo step >>steps\n"
                  "while [[ $1 == -* ]]; do\n"
                  "    echo \"$1\" >>options\n"
                  "    [[ $1 != --ntasks=* ]] || tasks=${1#*=}\n"
                  "    [[ $1 != --mpi=pmix ]] || by_mpi=yes\n"
                  "    shift\n"
                  "done\n"
                  "export PRTE_MCA_ras=^slurm # Open MPI 6 would ask this job for its nodes\n"
                  "[ -z \"$by_mpi\" ] || exec mpirun -n $tasks \"$@\"\n"
                  "for ((i = 0; i < tasks; i++)); do\n"
                  "    SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_NTASKS=$tasks \"$@\" &\n"
                  "done\n"
                  "for job in $(jobs -p); do wait $job || code=$?; done\n"
                  "exit ${code:-0}\n");
    expect_shell(r, "chmod +x srun scontrol");
}

#define SLURM                                                                                      \
    "PATH=$PWD:$PATH; export SLURM_JOB_ID=$((port - 20000)) SLURM_JOB_NODELIST=node[1-2] "         \
    "SLURM_NTASKS="

static void slurm_async_has_a_worker_for_each_task_but_one(void **state)
{
    struct process_rig *r = *state;
    write_slurm(r);
    expect_shell(r, SLURM "4; $launch/slurm-async " SMALL " && mv results-*.db results.db");
    expect_trained(r, "async", "push", "3");
    assert_int_equal(try_shell(r, SLURM "1; $launch/slurm-async " SMALL), ERROR_USAGE);
    process_expect_errors_contain(r, "--ntasks");
}

/* Two steps would compete for the first node. */
static void slurm_async_is_one_step_and_a_failed_worker_does_not_fail_it(void **state)
{
    struct process_rig *r = *state;
    write_slurm(r);
    process_write(r, "gradlag-failing",
                  "#!/bin/sh\ngradlag \"$@\" || exit\n"
                  "[ \"$1\" != worker ] || [ \"$SLURM_PROCID\" -ne 2 ] || exit 4\n");
    expect_shell(r, "chmod +x gradlag-failing; GRADLAG=$PWD/gradlag-failing; export GRADLAG; " SLURM
                    "4; $launch/slurm-async " SMALL " && "
                    "[ $(wc -l <steps) -eq 1 ] && mv results-*.db results.db");
    process_expect_answer(r, "SELECT status FROM run", "finished");
}

static void slurm_async_has_the_exit_code_of_its_server(void **state)
{
    struct process_rig *r = *state;
    write_slurm(r);
    assert_int_equal(try_shell(r, SLURM "2; $launch/slurm-async " SMALL " lr=1e6 model=mlp"),
                     ERROR_DIVERGED);
    expect_shell(r, "! ls -d gradlag-keys-*");
}

static void slurm_sync_has_a_rank_for_each_task(void **state)
{
    struct process_rig *r = *state;
    write_slurm(r);
    expect_shell(r, SLURM "3; $launch/slurm-sync " SMALL " && mv results-*.db results.db");
    expect_trained(r, "sync", "step", "3");
}

static void each_task_of_the_slurm_recipes_has_the_processors_of_the_job(void **state)
{
    struct process_rig *r = *state;
    write_slurm(r);
    expect_shell(r, "export GRADLAG=true SLURM_CPUS_PER_TASK=3; " SLURM
                    "2; for recipe in async sync; do rm -f options; $launch/slurm-$recipe && "
                    "grep -x -e --cpus-per-task=3 options || exit; done");
}

/* Runs one task of `sbatch --array=…` with the variables that Slurm sets. */
#define ARRAY                                                                                      \
    "task() { SLURM_ARRAY_TASK_ID=$1 SLURM_ARRAY_TASK_MIN=$2 SLURM_ARRAY_TASK_MAX=$3 "             \
    "SLURM_ARRAY_TASK_COUNT=$4 $launch/slurm-array \"${@:5}\"; }\n"
#define ARRAY_SWEEP "sweep " SMALL " engine=virtual pace=constant lr=0.1,0.01 seed=1,2,3,4 --quiet"

static void the_tasks_of_slurm_array_make_each_run_once(void **state)
{
    struct process_rig *r = *state;
    expect_shell(r, ARRAY "for k in 1 2 3; do task $k 1 3 3 " ARRAY_SWEEP " & done\n"
                          "for job in $(jobs -p); do wait $job || exit; done\n"
                          "rm part-2-of-3.db\n"
                          "GRADLAG_PARTS=3 task 2 2 2 1 " ARRAY_SWEEP " || exit\n" /* again */
                          "gradlag merge part-*-of-3.db -o results.db");
    process_expect_answer(r,
                          "SELECT count(*) || ' ' || count(DISTINCT lr || ':' || seed) || ' ' || "
                          "count(DISTINCT uuid) FROM run WHERE status = 'finished'",
                          "8 8 8");
    expect_shell(r, "gradlag " ARRAY_SWEEP " | grep -q ' 0 to run, 8 there already$'");
}

static void slurm_array_refuses_arguments_that_would_omit_runs(void **state)
{
    struct process_rig *r = *state;
    static const char *const wrong[] = {
        "$launch/slurm-array " ARRAY_SWEEP,          /* no array */
        "task 2 2 3 2 " ARRAY_SWEEP,                 /* part 1 has no task */
        "task 3 1 5 3 " ARRAY_SWEEP,                 /* tasks 1, 3, 5 */
        "GRADLAG_PARTS=3 task 4 4 4 1 " ARRAY_SWEEP, /* task 4 of 3 parts */
        "task 1 1 2 2 run " SMALL,
        "task 1 1 2 2",
        "task 1 1 2 2 " ARRAY_SWEEP " results=all.db",
        "task 1 1 2 2 " ARRAY_SWEEP " --part 1/3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char script[1024];
        snprintf(script, sizeof script, "%s%s", ARRAY, wrong[i]);
        if (try_shell(r, script) != ERROR_USAGE)
            fail_msg("not refused: %s", wrong[i]);
    }
    expect_shell(r, "! ls *.db");
}

static void ranks_started_without_pmix_name_the_option(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(try_shell(r, "SLURM_STEP_NUM_TASKS=4 gradlag rank mode=sync " SMALL),
                     ERROR_USAGE);
    process_expect_error(r, "srun");
    process_expect_error(r, "--mpi=pmix");
}

/* Extracts the SETTINGS of a manifest and the commands of its containers, with this host as the
 * server. */
#define OF_MANIFEST                                                                                \
    "settings() { sed -n 's/^ *\\(SETTINGS\\|value\\): //p' \"$1\"; }\n"                           \
    "command_of() { grep -o \"exec $1.*\" \"$2\" | sed \"s,gradlag-server:,127.0.0.1:,; "          \
    "s,5555,$port,;"                                                                               \
    " s,=/keys,=$PWD/keys,; s,/results/,,g\"; }\n"

/* The server dies; then all processes start again, as their pods would. */
static void the_kubernetes_server_goes_on_from_its_checkpoint(void **state)
{
    struct process_rig *r = *state;
    expect_shell(
        r, OF_MANIFEST
        "file=$launch/kubernetes-async.yaml; gradlag keygen keys\n"
        "export GRADLAG_RUN_TOKEN=5ea1ed RUN=first SETTINGS='workers=1 timeout_s=10 samples=6000 "
        "batch=10 "
        "dataset=gaussian dataset.size=8 dataset.samples=1000 model=softmax pace=constant "
        "pace.mean_ms=5 evaluate_every=0'\n"
        "start() {\n"
        "    JOB_COMPLETION_INDEX=0 sh -c \"$(command_of 'gradlag worker' $file)\" & worker=$!\n"
        "    sh -c \"$(command_of 'gradlag server' $file)\" & server=$!\n"
        "}\n"
        "start\n"
        "for i in $(seq 600); do [ -e first.safetensors ] && break; sleep 0.05; done\n"
        "kill -9 $server; wait $server; wait $worker\n"
        "start\n"
        "wait $server && wait $worker\n");
    process_expect_answer(r,
                          "SELECT id || status || samples_used || (host ->> '$.resumed.version' > "
                          "0) FROM run ORDER BY id DESC LIMIT 1",
                          "2finished60001");
}

static void the_kubernetes_manifests_commands_train(void **state)
{
    struct process_rig *r = *state;
    expect_shell(r, OF_MANIFEST
                 "set -e; file=$launch/kubernetes-async.yaml\n"
                 "gradlag run $(settings $file) --dry-run\n"
                 "gradlag keygen keys\n"
                 "export GRADLAG_RUN_TOKEN=5ea1ed RUN=first SETTINGS='workers=4 " SMALL "'\n"
                 "for i in 0 1 2 3; do\n"
                 "    JOB_COMPLETION_INDEX=$i sh -c \"$(command_of 'gradlag worker' $file)\" &\n"
                 "done\n"
                 "sh -c \"$(command_of 'gradlag server' $file)\"\n"
                 "for job in $(jobs -p); do wait $job; done\n");
    expect_trained(r, "async", "push", "4");
    expect_shell(r, "[ -e first.safetensors ]");
    expect_shell(r,
                 OF_MANIFEST "set -e; rm results.db; file=$launch/kubernetes-sync.yaml\n"
                             "gradlag run mode=sync $(settings $file) --dry-run\n"
                             "RUN=sync SETTINGS='" SMALL "' sh -c \"$(command_of mpirun $file)\"\n"
                             "[ -e sync.safetensors ]\n");
    expect_trained(r, "sync", "step", "4");
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(mpirun_async_starts_a_server_here_and_workers_by_mpirun),
        TEST(mpirun_async_ends_if_mpirun_starts_no_worker),
        TEST(mpirun_async_names_the_variable_if_the_host_has_no_name),
        TEST(mpirun_async_ends_with_its_server),
        TEST(processes_of_a_killed_mpirun_async_end),
        TEST(the_slurm_recipes_refuse_to_run_outside_a_job),
        TEST(slurm_async_has_a_worker_for_each_task_but_one),
        TEST(slurm_async_is_one_step_and_a_failed_worker_does_not_fail_it),
        TEST(slurm_async_has_the_exit_code_of_its_server),
        TEST(slurm_sync_has_a_rank_for_each_task),
        TEST(each_task_of_the_slurm_recipes_has_the_processors_of_the_job),
        TEST(the_tasks_of_slurm_array_make_each_run_once),
        TEST(slurm_array_refuses_arguments_that_would_omit_runs),
        TEST(ranks_started_without_pmix_name_the_option),
        TEST(the_kubernetes_manifests_commands_train),
        TEST(the_kubernetes_server_goes_on_from_its_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
