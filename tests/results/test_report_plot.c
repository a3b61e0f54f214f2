/* The drawings of the report: ticks, labels, and what lies beyond the axes. */
#include "base/text.h"
#include "tests/results/query_rig.h"

#include "results/report/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t count_of(const char *text, const char *part)
{
    size_t count = 0;
    for (const char *c = text; (c = strstr(c, part)) != NULL; c++)
        count++;
    return count;
}

static void labels_at_the_edge_of_a_plot_do_not_overlap(void **state)
{
    (void)state;
    struct text t = {0};
    struct plot p = {.out = &t, .width = 400, .height = 200, .right = 100, .bottom = 20};
    struct plot_label labels[8];
    for (size_t i = 0; i < COUNT_OF(labels); i++)
        labels[i] = (struct plot_label){.text = "x", .y = i < 6 ? 180 : 20};
    plot_labels(&p, labels, COUNT_OF(labels));
    for (size_t i = 0; i < COUNT_OF(labels); i++) {
        assert_true(labels[i].at > 0 && labels[i].at <= 184);
        assert_true(i == 0 || labels[i].at - labels[i - 1].at >= 12);
    }
    text_free(&t);
}

/* A plot of 100 by 100 pixels whose axes reach from 0 to 1. */
static struct plot unit_plot(struct text *out)
{
    return (struct plot){.out = out,
                         .x = {.low = 0, .high = 1},
                         .y = {.low = 0, .high = 1},
                         .width = 100,
                         .height = 100};
}

/* The numbers at the ticks of an axis from 0 to `high`, 750 pixels wide: about ten of them. */
static const char *numbers_up_to(double high)
{
    static char numbers[256];
    static const double nowhere[] = {-1};
    struct text t = {0};
    struct plot p = {.out = &t,
                     .width = 750,
                     .height = 200,
                     .x = {.low = 0, .high = high},
                     .y = {.low = 0, .high = 1, .ticks = nowhere, .tick_count = 1},
                     .title = "",
                     .description = ""};
    plot_begin(&p);
    plot_end(&p);
    numbers[0] = '\0';
    for (const char *end = strstr(t.at, "</text>"); end != NULL; end = strstr(end + 1, "</text>")) {
        const char *from = end;
        while (from[-1] != '>')
            from--;
        size_t used = strlen(numbers);
        snprintf(numbers + used, sizeof numbers - used, " %.*s", (int)(end - from), from);
    }
    text_free(&t);
    return numbers;
}

static void ticks_are_at_round_numbers(void **state)
{
    (void)state;
    assert_string_equal(numbers_up_to(10), " 0 1 2 3 4 5 6 7 8 9 10");
    assert_string_equal(numbers_up_to(20), " 0 2 4 6 8 10 12 14 16 18 20");
    assert_string_equal(numbers_up_to(30), " 0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30");
    assert_string_equal(numbers_up_to(50), " 0 5 10 15 20 25 30 35 40 45 50");
    assert_string_equal(numbers_up_to(80), " 0 10 20 30 40 50 60 70 80");
}

static void ticks_have_as_many_digits_as_they_need(void **state)
{
    (void)state;
    struct text t = {0};
    struct plot p = unit_plot(&t);
    p.width = p.height = 200;
    p.title = p.description = "";
    p.y = (struct plot_axis){.low = 12345.67, .high = 12345.73};
    plot_begin(&p);
    plot_end(&p);
    assert_contains(t.at, ">12.34568k</text>");
    assert_contains(t.at, ">12.3457k</text>");
    assert_true(p.left > 60); /* room for them */
    text_free(&t);
}

static void a_number_at_the_right_edge_is_inside_the_plot(void **state)
{
    (void)state;
    struct text out = {0};
    struct plot p = {.out = &out,
                     .x = {.low = 0, .high = 15.1},
                     .y = {.low = 0, .high = 1, .no_numbers = true},
                     .width = 170,
                     .height = 84,
                     .left = 4,
                     .right = 4,
                     .top = 4,
                     .bottom = 20,
                     .class = "mini",
                     .title = "t",
                     .description = "d"};
    plot_begin(&p);
    plot_end(&p);
    assert_contains(out.at, "text-anchor=\"middle\">10</text>");
    assert_contains(out.at, "<text x=\"170.0\" y=\"80.0\" text-anchor=\"end\">15</text>");
    text_free(&out);
}

