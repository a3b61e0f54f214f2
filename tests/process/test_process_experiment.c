/* Experiments with tuned and fitted arms, run by the program. */
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include "experiments/claims/scoreboard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char tuned[] =
    "name: tuned\n"
    "question: which rate is best?\n"
    "settings: {engine: virtual, pace: constant, dataset: gaussian, dataset.size: 8, "
    "model: softmax, samples: 2000, batch: 10, warmup_epochs: 0}\n"
    "workers: [2]\n"
    "seeds: [1, 2]\n"
    "arms:\n"
    "  best:\n"
    "    label: tuned\n"
    "    tune:\n"
    "      lr: [0, 0.01, 1e6]\n"
    "      momentum: [0, 0.5]\n"
    "      quick: {lr: [0.02]}\n"
    "  given: {label: given, settings: {lr: 0.01, momentum: 0}}\n"
    "claims:\n"
    "  - claim: It learns\n"
    "    value: accuracy(best, 2)\n"
    "    band: [50, 100]\n";

static void a_setting_holds_for_all_runs_or_is_refused(void **state)
{
    struct process_rig *r = *state;
    static const char *const decided[] = {"lr=0.1", "momentum=0", "workers=4", "seed=3", "arm=x"};
    process_write(r, "tuned.yaml", tuned);
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--dry-run", "batch=16"), OK);
    for (size_t i = 0; i < COUNT_OF(decided); i++)
        assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--dry-run", decided[i]),
                         ERROR_USAGE);
}

/* Both runs have finished, and no accuracy exceeds 100 %. So the claim fails; it is not open. */
static void a_claim_about_finished_runs_without_a_figure_fails(void **state)
{
    struct process_rig *r = *state;
    struct text text = {0};
    text_add(&text, "%s%s", tuned,
             "  - claim: Never\n"
             "    value: seconds_to(given, 2, 101) / seconds_to(given, 2, 102)\n"
             "    band: [0, 1]\n");
    process_write(r, "tuned.yaml", text.at);
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--no-run"), OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--quiet"), ERROR_OTHER);
    process_expect_line(r, "FAIL", "Never");
    process_expect_line(r, "1 passed", "1 failed, 0 not measured");
    text_free(&text);
}

static void an_arm_is_tuned_on_the_validation_split_before_its_runs(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "tuned.yaml", tuned);
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--dry-run"), OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--no-run"), OK);
    assert_null(strstr(process_output(r), "PASS"));
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run"), "");
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--quiet"), OK);
    process_expect_line(r, "PASS", "It learns");
    /* The arm runs only with the values of the trial that did best on the validation split. */
    assert_string_equal(
        process_ask(r, "SELECT count(*) FROM run WHERE experiment = 'tuned/tuning'"), "6");
    assert_string_equal(
        process_ask(r, "SELECT count(*) || ' ' || count(DISTINCT lr || ' ' || momentum) FROM run "
                       "WHERE experiment = 'tuned' AND arm = 'best'"),
        "2 1");
    assert_string_equal(
        process_ask(r, "SELECT (SELECT lr || ' ' || momentum FROM run WHERE experiment = "
                       "'tuned/tuning' AND status = 'finished' ORDER BY validation_accuracy DESC, "
                       "id LIMIT 1) = (SELECT lr || ' ' || momentum FROM run WHERE experiment = "
                       "'tuned' AND arm = 'best')"),
        "1");
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--quiet"), OK);
    process_expect_answer(r, "SELECT count(*) FROM run", "10");
    process_expect_nothing_left(r);
}

static const char pairs[] =
    "name: pairs\n"
    "question: which rate is better?\n"
    "settings: {engine: virtual, pace: constant, dataset: gaussian, dataset.size: 8, "
    "model: softmax, samples: 1000, batch: 10, warmup_epochs: 0}\n"
    "workers: [1, 2]\n"
    "arms:\n"
    "  slow: {label: slow, settings: {lr: 0.0001}}\n"
    "  fast: {label: fast | faster, settings: {lr: 0.01}, expected: {2: 12.5}}\n"
    "discussion: |\n"
    "  Fast is *faster*.\n\n"
    "  Slow is `slow`.\n"
    "claims:\n"
    "  - claim: A mean of differences is the difference of means\n"
    "    value: paired(fast, slow, 2) - accuracy(fast, 2) + accuracy(slow, 2)\n"
    "    band: [-1e-9, 1e-9]\n"
    "  - claim: Also of different worker counts\n"
    "    value: paired(fast, 2, slow, 1) - accuracy(fast, 2) + accuracy(slow, 1)\n"
    "    band: [-1e-9, 1e-9]\n"
    "  - claim: Its interval is that of the query\n"
    "    value: paired_interval(fast, slow, 2)\n"
    "    band: [";

