/* Tables of the real program on a terminal, and in a file. */
#include "base/terminal.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROOM = 1 << 14 };

/* Runs the program with a terminal as stdout; returns its output, valid until the next call.
 * `columns`: the width of the terminal; 0: unknown. The output must be short, because an unread
 * terminal holds a few thousand bytes. The kernel delivers the output in parts and ends it with an
 * error. */
static const char *run_on(struct process_rig *r, unsigned short columns, const char *const *argv)
{
    static char output[ROOM];
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    int ours;
    size_t length = 0;
    ssize_t got;
    assert_int_equal(openpty(&ours, &r->output_fd, NULL, NULL, &size), 0);
    int code = process_run(r, argv);
    if (code != OK)
        fail_msg("exit code %d: %s", code, process_errors(r));
    close(r->output_fd);
    r->output_fd = 0;
    while ((got = read(ours, output + length, sizeof output - 1 - length)) > 0)
        length += (size_t)got;
    output[length] = '\0';
    close(ours);
    return output;
}
#define RUN_ON(r, columns, ...) run_on(r, columns, (const char *const[]){__VA_ARGS__, NULL})

static unsigned widest_line(const char *text)
{
    unsigned widest = 0;
    char line[ROOM];
    for (; *text != '\0'; text += strspn(text, "\r\n")) {
        size_t length = strcspn(text, "\r\n");
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        unsigned columns = terminal_text_columns(line);
        widest = columns > widest ? columns : widest;
        text += length;
    }
    return widest;
}

static void make_runs(struct process_rig *r)
{
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=1,4",
                             "damping=none,inverse", "seed=1,2", "arm=an arm with a name",
                             "tag=ein ½ Etikett"),
                     OK);
}

static void a_table_fits_the_terminal_and_is_complete_in_a_file(void **state)
{
    struct process_rig *r = *state;
    make_runs(r);
    for (unsigned short width = 60; width <= 120; width += 20)
        assert_in_range(widest_line(RUN_ON(r, width, "query", "runs")), width / 2, width);
    assert_non_null(strstr(RUN_ON(r, 60, "query", "runs"), "left out: "));
    assert_non_null(strstr(RUN_ON(r, 60, "query", "runs"), "runs -v"));
    assert_int_equal(RIG_RUN(r, "query", "runs"), OK);
    assert_true(widest_line(process_output(r)) > 120);
    assert_null(strstr(process_output(r), "…"));
    assert_non_null(strstr(process_output(r), "started_at"));
    assert_null(strstr(RUN_ON(r, 400, "query", "runs"), "…"));
}

static void every_value_is_in_the_vertical_form(void **state)
{
    struct process_rig *r = *state;
    make_runs(r);
    assert_int_equal(RIG_RUN(r, "query", "SELECT id, tag, config FROM run", "-v"), OK);
    process_expect_line(r, "  tag", "ein ½ Etikett");
    process_expect_line(r, "  config", "\"workers\":4");
    assert_non_null(strstr(RUN_ON(r, 40, "query", "SELECT id, tag FROM run", "-v"), "ein ½ Et"));
    assert_int_equal(RIG_RUN(r, "query", "runs", "-v", "--csv"), ERROR_USAGE);
    process_expect_error(r, "-v");
}

static void without_a_size_the_variable_counts(void **state)
{
    struct process_rig *r = *state;
    make_runs(r);
    setenv("COLUMNS", "100", 1);
    assert_in_range(widest_line(RUN_ON(r, 0, "query", "runs")), 81, 100);
    unsetenv("COLUMNS");
    assert_in_range(widest_line(RUN_ON(r, 0, "query", "runs")), 60, 80);
}

static void runs_are_compared_on_a_terminal(void **state)
{
    struct process_rig *r = *state;
    make_runs(r);
    const char *page = RUN_ON(r, 80, "show", "1", "3", "5", "7");
    assert_in_range(widest_line(page), 40, 80);
    assert_non_null(strstr(page, "run 7 - run 1: 2 seeds"));
    assert_int_equal(RIG_RUN(r, "show", "1", "3"), OK);
    process_expect_line(r, "damping", "inverse");
    assert_int_equal(RIG_RUN(r, "show", "1", "77"), ERROR_USAGE);
    process_expect_error(r, "'77'");
    assert_int_equal(RIG_RUN(r, "show", "1", "1"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "show", "1", "2", "--rerun"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "show", "1", "2", "3", "4", "5", "6", "7", "8", "9"), ERROR_USAGE);
    process_expect_error(r, "'9'");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_table_fits_the_terminal_and_is_complete_in_a_file),
        TEST(every_value_is_in_the_vertical_form),
        TEST(without_a_size_the_variable_counts),
        TEST(runs_are_compared_on_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
