/* Query best-of-tuned: which runs are trials, and which trials are compared. Query
 * throughput-against-accuracy: which arms are compared. Queries paired-differences and
 * effect-of-damping: comparisons by loss. */
#include "tests/results/query_rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct recorded_trial {
    const char *experiment, *arm, *settings;
    double lr, validation, loss, test; /* loss: of the validation split */
};

static void record_with_host(const struct recorded_trial *t, size_t count, const char *host)
{
    for (size_t i = 0; i < count; i++) {
        int64_t id;
        struct run_description run = rig_run;
        run.experiment = t[i].experiment;
        run.arm = t[i].arm;
        run.settings = t[i].settings;
        run.lr = t[i].lr;
        run.seed = 1 + i;
        run.host = host;
        recorder *r = rig_begin(&run, &id);
        recorder_evaluation(r, &(struct evaluation_record){.updates = 1,
                                                           .validation_accuracy = t[i].validation,
                                                           .validation_loss = t[i].loss,
                                                           .test_accuracy = t[i].test});
        rig_finish(r, &rig_outcome);
    }
}
#define RECORD(trials) record_with_host(trials, COUNT_OF(trials), "{\"argv\": [\"gradlag\"]}")

static size_t ask_for_trials(const char *experiment)
{
    char of[64];
    const char *const settings[] = {of};
    size_t lines = 0;
    snprintf(of, sizeof of, "experiment=%s", experiment);
    assert_int_equal(run_query("best-of-tuned", QUERY_CSV, settings, 1), OK);
    for (const char *c = answer; (c = strchr(c, '\n')) != NULL; c++)
        lines++;
    return lines - 1; /* without the header */
}

/* Trials of two arms with 2 and 4 rates. The best by validation is not the best by test. */
static void the_best_trial_is_shown_with_the_number_of_trials(void **state UNUSED)
{
    static const struct recorded_trial trials[] = {
        {"e/tuning", "a", "{\"lr\":1}", 1, 0.5, 1, 0.9},
        {"e/tuning", "a", "{\"lr\":2}", 2, 0.6, 1, 0.4},
        {"e/tuning", "b", "{\"lr\":1}", 1, 0.7, 1, 0.3},
        {"e/tuning", "b", "{\"lr\":2}", 2, 0.6, 1, 0.4},
        {"e/tuning", "b", "{\"lr\":3}", 3, 0.1, 1, 0.1},
        {"e", "a", "{\"lr\":2}", 2, 0.6, 1, 0.41},
        {"e", "a", "{\"lr\":2}", 2, 0.6, 1, 0.43},
        /* The fourth rate of b: one seed is the best of all, the other one diverged. */
        {"e/tuning", "b", "{\"lr\":4}", 4, 0.9, 1, 0.5},
        {"e/tuning", "b", "{\"lr\":4}", 4, NAN, NAN, NAN},
    };
    RECORD(trials);
    rig_change("UPDATE run SET status = 'diverged' WHERE id = (SELECT max(id) FROM run)");
    assert_int_equal(ask_for_trials("e/tuning"), 2);
    assert_contains(answer, "\ne/tuning,b,async,none,4,4,5,1,");
    assert_contains(answer, "\ne/tuning,a,async,none,4,2,2,2,");
    assert_contains(answer, ",accuracy,0.6,1,2,0.42,0.014142135");
    assert_contains(answer, ",accuracy,0.7,1,,,,,,\n"); /* no run with the best settings of b yet */
}

/* The cluster without a slow worker has one choice. The other cluster has one for each level of
 * axis consistency.groups. */
static void trials_of_different_clusters_are_not_compared(void **state UNUSED)
{
#define ON(worker, groups, lr)                                                                     \
    "{\"pace\":\"gamma\",\"pace.worker\":" worker ",\"consistency.groups\":" groups ",\"lr\":" lr  \
    "}"
    static const struct recorded_trial trials[] = {
        {"e/tuning", "a", ON("-1", "1", "1"), 1, 0.9, 1, 0.9},
        {"e/tuning", "a", ON("-1", "1", "2"), 2, 0.8, 1, 0.8},
        {"e/tuning", "a", ON("0", "1", "1"), 1, 0.3, 1, 0.3},
        {"e/tuning", "a", ON("0", "1", "2"), 2, 0.4, 1, 0.4},
        {"e/tuning", "a", ON("0", "2", "1"), 1, 0.7, 1, 0.7},
        {"e/tuning", "a", ON("0", "2", "2"), 2, 0.6, 1, 0.6},
    };
    RECORD(trials);
    assert_int_equal(ask_for_trials("e/tuning"), 3);
    static const char *const best[] = {
        "\ne/tuning,a,async,none,4,2,2,1,0.9,32,pace.worker=-1 consistency.groups=1,accuracy,0.9,",
        "\ne/tuning,a,async,none,4,2,2,2,0.9,32,pace.worker=0 consistency.groups=1,accuracy,0.4,",
        "\ne/tuning,a,async,none,4,2,2,1,0.9,32,pace.worker=0 consistency.groups=2,accuracy,0.7,"};
    for (size_t i = 0; i < COUNT_OF(best); i++)
        assert_contains(answer, best[i]);
}

