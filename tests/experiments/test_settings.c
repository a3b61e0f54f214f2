/* Settings of the command line beside those of files, arms and hosts, as `run`, `sweep` and
 * `reproduce` take them. */
#include "base/status.h"
#include "experiments/config/config.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>

static void write_arms(struct process_rig *r)
{
    process_write(r, "arms.yaml",
                  "name: arms\n"
                  "question: Do they?\n"
                  "settings: {dataset: gaussian, model: softmax, epochs: 1, warmup_epochs: 0}\n"
                  "workers: [2]\n"
                  "seeds: [1, 2, 3]\n"
                  "arms:\n"
                  "  none: {label: undamped, settings: {damping: none}}\n"
                  "  inverse: {label: damped, settings: {damping: inverse}}\n"
                  "claims:\n"
                  "  - claim: They do\n"
                  "    value: accuracy(inverse, 2) - accuracy(none, 2)\n"
                  "    band: [-100, 100]\n");
}

/* Both arms would be the same runs. */
static void the_command_line_cannot_make_an_arm_idle(void **state)
{
    struct process_rig *r = *state;
    write_arms(r);
    assert_int_equal(RIG_RUN(r, "reproduce", "arms.yaml", "--dry-run"), OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "arms.yaml", "--dry-run", "mode=sync"), ERROR_USAGE);
    process_expect_error(r, "damping=inverse");
    process_write(r, "bsp.yaml", "consistency: bsp\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "arms.yaml", "bsp.yaml", "--dry-run"), ERROR_USAGE);
}

static void a_warm_up_in_the_unit_of_a_replaced_length_is_dropped(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "base.yaml", "updates: 20\nwarmup_updates: 5\n");
    assert_int_equal(RIG_RUN(r, "run", "base.yaml", "--print-config"), OK);
    process_expect_line(r, "warmup_updates: 5", "base.yaml:2");
    assert_int_equal(RIG_RUN(r, "run", "base.yaml", "epochs=2", "--print-config"), OK);
    process_expect_line(r, "warmup_updates: 0", "default");
    assert_int_equal(RIG_RUN(r, "run", "epochs=2", "warmup_updates=5", "--dry-run"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "run", "epochs=2", "warmup_seconds=5", "--dry-run"), ERROR_USAGE);
}

static void a_length_of_zero_counts_as_none(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", "epochs=0", "updates=10", "--dry-run"), OK);
    assert_int_equal(RIG_RUN(r, "run", "epochs=1", "updates=10", "--dry-run"), ERROR_USAGE);
}

static void hosts_give_the_workers_that_other_settings_need(void **state)
{
    struct process_rig *r = *state;
    const char *const malformed[] = {"hosts=,", "hosts=a:2,", "hosts=A:2,a:2"};
    assert_int_equal(
        RIG_RUN(r, "run", "hosts=localhost:4", "mode=pipeline", "stages=2", "--dry-run"), OK);
    assert_int_equal(
        RIG_RUN(r, "run", "hosts=localhost:4", "mode=pipeline", "stages=3", "--dry-run"),
        ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "run", "hosts=localhost:4", "consistency=backup",
                             "consistency.backups=2", "--dry-run"),
                     OK);
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++)
        assert_int_equal(RIG_RUN(r, "run", malformed[i], "--dry-run"), ERROR_USAGE);
}

static void keys_of_started_processes_are_refused(void **state)
{
    struct process_rig *r = *state;
    write_arms(r);
    assert_int_equal(RIG_RUN(r, "run", "run_id=5", "--dry-run"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "sweep", "precision_trial=bf16", "seed=1,2", "--dry-run"),
                     ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "reproduce", "arms.yaml", "restarted=yes", "--dry-run"),
                     ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "run", "run_token=5ea1ed", "--dry-run"), OK);
}

static void minus_zero_is_zero(void **state)
{
    struct process_rig *r = *state;
    char first[256];
    assert_int_equal(RIG_RUN(r, "run", "weight_decay=0", "--dry-run"), OK);
    snprintf(first, sizeof first, "%s", process_output(r));
    assert_int_equal(RIG_RUN(r, "run", "weight_decay=-0", "--dry-run"), OK);
    assert_string_equal(process_output(r), first);
}

static void a_comma_outside_one_pair_of_parentheses_makes_a_list(void **state)
{
    (void)state;
    assert_false(settings_is_list("0.1"));
    assert_false(settings_is_list("(a:4,b:4)"));
    assert_true(settings_is_list("0.1,0.2"));
    assert_true(settings_is_list("(a:4,b:4),(a:8,b:8)"));
    assert_true(settings_is_list("(a:4,b:4),c:4"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_command_line_cannot_make_an_arm_idle),
        TEST(a_warm_up_in_the_unit_of_a_replaced_length_is_dropped),
        TEST(a_length_of_zero_counts_as_none),
        TEST(hosts_give_the_workers_that_other_settings_need),
        TEST(keys_of_started_processes_are_refused),
        TEST(minus_zero_is_zero),
        cmocka_unit_test(a_comma_outside_one_pair_of_parentheses_makes_a_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
