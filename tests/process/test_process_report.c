/* The report: claims judged from the recorded runs, and the page rewritten while the file grows. */
#include "base/status.h"
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define VIRTUAL RIG_SMALL, "engine=virtual", "pace=constant"

static const char asked[] =
    "name: asked\n"
    "question: Does it learn at all?\n"
    "settings: {engine: virtual, pace: constant, dataset: gaussian, dataset.size: 8, "
    "model: softmax, samples: 2000, batch: 10, warmup_epochs: 0}\n"
    "workers: [1, 2]\n"
    "seeds: [1, 2]\n"
    "arms:\n"
    "  plain: {label: nothing done, settings: {mode: async}}\n"
    "  inverse: {label: damped by the inverse, settings: {mode: async, damping: inverse}, "
    "tune: {lr: [0.02, 0.05]}}\n"
    "quick: {seeds: [1]}\n"
    "claims:\n"
    "  - {claim: It learns, value: \"accuracy(plain, 2)\", band: [30, 100]}\n"
    "  - {claim: It does not, value: \"accuracy(plain, 2)\", band: [0, 1]}\n";

static char *read_page(struct process_rig *r, const char *name)
{
    FILE *file = fopen(process_path(r, name), "rb");
    assert_non_null(file);
    char *page = NULL;
    size_t room = 0;
    assert_true(getdelim(&page, &room, '\0', file) > 0);
    fclose(file);
    return page;
}

static void assert_page(struct process_rig *r, const char *part, bool wanted)
{
    char *page = read_page(r, "report.html");
    if ((strstr(page, part) != NULL) != wanted)
        fail_msg("the page %s: %s", wanted ? "lacks" : "contains", part);
    free(page);
}

/* Without a quick part, the report judges all 12 runs, of which 4 are in the file. */
static void expect_claims_without_a_quick_part(struct process_rig *r)
{
    struct text text = {0};
    for (const char *c = asked; *c != '\0'; c++)
        text_add(&text, "%s%c", strncmp(c, "settings: {mode", 15) == 0 ? "quick: false, " : "", *c);
    process_write(r, "whole.yaml", text.at);
    assert_int_equal(RIG_RUN(r, "report", "whole.yaml"), OK);
    assert_page(r, "Does it learn at all?", true);
    assert_page(r, "<h2>asked</h2>", true);
    text_free(&text);
}

static void claims_are_judged_from_the_runs_that_are_there(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "asked.yaml", asked);
    /* The file has only the runs of the quick part, so the report judges the quick part. */
    assert_int_equal(RIG_RUN(r, "reproduce", "asked.yaml", "--quick", "--quiet"), ERROR_OTHER);
    assert_int_equal(RIG_RUN(r, "report", "asked.yaml"), OK);
    process_expect_line(r, "report.html", "8 ");
    assert_page(r, "Does it learn at all?", true);
    assert_page(r, "4 of its 4", true);
    assert_page(r, "1 PASS</span> <span class=\"badge fail\">1 FAIL", true);
    assert_page(r, "damped by the inverse", true);
    assert_page(r, "<h2>asked/tuning</h2>", true);
    expect_claims_without_a_quick_part(r);
    /* Without the experiment file the report shows the runs but no claims. */
    assert_int_equal(RIG_RUN(r, "report", "experiment=asked"), OK);
    assert_page(r, "Does it learn at all?", false);
    assert_page(r, "<h2>asked</h2>", true);
    process_expect_nothing_left(r);
}

static void runs_with_different_settings_leave_the_claims_open(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "asked.yaml", asked);
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "experiment=asked", "arm=plain", "seed=9",
                             "results=other.db", "--quiet"),
                     OK);
    assert_int_equal(RIG_RUN(r, "report", "asked.yaml", "results=other.db"), OK);
    assert_page(r, "<p class=\"tally\"> <span class=\"badge open\">2 open</span>", true);
}

