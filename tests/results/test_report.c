/* The report: the page of a file with known values, and escaping of text. */
#include "base/text.h"
#include "tests/results/query_rig.h"

#include "results/report/html.h"
#include "results/report/report.h"
#include "results/query/statistics.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading a page ----------------------------------------------------------------------------
 */

static char *page; /* of the last report; free() */

static void write_report(const struct report_experiment *experiments, size_t count,
                         const char *only)
{
    struct report_request request = {.path = rig_path,
                                     .experiment = only,
                                     .experiments = experiments,
                                     .experiment_count = count};
    free(page);
    page = rig_report(&request);
}

static bool is_void(const char *name)
{
    static const char *const voids[] = {"meta", "link", "!DOCTYPE", "br"};
    for (size_t i = 0; i < COUNT_OF(voids); i++)
        if (strcmp(name, voids[i]) == 0)
            return true;
    return false;
}

/* Asserts that every element is closed, in order; a browser would repair errors silently. */
static void assert_well_formed(const char *html)
{
    static char stack[64][24];
    size_t depth = 0;
    for (const char *c = strchr(html, '<'); c != NULL; c = strchr(c + 1, '<')) {
        char name[24];
        bool closing = c[1] == '/';
        const char *end = strchr(c, '>');
        assert_non_null(end);
        size_t length = strcspn(c + 1 + closing, " >/\n");
        snprintf(name, sizeof name, "%.*s", (int)length, c + 1 + closing);
        if (closing) {
            assert_true(depth > 0);
            assert_string_equal(stack[--depth], name);
        } else if (end[-1] != '/' && !is_void(name)) {
            assert_true(depth < COUNT_OF(stack));
            snprintf(stack[depth++], sizeof stack[0], "%s", name);
        }
    }
    assert_int_equal(depth, 0);
}

static size_t count_of(const char *text, const char *part)
{
    size_t count = 0;
    for (const char *c = text; (c = strstr(c, part)) != NULL; c++)
        count++;
    return count;
}

static void assert_page_contains(const char *wanted)
{
    if (strstr(page, wanted) == NULL)
        fail_msg("the page does not contain: %s", wanted);
}

static void assert_near(double value, double wanted, double tolerance)
{
    if (!(fabs(value - wanted) <= tolerance))
        fail_msg("%.17g is not near %.17g", value, wanted);
}

/* ---- parts --------------------------------------------------------------------------------------
 */

static void a_sample_has_mean_deviation_and_interval(void **state)
{
    (void)state;
    struct sample s = {0};
    assert_true(isnan(sample_mean(&s)));
    sample_add(&s, 2);
    assert_near(sample_mean(&s), 2, 1e-15);
    assert_true(isnan(sample_deviation(&s)) && isnan(sample_interval(&s)));
    sample_add(&s, NAN); /* ignored */
    sample_add(&s, INFINITY);
    sample_add(&s, 4);
    sample_add(&s, 9);
    assert_int_equal(s.n, 3);
    assert_near(sample_mean(&s), 5, 1e-15);
    assert_near(sample_deviation(&s), sqrt(13), 1e-14); /* (9 + 1 + 16) / 2 */
    assert_near(sample_interval(&s), 4.303 * sqrt(13.0 / 3), 1e-12);
    assert_true(s.least == 2 && s.most == 9);
    assert_near(student_95(1), 12.706, 1e-12);
    assert_near(student_95(60), 2.000, 0.005);
    assert_near(student_95(100000), 1.960, 0.001);
}

static void rounding_does_not_move_a_value_across_its_band(void **state)
{
    (void)state;
    assert_int_equal(band_decimals(89.24, 88.6, 90.7), 2);
    assert_int_equal(band_decimals(0.0632, 0.0615, 0.065), 4); /* 0.06 would lie outside the band */
    assert_int_equal(band_decimals(2.004, -1, 2), 3);          /* 2.00 would lie inside the band */
    assert_int_equal(band_decimals(1.996, 2, 3), 3);
    assert_int_equal(band_decimals(2, 2, 2), 2);
    assert_int_equal(band_decimals(NAN, 0.001, 1), 2);
    assert_int_equal(band_decimals(INFINITY, 0.001, 1), 2);
    assert_int_equal(band_decimals(1e300, -1e300, 1e300), 2);
}

