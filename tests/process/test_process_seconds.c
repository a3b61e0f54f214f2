/* Training of a length in seconds (key seconds): in both modes and engines, resumed and replayed.
 */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAST "run_id = (SELECT max(id) FROM run)"
#define TIMED                                                                                      \
    RIG_DATA, "batch=10", "seconds=0.6", "warmup_seconds=0.1", "evaluate_every=0.5", "pace=gamma", \
        "pace.mean_ms=5"

static double number(struct process_rig *r, const char *sql)
{
    return atof(process_ask(r, sql));
}

/* Each run ends at its time, or with the round of local steps that has begun, and evaluates its
 * last version once. */
static void expect_timed(struct process_rig *r)
{
    assert_true(number(r, "SELECT train_seconds = 0.6 OR (config ->> '$.local_steps' > 1 AND "
                          "train_seconds BETWEEN 0.6 AND 0.8) FROM run ORDER BY id DESC") == 1);
    assert_true(number(r, "SELECT updates > iif(engine = 'virtual', 20, 2) FROM run ORDER BY id "
                          "DESC") == 1);
    assert_true(number(r, "SELECT max(seconds) <= (SELECT train_seconds FROM run ORDER BY id DESC) "
                          "AND max(updates) = (SELECT updates FROM run "
                          "ORDER BY id DESC) FROM evaluation WHERE " LAST) == 1);
}

/* The slower mode may end within a warm-up that is given in epochs. */
static void a_warm_up_in_epochs_that_does_not_end_is_a_warning(void **state)
{
    struct process_rig *r = *state;
    static const char *const modes[][2] = {{"mode=async", "engine=virtual"},
                                           {"mode=sync", "engine=virtual"},
                                           {"mode=async", "engine=real"},
                                           {"mode=sync", "engine=real"}};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "batch=10", "seconds=0.2", "pace=constant",
                                 "pace.mean_ms=20", modes[i][0], modes[i][1]),
                         OK);
        process_expect_errors_contain(r, "warmup_epochs=1");
        assert_int_equal(RIG_RUN(r, "run", TIMED, modes[i][0], modes[i][1]), OK);
        assert_null(strstr(process_errors(r), "warmup"));
    }
}

static void both_modes_and_engines_end_at_their_time(void **state)
{
    struct process_rig *r = *state;
    static const char *const ways[][4] = {
        {"mode=async", "engine=virtual", "workers=4", "consistency=asp"},
        {"mode=async", "engine=virtual", "workers=4", "consistency=softsync"},
        {"mode=sync", "engine=virtual", "workers=4", "local_steps=1"},
        {"mode=sync", "engine=virtual", "workers=4", "local_steps=4"},
        {"mode=sync", "engine=virtual", "workers=4", "delay=2"},
        {"mode=async", "engine=real", "workers=2", "consistency=asp"},
        {"mode=sync", "engine=real", "workers=2", "delay=0"},
        {"mode=sync", "engine=real", "workers=2", "delay=2"},
        {"mode=sync", "engine=real", "workers=1", "delay=0"},
    };
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        const char *const *w = ways[i];
        if (RIG_RUN(r, "run", TIMED, w[0], w[1], w[2], w[3]) != OK)
            fail_msg("%s", process_errors(r));
        expect_timed(r);
        if (strcmp(w[0], "mode=async") == 0)
            process_expect_replayed(r);
    }
    /* Gradients from the end on are not used. */
    assert_string_equal(process_ask(r, "SELECT count(*) FROM push WHERE at_seconds >= 0.6 AND "
                                       "outcome IS NOT 'dropped_late'"),
                        "0");
    assert_true(number(r, "SELECT count(*) FROM push WHERE outcome = 'dropped_late'") >= 3);
    process_expect_nothing_left(r);
}

/* 16 steps of 50 ms take 0.8 s, longer than the limit of 0.6 s. They count. */
static void a_round_of_local_steps_ends_later(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", TIMED, "mode=sync", "engine=virtual", "workers=2",
                             "local_steps=16", "pace=constant", "pace.mean_ms=50"),
                     OK);
    assert_string_equal(
        process_ask(r, "SELECT updates || ' ' || (abs(train_seconds - 0.8) < 1e-3) || ' ' || "
                       "(abs(samples_per_second * train_seconds - samples_used) < 1) || ' ' || "
                       "(SELECT max(seconds) = train_seconds FROM evaluation) FROM run"),
        "16 1 1 1");
}

/* The rate falls with the time, not with the samples: at half of the time it is half of lr. */
static void the_rate_goes_by_the_time(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", TIMED, "engine=virtual", "workers=4", "lr=0.1"), OK);
    assert_string_equal(
        process_ask(r, "SELECT count(*) > 0 AND min(coalesce(abs(rate - 0.1 * (1 - at_seconds / "
                       "0.6) * min(1, at_seconds / 0.1)) <= 1e-12, 0)) FROM push WHERE outcome = "
                       "'applied'"),
        "1");
}

/* A barrier and synchronous ranks with the same step times do equal work, so their bits are
 * equal. */