static void an_experiment_with_other_columns_is_drawn_against_their_key(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "delays.yaml",
                  "name: delays\n"
                  "question: does a delay matter?\n"
                  "columns: delay\n"
                  "settings: {mode: sync, engine: virtual, pace: constant, dataset: gaussian, "
                  "dataset.size: 8, model: softmax, batch: 10, updates: 50, warmup_epochs: 0}\n"
                  "delay: [0, 1, 4]\n"
                  "seeds: [1]\n"
                  "arms: {plain: {label: plain, expected: {0: 61.25, 4: 51.75}}}\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "delays.yaml", "--quiet"), OK);
    assert_int_equal(RIG_RUN(r, "report", "delays.yaml", "--figures", "f"), OK);
    assert_page(r, "<title>Test accuracy against delay</title>", true);
    assert_page(r, "plain, delay=0: ", true);
    assert_page(r, "plain, delay=1: ", true);
    assert_page(r, "plain, delay=4: ", true);
    assert_page(r, "by arm and delay, over finished seeds", true);
    assert_page(r, ">expected</th>", true);
    assert_page(r, "<td class=\"number\">61.25</td></tr>", true);
    assert_page(r, "<td class=\"number\">51.75</td></tr>", true);
    assert_int_equal(access(process_path(r, "f/delays-test-accuracy-against-delay.svg"), F_OK), 0);
}

/* The plots have the last axis of whole numbers as their columns. Each other axis has panels. */
static void an_axis_of_whole_numbers_is_that_of_the_plots(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "axes.yaml",
                  "name: axes\n"
                  "question: which batch?\n"
                  "settings: {engine: virtual, pace: constant, dataset: gaussian, "
                  "dataset.size: 8, model: softmax, samples: 800, warmup_epochs: 0}\n"
                  "axes: {batch: [5, 10], damping: [none, inverse]}\n"
                  "seeds: [1]\n"
                  "arms: {plain: {label: plain}}\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "axes.yaml", "--quiet"), OK);
    assert_int_equal(RIG_RUN(r, "report", "axes.yaml"), OK);
    assert_page(r, "<h2>axes: damping=none</h2>", true);
    assert_page(r, "<h2>axes: damping=inverse</h2>", true);
    assert_page(r, "<title>Test accuracy against batch</title>", true);
    assert_page(r, "plain, batch=10: ", true);
}

/* An experiment by validation loss; the runs of its file have no test results. */
static void a_map_of_validation_losses_says_so(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "map.yaml",
                  "name: map\n"
                  "question: which side?\n"
                  "metric: validation_loss\n"
                  "settings: {engine: virtual, pace: constant, dataset: gaussian, "
                  "dataset.size: 8, model: softmax, samples: 800, batch: 10, warmup_epochs: 0}\n"
                  "axes: {workers: [2]}\n"
                  "seeds: [1, 2]\n"
                  "map: {synchronous: [sync], asynchronous: [async]}\n"
                  "arms:\n"
                  "  sync: {label: synchronous, settings: {mode: sync}}\n"
                  "  async: {label: asynchronous}\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "map.yaml", "--quiet"), OK);
    assert_int_equal(process_shell(r, "sqlite3 results.db 'UPDATE run SET final_accuracy = NULL, "
                                      "final_loss = NULL; UPDATE evaluation SET test_accuracy = "
                                      "NULL, test_loss = NULL'"),
                     OK);
    assert_int_equal(RIG_RUN(r, "report", "map.yaml"), OK);
    assert_page(r, "nats of validation loss", true);
    assert_page(r, "<title>Validation loss with 2 workers</title>", true);
    assert_page(r, "class=\"mark\"", true);
    assert_page(r, "on the test split", false);
    assert_page(r, "est loss", false);
}

static void wrong_arguments_of_report_are_errors(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "report"), ERROR_RESULTS);
    process_expect_error(r, "results.db");
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "--quiet"), OK);
    assert_int_equal(RIG_RUN(r, "report", "experiment=none-such"), ERROR_USAGE);
    process_expect_error(r, "none-such");
    assert_int_equal(RIG_RUN(r, "report", "-o", "nowhere/r.html"), ERROR_OTHER);
    process_expect_error(r, "nowhere/r.html");
    assert_int_equal(RIG_RUN(r, "report", "workers=4"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "report", "--wach"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "report", "-o"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "report", "none.yaml"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "report", "--figures"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "report", "--figures="), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "report", "--figures", "f", "--watch"), ERROR_USAGE);
    assert_int_not_equal(access(process_path(r, "report.html"), F_OK), 0);
}

