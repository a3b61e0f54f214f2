/* Experiments with several axes, and with a map, run by the program. */
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char axes[] =
    "name: axes\n"
    "question: which rule is better where?\n"
    "settings: {engine: virtual, pace: constant, dataset: gaussian, dataset.size: 8, "
    "model: softmax, samples: 800, batch: 10, warmup_epochs: 0}\n"
    "axes:\n"
    "  nodes: {alike: {}, slow: {pace.worker: 0, pace.factor: 5}}\n"
    "  damping: [none, inverse]\n"
    "  workers: [2, 4]\n"
    "seeds: [1, 2, 3]\n"
    "map: {synchronous: [sync], asynchronous: [async]}\n"
    "arms:\n"
    "  async: {label: asynchronous}\n"
    "  sync: {label: synchronous, settings: {mode: sync}}\n"
    "claims:\n"
    "  - {claim: Slow is slower, value: 'seconds(sync, slow, none, 4) / seconds(sync, alike, none, "
    "4)', "
    "band: [4.9, 5.1]}\n"
    "  - {claim: Shared, value: 'paired(sync, slow, none, 4, sync, slow, inverse, 4)', band: [0, "
    "0]}\n";

/* The jackknife of a mean is its interval by Student's t, which the map prints. */
static void expect_borderline(struct process_rig *r)
{
    double margin, interval;
    const char *value = "abs(paired(async, sync, alike, none, 4))";
    const char *row = strstr(process_output(r), "\n4 ");
    struct text text = {0};
    assert_int_equal(sscanf(strchr(row, '+'), "%lf ± %lf", &margin, &interval), 2);
    assert_true(interval > 0.1);
    text_add(&text, "%s", axes);
    for (int equivalence = 0; equivalence < 2; equivalence++) {
        for (int wide = 0; wide < 2; wide++) {
            const double half = (wide ? 1.1 : 0.9) * interval;
            text_add(&text, "  - {claim: %s %s, value: '%s', band: [%g, %g]%s}\n",
                     wide ? "wide" : "narrow", equivalence ? "test" : "claim", value, margin - half,
                     margin + half, equivalence ? ", equivalence: true" : "");
        }
    }
    process_write(r, "axes.yaml", text.at);
    assert_int_equal(RIG_RUN(r, "reproduce", "axes.yaml", "--no-run", "results=typo.db"),
                     ERROR_RESULTS);
    assert_int_equal(RIG_RUN(r, "reproduce", "axes.yaml", "--no-run"), ERROR_OTHER);
    process_expect_line(r, "PASS", "narrow claim");
    process_expect_line(r, "PASS", "wide claim");
    process_expect_line(r, "FAIL", "narrow test");
    process_expect_line(r, "PASS", "wide test");
    const char *first = strstr(process_output(r), "borderline");
    assert_true(first > strstr(process_output(r), "narrow claim"));
    assert_null(strstr(first + 1, "borderline"));
    double observed, half;
    assert_int_equal(sscanf(strstr(strstr(process_output(r), "wide test"), "observed"),
                            "observed %lf ± %lf", &observed, &half),
                     2);
    assert_true(fabs(observed - margin) < 0.011 && fabs(half - interval) < 0.011);
    text_free(&text);
}

/* 12 of 24 asynchronous and 6 of 12 synchronous runs have equal nodes. */
static void expect_shared_runs_in_each_panel(struct process_rig *r)
{
    assert_int_equal(RIG_RUN(r, "report", "axes.yaml", "-o", "-"), OK);
    assert_non_null(strstr(process_output(r), "<h2>axes: alike, damping=none</h2>\n"
                                              "<p class=\"facts\">12 runs: 12 finished"));
    assert_non_null(strstr(process_output(r), "<h2>axes: alike, damping=inverse</h2>\n"
                                              "<p class=\"facts\">12 runs: 12 finished"));
}

/* The margins ignore the arm `late`, which has no runs, and a star marks them. The report covers
 * the whole experiment, although all runs of its quick part have finished. */
