/* What the program answers to a command line that it cannot take, or that asks what it takes. */
#include "tests/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

static void what_newcomers_mistype_is_answered_with_what_they_meant(void **state)
{
    struct rig *r = *state;
    process_write(r, "tab.yaml", "lr: 0.1\n\tbatch: 32\n");
    process_write(r, "deep.yaml", "lr: 0.1\n  batch: 32\n");
    process_write(r, "many.yaml", "lr: 0.1\nseed: [1, 2]\n");
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
        {{"run", "--dryrun"}, "Did you mean '--dry-run'"},
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

static void every_command_says_what_it_takes(void **state)
{
    struct rig *r = *state;
    assert_int_equal(RIG_RUN(r, "help", "sweep"), OK);
    assert_non_null(strstr(process_output(r), "--shared FOLDER"));
    assert_int_equal(RIG_RUN(r, "worker", "-h"), OK);
    assert_non_null(strstr(process_output(r), "gradlag worker endpoint="));
    assert_int_equal(RIG_RUN(r, "bench", "--help"), OK);
    assert_non_null(strstr(process_output(r), "push-pull"));
}

int main(void)
{
#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(what_newcomers_mistype_is_answered_with_what_they_meant),
        PROCESS_TEST(every_command_says_what_it_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