static void prose_has_paragraphs_code_and_emphasis(void **state)
{
    (void)state;
    struct text t = {0};
    html_prose(&t, "A *b* and `c<*d*`: 2 * 3.\n\n\n**E** f_g\nh `i\n\nj` *k\n");
    assert_string_equal(t.at, "<p>A <em>b</em> and <code>c&lt;*d*</code>: 2 * 3.</p>\n"
                              "<p><strong>E</strong> f_g h `i</p>\n<p>j` *k</p>\n");
    t.length = 0;
    html_prose(&t, NULL);
    assert_int_equal(t.length, 0);
    text_free(&t);
}

static void text_of_users_is_escaped(void **state)
{
    (void)state;
    struct text t = {0};
    html_text(&t, "<b a=\"1\" c='2'>&amp;\x01\x7f");
    assert_string_equal(t.at, "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;amp;  ");
    t.length = 0;
    html_text(&t, "½ τ 漢 \xff \xc0\xaf \xe2\x82");
    assert_string_equal(t.at, "½ τ 漢 \xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd"
                              "\xef\xbf\xbd");
    text_free(&t);
}

/* ---- the page -----------------------------------------------------------------------------------
 */

static void the_page_shows_every_arm_with_mean_interval_and_n(void **state)
{
    (void)state;
    write_report(NULL, 0, NULL);
    assert_well_formed(page);
    assert_page_contains("6 runs: 5 finished, 1 diverged, 0 failed, 0 stopped");
    /* Two seeds, 50 and 70 %: the interval 60 ± 12.706 · √200 / √2 ends at 0 and 100 %. */
    assert_page_contains("undamped</td><td class=\"number\">4</td><td class=\"number\">2</td><td "
                         "class=\"number\">60.00</td><td class=\"number\">0.00</td><td "
                         "class=\"number\">100.00</td><td class=\"number\">14.14</td><td "
                         "class=\"number\">50.00</td><td class=\"number\">70.00</td><td "
                         "class=\"number\">0</td><td class=\"number\">1</td>");
    assert_page_contains("60.00 (95 %: 0.00 to 100.00) % test accuracy (n 2)");
    assert_page_contains("damped</td><td class=\"number\">4</td><td class=\"number\">2</td><td "
                         "class=\"number\">80.00</td>");
    assert_page_contains("sync</td><td class=\"number\">4</td><td class=\"number\">1</td><td "
                         "class=\"number\">90.00</td><td class=\"number\">–</td>");
    assert_page_contains("<h3>Accuracy against samples</h3>");
    assert_page_contains("<h3>Accuracy against time</h3>");
    assert_page_contains("<h3>Accuracy with 4 workers</h3>");
    /* The diverged run is not in the mean; its number is beside the mark. */
    assert_page_contains("class=\"lost\">×1</text>");
    assert_page_contains("<h3>Throughput against accuracy</h3>");
    assert_page_contains("<h3>Staleness</h3>");
    assert_page_contains("<h3>Where time goes</h3>");
    assert_page_contains("<h3>The slowest worker</h3>");
    assert_page_contains("the loss is not finite"); /* why run 5 diverged */
    for (int run = 1; run <= 6; run++) {
        char id[32];
        snprintf(id, sizeof id, "id=\"run-%d\"", run);
        assert_page_contains(id);
    }
}

static void the_number_of_workers_is_an_axis(void **state)
{
    (void)state;
    rig_change("UPDATE run SET workers = 8 WHERE id IN (3, 4)");
    write_report(NULL, 0, NULL);
    assert_well_formed(page);
    assert_page_contains("<h3>Accuracy against the number of workers</h3>");
    assert_page_contains("<h4>4 workers</h4>");
    assert_page_contains("<h4>8 workers</h4>");
    assert_page_contains("Staleness with 8 workers, damped");
}