static void expect_stars_of_a_missing_arm(struct process_rig *r)
{
    static const char side[] = "asynchronous: [async", arms[] = "claims:\n";
    struct text text = {0};
    const char *at = strstr(axes, side) + strlen(side), *claims = strstr(axes, arms);
    assert_null(strchr(process_output(r), '*'));
    text_add(&text, "%.*s, late", (int)(at - axes), axes);
    text_add(&text, "%.*s", (int)(claims - at), at);
    text_add(&text, "  late: {label: late, quick: false, tune: {lr: [0.01, 0.02]}}\n"
                    "quick: {nodes: [alike], damping: [none], workers: [2]}\n");
    process_write(r, "late.yaml", text.at);
    text_free(&text);
    (void)RIG_RUN(r, "reproduce", "late.yaml", "--no-run");
    process_expect_line(r, "4 ", "* ");
    process_expect_line(r, "Ahead: ", "*: ");
    assert_int_equal(RIG_RUN(r, "report", "late.yaml", "-o", "-"), OK);
    assert_non_null(strstr(process_output(r), "1 of 3 arms"));
}

/* A margin over the seeds that are left decides nothing. */
static void expect_a_diverged_seed_to_leave_the_map_undecided(struct process_rig *r)
{
    const char *const set = "sqlite3 results.db \"UPDATE run SET status = 'diverged' WHERE %s\"";
    char command[160];
    assert_int_equal(process_shell(r, "sqlite3 results.db \"UPDATE run SET final_accuracy = 0.25 "
                                      "WHERE arm = 'async'\""),
                     OK);
    (void)RIG_RUN(r, "reproduce", "axes.yaml", "--no-run");
    process_expect_line(r, "4 ", "synchronous");
    snprintf(command, sizeof command, set, "arm = 'sync' AND seed = 3");
    assert_int_equal(process_shell(r, command), OK);
    (void)RIG_RUN(r, "reproduce", "axes.yaml", "--no-run");
    process_expect_line(r, "4 ", "undecided");
    process_expect_line(r, "4 ", "(2)");
    snprintf(command, sizeof command, set, "arm = 'async' AND seed < 3");
    assert_int_equal(process_shell(r, command), OK);
    (void)RIG_RUN(r, "reproduce", "axes.yaml", "--no-run");
    process_expect_line(r, "4 ", "not measured"); /* the two sides have no seed in common */
    assert_null(strstr(process_output(r), "nan"));
}

/* Synchronous runs do not depend on damping, so all levels of damping share them. */
static void several_axes_give_a_table_for_each_combination(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "axes.yaml", axes);
    if (RIG_RUN(r, "reproduce", "axes.yaml", "--quiet") != OK)
        fail_msg("%s", process_errors(r));
    process_expect_answer(r,
                          "SELECT group_concat(arm || n, ' ') FROM (SELECT arm, count(*) AS n "
                          "FROM run GROUP BY arm)",
                          "async24 sync12");
    process_expect_answer(r, "SELECT count(DISTINCT config ->> '$.\"pace.factor\"') FROM run", "2");
    process_expect_line(r, "PASS", "Slow is slower");
    process_expect_line(r, "PASS", "Shared");
    assert_non_null(strstr(process_output(r), "slow, damping=inverse"));
    assert_int_equal(RIG_RUN(r, "reproduce", "axes.yaml", "--no-run"), OK);
    process_expect_answer(r, "SELECT count(*) FROM run", "36");
    /* The margin of the first column, over the seeds of both arms. */
    char margin[32];
    snprintf(margin, sizeof margin, "%s",
             process_ask(r,
                         "SELECT printf('%+.2f', abs(avg(100 * (a.final_accuracy - "
                         "b.final_accuracy)))) FROM run a JOIN run b USING (seed, workers) WHERE "
                         "a.arm = 'async' AND b.arm = 'sync' AND workers = 2 AND a.config ->> "
                         "'$.damping' = 'none' AND a.config ->> '$.\"pace.factor\"' IS b.config "
                         "->> '$.\"pace.factor\"' AND coalesce(a.config ->> "
                         "'$.\"pace.worker\"', -1) < 0"));
    assert_true(margin[0] == '+');
    process_expect_line(r, margin, "(3)");
    expect_stars_of_a_missing_arm(r);
    assert_int_equal(RIG_RUN(r, "reproduce", "axes.yaml", "--no-run"), OK);
    expect_borderline(r);
    expect_shared_runs_in_each_panel(r);
    expect_a_diverged_seed_to_leave_the_map_undecided(r);
}

