/* Errors of the command line, and help. */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void a_mistyped_command_line_is_answered_with_the_nearest_correct_one(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "tab.yaml", "lr: 0.1\n\tbatch: 32\n");
    process_write(r, "deep.yaml", "lr: 0.1\n  batch: 32\n");
    process_write(r, "many.yaml", "lr: 0.1\nseed: [1, 2]\n");
    process_write(r, "question.yaml", "name: mine\narms: {one: {label: one}}\n");
    process_write(r, "file.db", "SQLite format 3");
    static const struct {
        const char *argv[4], *answer;
    } of[] = {
        {{"run", "workers=1,2"}, "gradlag sweep"},
        {{"run", "lr=0.01..0.1"}, "gradlag sweep"},
        {{"run", "many.yaml"}, "gradlag sweep"},
        {{"run", "workers", "4"}, "workers=4"},
        {{"run", "timeout_s=30s"}, "timeout_s=30s"},
        {{"run", "tab.yaml"}, "tab.yaml:2:"},
        {{"run", "deep.yaml"}, "deep.yaml:2:"},
        {{"run", "question.yaml"}, "gradlag reproduce question.yaml"},
        {{"run", "stale-gradients"}, "gradlag reproduce stale-gradients"},
        {{"run", "file.db"}, "results=file.db"},
        {{"run", "engine=virtual", "pace=gamma", "checkpoint=no/a.st"}, "no/a.st"},
        {{"run", "engine=virtual", "pace=gamma", "trace=."}, "trace=."},
        {{"query", "--sql", "rums"}, "'runs'"},
        {{"query", "accuracy-by-mode"}, "'accuracy-by-mode-and-workers'"},
        {{"query", "runs", "--csv", "--json"}, "--csv"},
        {{"run", "--workers=4"}, ": workers=4"},
        {{"run", "--lr", "0.1"}, ": lr=VALUE"},
        {{"run", "lr", "=", "0.1"}, "lr="},
        {{"run", "results="}, "results="},
        {{"run", "results=:memory:"}, "./:memory:"},
        {{"run", "results=file:a.db"}, "./file:a.db"},
        {{"run", "results=a.db-wal"}, "'-wal'"},
        {{"sweep", "search=random", "search.per=mode", "lr=0.1..1"}, "'mode'"},
        {{"reproduce", "stale-gradients", "--no-run", "--again"}, "--again"},
        {{"reproduce", "many.yaml"}, "gradlag run many.yaml"},
        {{"bench", "apply", "thread=2"}, "'threads'"},
        {{"run", "--dryrun"}, "'--dry-run'"},
        {{"advise", "--csv"}, "'--csv'. It has no options;"},
        {{"keygen", "--force"}, "'--force'. It has no options;"},
        {{"reproduce", "stale-gradients", "--dry-run", "--dry-run"}, " --dry-run is"},
        {{"run", "mode=pipeline", "--resume"}, "initial=FILE"},
        {{"run", "sweep", "workers=2"}, "gradlag sweep"},
        {{"reproduce", "stale-gradient"}, "'stale-gradients'"},
        {{"reproduce"}, "reproduce"},
        {{"sweep"}, "sweep"},
        {{"sweep", "workers=1,x"}, "workers=x"},
        {{"sweep", "search=tpee", "lr=0.1..1"}, "'tpe'"},
        {{"list", "queris"}, "'queries'"},
        {{"bench", "setp"}, "'step'"},
        {{"help", "swep"}, "'sweep'"},
        {{"show", "3", "result=x.db"}, "results=FILE"},
        {{"replay", "last", "--export"}, "--export"},
        {{"export", "tensorboard"}, "python3 -m gradlag export tensorboard results.db"},
        {{"export", "cvs"}, "'cvs'"},
        {{"export", "parquet", "-o", "-"}, "-o"},
        {{"export", "csv", "-o", ""}, "-o"},
        {{"worker", "worker=x"}, "worker=x"},
    };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        const char *argv[5] = {of[i].argv[0], of[i].argv[1], of[i].argv[2], of[i].argv[3]};
        int code = process_run(r, argv);
        if (code != ERROR_USAGE || strstr(process_errors(r), of[i].answer) == NULL) {
            fail_msg("%s %s: %d: %s", argv[0], argv[1] != NULL ? argv[1] : "", code,
                     process_errors(r));
        }
    }
}