static void a_single_seed_has_no_error_bar(void **state)
{
    (void)state;
    rig_change("UPDATE run SET workers = 8 WHERE id IN (2, 3)"); /* each cell has one run */
    write_report(NULL, 0, NULL);
    assert_page_contains("<h3>Accuracy against the number of workers</h3>");
    assert_null(strstr(page, "class=\"error\""));
    rig_change("UPDATE run SET workers = 4");
    rig_change("UPDATE run SET workers = 8 WHERE id = 6");
    write_report(NULL, 0, NULL);
    assert_page_contains("class=\"error\"");
}

static void collapsed_runs_are_counted_and_marked(void **state)
{
    (void)state;
    write_report(NULL, 0, NULL);
    assert_null(strstr(page, "1 collapsed"));
    rig_change("UPDATE run SET collapsed = 1 WHERE id IN (1, 5)"); /* 5 diverged */
    write_report(NULL, 0, NULL);
    assert_page_contains("5 finished (<b>1 collapsed</b>: ");
    assert_page_contains("% test accuracy (n 2), 1 collapsed");
    assert_int_equal(count_of(page, "<span class=\"bad\">collapsed"), 1);
}

static void every_plot_has_a_title_and_a_description(void **state)
{
    (void)state;
    write_report(NULL, 0, NULL);
    size_t drawings = count_of(page, "role=\"img\">");
    assert_true(drawings > 8);
    assert_int_equal(count_of(page, "role=\"img\"><title>"), drawings);
    assert_int_equal(count_of(page, "<desc>"), drawings);
    assert_null(strstr(page, "<title></title>"));
    assert_null(strstr(page, "<desc></desc>"));
    assert_null(strstr(page, "nan"));
    assert_null(strstr(page, "inf\""));
}

static void the_page_loads_nothing_and_has_one_script(void **state)
{
    (void)state;
    static const char *const forbidden[] = {"src=\"", "http://", "https://",   "@import",
                                            "url(",   "onload",  "javascript:"};
    write_report(NULL, 0, NULL);
    for (size_t i = 0; i < COUNT_OF(forbidden); i++)
        if (strstr(page, forbidden[i]) != NULL)
            fail_msg("the page has %s", forbidden[i]);
    assert_int_equal(count_of(page, "<script"), 1);
    assert_int_equal(count_of(page, "script-src 'sha256-"), 1);
}

static void markup_in_a_file_is_escaped(void **state)
{
    (void)state;
    rig_change("UPDATE run SET arm = '</td><script>alert(1)</script>', tag = '\"><img src=x>', "
               "error = '<b>', config = '{\"<i>\": \"</pre>\"}', host = '{\"<u>\": \"&\"}' "
               "WHERE arm = 'damped' OR status = 'diverged'");
    write_report(NULL, 0, NULL);
    assert_well_formed(page);
    assert_null(strstr(page, "<script>alert"));
    assert_int_equal(count_of(page, "<script"), 1);
    assert_null(strstr(page, "<img"));
    assert_null(strstr(page, "<i>"));
    assert_page_contains("&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;");
    assert_page_contains("&quot;&gt;&lt;img src=x&gt;");
    assert_page_contains("&lt;i&gt;=&lt;/pre&gt;");
}

static void the_slowest_worker_is_listed(void **state)
{
    (void)state;
    /* Worker 2 computes 4 ms, the three others 1 ms: 4 / 1.75 of the mean, with a quarter of the
     * steps. */
    write_report(NULL, 0, NULL);
    const char *table = strstr(page, "The slowest worker of each arm");
    assert_non_null(table);
    assert_contains(table, "<td class=\"number\">2</td><td class=\"number\">4.00</td><td "
                           "class=\"number\">2.29</td>");
    assert_contains(table, "<td class=\"number\">0.250</td><td class=\"number\">0.250</td>");
}