/* Text has an accuracy, too. With dataset.test=no its experiment has a metric of losses. */
static void tuning_without_test_split_is_by_loss(void **state UNUSED)
{
    static const struct recorded_trial trials[] = {
        {"e/tuning", "a", "{\"lr\":1}", 1, 0.9, 2.5, NAN},
        {"e/tuning", "a", "{\"lr\":2}", 2, 0.8, 2.25, NAN},
    };
    RECORD(trials);
    assert_int_equal(ask_for_trials("e/tuning"), 1);
    assert_contains(answer, "\ne/tuning,a,async,none,4,2,2,2,");
    assert_contains(answer, ",loss,0.8,2.25,");
}

/* Experiments on text have a metric of losses, although text has an accuracy, too. */
static void tuning_on_text_is_by_loss(void **state UNUSED)
{
    static const struct recorded_trial trials[] = {
        {"e/tuning", "a", "{\"lr\":1}", 1, 0.9, 2.5, 0.9},
        {"e/tuning", "a", "{\"lr\":2}", 2, 0.8, 2.25, 0.8},
    };
    RECORD(trials);
    assert_int_equal(ask_for_trials("e/tuning"), 1);
    assert_contains(answer, ",accuracy,0.9,2.5,");
    rig_change("UPDATE run SET dataset = 'text'");
    assert_int_equal(ask_for_trials("e/tuning"), 1);
    assert_contains(answer, ",loss,0.8,2.25,");
}

/* As `gradlag reproduce` does, the query takes the first of equal trials. */
static void the_first_of_equal_trials_is_the_best(void **state UNUSED)
{
    static const struct recorded_trial trials[] = {
        {"e/tuning", "a", "{\"lr\":3}", 3, 0.5, 1, 0.9},
        {"e/tuning", "a", "{\"lr\":2}", 2, 0.5, 1, 0.9},
        {"e/tuning", "a", "{\"lr\":1}", 1, 0.5, 1, 0.9},
        {"e", "a", "{\"lr\":3}", 3, 0.6, 1, 0.75},
    };
    RECORD(trials);
    assert_int_equal(ask_for_trials("e/tuning"), 1);
    assert_contains(answer, ",3,3,3,0.9,");
    assert_contains(answer, ",1,0.75,");
}

/* A finished run may have a loss that is not a number. */
static void a_trial_that_lacks_a_loss_ranks_last(void **state UNUSED)
{
    static const struct recorded_trial trials[] = {
        {"e/tuning", "a", "{\"lr\":1}", 1, NAN, 0.5, NAN},
        {"e/tuning", "a", "{\"lr\":1}", 1, NAN, 0.5, NAN},
        {"e/tuning", "a", "{\"lr\":2}", 2, NAN, 0.25, NAN},
        {"e/tuning", "a", "{\"lr\":2}", 2, NAN, NAN, NAN},
    };
    RECORD(trials);
    assert_int_equal(ask_for_trials("e/tuning"), 1);
    assert_contains(answer, ",loss,,0.5,");
}

