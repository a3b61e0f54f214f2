/*
 * What runs write, read by DuckDB and PyTorch. A test is skipped if its tool is not
 * installed for $GRADLAG_PYTHON (default: python3).
 */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <unistd.h>

enum { NOT_INSTALLED = 77 };

static int run_reader(struct process_rig *r, const char *name, const char *arguments)
{
    char script[8192], tree[4096];
    assert_non_null(getcwd(tree, sizeof tree));
    snprintf(script, sizeof script, "'%s/tests/readers/check-read' %s %s", tree, name, arguments);
    return process_shell(r, script);
}

/* Skips the test if read_NAME.py cannot import its tool. */
static void need(struct process_rig *r, const char *name)
{
    if (run_reader(r, name, "") == NOT_INSTALLED) {
        print_message("skipped: %s"
                      "install it in a virtual environment and name its python in "
                      "GRADLAG_PYTHON\n",
                      process_output(r));
        skip();
    }
}

static void read_with(struct process_rig *r, const char *name, const char *arguments)
{
    if (run_reader(r, name, arguments) != OK)
        fail_msg("%s: %s", name, process_errors(r));
}

static void make_runs(struct process_rig *r)
{
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "workers=4", "pace=gamma",
                             "evaluate_every=0.2", "experiment=an experiment", "arm=ärmchen, ½"),
                     OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "engine=virtual", "workers=2",
                             "pace=gamma", "lr=0.01", "evaluate_every=0.2"),
                     OK);
}

/* The example of docs/results-file.md. */
static void duckdb_reads_a_query_and_the_file(void **state)
{
    struct process_rig *r = *state;
    need(r, "duckdb");
    make_runs(r);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "workers=4", "pace=gamma",
                             "evaluate_every=0.2", "experiment=an experiment", "arm=ärmchen, ½",
                             "seed=3"),
                     OK);
    assert_int_equal(
        RIG_RUN(r, "query", "SELECT * FROM push WHERE run_id = 1", "--csv", "results=results.db"),
        OK);
    process_write(r, "push.csv", process_output(r));
    read_with(r, "duckdb", "results.db push.csv");
}

static void pytorch_loads_a_checkpoint(void **state)
{
    struct process_rig *r = *state;
    need(r, "safetensors");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant", "model=mlp",
                             "checkpoint=at.safetensors"),
                     OK);
    read_with(r, "safetensors", "results.db at.safetensors");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(duckdb_reads_a_query_and_the_file),
        TEST(pytorch_loads_a_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