/* Two seeds of a hundred gradients, of τ 0, 1, 2 one each. */
static void every_gradient_is_counted_in_a_bar_of_the_histogram(void **state)
{
    (void)state;
    write_report(NULL, 0, NULL);
    const char *table = strstr(page, "Gradients by staleness");
    assert_non_null(table);
#define NUMBER(n) "<td class=\"number\">" n "</td>"
    assert_contains(table,
                    "undamped</td>" NUMBER("4") NUMBER("0") NUMBER("0") NUMBER("2") NUMBER("1.00"));
    assert_contains(table, "undamped</td>" NUMBER("4") NUMBER("3") NUMBER("3") NUMBER("194")
                               NUMBER("97.00"));
    /* At most 40 bars: for τ up to 120, each bar is 4 wide. */
    rig_change("UPDATE run_staleness SET staleness = 40 * staleness");
    write_report(NULL, 0, NULL);
    table = strstr(page, "Gradients by staleness");
    assert_contains(table, "undamped</td>" NUMBER("4") NUMBER("40") NUMBER("43") NUMBER("2")
                               NUMBER("1.00"));
    assert_contains(table, "undamped</td>" NUMBER("4") NUMBER("120") NUMBER("123") NUMBER("194")
                               NUMBER("97.00"));
}

static void a_long_curve_is_reduced_but_keeps_its_end(void **state)
{
    (void)state;
    rig_change("WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 196) "
               "INSERT INTO evaluation (run_id, updates, samples, seconds, test_accuracy) "
               "SELECT 6, 1000 + i, 10000 + i, 10 + i, 0.5 + i / 1000.0 FROM n");
    write_report(NULL, 0, NULL);
    assert_page_contains("sync</td>" NUMBER("4") NUMBER("1") NUMBER("10196") NUMBER("206.00")
                             NUMBER("69.60"));
}

static void a_mean_over_workers_is_weighted_by_steps(void **state)
{
    (void)state;
    /* (75 · 4 ms + 3 · 25 · 1 ms) / 150; the mean of the workers' means is 1.75. */
    rig_change("UPDATE run_worker_time SET steps = 75 WHERE worker = 2");
    write_report(NULL, 0, NULL);
    const char *table = strstr(page, "Mean milliseconds per step of a worker");
    assert_non_null(table);
    assert_contains(table, NUMBER("3.00") NUMBER("0.00") NUMBER("2.50"));
}

