/*
 * Sweeps and experiments in parts: each part has its own results file, and the files are then
 * merged.
 */
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#define VIRTUAL "engine=virtual", "pace=constant", "virtual.threads=1"

/* Runs every part of `command` (ended by NULL) with its own results file and merges the files
 * into all.db. A part without runs writes no file. */
static void make_parts(struct process_rig *r, const char *const *command, unsigned parts)
{
    assert_int_equal(process_shell(r, "rm -f part-*.db all.db"), OK);
    for (unsigned k = 1; k <= parts; k++) {
        const char *argv[32] = {NULL};
        char part[32], results[32];
        size_t count = 0;
        for (; command[count] != NULL; count++)
            argv[count] = command[count];
        assert_in_range(count, 1, COUNT_OF(argv) - 3);
        snprintf(part, sizeof part, "--part=%u/%u", k, parts);
        snprintf(results, sizeof results, "results=part-%u.db", k);
        argv[count] = part;
        argv[count + 1] = results;
        if (process_run(r, argv) != OK)
            fail_msg("%s: %s", part, process_errors(r));
    }
    assert_int_equal(process_shell(r, "gradlag merge part-*.db -o all.db"), OK);
}

static void expect_in(struct process_rig *r, const char *file, const char *sql, const char *answer)
{
    char query[1024], found[512];
    int length =
        snprintf(query, sizeof query,
                 "gradlag query \"%s\" results=%s --csv | tail -n 1 | tr -d '\\n'", sql, file);
    assert_in_range(length, 1, sizeof query - 1);
    assert_int_equal(process_shell(r, query), OK);
    snprintf(found, sizeof found, "%s", process_output(r));
    assert_string_equal(found, answer);
}

/* ---- sweeps -------------------------------------------------------------------------------------
 */

static void the_parts_of_a_sweep_make_each_run_once(void **state)
{
    struct process_rig *r = *state;
    const char *const sweep[] = {"sweep",           RIG_SMALL, VIRTUAL, "seed=1,2,3",
                                 "lr=0.1,0.01,0.1", "--quiet", NULL};
    for (unsigned parts = 2; parts <= 7; parts += 5) { /* with 7 parts one part is empty */
        make_parts(r, sweep, parts);
        expect_in(r, "all.db",
                  "SELECT count(*) || ' ' || count(DISTINCT seed || ':' || lr) || ' ' || "
                  "count(DISTINCT config_hash) FROM run WHERE status = 'finished'",
                  "6 6 6");
    }
    assert_int_equal(RIG_RUN(r, "sweep", "--status", "results=all.db"), OK);
    process_expect_line(r, "6 ", "");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "seed=1,2,3", "lr=0.1,0.01",
                             "results=all.db", "--dry-run"),
                     OK);
    process_expect_line(r, "6 ", " 0 ");
}

/* The runs that a dry run lists for part 2 of 3, without status and number. */
static void list_part(struct process_rig *r, char out[1024])
{
    static const char script[] = "gradlag sweep dataset=gaussian dataset.size=8 model=softmax "
                                 "dataset.samples=1000 samples=600 batch=10 evaluate_every=0 "
                                 "engine=virtual pace=constant virtual.threads=1 seed=1..8:8 "
                                 "--part 2/3 --dry-run | tail -n +2 | cut -c 20-";
    assert_int_equal(process_shell(r, script), OK);
    snprintf(out, 1024, "%s", process_output(r));
}

static void the_runs_of_a_part_do_not_depend_on_its_results_file(void **state)
{
    struct process_rig *r = *state;
    char empty[1024], filled[1024];
    list_part(r, empty);
    assert_non_null(strstr(empty, "seed=2\n"));
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "seed=1,2,6", "--quiet"), OK);
    list_part(r, filled);
    assert_string_equal(filled, empty);
}

