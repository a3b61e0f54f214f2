/* The columns of terminals and of text. */
#include "base/terminal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pty.h>
#include <stdlib.h>
#include <unistd.h>

/* terminal_columns() of a terminal with this size; 0: unknown. */
static unsigned columns_on(unsigned short size, const char *variable)
{
    struct winsize window = {.ws_row = 24, .ws_col = size};
    int ours, terminal;
    assert_int_equal(openpty(&ours, &terminal, NULL, NULL, &window), 0);
    variable != NULL ? setenv("COLUMNS", variable, 1) : unsetenv("COLUMNS");
    unsigned columns = terminal_columns(terminal);
    close(ours);
    close(terminal);
    return columns;
}

static void the_terminal_says_its_columns_else_a_variable(void **state)
{
    (void)state;
    assert_int_equal(columns_on(123, NULL), 123);
    assert_int_equal(columns_on(123, "60"), 123);
    assert_int_equal(columns_on(0, "60"), 60);
    assert_int_equal(columns_on(0, NULL), 80);
    static const char *const wrong[] = {"", "wide", "-5", "0", "60x", "9999999999"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        assert_int_equal(columns_on(0, wrong[i]), 80);
}

static void what_is_not_a_terminal_has_no_columns(void **state)
{
    (void)state;
    int file = open("/dev/null", O_WRONLY);
    assert_true(file >= 0);
    setenv("COLUMNS", "60", 1);
    assert_int_equal(terminal_columns(file), 0);
    close(file);
    assert_int_equal(terminal_columns(-1), 0);
}

static void characters_have_the_width_of_a_terminal(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned columns;
    } of[] = {{"", 0},     {"abc", 3},    {"é", 1}, {"e\xcc\x81", 1}, {"± …", 3},
              {"中文", 4}, {"한글 a", 6}, {"🎉", 2}, {"Ω-7", 3}};
    for (size_t i = 0; i < COUNT_OF(of); i++)
        if (terminal_text_columns(of[i].text) != of[i].columns)
            fail_msg("'%s': %u", of[i].text, terminal_text_columns(of[i].text));
    assert_int_equal(terminal_fitting("ab中e\xcc\x81", 3), 2);
    assert_int_equal(terminal_fitting("ab中e\xcc\x81", 4), 5);
    assert_int_equal(terminal_fitting("ab中e\xcc\x81", 5), 8);
}

/* C1 control characters (\xc2\x9b is CSI) and bytes that are not UTF-8 among them. */
static void what_could_control_the_terminal_is_not_printable(void **state)
{
    (void)state;
    static const char *const of[] = {"\033[2J", "\n", "\x7f", "\xc2\x9b", "\xff", "\xe4\xb8"};
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        struct terminal_character c = terminal_character_at(of[i]);
        assert_false(c.printable);
        assert_int_equal(c.columns, 1);
        assert_in_range(c.bytes, 1, 2);
    }
    assert_true(terminal_character_at("é").printable);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_terminal_says_its_columns_else_a_variable),
        cmocka_unit_test(what_is_not_a_terminal_has_no_columns),
        cmocka_unit_test(characters_have_the_width_of_a_terminal),
        cmocka_unit_test(what_could_control_the_terminal_is_not_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