/* The query finds the arms and the margin from the runs alone. The first column is the first row.
 */
static void expect_the_query_to_agree(struct process_rig *r)
{
    double margin, interval, margin_of_query, interval_of_query;
    unsigned n;
    const char *row = strstr(process_output(r), "\n2 ");
    assert_non_null(row);
    assert_int_equal(sscanf(strchr(row, '+'), "%lf ± %lf", &margin, &interval), 2);
    assert_int_equal(RIG_RUN(r, "query", "crossover", "experiment=axes", "workers=2", "--csv"), OK);
    row = strchr(process_output(r), '\n') + 1;
    for (int column = 0; column < 11; column++) /* to column `margin` */
        row = strchr(row, ',') + 1;
    assert_int_equal(sscanf(row, "%lf,%lf,%u", &margin_of_query, &interval_of_query, &n), 3);
    assert_int_equal(n, 16);
    assert_true(fabs(100 * margin_of_query - margin) < 0.0051);
    assert_true(fabs(100 * interval_of_query - interval) < 0.0051);
}

/* The runs of an older version lack some keys. They belong to the same cluster as runs with the
 * default values of these keys. */
static void expect_the_query_to_join_versions(struct process_rig *r)
{
    assert_int_equal(RIG_RUN(r, "query", "crossover", "experiment=axes", "--csv"), OK);
    char *before = text_copy(process_output(r));
    assert_int_equal(process_shell(r, "sqlite3 results.db \"UPDATE run SET config = json_remove("
                                      "config, '\\$.\\\"network.racks\\\"', "
                                      "'\\$.\\\"network.rack_servers\\\"') WHERE seed = 1\""),
                     OK);
    assert_int_equal(RIG_RUN(r, "query", "crossover", "experiment=axes", "--csv"), OK);
    assert_string_equal(process_output(r), before);
    free(before);
}

/* The map has 2 and 4 workers, a free network, and one slow worker or none. */
static void expect_advice(struct process_rig *r)
{
    const char *const results = "results=results.db";
    assert_int_equal(RIG_RUN(r, "advise", results, "workers=3", "pace.slow_workers=1"), OK);
    process_expect_line(r, "2 ", "1 slow, factor 5");
    process_expect_line(r, "4 ", "1 slow, factor 5");
    process_expect_line(r, "workers=3 ", "between 2 and 4");
    assert_null(strstr(process_output(r), "alike"));
    assert_int_equal(RIG_RUN(r, "advise", results, "workers=4", "batch=64", "network.gbps=1"), OK);
    process_expect_line(r, "4 ", "alike");
    assert_null(strstr(process_output(r), "\n2 "));
    process_expect_line(r, "batch=64", "no axis");
    process_expect_line(r, "network.gbps=1 ", "nearest is 0");
    /* A step 20 times as long with a 1/20 of the bandwidth: the share of the network is the same.
     */
    assert_int_equal(RIG_RUN(r, "advise", results, "network.gbps=2", "pace.mean_ms=400"), OK);
    process_expect_line(r, "network.gbps=40 ", "nearest is 0");
    assert_int_equal(RIG_RUN(r, "advise", results, "workers=x"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "advise", results, "experiment=other"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "advise", "results=none.db", "workers=2"), ERROR_RESULTS);
    /* What the query writes is a map. */
    assert_int_equal(
        process_shell(r, "gradlag query crossover --csv >own.csv && gradlag advise results=own.csv "
                         "workers=3 pace.slow_workers=1"),
        OK);
    process_expect_line(r, "4 ", "1 slow, factor 5");
}

/* The program may be built without a map. */
static void expect_the_published_map_or_its_absence(struct process_rig *r)
{
    if (RIG_RUN(r, "advise", "workers=32", "network.gbps=10", "pace.slow_workers=1",
                "model=lenet") == OK)
        process_expect_line(r, "Ahead: lenet", "published map");
    else
        process_expect_error(r, "no map is built into this program");
}