/* A wrong part number would silently omit runs. */
static void a_malformed_part_is_a_usage_error(void **state)
{
    struct process_rig *r = *state;
    static const char *const wrong[] = {
        "0/3", "4/3",   "a/b",  "1/0",  "1/",   "/3",    "3",
        "",    "1.5/3", "-1/3", "1/3x", " 1/3", "1/2/3", "4294967297/4294967299"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(
            RIG_RUN_INSIDE(r, "sweep", RIG_SMALL, "seed=1,2", "--part", wrong[i], "--dry-run"),
            ERROR_USAGE);
        process_expect_error(r, "--part");
        assert_int_equal(RIG_RUN_INSIDE(r, "reproduce", "gpipe", "--part", wrong[i], "--dry-run"),
                         ERROR_USAGE);
        process_expect_error(r, "--part");
    }
    assert_int_equal(RIG_RUN_INSIDE(r, "sweep", "seed=1,2", "--part"), ERROR_USAGE);
    assert_int_equal(RIG_RUN_INSIDE(r, "sweep", "seed=1,2", "--part=3/3", "--dry-run"), OK);
}

static void a_part_excludes_flags_for_the_whole_sweep(void **state)
{
    struct process_rig *r = *state;
    static const char *const flags[] = {"--status", "--work", "--drop"};
    for (size_t i = 0; i < COUNT_OF(flags); i++) {
        assert_int_equal(RIG_RUN_INSIDE(r, "sweep", flags[i], "--part=1/1"), ERROR_USAGE);
        process_expect_error(r, flags[i]);
    }
    assert_int_equal(RIG_RUN_INSIDE(r, "reproduce", "gpipe", "--part=1/2", "--no-run"),
                     ERROR_USAGE);
    process_expect_error(r, "--no-run");
    assert_int_equal(RIG_RUN_INSIDE(r, "reproduce", "gpipe", "--part=1/2", "--markdown"),
                     ERROR_USAGE);
    process_expect_error(r, "--markdown");
    /* Each trial of a search depends on the trials before it. */
    assert_int_equal(RIG_RUN_INSIDE(r, "sweep", "search=random", "lr=0.1,0.2", "--part=1/2"),
                     ERROR_USAGE);
    process_expect_error(r, "search.per");
}

static void a_search_counts_a_repeated_seed_once(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN_INSIDE(r, "sweep", RIG_SMALL, "search=random", "search.trials=2",
                                    "lr=0.1..0.3", "seed=7,7,8", "--dry-run"),
                     OK);
    process_expect_line(r, "2 seeds", "4 runs");
}

/* A part has complete searches, so the trials equal those of one process. */
static void the_parts_of_a_sweep_have_whole_searches(void **state)
{
    struct process_rig *r = *state;
    static const char points[] = "SELECT group_concat(damping || lr, ' ') AS points FROM (SELECT "
                                 "damping, lr FROM run ORDER BY damping, lr)";
    const char *const search[] = {"sweep",
                                  RIG_SMALL,
                                  VIRTUAL,
                                  "workers=2",
                                  "search=tpe",
                                  "search.trials=4",
                                  "search.startup=2",
                                  "search.per=damping",
                                  "damping=none,inverse,polynomial",
                                  "lr=0.0001..1:log",
                                  "--quiet",
                                  NULL};
    char whole[512];
    assert_int_equal(process_run(r, search), OK);
    snprintf(whole, sizeof whole, "%s", process_ask(r, points));
    make_parts(r, search, 2);
    expect_in(r, "part-1.db", "SELECT count(DISTINCT damping) || ' ' || count(*) FROM run", "1 4");
    expect_in(r, "all.db", points, whole);
    expect_in(r, "all.db", "SELECT count(*) FROM run WHERE status = 'finished'", "12");
}

/* ---- experiments --------------------------------------------------------------------------------
 */