/* As folders of a study may be named. */
static void a_file_may_have_an_equals_sign_in_its_path(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(process_shell(r, "mkdir -p $TMPDIR/lr=0.1"), OK);
    process_write(r, "lr=0.1/base.yaml", "workers: 3\n");
    process_write(r, "lr=0.1/mine.yml",
                  "name: mine\nquestion: is it?\nworkers: [2]\narms: {one: {label: one}}\n");
    assert_int_equal(RIG_RUN(r, "run", "lr=0.1/base.yaml", "--dry-run"), OK);
    process_expect_line(r, "async ×3", "lenet");
    assert_int_equal(RIG_RUN(r, "sweep", "lr=0.1/base.yaml", "seed=1,2", "--dry-run"), OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "lr=0.1/mine.yml", "--dry-run"), OK);
    assert_int_equal(RIG_RUN(r, "report", "lr=0.1/mine.yml", "results=none.db"), ERROR_RESULTS);
    assert_int_equal(RIG_RUN(r, "report", "lr=0.1/none.yml", "results=none.db"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "run", "lr=0.1/none.yaml", "--dry-run"), ERROR_USAGE);
    process_expect_error(r, "lr=0.1/none.yaml");
}

/* Every command of the pages runs, except those with parts that a page shows how to add. */
static void runs_and_sweeps_shown_in_pages_and_help_are_accepted(void **state)
{
    struct process_rig *r = *state;
    char script[8192], tree[4096];
    assert_non_null(getcwd(tree, sizeof tree));
    int length =
        snprintf(script, sizeof script,
                 "cd '%s' || exit\n"
                 "{ cat README.md docs/*.md; gradlag run --help; gradlag sweep --help; } |\n"
                 "    sed -nE 's/^ *([$] )?(build\\/)?(gradlag (run|sweep) [^#]*[^# ]).*/\\3/p' |\n"
                 "    grep -vE '…|\\\\$|KEY|FILE|--status|=deep|=logarithmic' >$TMPDIR/shown\n"
                 "cd $TMPDIR\n"
                 "while read -r command; do\n"
                 "    eval \"$command --dry-run\" >output 2>&1 </dev/null || { echo \"$command: "
                 "$(cat output)\" "
                 ">&2; exit 1; }\n"
                 "    count=$((count + 1))\n"
                 "done <shown\n"
                 "[ $count -ge 20 ] || { echo \"only $count\" >&2; exit 1; }\n",
                 tree);
    assert_in_range(length, 1, sizeof script - 1);
    int code = process_shell(r, script);
    if (code != OK)
        fail_msg("exit code %d: %s", code, process_errors(r));
}

static void help_and_lists_show_commands_and_keys(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "help", "sweep"), OK);
    assert_non_null(strstr(process_output(r), "--part K/N"));
    assert_int_equal(RIG_RUN(r, "list", "keys"), OK);
    assert_non_null(strstr(process_output(r), "\nseed=1  [0, 9007199254740992]\n"));
    assert_int_equal(RIG_RUN(r, "list", "keys", "WARMUP"), OK);
    assert_non_null(strstr(process_output(r), "\nwarmup_epochs=1 "));
    assert_null(strstr(process_output(r), "seed="));
    assert_null(strstr(process_output(r), "results="));
    assert_int_equal(RIG_RUN(r, "list", "keys", "power"), OK);
    const char *part = strstr(process_output(r), "damping=polynomial");
    assert_non_null(part);
    assert_non_null(strstr(part, "\ndamping.power="));
    assert_int_equal(RIG_RUN(r, "list", "keys", "nosuchword"), ERROR_USAGE);
    process_expect_error(r, "'nosuchword'");
    assert_int_equal(RIG_RUN(r, "list", "queries", "runs"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "worker", "-h"), OK);
    assert_non_null(strstr(process_output(r), "gradlag worker endpoint="));
    assert_int_equal(RIG_RUN(r, "bench", "--help"), OK);
    assert_non_null(strstr(process_output(r), "push-pull"));
}

static void a_folder_is_not_a_results_file(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "query", "runs", "results=."), ERROR_RESULTS);
    process_expect_error(r, ": . ");
}