static bool exists(struct process_rig *r, const char *name)
{
    return access(process_path(r, name), F_OK) == 0;
}

#define FIGURE "f/runs-test-accuracy-with-1-worker"

static void figures_are_converted_where_the_converter_is(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "workers=1", "--quiet"), OK);
    /* Without a converter: SVG only, and a line that names it. */
    assert_int_equal(process_shell(r, "PATH=$(dirname $(command -v gradlag)) gradlag report "
                                      "--figures f"),
                     OK);
    process_expect_line(r, "no PDFs", "rsvg-convert");
    assert_true(exists(r, "report.html") && exists(r, FIGURE ".svg"));
    assert_false(exists(r, FIGURE ".pdf"));
    if (process_shell(r, "command -v rsvg-convert >/dev/null") != 0) {
        print_message("skipped: no rsvg-convert; `apt-get install librsvg2-bin` installs it\n");
        skip();
    }
    assert_int_equal(RIG_RUN(r, "report", "--figures", "f"), OK);
    assert_int_equal(process_shell(r, "head -c 5 " FIGURE ".pdf | grep -q %PDF-"), 0);
    assert_false(exists(r, FIGURE ".pdf.part"));
    process_expect_nothing_left(r);
}

static void a_converter_that_fails_is_an_error(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "workers=1", "--quiet"), OK);
    assert_int_equal(process_shell(r,
                                   "mkdir bin; printf '#!/bin/sh\\nexit 3\\n' >bin/rsvg-convert; "
                                   "chmod +x bin/rsvg-convert; "
                                   "PATH=$PWD/bin:$PATH gradlag report --figures=f"),
                     ERROR_OTHER);
    process_expect_error(r, "rsvg-convert");
    process_expect_nothing_left(r);
}

static void await_page(struct process_rig *r, const char *part)
{
    for (int i = 0; i < 10 * RIG_LIMIT_S; i++) {
        if (access(process_path(r, "report.html"), F_OK) == 0) {
            char *page = read_page(r, "report.html");
            /* The page is replaced atomically, so it is always complete. */
            assert_non_null(strstr(page, "</html>"));
            bool there = strstr(page, part) != NULL;
            free(page);
            if (there)
                return;
        }
        usleep(100000);
    }
    fail_msg("the page never contains: %s", part);
}

static void report_watch_rewrites_the_page_until_ctrl_c(void **state)
{
    struct process_rig *r = *state;
    static const char *const watch[] = {"report", "--watch", NULL};
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "--quiet"), OK);
    process_start(r, watch);
    await_page(r, "1 finished");
    assert_page(r, "http-equiv=\"refresh\"", true);
    pid_t watcher = r->pid;
    r->pid = 0;
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "seed=2", "--quiet"), OK);
    await_page(r, "2 finished");
    r->pid = watcher;
    assert_int_equal(kill(watcher, SIGINT), 0);
    assert_int_equal(process_wait(r), OK);
    assert_page(r, "http-equiv=\"refresh\"", false);
    process_expect_nothing_left(r);
}

int main(void)
{
#define PROCESS_TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(claims_are_judged_from_the_runs_that_are_there),
        PROCESS_TEST(runs_with_different_settings_leave_the_claims_open),
        PROCESS_TEST(an_experiment_with_other_columns_is_drawn_against_their_key),
        PROCESS_TEST(an_axis_of_whole_numbers_is_that_of_the_plots),
        PROCESS_TEST(a_map_of_validation_losses_says_so),
        PROCESS_TEST(wrong_arguments_of_report_are_errors),
        PROCESS_TEST(figures_are_converted_where_the_converter_is),
        PROCESS_TEST(a_converter_that_fails_is_an_error),
        PROCESS_TEST(report_watch_rewrites_the_page_until_ctrl_c),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