static const char tuned[] =
    "name: tuned\n"
    "question: which rate is best?\n"
    "settings: {engine: virtual, pace: constant, dataset: gaussian, dataset.size: 8, "
    "model: softmax, samples: 1000, batch: 10, warmup_epochs: 0}\n"
    "workers: [1, 2]\n"
    "seeds: [1, 2]\n"
    "arms:\n"
    "  best: {label: grid, tune: {lr: [0, 0.01, 1e6]}}\n"
    "  found: {label: search, tune: {search: tpe, search.trials: 3, search.startup: 2, lr: "
    "1e-4..1:log}}\n"
    "  given: {label: given, settings: {lr: 0.01}}\n"
    "claims:\n"
    "  - claim: It learns\n"
    "    value: accuracy(best, 2)\n"
    "    band: [50, 100]\n"
    "  - claim: So does the other\n"
    "    value: accuracy(found, 1)\n"
    "    band: [0, 100]\n";

/* The settings and parameters of each run. */
static const char outcomes[] =
    "SELECT group_concat(run, ' ') AS outcomes FROM (SELECT experiment || arm || workers || seed "
    "|| ':' || lr || ':' || coalesce(substr(parameters_sha256, 1, 6), status) AS run FROM run "
    "ORDER BY run)";

static void the_merged_parts_of_an_experiment_equal_the_whole(void **state)
{
    struct process_rig *r = *state;
    const char *const reproduce[] = {"reproduce", "tuned.yaml", "--quiet", NULL};
    char whole[2048], runs[16];
    process_write(r, "tuned.yaml", tuned);
    assert_int_equal(process_run(r, reproduce), OK);
    snprintf(whole, sizeof whole, "%s", process_ask(r, outcomes));
    make_parts(r, reproduce, 3);
    assert_int_equal(process_shell(r, "mv results.db whole.db; cp all.db results.db"), OK);
    snprintf(runs, sizeof runs, "%s", process_ask(r, "SELECT count(*) FROM run"));
    process_expect_answer(r, outcomes, whole);
    /* One part makes all trials and runs of a tuned arm at one worker count. */
    assert_int_equal(
        process_shell(r, "set -eo pipefail; for k in 1 2 3; do gradlag query results=part-$k.db "
                         "--csv \"SELECT DISTINCT arm || workers AS cell FROM run WHERE arm <> "
                         "'given'\" | tail -n +2; done | sort >cells; test -s cells; uniq -d cells "
                         "| wc -l"),
        OK);
    assert_int_equal(process_output(r)[0], '0');
    /* With all runs in the file, a part makes none. */
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--part=2/3", "results=part-2.db"), OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--part=2/3", "results=all.db"), OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--no-run", "results=all.db"), OK);
    process_expect_line(r, "PASS", "It learns");
    process_expect_line(r, "PASS", "So does the other");
    expect_in(r, "all.db", "SELECT count(*) FROM run", runs);
}

static void a_part_without_runs_succeeds(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "tuned.yaml", tuned);
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--part=50/50"), OK);
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "seed=1,2", "--part=3/3"), OK);
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "search=tpe", "search.per=damping",
                             "damping=none,inverse", "workers=2", "lr=0.1..1:log", "--part=3/3"),
                     OK);
    assert_int_equal(process_shell(r, "[ ! -e results.db ]"), OK);
}

int main(void)
{
#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(the_parts_of_a_sweep_make_each_run_once),
        PROCESS_TEST(the_runs_of_a_part_do_not_depend_on_its_results_file),
        PROCESS_TEST(a_malformed_part_is_a_usage_error),
        PROCESS_TEST(a_part_excludes_flags_for_the_whole_sweep),
        PROCESS_TEST(the_parts_of_a_sweep_have_whole_searches),
        PROCESS_TEST(a_search_counts_a_repeated_seed_once),
        PROCESS_TEST(the_merged_parts_of_an_experiment_equal_the_whole),
        PROCESS_TEST(a_part_without_runs_succeeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