static void claims_are_shown_with_band_and_observed_value(void **state)
{
    (void)state;
    static const struct report_claim claims[] = {
        {.text = "It is 60 % & more",
         .source = "paper <1>",
         .outcome = REPORT_PASS,
         .observed = 60,
         .low = 50,
         .high = 70},
        {.text = "It is 90 %", .outcome = REPORT_FAIL, .observed = 60, .low = 89, .high = 91},
        {.text = "not yet",
         .outcome = REPORT_OPEN,
         .observed = NAN,
         .low = 0,
         .high = 1,
         .why = "of 3 runs 1 finished"},
        {.text = "a 16th", .outcome = REPORT_PASS, .observed = 0.0628, .low = 0.0615, .high = 1}};
    static const struct report_expected expected[] = {{2, 70}, {4, 81.25}};
    static const struct report_arm arms[] = {{.name = "sync", .label = "in step"},
                                             {"damped", "with damping", expected, 2}};
    static const struct report_map_cell cells[] = {
        {"slow <1>", "free", "2", 0, 0, 2.04, 0.5, 3, 5, 2, "plain", "stale"},
        {"slow <1>", "free", "4", -1, 1, 0.3, 1, 3, 5, 0, "stale", "plain"},
        {"alike", "free", "2", 1, 1, 4, NAN, 1, 5, 0, "stale", "plain"},
        {"alike", "free", "4", -1, -1, NAN, NAN, 0, 0, 0, NULL, NULL},
    };
    static const struct report_experiment known = {.name = "stale-gradients",
                                                   .question = "What is lost?",
                                                   .part = "the whole experiment",
                                                   .verdict = "One line.\nAnother one.\n",
                                                   .arms = arms,
                                                   .arm_count = 2,
                                                   .claims = claims,
                                                   .claim_count = COUNT_OF(claims),
                                                   .map = {.sides = {"sync", "async"},
                                                           .side_count = 2,
                                                           .unit = "points of test accuracy",
                                                           .column_axis = "workers",
                                                           .cells = cells,
                                                           .cell_count = 4},
                                                   .discussion = "It *is* <so>."};
    write_report(&known, 1, NULL);
    assert_well_formed(page);
    assert_page_contains("<p>One line.</p>\n<p>Another one.</p>");
    assert_page_contains(
        "stale-gradients</a> <span class=\"badge pass\">2 PASS</span> <span "
        "class=\"badge fail\">1 FAIL</span> <span class=\"badge open\">1 open</span>"
        "</li>");
    assert_page_contains("It is 60 % &amp; more");
    assert_page_contains(">S 2.0*</text>");
    assert_page_contains(">(A 0.3)</text>");
    assert_page_contains(">A 4.0</text>");
    assert_page_contains(
        "slow &lt;1&gt;, free, 2: sync by 2.04 ± 0.50 (3 seeds); plain, then stale; 2 of 5 arms "
        "are not measured here");
    assert_page_contains("alike, free, 4: not measured");
    /* The largest margin has the strongest colour. */
    assert_page_contains("bar c1\" fill-opacity=\"0.50\"");
    assert_page_contains("bar c2\" fill-opacity=\"0.31\"");
    assert_page_contains("paper &lt;1&gt;");
    const char *passes = strstr(page, "badge pass\">PASS</span>"),
               *fails = strstr(page, "badge fail\">FAIL</span>");
    assert_true(passes != NULL && fails != NULL &&
                strstr(page, "badge open\">open</span>") != NULL);
    /* A value that passes lies in the middle half of the scale, one that fails outside. */
    assert_page_contains("<circle class=\"pass\" cx=\"50.0%\"");
    assert_page_contains("<circle class=\"fail\" cx=\"2.0%\"");
    assert_page_contains("of 3 runs 1 finished");
    assert_page_contains("<td class=\"number\">0.0628</td>");
    assert_page_contains("<p>It <em>is</em> &lt;so&gt;.</p>");
    assert_page_contains("with damping");
    assert_page_contains("<td class=\"number\">81.25</td></tr>");
    assert_page_contains("<th scope=\"col\" class=\"number\">expected</th>");
    /* First the arms in the order of the experiment, then other arms. */
    const char *legend = strstr(page, "class=\"legend\"");
    assert_non_null(legend);
    const char *first = strstr(legend, "in step"), *second = strstr(legend, "with damping"),
               *third = strstr(legend, "undamped");
    assert_true(first < second && second < third);
}

/* How often the page has a text. */
static unsigned occurrences(const char *text)
{
    unsigned count = 0;
    for (const char *at = page; (at = strstr(at, text)) != NULL; at++)
        count++;
    return count;
}