/* Adds a claim: the value of an arm with 3 seeds plus zero times that of an arm with 16 seeds. The
 * band is `value` ± `half`. */
static void add_sum(struct text *text, const char *name, double value, double half)
{
    text_add(text,
             "  - {claim: %s, value: 'accuracy(lost, alike, 2) + 0 * accuracy(async, alike, 2)', "
             "band: [%g, %g], equivalence: true}\n",
             name, value - half, value + half);
}

/* The arm async has 16 seeds in column 2, lost only 3. */
static void expect_the_same_arm_if_a_further_seed_diverges(struct process_rig *r)
{
    const char *const set = "sqlite3 results.db \"UPDATE run SET status = '%s' WHERE arm = 'async' "
                            "AND seed = 16\"";
    char command[160];
    snprintf(command, sizeof command, set, "diverged");
    assert_int_equal(process_shell(r, command), OK);
    (void)RIG_RUN(r, "reproduce", "lost.yaml", "--no-run");
    const char *row = strstr(process_output(r), "\n2 "); /* the first table is the map */
    assert_non_null(row);
    if (strstr(row, "(15)") == NULL || strstr(row, "(15)") > strchr(row + 1, '\n'))
        fail_msg("the pair does not have 15 seeds: %s", process_output(r));
    snprintf(command, sizeof command, set, "finished");
    assert_int_equal(process_shell(r, command), OK);
}

/* A side gets one more arm, which has only the experiment's own 3 seeds. Student's t for 16 seeds
 * would be half of that for 3. If all runs of the arm diverge, the columns keep their seeds. */
static void expect_an_arm_without_further_seeds(struct process_rig *r, const char *file)
{
    struct text text = {0};
    double value, half;
    const char *side = strstr(file, "[async]");
    text_add(&text, "%.*s[async, lost]%s", (int)(side - file), file, side + strlen("[async]"));
    text_add(&text,
             "  lost: {label: lost}\nclaims:\n  - {claim: one, value: 'accuracy(lost, alike, "
             "2)', band: [0, 100]}\n");
    process_write(r, "lost.yaml", text.at);
    assert_int_equal(RIG_RUN(r, "reproduce", "lost.yaml", "--quiet"), OK);
    const char *observed = strstr(strstr(process_output(r), "PASS"), "observed");
    assert_int_equal(sscanf(observed, "observed %lf ± %lf", &value, &half), 2);
    assert_true(half > 0.1);
    add_sum(&text, "narrow", value, 0.9 * half);
    add_sum(&text, "wide", value, 1.3 * half);
    process_write(r, "lost.yaml", text.at);
    assert_int_equal(RIG_RUN(r, "reproduce", "lost.yaml", "--no-run"), ERROR_OTHER);
    process_expect_line(r, "FAIL", "narrow");
    process_expect_line(r, "PASS", "wide");
    expect_the_same_arm_if_a_further_seed_diverges(r);
    assert_int_equal(process_shell(r, "sqlite3 results.db \"UPDATE run SET status = 'diverged' "
                                      "WHERE arm = 'lost'\""),
                     OK);
    (void)RIG_RUN(r, "reproduce", "lost.yaml", "--no-run");
    process_expect_line(r, "2 ", "(16)");
    assert_null(strchr(process_output(r), '*'));
    text_free(&text);
}

/* The claim is the distance of the first column's margin (16 seeds) from its own value. With all
 * seeds the distance is 0; without one of them it is larger. */
static void expect_no_interval_without_a_jackknife(struct process_rig *r, const char *file)
{
    double margin;
    struct text text = {0};
    const char *row = strstr(process_output(r), "\n2 ");
    assert_non_null(row);
    assert_int_equal(sscanf(strchr(row, '+'), "%lf", &margin), 1);
    text_add(&text, "%sclaims:\n", file);
    for (int equivalence = 0; equivalence < 2; equivalence++)
        text_add(&text,
                 "  - {claim: %s, value: 'abs(abs(paired(async, sync, alike, 2)) - %g)', band: "
                 "[-5, 5]%s}\n",
                 equivalence ? "test" : "value alone", margin,
                 equivalence ? ", equivalence: true" : "");
    process_write(r, "kink.yaml", text.at);
    assert_int_equal(RIG_RUN(r, "reproduce", "kink.yaml", "--no-run"), ERROR_OTHER);
    process_expect_line(r, "PASS", "value alone");
    process_expect_line(r, "FAIL", "test");
    process_expect_line(r, "observed 0.00 (no interval: the jackknife does not fit", "");
    assert_null(strstr(strstr(process_output(r), "Claims"), "±"));
    text_free(&text);
}