/* A search may compare delays. It is by accuracy if the runs have one. */
static void only_tuning_and_searches_have_trials(void **state UNUSED)
{
    static const struct recorded_trial runs[] = {
        {"swept", NULL, "{\"lr\":1,\"delay\":0}", 1, 0.9, 2.5, NAN},
        {"swept", NULL, "{\"lr\":2,\"delay\":1}", 2, 0.8, 2.25, NAN},
    };
    RECORD(runs);
    assert_int_equal(ask_for_trials("swept"), 0);
    rig_change("DELETE FROM run");
    record_with_host(runs, COUNT_OF(runs), "{\"argv\": [\"gradlag\", \"sweep\", \"search=tpe\"]}");
    assert_int_equal(ask_for_trials("swept"), 1);
    assert_contains(answer, "\nswept,,async,none,4,2,2,1,");
    assert_contains(answer, ",accuracy,0.9,2.5,");
    /* A process started these runs without search= in its command line. */
    rig_change("UPDATE run SET host = '{}', config = '{\"trial_of\": \"\"}'");
    assert_int_equal(ask_for_trials("swept"), 0);
    rig_change("UPDATE run SET config = '{\"trial_of\": \"tpe\"}'");
    assert_int_equal(ask_for_trials("swept"), 1);
    /* With search.per there are several searches, even if their trials differ in no column. */
    rig_change("UPDATE run SET config = json_object('trial_of', 'tpe per=lr_scaling,delay', 'lr', "
               "lr, 'delay', id)");
    assert_int_equal(ask_for_trials("swept"), 2);
    rig_change("UPDATE run SET config = json_set(config, '$.trial_of', 'tpe per=lr_scaling')");
    assert_int_equal(ask_for_trials("swept"), 1);
    /* Data without classes. */
    rig_change("UPDATE run SET validation_accuracy = NULL");
    assert_int_equal(ask_for_trials("swept"), 1);
    assert_contains(answer, ",loss,,2.25,");
    rig_change("UPDATE evaluation SET validation_loss = NULL");
    assert_int_equal(ask_for_trials("swept"), 0);
}

/* Arm b is behind a on one cluster, and ahead of it on the other. */
static void an_arm_is_behind_the_best_on_its_cluster(void **state UNUSED)
{
    static const struct recorded_trial runs[] = {
        {"e", "a", "{\"pace.worker\":-1}", 1, 0.9, 1, 0.75},
        {"e", "b", "{\"pace.worker\":-1,\"lr\":2}", 1, 0.9, 1, 0.625},
        {"e", "a", "{\"pace.worker\":1}", 1, 0.9, 1, 0.25},
        {"e", "b", "{\"pace.worker\":1,\"lr\":2}", 1, 0.9, 1, 0.5},
    };
    RECORD(runs);
    assert_int_equal(run_query("throughput-against-accuracy", QUERY_CSV, NULL, 0), OK);
    assert_contains(answer, ",0.75,,0,");
    assert_contains(answer, ",0.625,,0.125,");
    assert_contains(answer, ",0.25,,0.25,");
    assert_contains(answer, ",0.5,,0,");
}

/* The mean of the seeds that survived is the highest. */
static void survivors_are_not_the_best(void **state UNUSED)
{
    static const struct recorded_trial runs[] = {
        {"e", "a", "{\"lr\":1}", 1, 0.9, 1, 0.95},
        {"e", "a", "{\"lr\":1}", 1, 0.9, 1, 0.1},
        {"e", "b", "{\"lr\":2}", 1, 0.9, 1, 0.75},
        {"e", "c", "{\"lr\":3}", 1, 0.9, 1, 0.5},
    };
    RECORD(runs);
    rig_change("UPDATE run SET status = 'diverged' WHERE id = 2");
    assert_int_equal(run_query("throughput-against-accuracy", QUERY_CSV, NULL, 0), OK);
    assert_contains(answer, ",0.95,,,,0,e,1\n");
    assert_contains(answer, ",0.75,,0,,0,e,0\n");
    assert_contains(answer, ",0.5,,0.25,,0,e,0\n");
}

/* Of the two damped runs the one with accuracy 0.79 diverged. */
static void diverged_runs_are_counted_beside_the_effect_of_damping(void **state UNUSED)
{
    rig_change("UPDATE run SET status = 'diverged' WHERE final_accuracy = 0.79");
    assert_int_equal(run_query("effect-of-damping", QUERY_CSV, NULL, 0), OK);
    assert_contains(answer, ",polynomial,0.03,damping.power=0.5,1,0.81");
    assert_contains(answer, ",1,1,accuracy,,\n");
}

/* A run without arm has the name of its mode. */
static void arms_with_the_name_of_a_mode_are_separate_configurations(void **state UNUSED)
{
    static const struct recorded_trial runs[] = {
        {"e", NULL, "{\"lr\":1}", 1, 0.9, 1, 0.75},
        {"e", "async", "{\"lr\":1}", 1, 0.9, 1, 0.5},
        {"e", "b", "{\"lr\":2}", 1, 0.9, 1, 0.25},
    };
    const char *const of[] = {"arm=b"};
    RECORD(runs);
    rig_change("UPDATE run SET seed = 1");
    assert_int_equal(run_query("paired-differences", QUERY_CSV, of, 1), OK);
    assert_contains(answer, ",1,0.5,");
    assert_contains(answer, ",1,0.25,");
}