/* Run 1 is in two panels, and so is its cell, which run 2 shares. Other runs are in one or none. */
static void each_panel_of_an_experiment_has_plots_of_its_own(void **state)
{
    (void)state;
    static const struct report_arm arms[] = {{.name = "undamped", .label = "plain"}};
    static const struct report_panel panels[] = {{1, "<alike>, free"},
                                                 {1, "slow, free"},
                                                 {2, "<alike>, free"},
                                                 {3, "slow, free"},
                                                 {4, "slow, free"}};
    static const struct report_experiment known = {.name = "stale-gradients",
                                                   .question = "What is lost?",
                                                   .arms = arms,
                                                   .arm_count = 1,
                                                   .panels = panels,
                                                   .panel_count = COUNT_OF(panels)};
    rig_change("UPDATE run SET workers = 8, settings = '{\"workers\": 8}' WHERE id IN (1, 2)");
    write_report(&known, 1, NULL);
    assert_well_formed(page);
    assert_page_contains("<h2>stale-gradients</h2>");
    assert_page_contains("<h2>stale-gradients: &lt;alike&gt;, free</h2>\n<p class=\"facts\">2 "
                         "runs: 2 finished");
    assert_page_contains("<h2>stale-gradients: slow, free</h2>\n<p class=\"facts\">4 runs: 4 "
                         "finished");
    assert_page_contains("Panels: <a href=\"#e0\">&lt;alike&gt;, free</a> · <a href=\"#e1\">slow, "
                         "free</a>");
    assert_page_contains("stale-gradients: &lt;alike&gt;, free · plain · 8 workers · seed 1");
    assert_int_equal(occurrences("What is lost?"), 1);
    assert_int_equal(occurrences("<h3>Accuracy with 8 workers</h3>"), 1);
    assert_int_equal(occurrences("<h3>Accuracy against the number of workers</h3>"), 1);
    assert_int_equal(occurrences("stale-gradients</a>"), 1); /* in the contents */
    assert_int_equal(occurrences("other runs"), 2);          /* a link and a heading */
}

/* Run 1 shares the cell of run 2, but has no panel. No run of the other cells has a panel. */
static void a_run_without_panel_is_in_those_of_its_cell(void **state)
{
    (void)state;
    static const struct report_panel panels[] = {{2, "alike"}};
    static const struct report_experiment known = {.name = "stale-gradients",
                                                   .question = "What is lost?",
                                                   .panels = panels,
                                                   .panel_count = COUNT_OF(panels)};
    rig_change("UPDATE run SET experiment = 'stale-gradients'");
    write_report(&known, 1, NULL);
    assert_well_formed(page);
    assert_page_contains("<h2>stale-gradients: alike</h2>\n<p class=\"facts\">3 runs: 2 finished");
    assert_page_contains("<h2>stale-gradients: other runs</h2>");
}

static void every_panel_of_a_run_has_its_times(void **state)
{
    (void)state;
    static const struct report_panel panels[] = {{1, "alike"}, {1, "twin"}};
    static const struct report_experiment known = {.name = "stale-gradients",
                                                   .question = "What is lost?",
                                                   .panels = panels,
                                                   .panel_count = COUNT_OF(panels)};
    write_report(&known, 1, NULL);
    assert_int_equal(occurrences("<h3>Where time goes</h3>"), 3); /* the third: other runs */
    assert_int_equal(occurrences("<h3>The slowest worker</h3>"), 3);
}

static void one_arm_with_different_settings_is_several_series(void **state)
{
    (void)state;
    rig_change("UPDATE run SET lr = 0.5, settings = '{\"lr\": 0.5}' WHERE id = 2");
    write_report(NULL, 0, NULL);
    assert_page_contains(
        "undamped, lr=0.03</td><td class=\"number\">4</td><td class=\"number\">1</td>");
    assert_page_contains(
        "undamped, lr=0.5</td><td class=\"number\">4</td><td class=\"number\">1</td>");
}

static void series_without_arm_are_named_by_their_settings(void **state)
{
    (void)state;
    rig_change("UPDATE run SET arm = NULL, experiment = NULL");
    write_report(NULL, 0, NULL);
    assert_page_contains("Runs without experiment");
    assert_page_contains("async, damping=polynomial");
    assert_page_contains("async, damping=none");
}

/* Settings with default values may be missing in run.settings (servers, read). */
static void a_setting_that_only_some_runs_have_separates_series(void **state)
{
    (void)state;
    rig_change("UPDATE run SET arm = NULL, experiment = NULL, damping = 'none', settings = CASE id "
               "WHEN 1 THEN '{\"servers\": 2, \"read\": \"torn\", \"pace.cv\": 1}' "
               "ELSE '{\"servers\": 2}' END WHERE mode = 'async'");
    write_report(NULL, 0, NULL);
    assert_page_contains("</svg>read=torn</td>");
    assert_page_contains("</svg>async</td>");
}