/* The board names the dates and commits of the runs. */
static void expect_the_board_to_say_who_made_them(struct process_rig *r)
{
    struct reproduction w;
    struct settings more = {0};
    struct judged_claim judged[8];
    struct scoreboard b = {0};
    char results[512];
    snprintf(results, sizeof results, "%s", process_path(r, "results.db"));
    settings_add(&more, "results", results, COMMAND_LINE);
    assert_int_equal(reproduction_open(&w, process_path(r, "pairs.yaml")), OK);
    assert_int_equal(reproduction_look_up(&w, false, false, &more), OK);
    assert_int_equal(cells_open(&w.cells, &w.e, &w.plan, &w.uses, false), OK);
    assert_int_equal(reproduction_judge(&w, false, judged), OK);
    assert_int_equal(scoreboard_add(&b, &w, judged), OK);
    assert_true(b.lines[0].there == 12 && b.lines[0].claims[CLAIM_PASS] == 3);
    process_expect_answer(r, "SELECT substr(min(finished_at), 1, 10) FROM run", b.lines[0].days);
    assert_non_null(b.lines[0].commits);
    process_expect_answer(r,
                          "SELECT DISTINCT substr(host ->> '$.commit', 1, 7) || CASE WHEN host ->> "
                          "'$.dirty' THEN '-dirty' ELSE '' END FROM run",
                          b.lines[0].commits);
    scoreboard_close(&b);
    reproduction_close(&w);
    settings_free(&more);
}

/* A file without seeds uses three seeds. */
static void cells_are_compared_on_the_same_seeds(void **state)
{
    struct process_rig *r = *state;
    char text[2048];
    snprintf(text, sizeof text, "%s0, 100]\n", pairs);
    process_write(r, "pairs.yaml", text);
    assert_int_equal(RIG_RUN(r, "reproduce", "pairs.yaml", "--quiet"), OK);
    process_expect_answer(r, "SELECT count(*) FROM run", "12");
    assert_int_equal(
        RIG_RUN(r, "query", "paired-differences", "workers=2", "experiment=pairs", "--csv"), OK);
    const char *line = strstr(process_output(r), "\npairs,2,fast");
    double mean, interval;
    assert_non_null(line);
    assert_non_null(strstr(line, ",3,")); /* n, mean_difference, interval */
    assert_int_equal(sscanf(strstr(line, ",3,"), ",3,%lf,%lf", &mean, &interval), 2);
    assert_true(interval > 0);
    interval *= 100;
    snprintf(text, sizeof text, "%s%.9f, %.9f]\n", pairs, interval - 1e-6, interval + 1e-6);
    process_write(r, "pairs.yaml", text);
    assert_int_equal(RIG_RUN(r, "reproduce", "pairs.yaml", "--no-run"), OK);
    process_expect_line(r, "PASS", "Its interval is that of the query");
    expect_the_board_to_say_who_made_them(r);
    assert_int_equal(RIG_RUN(r, "reproduce", "pairs.yaml", "--no-run", "--markdown"), OK);
    assert_true(strncmp(process_output(r), "\n## pairs\n", 10) == 0);
    assert_non_null(strstr(process_output(r), "\n| Also of different worker counts | PASS | "));
    assert_non_null(strstr(process_output(r), "\n| fast \\| faster | "));
    assert_non_null(strstr(process_output(r), " (3) [12.5] |\n"));
    const char *claims = strstr(process_output(r), "\n| claim |");
    assert_non_null(strstr(claims, "|\n\nFast is *faster*.\n\nSlow is `slow`.\n"));
    snprintf(text, sizeof text, "%s0, 100]\nseeds: [1, 2]\n", pairs);
    process_write(r, "pairs.yaml", text);
    assert_int_equal(RIG_RUN(r, "reproduce", "pairs.yaml", "--no-run"), OK);
    process_expect_errors_contain(r, "4 of 4 ");
}