/* If stdout is closed, the next file that the program opens would get its number. */
static void a_run_with_closed_standard_files_finishes_and_is_recorded(void **state)
{
    struct process_rig *r = *state;
    char script[512];
    snprintf(script, sizeof script, "gradlag run %s %s %s %s samples=100 batch=10 <&- >&- 2>&-",
             RIG_DATA);
    assert_int_equal(process_shell(r, script), OK);
    process_expect_answer(r, "SELECT status FROM run", "finished");
    process_expect_nothing_left(r);
}

/* A server opens four files for each worker, a worker 24 for each server, mpirun three for each
 * rank. */
static void the_limit_of_open_files_is_raised_or_reported(void **state)
{
    struct process_rig *r = *state;
    char script[512];
    snprintf(script, sizeof script,
             "ulimit -Sn 40; gradlag run %s %s %s %s workers=12 samples=240 batch=10 --quiet",
             RIG_DATA);
    assert_int_equal(process_shell(r, script), OK);
    snprintf(script, sizeof script,
             "ulimit -Sn 60; gradlag run %s %s %s %s workers=1 servers=4 samples=80 batch=10 "
             "--quiet",
             RIG_DATA);
    assert_int_equal(process_shell(r, script), OK);
    snprintf(script, sizeof script,
             "ulimit -n 100; gradlag run %s %s %s %s workers=12 mode=sync --quiet", RIG_DATA);
    assert_int_equal(process_shell(r, script), ERROR_USAGE);
    process_expect_error(r, " 100");
    process_expect_nothing_left(r);
}

/* The first line of a rule begins in the first column; the others are indented. */
static void lists_of_rules_name_their_experiments(void **state)
{
    struct process_rig *r = *state;
    static const char of[] = "gradlag list %s | awk '/^[^ ]/ {on = ($1 == \"%s\")} "
                             "on && /experiment/' | grep -qw '%s'";
    static const char *const rules[][3] = {
        {"consistency", "bsp", "stragglers"},
        {"damping", "hinge", "damping-and-corrections"},
        {"damping", "cutoff", "damping-and-corrections"}, /* without a source */
        {"outers", "heloco", "local-steps-lm"},           /* in the settings of an arm */
        {"optimizers", "muon", "delay-and-optimizer"},
    };
    char script[300];
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        snprintf(script, sizeof script, of, rules[i][0], rules[i][1], rules[i][2]);
        if (process_shell(r, script) != OK)
            fail_msg("%s", script);
        snprintf(script, sizeof script, of, rules[i][0], rules[i][1], "no experiment");
        assert_int_not_equal(process_shell(r, script), OK);
    }
    snprintf(script, sizeof script, of, "devices", "cuda", "no experiment");
    assert_int_equal(process_shell(r, script), OK);
}

static void an_unknown_log_level_is_an_error(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(process_shell(r, "GRADLAG_LOG=verbose gradlag list damping"), ERROR_USAGE);
    process_expect_error(r, "GRADLAG_LOG=verbose");
    assert_int_equal(process_shell(r, "GRADLAG_LOG= gradlag list damping"), OK);
    assert_int_equal(process_shell(r, "GRADLAG_LOG=debug gradlag list nothing"), ERROR_USAGE);
    assert_non_null(strstr(process_errors(r), "debug: "));
    assert_int_equal(process_shell(r, "GRADLAG_LOG=error gradlag list nothing"), ERROR_USAGE);
    assert_null(strstr(process_errors(r), "debug: "));
}

int main(void)
{
#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(a_mistyped_command_line_is_answered_with_the_nearest_correct_one),
        PROCESS_TEST(help_and_lists_show_commands_and_keys),
        PROCESS_TEST(lists_of_rules_name_their_experiments),
        PROCESS_TEST(runs_and_sweeps_shown_in_pages_and_help_are_accepted),
        PROCESS_TEST(a_file_may_have_an_equals_sign_in_its_path),
        PROCESS_TEST(a_folder_is_not_a_results_file),
        PROCESS_TEST(a_run_with_closed_standard_files_finishes_and_is_recorded),
        PROCESS_TEST(the_limit_of_open_files_is_raised_or_reported),
        PROCESS_TEST(an_unknown_log_level_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
