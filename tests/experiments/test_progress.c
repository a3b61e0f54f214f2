/* The progress line of a run, on terminals of any width. */
#include "experiments/run/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <poll.h>
#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Writes to `out` what progress_show() sends to a terminal of `columns` columns. */
static void show_on(unsigned columns, const char *title, char out[512])
{
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    struct progress p;
    struct training_progress now = {.samples_used = 500,
                                    .total_samples = 1000,
                                    .seconds = 1,
                                    .loss = 0.5,
                                    .test_accuracy = 0.75,
                                    .mean_staleness = 3};
    int ours, terminal, kept = dup(STDERR_FILENO);
    assert_int_equal(openpty(&ours, &terminal, NULL, NULL, &size), 0);
    assert_return_code(dup2(terminal, STDERR_FILENO), 0);
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    progress_open(&p, title, true, false);
    p.shown_ns = 0; /* the next call prints */
    progress_show(&p, &now);
    assert_return_code(dup2(kept, STDERR_FILENO), 0);
    struct pollfd written = {.fd = ours, .events = POLLIN};
    assert_int_equal(poll(&written, 1, 5000), 1);
    ssize_t got = read(ours, out, 511);
    assert_true(got > 0);
    out[got] = '\0';
    close(ours);
    close(terminal);
    close(kept);
}

/* Counts the columns that the text fills; escapes fill none. */
static unsigned columns_of(const char *text)
{
    unsigned columns = 0;
    for (const char *c = text; *c != '\0'; c++)
        if (*c == '\033')
            c += strcspn(c, "mK");
        else
            columns += *c != '\r' && ((unsigned char)*c & 0xc0) != 0x80;
    return columns;
}

static bool ends_plain(const char *text)
{
    const char *last = strrchr(text, '\033');
    return last != NULL && strncmp(last, "\033[0m", 4) == 0;
}

static void the_line_fits_the_terminal_and_resets_the_style(void **state UNUSED)
{
    static const char long_title[] = "[3/12, 4:10 left] async ×4 mlp damping=polynomial "
                                     "damping.power=0.5 lr=0.03 momentum=0.9 seed=3";
    static const unsigned widths[] = {1, 5, 10, 19, 20, 21, 40, 79, 80, 120, 200};
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        char out[512];
        show_on(widths[i], i % 2 == 0 ? long_title : "×××××××××××××××××××××××", out);
        if (columns_of(out) >= widths[i] || !ends_plain(out))
            fail_msg("%u columns: '%s'", widths[i], out);
    }
}

static void a_narrow_terminal_gets_whole_fields(void **state UNUSED)
{
    for (unsigned columns = 25; columns <= 80; columns++) {
        char out[512];
        show_on(columns, "async ×4 mlp seed 1", out);
        if ((strstr(out, "acc") != NULL && strstr(out, "acc 75.0%") == NULL) ||
            (strstr(out, "loss") != NULL && strstr(out, "loss 0.500") == NULL) ||
            (strstr(out, "lag") != NULL && strstr(out, "lag 3.0") == NULL))
            fail_msg("%u columns: '%s'", columns, out);
    }
}

static void an_unknown_width_counts_as_80_columns(void **state UNUSED)
{
    char out[512];
    show_on(0, "async ×4 lenet seed 1", out);
    assert_non_null(strstr(out, "acc 75.0%"));
    assert_non_null(strstr(out, "lag 3.0"));
}

static void durations_below_ten_seconds_have_fractions(void **state UNUSED)
{
    static const struct {
        double seconds;
        const char *text;
    } of[] = {{0, "0 s"},      {0.0123, "0.012 s"}, {0.284, "0.28 s"}, {6.05, "6 s"},
              {6.12, "6.1 s"}, {9.96, "10 s"},      {23.4, "23 s"},    {245, "4:05"}};
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        char out[32];
        progress_elapsed(of[i].seconds, out);
        assert_string_equal(out, of[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_fits_the_terminal_and_resets_the_style),
        cmocka_unit_test(a_narrow_terminal_gets_whole_fields),
        cmocka_unit_test(an_unknown_width_counts_as_80_columns),
        cmocka_unit_test(durations_below_ten_seconds_have_fractions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