static const char counting[] =
    "name: counting\n"
    "question: does it diverge?\n"
    "settings: {engine: virtual, pace: constant, dataset: gaussian, dataset.size: 8,\n"
    "  model: softmax, samples: 200, batch: 10}\n"
    "workers: [2]\n"
    "seeds: [1]\n"
    "arms: {plain: {label: plain}}\n"
    "claims:\n"
    "  - claim: No run diverges\n"
    "    sql: SELECT count(*) FROM run WHERE experiment = 'counting' AND status = 'diverged'\n"
    "    band: [0, 0]\n";

/* The claim would pass on an empty results file. Its SQL is checked before the runs start. */
static void a_claim_in_sql_waits_for_its_runs(void **state)
{
    struct process_rig *r = *state;
    char wrong[sizeof counting];
    memcpy(wrong, counting, sizeof wrong);
    memcpy(strstr(wrong, "FROM run"), "FROM rum", strlen("FROM rum"));
    process_write(r, "wrong.yaml", wrong);
    assert_int_equal(RIG_RUN(r, "reproduce", "wrong.yaml", "--dry-run"), ERROR_USAGE);
    process_expect_error(r, "wrong.yaml:9");
    process_write(r, "counting.yaml", counting);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant"), OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "counting.yaml", "--no-run"), OK);
    assert_null(strstr(process_output(r), "PASS"));
    assert_non_null(strstr(process_output(r), "No run diverges"));
    assert_int_equal(RIG_RUN(r, "reproduce", "counting.yaml", "--quiet"), OK);
    process_expect_line(r, "PASS", "No run diverges");
}

/* All runs have ended, so the claim waits for none. The quick part may lack the rows that the claim
 * reads. */
static void a_claim_in_sql_without_a_value_fails(void **state)
{
    struct process_rig *r = *state;
    struct text text = {0};
    text_add(&text, "%s%s", counting,
             "  - claim: No such run\n"
             "    sql: SELECT max(updates) FROM run WHERE experiment = 'other'\n"
             "    band: [0, 100]\n");
    process_write(r, "counting.yaml", text.at);
    text_free(&text);
    assert_int_equal(RIG_RUN(r, "reproduce", "counting.yaml", "--quick", "--quiet"), OK);
    process_expect_line(r, "1 passed", "1 not measured");
    assert_int_equal(RIG_RUN(r, "reproduce", "counting.yaml", "--quiet"), ERROR_OTHER);
    process_expect_line(r, "FAIL", "No such run");
    process_expect_line(r, "no value", "band");
}

static void a_claim_in_sql_yields_one_number(void **state)
{
    struct process_rig *r = *state;
    static const char *const several[] = {"SELECT 0, 1", "SELECT 0 FROM run UNION ALL SELECT 0"};
    for (size_t i = 0; i < COUNT_OF(several); i++) {
        struct text text = {0};
        text_add(&text, "%s  - {claim: Several, sql: '%s', band: [0, 1]}\n", counting, several[i]);
        process_write(r, "counting.yaml", text.at);
        text_free(&text);
        assert_int_equal(RIG_RUN(r, "reproduce", "counting.yaml", "--quiet"), ERROR_USAGE);
    }
}

static void a_spread_of_one_seed_is_not_measured(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "alone.yaml",
                  "name: alone\nquestion: how far apart are runs?\n"
                  "settings: {engine: virtual, pace: constant, dataset: gaussian, dataset.size: 8, "
                  "model: softmax, samples: 1000, batch: 10, warmup_epochs: 0}\n"
                  "workers: [1]\nseeds: [1]\n"
                  "arms:\n  a: {label: a, settings: {}}\n  b: {label: b, settings: {lr: 0.02}}\n"
                  "claims:\n"
                  "  - {claim: deviation, value: 'deviation(a, 1)', band: [0, 100], source: none}\n"
                  "  - {claim: pair, value: 'paired_interval(a, b, 1)', band: [0, 100], "
                  "source: none}\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "alone.yaml", "--quiet"), OK);
    process_expect_line(r, "0 failed", "2 not measured");
    process_expect_line(r, "not measured: a with ", "too few seeds");
}