static void data_without_classes_are_shown_with_their_loss(void **state)
{
    (void)state;
    rig_change("UPDATE run SET final_accuracy = NULL, final_loss = 0.25 * id; "
               "UPDATE evaluation SET test_accuracy = NULL");
    write_report(NULL, 0, NULL);
    assert_well_formed(page);
    assert_page_contains("<h3>Loss with 4 workers</h3>");
    assert_page_contains("<h3>Loss against samples</h3>");
    assert_null(strstr(page, "nan"));
}

static void a_file_without_runs_gives_a_page(void **state)
{
    (void)state;
    rig_change("DELETE FROM run");
    write_report(NULL, 0, NULL);
    assert_well_formed(page);
    assert_page_contains("0 runs");
}

static void errors_name_the_experiment_or_the_path(void **state)
{
    (void)state;
    struct report_request request = {.path = rig_path, .experiment = "no-such-experiment"};
    char path[128];
    snprintf(path, sizeof path, "%s/r.html", rig_folder);
    assert_int_equal(report_write(&request, path, NULL), ERROR_USAGE);
    rig_assert_error_names("no-such-experiment");
    request.experiment = NULL;
    assert_int_equal(report_write(&request, "/nowhere/r.html", NULL), ERROR_OTHER);
    rig_assert_error_names("/nowhere/r.html");
    request.path = "/nowhere/results.db";
    assert_int_equal(report_write(&request, path, NULL), ERROR_RESULTS);
}

static void a_report_does_not_change_the_file(void **state)
{
    (void)state;
    char before[65];
    snprintf(before, sizeof before, "%s", rig_hash());
    write_report(NULL, 0, NULL);
    assert_string_equal(rig_hash(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sample_has_mean_deviation_and_interval),
        cmocka_unit_test(rounding_does_not_move_a_value_across_its_band),
        cmocka_unit_test(prose_has_paragraphs_code_and_emphasis),
        cmocka_unit_test(text_of_users_is_escaped),
        SAMPLE_TEST(the_page_shows_every_arm_with_mean_interval_and_n),
        SAMPLE_TEST(the_number_of_workers_is_an_axis),
        SAMPLE_TEST(a_single_seed_has_no_error_bar),
        SAMPLE_TEST(collapsed_runs_are_counted_and_marked),
        SAMPLE_TEST(every_plot_has_a_title_and_a_description),
        SAMPLE_TEST(the_page_loads_nothing_and_has_one_script),
        SAMPLE_TEST(markup_in_a_file_is_escaped),
        SAMPLE_TEST(the_slowest_worker_is_listed),
        SAMPLE_TEST(every_gradient_is_counted_in_a_bar_of_the_histogram),
        SAMPLE_TEST(a_long_curve_is_reduced_but_keeps_its_end),
        SAMPLE_TEST(a_mean_over_workers_is_weighted_by_steps),
        SAMPLE_TEST(claims_are_shown_with_band_and_observed_value),
        SAMPLE_TEST(each_panel_of_an_experiment_has_plots_of_its_own),
        SAMPLE_TEST(a_run_without_panel_is_in_those_of_its_cell),
        SAMPLE_TEST(every_panel_of_a_run_has_its_times),
        SAMPLE_TEST(one_arm_with_different_settings_is_several_series),
        SAMPLE_TEST(series_without_arm_are_named_by_their_settings),
        SAMPLE_TEST(a_setting_that_only_some_runs_have_separates_series),
        SAMPLE_TEST(data_without_classes_are_shown_with_their_loss),
        SAMPLE_TEST(a_file_without_runs_gives_a_page),
        SAMPLE_TEST(errors_name_the_experiment_or_the_path),
        SAMPLE_TEST(a_report_does_not_change_the_file),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(page);
    return failed;
}