static void virtual_barrier_and_ranks_agree(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", TIMED, "engine=virtual", "workers=4", "consistency=bsp"),
                     OK);
    assert_int_equal(RIG_RUN(r, "run", TIMED, "engine=virtual", "workers=4", "mode=sync"), OK);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "1");
}

/* Each run resumes from the first checkpoint of an earlier run with the same settings. */
static void a_run_resumes_for_the_rest_of_its_time(void **state)
{
    struct process_rig *r = *state;
    for (int i = 0; i < 2; i++) {
        const char *const mode = i == 0 ? "mode=async" : "mode=sync";
        char resume[300], pattern[300];
        glob_t found;
        assert_int_equal(RIG_RUN(r, "run", TIMED, mode, "checkpoint_every=0.1",
                                 i == 0 ? "checkpoint=async{version}.safetensors"
                                        : "checkpoint=sync{version}.safetensors"),
                         OK);
        snprintf(pattern, sizeof pattern, "%s/%s*.safetensors", r->folder, mode + 5);
        assert_int_equal(glob(pattern, 0, NULL, &found), 0);
        assert_true(found.gl_pathc >= 2);
        const char *least = found.gl_pathv[0];
        for (size_t k = 1; k < found.gl_pathc; k++)
            if (strlen(found.gl_pathv[k]) <= strlen(least) && strcmp(found.gl_pathv[k], least) < 0)
                least = found.gl_pathv[k];
        snprintf(resume, sizeof resume, "resume=%s", least);
        assert_int_equal(RIG_RUN(r, "run", TIMED, mode, resume), OK);
        expect_timed(r);
        globfree(&found);
    }
    assert_string_equal(process_ask(r, "SELECT count(*) FROM event WHERE code = 'resumed'"), "2");
}

/* The rate is 0 in the second half, from the first update after a resume on. Training is so long
 * that even a busy machine makes an update between the last checkpoint but one and the end. */
static void a_resumed_run_goes_on_with_the_rate_of_its_time(void **state)
{
    struct process_rig *r = *state;
    static const char *const ways[][2] = {
        {"delay=1", "checkpoint=delay{version}.safetensors"},
        {"local_steps=4", "checkpoint=local{version}.safetensors"}};
    /* With some updates left: a single one may end after the time, and then leaves no row. */
    static const char last[] = "SELECT path FROM checkpoint WHERE version + 4 <= (SELECT updates "
                               "FROM run ORDER BY id DESC LIMIT 1) "
                               "ORDER BY run_id DESC, version DESC LIMIT 1";
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        char more[300];
        snprintf(more, sizeof more, "checkpoint_every=0.4");
        for (int resumed = 0; resumed < 2; resumed++) {
            assert_int_equal(RIG_RUN(r, "run", TIMED, "mode=sync", "workers=2", "optimizer=sgd",
                                     "schedule=step", "schedule.at=0.5", "schedule.factor=0",
                                     "seconds=2", "warmup_seconds=0", ways[i][0], ways[i][1], more),
                             OK);
            snprintf(more, sizeof more, "resume=%s", process_ask(r, last));
        }
        assert_true(number(r, "SELECT max(at_seconds) > 1 FROM step WHERE " LAST) == 1);
    }
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "2");
}

static void lengths_exclude_each_other(void **state)
{
    struct process_rig *r = *state;
    static const char *const others[] = {"epochs=1",       "samples=100",  "updates=10",
                                         "servers=2",      "outer=heloco", "mode=pipeline",
                                         "warmup_epochs=2"};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        assert_int_equal(RIG_RUN(r, "run", TIMED, "workers=2", others[i]), ERROR_USAGE);
        process_expect_error(r, "seconds");
    }
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "warmup_seconds=1"), ERROR_USAGE);
    process_expect_error(r, "warmup_seconds");
}

/* RIG_SMALL sets `samples`, which is a length of training. */
static void a_length_on_the_command_line_replaces_a_list_of_lengths_in_a_file(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "lengths.yaml", "epochs: [0.1, 0.2]\n");
    assert_int_equal(RIG_RUN(r, "sweep", "lengths.yaml", RIG_SMALL, "engine=virtual",
                             "pace=constant", "--dry-run"),
                     OK);
    process_expect_line(r, "1 combination:", "1 to run");
    assert_int_equal(RIG_RUN(r, "sweep", "lengths.yaml", RIG_SMALL, "engine=virtual",
                             "pace=constant", "lr=0.1,0.2", "search=grid", "--dry-run"),
                     OK);
    process_expect_line(r, "1 search", "2 trials");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_warm_up_in_epochs_that_does_not_end_is_a_warning),
        TEST(both_modes_and_engines_end_at_their_time),
        TEST(a_round_of_local_steps_ends_later),
        TEST(the_rate_goes_by_the_time),
        TEST(virtual_barrier_and_ranks_agree),
        TEST(a_run_resumes_for_the_rest_of_its_time),
        TEST(a_resumed_run_goes_on_with_the_rate_of_its_time),
        TEST(lengths_exclude_each_other),
        TEST(a_length_on_the_command_line_replaces_a_list_of_lengths_in_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