/* As after a run that has just failed. */
static void a_failed_run_fails_a_claim_without_executing_it_again(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "tuned.yaml", tuned);
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--quick", "--quiet"), OK);
    assert_int_equal(process_shell(r, "sqlite3 results.db \"UPDATE run SET status = 'failed' WHERE "
                                      "arm = 'best' AND seed = 1\""),
                     OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--quick", "--no-run"), ERROR_OTHER);
    process_expect_line(r, "4 runs: 1 to make", "3 there already");
    process_expect_line(r, "FAIL", "It learns");
    process_expect_line(r, "of 2 runs 1 finished", "1 failed");
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--quick", "--dry-run"), OK);
    process_expect_line(r, "4 runs: 1 to make", "3 there already");
}

static const char searching[] =
    "name: searching\n"
    "question: which rate is best?\n"
    "settings: {engine: virtual, pace: constant, dataset: gaussian, dataset.size: 8, "
    "model: softmax, samples: 800, batch: 10, warmup_epochs: 0}\n"
    "workers: [2]\n"
    "seeds: [1]\n"
    "arms:\n"
    "  plain: {label: plain, tune: {search: tpe, search.trials: 5, search.startup: 3, lr: "
    "1e-4..1:log}}\n"
    "  damped: {label: damped, settings: {damping: inverse}, tune: {search: tpe, "
    "search.trials: 5, search.startup: 3, lr: 1e-4..1:log}}\n";

static void arms_that_search_have_equal_budgets_and_continue(void **state)
{
    struct process_rig *r = *state;
    struct text uneven = {0};
    process_write(r, "searching.yaml", searching);
    assert_int_equal(RIG_RUN(r, "reproduce", "searching.yaml", "--dry-run"), OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "searching.yaml", "--quiet"), OK);
    process_expect_answer(
        r,
        "SELECT group_concat(n, ' ') FROM (SELECT count(*) AS n FROM run WHERE experiment = "
        "'searching/tuning' GROUP BY arm)",
        "5 5");
    /* The arm's run uses the rate of the trial that did best on the validation split. */
    process_expect_answer(
        r,
        "SELECT count(*) FROM run WHERE experiment = 'searching' AND lr = (SELECT t.lr FROM run AS "
        "t WHERE t.arm = run.arm AND t.experiment = 'searching/tuning' AND t.validation_accuracy = "
        "(SELECT max(validation_accuracy) FROM run AS u WHERE u.arm = t.arm AND u.experiment = "
        "t.experiment) ORDER BY t.id LIMIT 1)",
        "2");
    assert_int_equal(RIG_RUN(r, "reproduce", "searching.yaml", "--quiet"), OK);
    process_expect_answer(r, "SELECT count(*) FROM run", "12");
    const char *at = strstr(searching, "search.trials: 5");
    text_add(&uneven, "%.*ssearch.trials: 6%s", (int)(at - searching), searching, at + 16);
    process_write(r, "uneven.yaml", uneven.at);
    text_free(&uneven);
    assert_int_equal(RIG_RUN(r, "reproduce", "uneven.yaml", "--quiet"), ERROR_USAGE);
    process_expect_error(r, "damped");
}

/* Without runs in the results file, all claims are open. */
static void the_board_shows_every_experiment_without_a_run(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "reproduce", "--all", "--no-run"), OK);
    process_expect_line(r, "stale-gradients ", " open ");
    assert_int_equal(RIG_RUN(r, "reproduce", "--all", "--no-run", "--markdown"), OK);
    assert_true(strncmp(process_output(r), "<!-- ", 5) == 0);
    process_expect_line(r, "| [tuned-gap](#tuned-gap) |", "| open |");
    assert_non_null(strstr(process_output(r), "\n## tuned-gap\n"));
    process_expect_nothing_left(r);
}

