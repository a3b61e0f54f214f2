/* What the program answers to a command line that it cannot take, or that asks what it takes. */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void what_newcomers_mistype_is_answered_with_what_they_meant(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "tab.yaml", "lr: 0.1\n\tbatch: 32\n");
    process_write(r, "deep.yaml", "lr: 0.1\n  batch: 32\n");
    process_write(r, "many.yaml", "lr: 0.1\nseed: [1, 2]\n");
    process_write(r, "question.yaml", "name: mine\narms: {one: {label: one}}\n");
    process_write(r, "made.db", "SQLite format 3");
    static const struct {
        const char *argv[4], *answer;
    } of[] = {
        {{"run", "workers=1,2"}, "`gradlag sweep` takes several values"},
        {{"run", "lr=0.01..0.1"}, "`gradlag sweep` takes several values"},
        {{"run", "many.yaml"}, "`gradlag sweep` takes several values"},
        {{"run", "workers", "4"}, "write workers=4"},
        {{"run", "timeout_s=30s"}, "timeout_s=30s is not a finite number"},
        {{"run", "tab.yaml"}, "tab.yaml:2: not valid YAML"},
        {{"run", "deep.yaml"}, "deep.yaml:2: not valid YAML"},
        {{"run", "deep.yaml"}, "indented alike"},
        {{"run", "question.yaml"}, "`gradlag reproduce question.yaml` makes"},
        {{"run", "stale-gradients"}, "`gradlag reproduce stale-gradients` makes"},
        {{"run", "made.db"}, "is a results file, which is named by results=made.db"},
        {{"run", "engine=virtual", "pace=gamma", "checkpoint=no/a.st"}, "make that folder first"},
        {{"run", "engine=virtual", "pace=gamma", "trace=."}, "trace=. is a folder"},
        {{"query", "--sql", "rums"}, "Did you mean 'runs'"},
        {{"query", "accuracy-by-mode"}, "Did you mean 'accuracy-by-mode-and-workers'"},
        {{"query", "runs", "--csv", "--json"}, "one of them at a time"},
        {{"run", "--workers=4"}, "without dashes: workers=4"},
        {{"run", "--lr", "0.1"}, "without dashes: lr=VALUE"},
        {{"run", "lr", "=", "0.1"}, "without spaces"},
        {{"run", "results="}, "results= needs the name of a file"},
        {{"reproduce", "many.yaml"}, "is for `gradlag run many.yaml`"},
        {{"bench", "apply", "thread=2"}, "There is: counts, repeats"},
        {{"run", "--dryrun"}, "Did you mean '--dry-run'"},
        {{"run", "mode=pipeline", "--resume"}, "initial=FILE starts anew"},
        {{"run", "sweep", "workers=2"}, "'sweep' is a command of its own"},
        {{"reproduce", "stale-gradient"}, "Did you mean 'stale-gradients'"},
        {{"reproduce"}, "which experiment?"},
        {{"sweep"}, "over what?"},
        {{"sweep", "workers=1,x"}, "workers=x is not a whole number"},
        {{"sweep", "search=tpee", "lr=0.1..1"}, "Did you mean 'tpe'"},
        {{"list", "queris"}, "Did you mean 'queries'"},
        {{"bench", "setp"}, "Did you mean 'step'"},
        {{"help", "swep"}, "Did you mean 'sweep'"},
        {{"show", "3", "result=x.db"}, "it takes results=FILE"},
        {{"replay", "last", "--export"}, "--export needs a value"},
        {{"worker", "worker=x"}, "worker=x is not a number from 0 to 4095"},
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

/* Of parts that the pages tell how to add there are none here; `…` stands for what came before. */
static void runs_and_sweeps_that_pages_and_help_show_are_taken_as_they_stand(void **state)
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
                 "    $command --dry-run >said 2>&1 </dev/null || { echo \"$command: $(cat said)\" "
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

static void every_command_says_what_it_takes(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "help", "sweep"), OK);
    assert_non_null(strstr(process_output(r), "--part K/N"));
    assert_int_equal(RIG_RUN(r, "list", "keys"), OK);
    assert_non_null(strstr(process_output(r), "\nseed=1  [0, 9007199254740992]\n"));
    assert_int_equal(RIG_RUN(r, "list", "keys", "WARMUP"), OK);
    assert_non_null(strstr(process_output(r), "\nwarmup_epochs=1 "));
    assert_null(strstr(process_output(r), "seed="));
    assert_null(strstr(process_output(r), "Where and how"));
    assert_int_equal(RIG_RUN(r, "list", "keys", "power"), OK);
    assert_non_null(strstr(process_output(r), "with damping=polynomial:\ndamping.power="));
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
    process_expect_error(r, ". is a folder; name the results file in it");
}

/* Where stdout is closed the next file that is opened would be it. */
static void a_run_without_standard_files_is_recorded_and_ends_well(void **state)
{
    struct process_rig *r = *state;
    char script[512];
    snprintf(script, sizeof script, "gradlag run %s %s %s %s samples=100 batch=10 <&- >&- 2>&-",
             RIG_DATA);
    assert_int_equal(process_shell(r, script), OK);
    process_expect_answer(r, "SELECT status FROM run", "finished");
    process_expect_nothing_left(r);
}

/* A server has three files for each worker, mpirun for each rank. */
static void the_limit_of_open_files_is_raised_or_told(void **state)
{
    struct process_rig *r = *state;
    char script[512];
    snprintf(script, sizeof script,
             "ulimit -Sn 40; gradlag run %s %s %s %s workers=12 samples=240 batch=10 --quiet",
             RIG_DATA);
    assert_int_equal(process_shell(r, script), OK);
    snprintf(script, sizeof script,
             "ulimit -n 100; gradlag run %s %s %s %s workers=12 mode=sync --quiet", RIG_DATA);
    assert_int_equal(process_shell(r, script), ERROR_USAGE);
    process_expect_error(r, "no more than 100 are allowed here");
    process_expect_nothing_left(r);
}

static void a_level_of_the_log_that_does_not_exist_is_told(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(process_shell(r, "GRADLAG_LOG=verbose gradlag list damping"), ERROR_USAGE);
    process_expect_error(r, "GRADLAG_LOG=verbose: there is no such level; set it to error, "
                            "warning, info or debug");
    assert_int_equal(process_shell(r, "GRADLAG_LOG= gradlag list damping"), OK);
    assert_int_equal(process_shell(r, "GRADLAG_LOG=debug gradlag list nothing"), ERROR_USAGE);
    assert_non_null(strstr(process_errors(r), "debug: made at "));
    assert_int_equal(process_shell(r, "GRADLAG_LOG=error gradlag list nothing"), ERROR_USAGE);
    assert_null(strstr(process_errors(r), "debug: made at "));
}

int main(void)
{
#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(what_newcomers_mistype_is_answered_with_what_they_meant),
        PROCESS_TEST(every_command_says_what_it_takes),
        PROCESS_TEST(runs_and_sweeps_that_pages_and_help_show_are_taken_as_they_stand),
        PROCESS_TEST(a_folder_is_not_a_results_file),
        PROCESS_TEST(a_run_without_standard_files_is_recorded_and_ends_well),
        PROCESS_TEST(the_limit_of_open_files_is_raised_or_told),
        PROCESS_TEST(a_level_of_the_log_that_does_not_exist_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