/* One column is undecided. Its two best arms get 13 more seeds, the other columns none. */
static void undecided_columns_of_a_map_get_further_seeds(void **state)
{
    struct process_rig *r = *state;
    char text[2048];
    snprintf(text, sizeof text, "%s", axes);
    char *map = strstr(text, "asynchronous: [async]}\n");
    char *rest = text_copy(map + strlen("asynchronous: [async]}\n"));
    snprintf(map, sizeof text - (size_t)(map - text), "asynchronous: [async], seeds: 16}\n%s",
             rest);
    free(rest);
    char *damping = strstr(text, "  damping: [none, inverse]\n");
    memset(damping, ' ', strlen("  damping: [none, inverse]"));
    *strstr(text, "claims:") = '\0';
    process_write(r, "further.yaml", text);
    for (int time = 0; time < 2; time++) {
        if (RIG_RUN(r, "reproduce", "further.yaml", "--quiet") != OK)
            fail_msg("%s", process_errors(r));
        process_expect_answer(r, "SELECT count(*) FROM run WHERE seed <= 3", "24");
        process_expect_answer(r,
                              "SELECT group_concat(DISTINCT workers) || ' ' || count(*) || ' ' || "
                              "min(seed) || ' ' || max(seed) FROM run WHERE seed > 3",
                              "2 52 4 16");
        process_expect_line(r, "2 ", "(16)");
    }
    expect_no_interval_without_a_jackknife(r, text);
    assert_int_equal(RIG_RUN(r, "reproduce", "further.yaml", "--no-run"), OK);
    expect_the_query_to_agree(r);
    expect_the_query_to_join_versions(r);
    expect_advice(r);
    expect_the_published_map_or_its_absence(r);
    expect_an_arm_without_further_seeds(r, text);
    /* A column that lacks a run takes no seeds from the others. */
    assert_int_equal(process_shell(r, "sqlite3 results.db 'PRAGMA foreign_keys=ON; DELETE FROM run "
                                      "WHERE workers = 4 AND seed = 1'"),
                     OK);
    (void)RIG_RUN(r, "reproduce", "further.yaml", "--no-run");
    process_expect_line(r, "2 ", "(16)");
    memcpy(strstr(text, "seeds: 16}"), "seeds: 3} ", strlen("seeds: 3} "));
    process_write(r, "further.yaml", text);
    assert_int_equal(RIG_RUN(r, "reproduce", "further.yaml", "--dry-run"), ERROR_USAGE);
}

/* The mean of the seeds that survive does not represent a side. */
static void an_arm_with_a_diverged_seed_does_not_represent_its_side(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "survivors.yaml",
                  "name: survivors\n"
                  "question: which side is ahead?\n"
                  "settings: {engine: virtual, pace: constant, dataset: gaussian, "
                  "dataset.size: 8, model: softmax, samples: 800, batch: 10, warmup_epochs: 0}\n"
                  "workers: [2]\n"
                  "seeds: [1, 2]\n"
                  "map: {synchronous: [good, poor], asynchronous: [async]}\n"
                  "arms:\n"
                  "  good: {label: good, settings: {mode: sync, lr: 0.02}}\n"
                  "  poor: {label: poor, settings: {mode: sync, lr: 0.0001}}\n"
                  "  async: {label: asynchronous}\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "survivors.yaml", "--quiet"), OK);
    process_expect_line(r, "2       ", "good");
    assert_int_equal(process_shell(r, "sqlite3 results.db \"UPDATE run SET status = 'diverged' "
                                      "WHERE arm = 'good' AND seed = 1\""),
                     OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "survivors.yaml", "--no-run"), OK);
    process_expect_line(r, "2       ", "poor");
}