static void what_lies_beyond_the_axes_ends_in_an_arrow(void **state)
{
    (void)state;
    struct text t = {0};
    struct plot p = unit_plot(&t);
    plot_line(&p, (double[]){0, 0.5, 1}, (double[]){0.5, 1.5, 0.5}, 3);
    /* The line leaves at the top, and comes back there. */
    assert_contains(t.at, "M0.0 50.0L25.0 0.0M75.0 0.0L100.0 50.0");
    assert_int_equal(count_of(t.at, "class=\"beyond\""), 2);
    t.length = 0;
    plot_line(&p, (double[]){0, NAN, 1}, (double[]){0, 0.5, 1}, 3); /* across a gap */
    assert_contains(t.at, "M0.0 100.0L100.0 0.0");
    assert_int_equal(count_of(t.at, "beyond"), 0);
    t.length = 0;
    plot_line(&p, (double[]){-1, 2}, (double[]){0.5, 0.5}, 2);
    assert_contains(t.at, "M0.0 50.0L100.0 50.0");
    assert_int_equal(count_of(t.at, "beyond"), 2);
    t.length = 0;
    plot_error_bar(&p, 0.5, -1, 0.5);
    assert_contains(t.at, "M50.0 100.0V50.0");
    assert_int_equal(count_of(t.at, "beyond"), 1);
    t.length = 0;
    plot_mark(&p, (struct plot_style){0}, 0.5, 1.5, "outside");
    plot_mark(&p, (struct plot_style){0}, 0.5, NAN, "nowhere");
    plot_mark(&p, (struct plot_style){0}, 1, 1, "in the corner");
    assert_int_equal(count_of(t.at, "class=\"mark\""), 1);
    text_free(&t);
}

static void what_reaches_zero_on_a_logarithmic_axis_ends_in_an_arrow(void **state)
{
    (void)state;
    struct text t = {0};
    struct plot p = unit_plot(&t);
    p.x = p.y = (struct plot_axis){.low = 1, .high = 100, .logarithmic = true};
    plot_error_bar(&p, 10, 0, 10);
    assert_contains(t.at, "M50.0 100.0V50.0");
    assert_int_equal(count_of(t.at, "beyond"), 1);
    t.length = 0;
    plot_line(&p, (double[]){0, 10}, (double[]){10, 10}, 2);
    assert_contains(t.at, "M0.0 50.0L50.0 50.0");
    assert_int_equal(count_of(t.at, "beyond"), 1);
    t.length = 0;
    plot_error_bar(&p, 10, NAN, NAN);
    assert_int_equal(t.length, 0);
    text_free(&t);
}

/* The number after the name of an attribute. */
static double number_after(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    assert_non_null(at);
    return strtod(at + strlen(name), NULL);
}

/* 5000 gradients of τ 3, and one of τ 47: the axis ends before 47. */
static void the_last_bar_of_a_histogram_has_the_outliers(void **state UNUSED)
{
    rig_change("UPDATE run_staleness SET pushes = 5000 WHERE staleness = 3; "
               "UPDATE run_staleness SET staleness = 47 WHERE staleness = 0");
    char *page = rig_report(&(struct report_request){.path = rig_path});
    char *from = strstr(page, "Staleness with 4 workers, undamped");
    assert_non_null(from);
    char *end = strstr(from, "</svg>"), *under = strstr(from, "</div>");
    *end = *under = '\0';
    assert_contains(from, " and more");
    for (char *bar = from; (bar = strstr(bar, "<rect class=\"bar\"")) != NULL; bar++) {
        double x = number_after(bar, " x=\""), width = number_after(bar, " width=\"");
        assert_true(x >= 4 && x + width <= 166); /* the drawing has 170 pixels */
    }
    assert_contains(end + 1, "most 47, in the last bar");
    assert_contains(under + 1, "<td class=\"number\">12</td><td class=\"number\">47</td>");
    free(page);
}

/* The program writes none, but the file may come from elsewhere. */
static void the_first_bar_of_a_histogram_has_values_below_0(void **state UNUSED)
{
    rig_change("UPDATE run_staleness SET staleness = -4000000000000 WHERE staleness = 0");
    char *page = rig_report(&(struct report_request){.path = rig_path});
    assert_contains(strstr(page, "Staleness with 4 workers, undamped"), "<title>τ 0: 1.0 %");
    free(page);
}

static void one_point_is_no_line(void **state)
{
    (void)state;
    struct text t = {0};
    struct plot p = unit_plot(&t);
    plot_line(&p, (double[]){0.5}, (double[]){0.5}, 1);
    assert_null(strchr(t.at, 'L'));
    text_free(&t);
}

static void text_beside_a_mark_stays_inside_the_plot(void **state)
{
    (void)state;
    struct text t = {0};
    struct plot p = unit_plot(&t);
    plot_beside(&p, 50, 10, "lost", "×2");
    assert_contains(t.at, "<text x=\"58.0\" y=\"10.0\" text-anchor=\"start\"");
    t.length = 0;
    plot_beside(&p, 90, 10, "lost", "×2");
    assert_contains(t.at, "<text x=\"82.0\" y=\"10.0\" text-anchor=\"end\"");
    text_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_at_the_edge_of_a_plot_do_not_overlap),
        cmocka_unit_test(ticks_are_at_round_numbers),
        cmocka_unit_test(ticks_have_as_many_digits_as_they_need),
        cmocka_unit_test(a_number_at_the_right_edge_is_inside_the_plot),
        cmocka_unit_test(what_lies_beyond_the_axes_ends_in_an_arrow),
        cmocka_unit_test(what_reaches_zero_on_a_logarithmic_axis_ends_in_an_arrow),
        SAMPLE_TEST(the_last_bar_of_a_histogram_has_the_outliers),
        SAMPLE_TEST(the_first_bar_of_a_histogram_has_values_below_0),
        cmocka_unit_test(one_point_is_no_line),
        cmocka_unit_test(text_beside_a_mark_stays_inside_the_plot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
