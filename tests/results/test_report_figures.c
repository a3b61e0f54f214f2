/* The figures of the report: names, sizes, styles, legends and errors. */
#include "base/text.h"
#include "tests/results/query_rig.h"

#include "results/report/figures.h"
#include "results/report/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct text names; /* of the figures that were written, each followed by a blank */

static status note(void *context, const char *path)
{
    (void)context;
    text_add(&names, "%s ", strrchr(path, '/') + 1);
    return OK;
}

/* Writes the figures into `folder` of the rig. */
static status write_figures(const char *folder)
{
    char page[128], figures[128];
    struct report_request request = {.path = rig_path, .figures = figures, .each_figure = note};
    snprintf(page, sizeof page, "%s/report.html", rig_folder);
    snprintf(figures, sizeof figures, "%s/%s", rig_folder, folder);
    names.length = 0;
    return report_write(&request, page, NULL);
}

/* The content of a figure in the folder "figures"; free() it. */
static char *read_figure(const char *name)
{
    char path[256];
    size_t room = 0;
    char *text = NULL;
    snprintf(path, sizeof path, "%s/figures/%s", rig_folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("there is no figure %s", path);
    assert_true(getdelim(&text, &room, '\0', file) > 0);
    fclose(file);
    return text;
}

static void assert_figure_contains(const char *name, const char *wanted)
{
    char *svg = read_figure(name);
    if (strstr(svg, wanted) == NULL)
        fail_msg("%s lacks %s", name, wanted);
    free(svg);
}

static void names_come_from_section_and_plot(void **state)
{
    (void)state;
    assert_int_equal(write_figures("figures"), OK);
    assert_string_equal(names.at,
                        "stale-gradients-test-accuracy-with-4-workers.svg "
                        "stale-gradients-test-accuracy-against-samples-with-4-workers.svg "
                        "stale-gradients-test-accuracy-against-time-with-4-workers.svg "
                        "stale-gradients-test-accuracy-against-updates-per-second.svg "
                        "stale-gradients-test-accuracy-against-samples-per-second.svg "
                        "stale-gradients-staleness-with-4-workers-undamped.svg "
                        "stale-gradients-staleness-with-4-workers-damped.svg "
                        "stale-gradients-where-time-goes.svg ");
}

static void names_are_safe_and_unique(void **state)
{
    (void)state;
    rig_change("UPDATE run SET experiment = '../Ü /x\\y', arm = 'a''b/' WHERE id = 1; "
               "UPDATE run SET experiment = '-X//Y-', arm = 'a/b' WHERE id = 2; "
               "UPDATE run SET experiment = '§' WHERE id > 2");
    assert_int_equal(write_figures("figures"), OK);
    assert_contains(names.at, "x-y-staleness-with-4-workers-a-b.svg ");
    assert_contains(names.at, "x-y-staleness-with-4-workers-a-b-2.svg ");
    assert_contains(names.at, " runs-test-accuracy-with-4-workers.svg ");
    for (const char *c = names.at; *c != '\0'; c++)
        assert_non_null(strchr("abcdefghijklmnopqrstuvwxyz0123456789-. ", *c));
}

static void a_figure_has_its_size_style_and_legend_inside(void **state)
{
    (void)state;
    static const char *const not_for_converters[] = {"var(", "@media", "<script", "url(",
                                                     "href", "nan",    "inf\""};
    assert_int_equal(write_figures("figures"), OK);
    for (char *name = strtok(names.at, " "); name != NULL; name = strtok(NULL, " ")) {
        char *svg = read_figure(name);
        assert_true(strncmp(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 39) == 0);
        assert_contains(svg, "width=\"84.00mm\"");
        assert_contains(svg, "font-family=");
        assert_contains(svg, ".c1 { color: #");
        for (size_t i = 0; i < COUNT_OF(not_for_converters); i++)
            if (strstr(svg, not_for_converters[i]) != NULL)
                fail_msg("%s has %s", name, not_for_converters[i]);
        free(svg);
    }
    /* Every arm is named in the legend, with its swatch. */
    static const char curves[] = "stale-gradients-test-accuracy-against-time-with-4-workers.svg";
    assert_figure_contains(curves, ">undamped</text>");
    assert_figure_contains(curves, ">damped</text>");
    assert_figure_contains(curves, ">sync</text>");
    assert_figure_contains(curves, ">test accuracy, %</text>");
    assert_figure_contains("stale-gradients-where-time-goes.svg", ">applying</text>");
}

static void a_legend_names_only_the_arms_of_its_figure(void **state)
{
    (void)state;
    rig_change("UPDATE run SET workers = 2 WHERE arm = 'sync'; "
               "UPDATE run SET status = 'failed', final_accuracy = NULL WHERE arm = 'damped'");
    assert_int_equal(write_figures("figures"), OK);
    char *curves = read_figure("stale-gradients-test-accuracy-against-samples-with-4-workers.svg");
    char *outcomes = read_figure("stale-gradients-test-accuracy-against-the-number-of-workers.svg");
    assert_non_null(strstr(curves, ">undamped</text>"));
    assert_null(strstr(curves, ">sync</text>"));
    assert_non_null(strstr(outcomes, ">sync</text>"));
    assert_null(strstr(outcomes, ">damped</text>"));
    free(curves);
    free(outcomes);
}

static void long_names_are_whole(void **state)
{
    (void)state;
    static const char name[] = "a name of an arm that is longer than a column of a paper is wide";
    rig_change("UPDATE run SET arm = 'a name of an arm that is longer than a column of a paper is "
               "wide' WHERE arm = 'damped'");
    assert_int_equal(write_figures("figures"), OK);
    /* Rows have two columns of a paper; a legend has lines. */
    assert_figure_contains("stale-gradients-test-accuracy-with-4-workers.svg", name);
    assert_figure_contains("stale-gradients-test-accuracy-with-4-workers.svg",
                           "width=\"168.00mm\"");
    assert_figure_contains("stale-gradients-test-accuracy-against-time-with-4-workers.svg",
                           "paper is wide</text>");
}

/* The value of the attribute that begins at `attribute` ("x=\"") after `from`. */
static double number_after(const char *from, const char *attribute)
{
    const char *at = strstr(from, attribute);
    assert_non_null(at);
    return atof(at + strlen(attribute));
}

static void a_bar_of_a_histogram_is_around_its_tick(void **state)
{
    (void)state;
    assert_int_equal(write_figures("figures"), OK);
    char *svg = read_figure("stale-gradients-staleness-with-4-workers-undamped.svg");
    const char *tip = strstr(svg, ">τ 3:"), *tick = strstr(svg, ">3</text>");
    assert_true(tip != NULL && tick != NULL);
    while (strncmp(tip, "<rect", 5) != 0)
        tip--;
    while (strncmp(tick, "<text", 5) != 0)
        tick--;
    double middle = number_after(tip, "x=\"") + number_after(tip, "width=\"") / 2;
    double place = number_after(tick, "x=\"");
    assert_true(middle > place - 1 && middle < place + 1);
    free(svg);
}

static void earlier_figures_are_replaced(void **state)
{
    (void)state;
    static const char name[] = "stale-gradients-test-accuracy-with-4-workers.svg";
    assert_int_equal(write_figures("figures"), OK);
    rig_change("UPDATE run SET arm = 'renamed' WHERE arm = 'damped'");
    assert_int_equal(write_figures("figures"), OK);
    assert_figure_contains(name, ">renamed</text>");
}

static void a_place_without_a_folder_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(write_figures("results.db/figures"), ERROR_OTHER);
    rig_assert_error_names("/figures");
    char path[128];
    snprintf(path, sizeof path, "%s/plain", rig_folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(write_figures("plain"), ERROR_OTHER);
    rig_assert_error_names("/plain");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAMPLE_TEST(names_come_from_section_and_plot),
        SAMPLE_TEST(names_are_safe_and_unique),
        SAMPLE_TEST(a_figure_has_its_size_style_and_legend_inside),
        SAMPLE_TEST(a_legend_names_only_the_arms_of_its_figure),
        SAMPLE_TEST(long_names_are_whole),
        SAMPLE_TEST(a_bar_of_a_histogram_is_around_its_tick),
        SAMPLE_TEST(earlier_figures_are_replaced),
        SAMPLE_TEST(a_place_without_a_folder_is_an_error),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    text_free(&names);
    return failed;
}