/* The last line of the page holds its hash. */
static void check_board_finds_an_edited_page(void **state)
{
    struct process_rig *r = *state;
    char script[1024], *check = realpath("scripts/check-board", NULL);
    assert_non_null(check);
    snprintf(script, sizeof script,
             "gradlag reproduce --all --no-run --markdown >page.md && %s $PWD/page.md", check);
    assert_int_equal(process_shell(r, script), 0);
    snprintf(script, sizeof script, "sed -i s/open/PASS/ page.md; %s $PWD/page.md", check);
    free(check);
    assert_int_equal(process_shell(r, script), 1);
    process_expect_errors_contain(r, "page.md");
}

static void a_grid_of_one_point_needs_no_trials(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "tuned.yaml", tuned);
    assert_int_equal(RIG_RUN(r, "reproduce", "tuned.yaml", "--quick", "--quiet"), OK);
    assert_null(strstr(process_output(r), "trials"));
    assert_string_equal(process_ask(r, "SELECT count(*) || ' ' || min(lr) || ' ' || max(lr) FROM "
                                       "run WHERE arm = 'best'"),
                        "2 0.02 0.02");
}

/* The quick part must take only a few minutes. */
static void the_quick_part_of_a_built_in_experiment_has_no_trials(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "reproduce", "--all", "--quick", "--dry-run"), OK);
    process_expect_line(r, "runs: ", "to make");
    if (strstr(process_output(r), " trial") != NULL)
        fail_msg("%.200s", strstr(process_output(r), " trial") - 4);
}

static void expect_all_passed(struct process_rig *r, unsigned claims)
{
    unsigned passed = 0;
    assert_null(strstr(process_output(r), "FAIL"));
    for (const char *at = process_output(r); (at = strstr(at, "PASS")) != NULL; at++)
        passed++;
    assert_int_equal(passed, claims);
}

static void data_without_classes_are_judged_by_their_loss(void **state)
{
    struct process_rig *r = *state;
    process_write(
        r, "squares.yaml",
        "name: squares\n"
        "question: how fast?\n"
        "settings: {dataset: least-squares, dataset.size: 4, dataset.samples: 500, model: "
        "linear, optimizer: sgd, schedule: constant, warmup_epochs: 0, epochs: 20, batch: "
        "50}\n"
        "workers: [1]\n"
        "seeds: [1]\n"
        "arms:\n"
        "  async: {label: tuned, tune: {lr: [0.001, 1, 100]}}\n"
        "  sync: {label: given, settings: {mode: sync, lr: 1}}\n"
        "claims:\n"
        "  - claim: It is the same in both modes\n"
        "    value: loss(async, 1) / loss(sync, 1)\n"
        "    band: [1, 1]\n"
        "  - claim: It is reached at the end and not before\n"
        "    value: seconds_to_loss(async, 1, loss(async, 1)) / seconds(async, 1)\n"
        "    band: [0.9, 1]\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "squares.yaml", "--quiet"), OK);
    process_expect_line(r, "lr=1 ", "loss");
    assert_string_equal(process_ask(r, "SELECT count(*) || ' ' || count(final_loss) || ' ' || "
                                       "count(final_accuracy) FROM run WHERE experiment = "
                                       "'squares'"),
                        "2 2 0");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run WHERE "
                                       "experiment = 'squares'"),
                        "1");
}

/* The test turns one run of the file into a resumed run: another run gets all its evaluations but
 * the last. */