/* `sides`: the two sides of the map, in the order of the file. */
static void expect_fast_ahead(struct process_rig *r, const char *sides, const char *ahead)
{
    struct text text = {0};
    text_add(&text,
             "name: losses\n"
             "question: which side is ahead?\n"
             "metric: loss\n"
             "settings: {engine: virtual, pace: constant, dataset: gaussian, dataset.size: 8, "
             "model: softmax, samples: 800, batch: 10, warmup_epochs: 0}\n"
             "workers: [2]\n"
             "seeds: [1, 2, 3]\n"
             "map: {%s}\n"
             "arms:\n"
             "  fast: {label: fast, settings: {lr: 0.02}}\n"
             "  slow: {label: slow, settings: {lr: 0.0001}}\n"
             "claims:\n"
             "  - {claim: pair, value: 'paired(fast, 2, slow, 2)', band: [-100, 0]}\n"
             "  - {claim: spread, value: 'deviation(fast, 2)', band: [0, 100]}\n"
             "  - {claim: time, value: 'seconds_to(slow, 2, 57)', band: [0, 1e6]}\n",
             sides);
    process_write(r, "losses.yaml", text.at);
    (void)RIG_RUN(r, "reproduce", "losses.yaml", "--quiet");
    process_expect_line(r, "2 ", ahead);
    process_expect_line(r, "2 ", " fast  "); /* the best arm */
    text_free(&text);
}

/* The finished runs have the means 0.505 (fast) and 0.44 (slow). On the seeds that both sides
 * finished, the means are 0.505 and 0.605. */
static void a_run_without_a_finite_loss_leaves_a_claim_without_value(void **state)
{
    struct process_rig *r = *state;
    static const char *const orders[] = {"left: [fast], right: [slow]",
                                         "right: [slow], left: [fast]"};
    static const char *const survivors =
        "sqlite3 results.db \"UPDATE evaluation SET test_accuracy = 0.57; UPDATE run SET "
        "final_loss "
        "= 0.5 + 0.1 * (arm = 'slow') + 0.01 * (seed = 2); UPDATE run SET final_loss = 0.11 WHERE "
        "arm = 'slow' AND seed = 3; UPDATE run SET status = 'diverged' WHERE arm = 'fast' AND seed "
        "= 3\"";
    static const char *const not_a_number =
        "sqlite3 results.db \"UPDATE run SET status = 'finished', final_loss = NULL, not_a_number "
        "= 'final_loss' WHERE arm = 'fast' AND seed = 3\"";
    expect_fast_ahead(r, orders[0], "left");
    process_expect_line(r, "PASS", "pair");
    process_expect_line(r, "PASS", "spread");
    assert_int_equal(process_shell(r, survivors), OK);
    for (size_t i = 0; i < COUNT_OF(orders); i++)
        expect_fast_ahead(r, orders[i], "undecided");
    process_expect_line(r, "PASS", "time"); /* 100 * 0.57 is less than 57 */
    assert_int_equal(process_shell(r, not_a_number), OK);
    for (size_t i = 0; i < COUNT_OF(orders); i++)
        expect_fast_ahead(r, orders[i], "undecided");
    process_expect_line(r, "FAIL", "pair");
    process_expect_line(r, "FAIL", "spread");
}

/* The largest seed is 2. Trials have seed 102, or one after the further seeds. */
static void trials_have_another_seed_than_all_runs(void **state)
{
    struct process_rig *r = *state;
    static const char *const wanted[][2] = {{"8", "seed 102"}, {"500", "seed 502"}};
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "name: other\nquestion: q\nsettings: {engine: virtual, pace: constant, dataset: "
                 "gaussian, model: softmax, samples: 800, batch: 10}\nworkers: [2]\nseeds: [1, 2]\n"
                 "map: {s: [a], t: [b], seeds: %s}\narms:\n"
                 "  a: {label: a, settings: {mode: sync}}\n"
                 "  b: {label: b, settings: {mode: async}, tune: {lr: [0.01, 0.02]}}\n",
                 wanted[i][0]);
        process_write(r, "other.yaml", text);
        assert_int_equal(RIG_RUN(r, "reproduce", "other.yaml", "--dry-run"), OK);
        process_expect_line(r, "b ", wanted[i][1]);
    }
}

