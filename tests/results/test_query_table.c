/* Tables that fit a terminal, and one line per column. */
#include "tests/results/query_rig.h"

#include "base/terminal.h"

#include <stdio.h>
#include <string.h>

/* Runs a query for a terminal of `width` columns. */
static void run_on(unsigned width, const char *question)
{
    struct query_request request = {
        .path = rig_path, .question = question, .format = QUERY_TABLE, .width = width};
    FILE *out = fmemopen(answer, sizeof answer, "w");
    assert_non_null(out);
    answer[0] = '\0';
    if (query_run(&request, out, NULL) != OK)
        fail_msg("%s: %s", question, error_message());
    fclose(out);
}

static unsigned widest_line(const char *text)
{
    unsigned widest = 0;
    char line[4096];
    for (; *text != '\0'; text += strcspn(text, "\n") + 1) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\n"), text);
        unsigned columns = terminal_text_columns(line);
        widest = columns > widest ? columns : widest;
    }
    return widest;
}

/* The text below the table, from `mark` on; "" without. */
static const char *note(const char *mark)
{
    const char *at = strstr(answer, mark);
    return at != NULL ? at : "";
}

/* ---- the table ---------------------------------------------------------------------------------
 */

static void a_table_that_fits_is_not_changed(void **state)
{
    (void)state;
    static const char sql[] = "SELECT 'one' AS mode, id, arm FROM run";
    assert_int_equal(run_query(sql, QUERY_TABLE, NULL, 0), OK);
    char full[2048];
    snprintf(full, sizeof full, "%s", answer);
    run_on(widest_line(full), sql);
    assert_string_equal(answer, full);
}

static void a_value_that_all_rows_share_stands_above_the_table(void **state)
{
    (void)state;
    run_on(19, "SELECT 'long text' AS mode, 7 AS n, NULL AS tag, x FROM (SELECT 1 AS x UNION ALL "
               "SELECT 2)");
    assert_string_equal(answer, "all 2 rows:\n  mode=long text,\n  n=7, tag=-\n\nx\n-\n1\n2\n");
    /* Values that differ only in rounded digits are not equal. */
    run_on(21, "SELECT 'a text that is long' AS t, 0.12345678 AS x UNION ALL "
               "SELECT 'a text that is long', 0.12345679");
    assert_contains(answer, "x\n------\n0.1235\n0.1235\n");
    /* One column stays. */
    run_on(10, "SELECT 'equal' AS first, 'text' AS second UNION ALL SELECT 'equal', 'text'");
    assert_contains(answer, "first\n-----\nequal\nequal\n");
}

static void names_are_broken_before_text_is_shortened(void **state)
{
    (void)state;
    run_on(32, "SELECT 0.5 AS mean_accuracy, 0.25 AS sd_accuracy, 'twelve chars' AS arm UNION ALL "
               "SELECT 0.75, 0.5, 'b'");
    assert_string_equal(answer, "   mean_       sd_  arm\n"
                                "accuracy  accuracy\n"
                                "--------  --------  ------------\n"
                                "    0.50      0.25  twelve chars\n"
                                "    0.75      0.50  b\n");
}

static void text_is_shortened_before_its_end_and_named_below(void **state)
{
    (void)state;
    run_on(24, "SELECT 'asynchronous-with-damping-inverse' AS arm, 123456 AS n UNION ALL "
               "SELECT 'short', 2");
    assert_contains(answer, "asynchrono…verse  123456\n");
    assert_contains(note("shortened:"), "arm;");
    assert_string_equal(note("left out:"), "");
    assert_contains(note("everything:"), "-v");
    /* A character of two columns is not cut in half. */
    run_on(14, "SELECT '中文字中文字中文字' AS arm UNION ALL SELECT 'b'");
    assert_contains(answer, "\n中文字中…文字\n");
}

static void numbers_are_never_shortened(void **state)
{
    (void)state;
    run_on(20, "SELECT 123456789012345 AS a, 123456789012345 AS b, 1 AS c UNION ALL "
               "SELECT 1, 2, 3");
    assert_contains(answer, "\n123456789012345\n              1\n");
    assert_contains(note("left out:"), "b, c;");
    assert_string_equal(note("shortened:"), "");
    run_on(30, "SELECT 123456789012345 AS a, 'a text that is longer than 20' AS t UNION ALL "
               "SELECT 1, 'b'");
    assert_contains(answer, "\n123456789012345  a text");
    assert_contains(note("shortened:"), "t;");
}

static void columns_that_do_not_fit_are_named_below(void **state)
{
    (void)state;
    run_on(80, "SELECT id, uuid, arm, settings, config, host, id + 1 AS next FROM run");
    assert_true(widest_line(answer) <= 80);
    run_on(40, "SELECT id, uuid, arm, config, id + 1 AS next, uuid AS again FROM run");
    assert_true(widest_line(answer) <= 40);
    assert_contains(note("left out:"), "again;");
}

/* A row alone is easier to read with one line per column, and nothing is lost. */
static void one_row_that_does_not_fit_has_a_line_per_column(void **state)
{
    (void)state;
    run_on(20, "SELECT 'a text that is longer than this' AS arm, 7 AS number");
    assert_string_equal(answer, "row 1\n  arm     a text that is longer than this\n  number  7\n");
}

static void every_named_query_fits_the_terminal(void **state)
{
    (void)state;
    static const unsigned widths[] = {50, 80, 120};
    struct query_description q;
    unsigned fitted = 0;
    rig_change("UPDATE run SET experiment = 'experiment of a long name ' || id, arm = arm || "
               "' with a long name too, longer than any terminal is wide, as it happens if a user "
               "puts all that he knows into it'");
    for (size_t i = 0; query_at(i, &q); i++) {
        for (size_t w = 0; w < COUNT_OF(widths); w++) {
            run_on(widths[w], q.name);
            if (widest_line(answer) > widths[w] && strncmp(answer, "row 1\n", 6) != 0)
                fail_msg("%s does not fit %u columns:\n%s", q.name, widths[w], answer);
            fitted += strstr(answer, "everything:") != NULL;
        }
    }
    assert_true(fitted > 10);
}

/* ---- one line per column -----------------------------------------------------------------------
 */

static void the_vertical_form_has_every_value_in_full(void **state)
{
    (void)state;
    assert_answer("SELECT 'a' AS name, 0.123456 AS long_name, NULL AS n UNION ALL "
                  "SELECT 'two' || char(10) || 'lines', 12.5, 3",
                  QUERY_VERTICAL,
                  "row 1\n  name       a\n  long_name  0.12\n  n          -\n\n"
                  "row 2\n  name       two lines\n  long_name  12.50\n  n          3\n");
    assert_answer("SELECT 1 AS a WHERE 0", QUERY_VERTICAL, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAMPLE_TEST(a_table_that_fits_is_not_changed),
        SAMPLE_TEST(a_value_that_all_rows_share_stands_above_the_table),
        SAMPLE_TEST(names_are_broken_before_text_is_shortened),
        SAMPLE_TEST(text_is_shortened_before_its_end_and_named_below),
        SAMPLE_TEST(numbers_are_never_shortened),
        SAMPLE_TEST(columns_that_do_not_fit_are_named_below),
        SAMPLE_TEST(one_row_that_does_not_fit_has_a_line_per_column),
        SAMPLE_TEST(every_named_query_fits_the_terminal),
        SAMPLE_TEST(the_vertical_form_has_every_value_in_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