static void a_time_counts_from_the_start_of_a_resumed_training(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "resumed.yaml",
                  "name: resumed\n"
                  "question: when?\n"
                  "settings: {engine: virtual, pace: constant, dataset: gaussian, "
                  "dataset.size: 8, model: softmax, samples: 2000, batch: 10, warmup_epochs: 0, "
                  "evaluate_every: 0.1}\n"
                  "workers: [1]\n"
                  "seeds: [1]\n"
                  "arms: {only: {label: only}}\n"
                  "claims:\n"
                  "  - claim: An accuracy\n"
                  "    value: seconds_to(only, 1, 0.1) / seconds(only, 1)\n"
                  "    band: [0, 0.5]\n"
                  "  - claim: A loss\n"
                  "    value: seconds_to_loss(only, 1, 1000) / seconds(only, 1)\n"
                  "    band: [0, 0.5]\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "resumed.yaml", "--quiet"), OK);
    expect_all_passed(r, 2);
    assert_int_equal(
        process_shell(r, "sqlite3 results.db \"INSERT INTO run (uuid, mode, workers, status) "
                         "VALUES ('earlier', 'async', 1, 'stopped'); "
                         "UPDATE evaluation SET run_id = 2 WHERE updates < (SELECT max(updates) "
                         "FROM evaluation); "
                         "UPDATE run SET host = json_set(host, '$.resumed', json_object('run', "
                         "'earlier', 'version', updates - 1)) WHERE id = 1\""),
        OK);
    process_expect_answer(r, "SELECT count(*) FROM evaluation WHERE run_id = 1", "1");
    assert_int_equal(RIG_RUN(r, "reproduce", "resumed.yaml", "--no-run"), OK);
    expect_all_passed(r, 2);
}

/* Merged summaries have no rows of single gradients and steps. */
static void expect_summaries_to_pass(struct process_rig *r, const char *file, unsigned claims)
{
    /* Other runs come first in the merged file, so the numbers of the runs change. */
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "results=other.db"), OK);
    assert_int_equal(
        RIG_RUN(r, "merge", "other.db", "results.db", "-o", "published.db", "--summaries"), OK);
    assert_int_equal(RIG_RUN(r, "reproduce", file, "--no-run", "results=published.db"), OK);
    expect_all_passed(r, claims);
}

static void an_arm_is_fitted_to_the_runs_of_another(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "fitted.yaml",
                  "name: fitted\n"
                  "question: is the copy like what it was made from?\n"
                  "settings: {mode: async, dataset: gaussian, dataset.size: 8, model: softmax, "
                  "samples: 4000, batch: 10, warmup_epochs: 0}\n"
                  "workers: [2]\n"
                  "seeds: [1, 2]\n"
                  "arms:\n"
                  "  from: {label: from, settings: {engine: virtual, pace: gamma, pace.cv: 0.5}}\n"
                  "  copy: {label: copy, fit: from, settings: {engine: virtual}}\n"
                  "claims:\n"
                  "  - claim: It is\n"
                  "    value: staleness_distance(copy, 2)\n"
                  "    band: [0, 0.2]\n"
                  "  - claim: But not the very same\n"
                  "    value: staleness_distance(copy, 2)\n"
                  "    band: [0.0001, 1]\n"
                  "  - claim: All are older than nothing and none than everything\n"
                  "    value: staleness_above(from, 2, 0 - 1) - staleness_above(from, 2, 1000)\n"
                  "    band: [1, 1]\n"
                  "  - claim: Some time it learns\n"
                  "    value: seconds_to(copy, 2, 20) / seconds(copy, 2)\n"
                  "    band: [0, 1]\n"
                  "  - claim: Nobody is more than perfect\n"
                  "    value: 1 / seconds_to(copy, 2, 101)\n"
                  "    band: [0, 0]\n");
    /* No part makes fitted runs: they refer to another run by its number in the same results
     * file. */
    assert_int_equal(RIG_RUN(r, "reproduce", "fitted.yaml", "--quiet", "--part=2/2"), OK);
    process_expect_answer(r, "SELECT group_concat(arm || seed) FROM run", "from2");
    assert_int_equal(RIG_RUN(r, "reproduce", "fitted.yaml", "--quiet", "--part=1/2"), OK);
    process_expect_answer(r, "SELECT count(*) || ' ' || count(DISTINCT arm) FROM run", "2 1");
    assert_int_equal(RIG_RUN(r, "reproduce", "fitted.yaml", "--quiet"), OK);
    expect_all_passed(r, 5);
    assert_string_equal(
        process_ask(r, "SELECT count(*) FROM run AS copy JOIN run AS source ON source.uuid = "
                       "copy.config ->> '$.\"pace.run\"' WHERE copy.arm = 'copy' AND source.arm = "
                       "'from' AND copy.seed = source.seed"),
        "2");
    assert_int_equal(RIG_RUN(r, "reproduce", "fitted.yaml", "--quiet"), OK);
    process_expect_answer(r, "SELECT count(*) FROM run", "4");
    expect_summaries_to_pass(r, "fitted.yaml", 5);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