/* Levels that share runs also share one choice: that of the first level, even if its runs are in
 * another part. Other levels have their own choice. */
static void levels_of_an_axis_share_a_choice(void **state)
{
    struct process_rig *r = *state;
    static const char text[] =
        "name: shared\n"
        "question: once or twice?\n"
        "settings: {engine: virtual, pace: constant, dataset: gaussian, dataset.size: 8, "
        "model: softmax, samples: 800, batch: 10, warmup_epochs: 0}\n"
        "axes:\n"
        "  network: {free: {}, slow: {network.latency_ms: 3}, slower: {network.latency_ms: 9}}\n"
        "  workers: [2, 4]\n"
        "seeds: [1]\n"
        "arms:\n"
        "  tuned: {label: t, tune: {lr: [0.01, 0.1], shared: [slow, free]}}\n";
    process_write(r, "shared.yaml", text);
    if (RIG_RUN(r, "reproduce", "shared.yaml", "--quiet") != OK)
        fail_msg("%s", process_errors(r));
    process_expect_answer(r,
                          "SELECT group_concat(workers || ' ' || seed || ' ' || (config ->> "
                          "'$.\"network.latency_ms\"'), '; ') FROM (SELECT * FROM run WHERE "
                          "experiment = 'shared/tuning' ORDER BY id)",
                          "2 101 0; 2 101 0; 4 101 0; 4 101 0; 2 101 9; 2 101 9; 4 101 9; 4 101 9");
    process_expect_answer(r,
                          "SELECT count(*) || ' ' || count(DISTINCT workers || ' ' || lr) FROM "
                          "run WHERE experiment = 'shared' AND config ->> "
                          "'$.\"network.latency_ms\"' < 9",
                          "4 2");
    /* A dry run refuses what a run would. */
    assert_int_equal(RIG_RUN(r, "reproduce", "shared.yaml", "trace=one", "--dry-run"), OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "shared.yaml", "trace=one", "--dry-run", "--again"),
                     ERROR_USAGE);
    process_write(r, "wrong.yaml",
                  "name: w\nquestion: q\nworkers: [1]\narms: {a: {label: a, tune: "
                  "{lr: [0.1], shared: [free]}}}\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "wrong.yaml", "--dry-run"), ERROR_USAGE);
    process_expect_error(r, "free");
}

/* Neither threads nor a limit of time change the hash. Only threads separate columns. */
static void levels_beside_the_computation_have_their_own_runs(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "beside.yaml",
                  "name: beside\n"
                  "question: does it matter?\n"
                  "settings: {engine: virtual, pace: constant, dataset: gaussian, "
                  "dataset.size: 8, model: softmax, samples: 800, batch: 10, warmup_epochs: 0}\n"
                  "axes:\n"
                  "  threads: {one: {virtual.threads: 1}, two: {virtual.threads: 2}}\n"
                  "  patience: {short: {timeout_s: 20}, long: {}}\n"
                  "  workers: [2]\n"
                  "seeds: [1]\n"
                  "arms:\n"
                  "  plain: {label: plain}\n"
                  "  tuned: {label: tuned, tune: {lr: [0.01, 0.02]}}\n");
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(RIG_RUN(r, "reproduce", "beside.yaml", "--quiet"), OK);
        process_expect_answer(r,
                              "SELECT group_concat(n, ' ') FROM (SELECT count(*) AS n FROM run "
                              "GROUP BY config ->> '$.\"virtual.threads\"')",
                              "4 4");
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(several_axes_give_a_table_for_each_combination),
        TEST(undecided_columns_of_a_map_get_further_seeds),
        TEST(an_arm_with_a_diverged_seed_does_not_represent_its_side),
        TEST(a_run_without_a_finite_loss_leaves_a_claim_without_value),
        TEST(trials_have_another_seed_than_all_runs),
        TEST(levels_of_an_axis_share_a_choice),
        TEST(levels_beside_the_computation_have_their_own_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