/* Runs 3 and 4 get the damping of run 3. The differences are 0.5 and 0.25 for seeds 1 and 2. */
static void without_accuracy_configurations_are_compared_by_loss(void **state UNUSED)
{
    static const char *const of_validation =
        "UPDATE run SET final_accuracy = NULL, final_loss = NULL; DELETE FROM run WHERE mode = "
        "'sync'; UPDATE evaluation SET validation_loss = "
        "CASE run_id WHEN 1 THEN 2 WHEN 2 THEN 3 WHEN 3 THEN 1.5 ELSE 2.75 END";
    static const char *const of_test =
        "UPDATE run SET final_loss = CASE id WHEN 1 THEN 2 WHEN 2 THEN 3 WHEN 3 THEN 1.5 "
        "ELSE 2.75 END; UPDATE evaluation SET validation_loss = 1";
    rig_change("PRAGMA foreign_keys = ON; UPDATE run SET final_accuracy = NULL");
    for (int i = 0; i < 2; i++) {
        rig_change(i == 0 ? of_validation : of_test);
        assert_int_equal(run_query("paired-differences", QUERY_CSV, NULL, 0), OK);
        assert_contains(answer, ",2,-0.375,");
        assert_contains(answer, ",,,0,loss,2.125,2.5\n");
        assert_int_equal(run_query("effect-of-damping", QUERY_CSV, NULL, 0), OK);
        assert_contains(answer, ",polynomial,0.03,damping.power=0.5,2,,,2,,0.375,");
        assert_contains(answer, ",loss,2.125,2.5\n");
    }
    /* If one run has an accuracy, the query compares neither loss. */
    rig_change("UPDATE run SET final_accuracy = 0.5 WHERE id = 1");
    assert_int_equal(run_query("paired-differences", QUERY_CSV, NULL, 0), OK);
    assert_null(strstr(answer, ",loss,"));
}

/* Arm "copy" has the settings of the undamped arm: its accuracy of seed 1 is 0.7. */
static void undamped_arms_with_equal_settings_are_one_configuration(void **state UNUSED)
{
    rig_change("UPDATE run SET arm = 'copy', seed = 1 WHERE id = 2");
    assert_int_equal(run_query("effect-of-damping", QUERY_CSV, NULL, 0), OK);
    const char *line = strchr(answer, '\n') + 1;
    assert_null(strchr(strchr(line, '\n') + 1, '\n'));
    assert_contains(line, ",polynomial,0.03,damping.power=0.5,2,0.8,");
    assert_contains(line, ",1,0.6,0.2");
}

/* The first rate has the mean 0.6 over seeds and 0.7 over runs; the second rate has 0.65. */
static void a_repeated_seed_counts_once(void **state UNUSED)
{
    static const struct recorded_trial trials[] = {
        {"e/tuning", "a", "{\"lr\":1}", 1, 0.4, 1, 0.5},
        {"e/tuning", "a", "{\"lr\":1}", 1, 0.8, 1, 0.5},
        {"e/tuning", "a", "{\"lr\":1}", 1, 0.8, 1, 0.5},
        {"e/tuning", "a", "{\"lr\":1}", 1, 0.8, 1, 0.5},
        {"e/tuning", "a", "{\"lr\":2}", 2, 0.65, 1, 0.5},
    };
    RECORD(trials);
    rig_change("UPDATE run SET seed = min(seed, 2)");
    assert_int_equal(ask_for_trials("e/tuning"), 1);
    assert_contains(answer, "\ne/tuning,a,async,none,4,2,5,2,");
    assert_contains(answer, ",accuracy,0.65,");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(the_best_trial_is_shown_with_the_number_of_trials),
        RIG_TEST(trials_of_different_clusters_are_not_compared),
        RIG_TEST(tuning_without_test_split_is_by_loss),
        RIG_TEST(tuning_on_text_is_by_loss),
        RIG_TEST(the_first_of_equal_trials_is_the_best),
        RIG_TEST(a_trial_that_lacks_a_loss_ranks_last),
        RIG_TEST(only_tuning_and_searches_have_trials),
        RIG_TEST(an_arm_is_behind_the_best_on_its_cluster),
        RIG_TEST(survivors_are_not_the_best),
        RIG_TEST(arms_with_the_name_of_a_mode_are_separate_configurations),
        RIG_TEST(a_repeated_seed_counts_once),
        SAMPLE_TEST(diverged_runs_are_counted_beside_the_effect_of_damping),
        SAMPLE_TEST(without_accuracy_configurations_are_compared_by_loss),
        SAMPLE_TEST(undamped_arms_with_equal_settings_are_one_configuration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