/* Virtual ranks send nothing; real ranks send half as much in fp16. */
static void claims_can_use_exchange_and_bubble_figures(void **state)
{
    struct process_rig *r = *state;
    process_write(
        r, "exchange.yaml",
        "name: exchange\n"
        "question: what does it take?\n"
        "settings: {dataset: gaussian, dataset.size: 8, samples: 400, batch: 10,\n"
        "  evaluate_every: 0}\n"
        "workers: [2]\n"
        "seeds: [1]\n"
        "arms:\n"
        "  floats: {label: f, settings: {mode: sync, model: softmax, communicator: mpi}}\n"
        "  halves: {label: h, settings: {mode: sync, model: softmax, compression: fp16}}\n"
        "  link: {label: l, settings: {mode: sync, model: softmax, engine: virtual,\n"
        "    pace: constant, pace.mean_ms: 10, network.latency_ms: 5}}\n"
        "  stages: {label: s, settings: {mode: pipeline, model: mlp, micro_batches: 2,\n"
        "    pace: constant, pace.mean_ms: 200, updates: 5, samples: 0}}\n"
        "claims:\n"
        "  - claim: half\n"
        "    value: sent_bytes(halves, 2) / sent_bytes(floats, 2)\n"
        "    band: [0.5, 0.51]\n"
        "  - claim: two messages of 5 ms beside a step of 10\n"
        "    value: exchange_share(link, 2)\n"
        "    band: [0.499, 0.501]\n"
        "  - claim: a third of the time, and what other work adds\n"
        "    value: bubble(stages, 2)\n"
        "    band: [0.32, 0.6]\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "exchange.yaml", "--quiet"), OK);
    expect_all_passed(r, 3);
    expect_summaries_to_pass(r, "exchange.yaml", 3);
}

/* The figures of the board are those of AVX2, which each x86 processor of its readers has. */
static void a_built_in_experiment_computes_with_avx2_unless_told(void **state)
{
    struct process_rig *r = *state;
    const char *used = "SELECT DISTINCT host ->> '$.environment.ONEDNN_MAX_CPU_ISA' FROM run";
    unsetenv("ONEDNN_MAX_CPU_ISA");
    assert_int_equal(RIG_RUN(r, "reproduce", "unequal-shares", "--quick", "--quiet"), OK);
    process_expect_answer(r, used, "AVX2");
    setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1);
    int code = RIG_RUN(r, "reproduce", "unequal-shares", "--quick", "--quiet", "--again");
    unsetenv("ONEDNN_MAX_CPU_ISA");
    assert_int_equal(code, OK);
    process_expect_answer(
        r, "SELECT host ->> '$.onednn_instructions' FROM run ORDER BY id DESC LIMIT 1", "SSE41");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_board_shows_every_experiment_without_a_run),
        TEST(check_board_finds_an_edited_page),
        TEST(cells_are_compared_on_the_same_seeds),
        TEST(a_claim_in_sql_waits_for_its_runs),
        TEST(a_claim_in_sql_without_a_value_fails),
        TEST(a_claim_in_sql_yields_one_number),
        TEST(a_spread_of_one_seed_is_not_measured),
        TEST(a_failed_run_fails_a_claim_without_executing_it_again),
        TEST(a_setting_holds_for_all_runs_or_is_refused),
        TEST(a_claim_about_finished_runs_without_a_figure_fails),
        TEST(an_arm_is_tuned_on_the_validation_split_before_its_runs),
        TEST(arms_that_search_have_equal_budgets_and_continue),
        TEST(a_grid_of_one_point_needs_no_trials),
        TEST(the_quick_part_of_a_built_in_experiment_has_no_trials),
        TEST(data_without_classes_are_judged_by_their_loss),
        TEST(a_time_counts_from_the_start_of_a_resumed_training),
        TEST(an_arm_is_fitted_to_the_runs_of_another),
        TEST(claims_can_use_exchange_and_bubble_figures),
        TEST(a_built_in_experiment_computes_with_avx2_unless_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
