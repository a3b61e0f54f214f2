/* `gradlag watch`: the page as text, and the program on a terminal of 80 columns. */
#include "base/clock.h"
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include "experiments/cli/metrics_page.h"
#include "experiments/cli/watch_page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <utmp.h>

#define RUN_OF_A_WHILE                                                                             \
    "dataset=gaussian dataset.size=8 dataset.samples=1000 model=softmax epochs=10000 batch=10 "    \
    "pace=gamma pace.mean_ms=5 mode=async workers=2"

/* ---- the page -----------------------------------------------------------------------------------
 */

static struct live_run example(int64_t id, const char *how)
{
    struct live_run r = {.id = id,
                         .title = "asynchronous, generation (⅛ after 8) ×16 seed 1",
                         .asynchronous = true,
                         .part = 0.47,
                         .seconds_left = 31,
                         .samples_per_second = 26541,
                         .updates_per_second = 829,
                         .loss = 0.4123,
                         .accuracy = 0.8412,
                         .staleness = 15.02,
                         .silent_seconds = 1,
                         .train_seconds = strcmp(how, "running") == 0 ? NAN : 65,
                         .slowest = 3,
                         .slowest_factor = 1.8};
    snprintf(r.status, sizeof r.status, "%s", how);
    for (size_t i = 0; i < LIVE_POINTS; i++) {
        r.loss_curve.at[r.loss_curve.count++] = 2.3 / (double)(i + 1);
        r.accuracy_curve.at[r.accuracy_curve.count++] = 1 - 1 / (double)(i + 2);
    }
    return r;
}

/* Columns of a line without its escapes. */
static unsigned columns_of(const char *line, size_t length)
{
    unsigned columns = 0;
    for (size_t i = 0; i < length; i++)
        if (line[i] == '\033')
            i += strcspn(line + i, "mHKJhl");
        else
            columns += ((unsigned char)line[i] & 0xc0) != 0x80 && line[i] != '\r';
    return columns;
}

static void every_page_fits_its_terminal(void **state)
{
    (void)state;
    struct live_run running[3] = {example(14, "running"), example(15, "running"),
                                  example(16, "running")};
    struct live_run ended[2] = {example(13, "finished"), example(12, "failed")};
    snprintf(ended[1].error, sizeof ended[1].error,
             "worker 3 was lost: its process was killed (signal 9)\033[2J\nand this is long, so "
             "long that it does not fit into a line of a terminal with eighty columns");
    struct live_runs l = {.there = true,
                          .running = running,
                          .running_count = 3,
                          .more_running = 2,
                          .ended = ended,
                          .ended_count = 2,
                          .waiting = 7,
                          .finished = 12,
                          .failed = 1};
    for (unsigned width = 20; width <= 200; width += 7) {
        for (unsigned height = 4; height <= 40; height += 5) {
            struct watch_page page = {"results.db", width, height, height % 2 == 0};
            struct text out = {0};
            unsigned lines = 0;
            watch_page_add(&page, &l, &out);
            assert_null(strstr(out.at, "\033[2J"));
            for (const char *line = out.at; *line != '\0'; line += strcspn(line, "\n") + 1) {
                assert_true(columns_of(line, strcspn(line, "\n")) <= width);
                lines++;
            }
            assert_true(lines <= height);
            text_free(&out);
        }
    }
}

static bool has_number(const char *line, const char *name, const char *number)
{
    const char *at = strstr(line, name);
    if (at == NULL || strcspn(line, "\n") <= (size_t)(at - line) + strlen(name))
        return true;
    at += strlen(name);
    return *at == '\n' || strncmp(at, number, strlen(number)) == 0;
}

static void a_narrow_page_has_no_part_of_a_number(void **state)
{
    (void)state;
    struct live_run running[1] = {example(14, "running")};
    struct live_runs l = {.there = true, .running = running, .running_count = 1};
    for (unsigned width = 20; width <= 100; width++) {
        struct watch_page page = {"results.db", width, 24, false};
        struct text out = {0};
        watch_page_add(&page, &l, &out);
        for (const char *line = out.at; *line != '\0'; line += strcspn(line, "\n") + 1)
            if (!has_number(line, "  loss 0", ".412") || !has_number(line, "staleness ", "15.0"))
                fail_msg("%u columns: '%.*s'", width, (int)strcspn(line, "\n"), line);
        text_free(&out);
    }
}

static void a_page_of_80_columns_shows_every_figure(void **state)
{
    (void)state;
    struct live_run running[1] = {example(14, "running")}, ended[1] = {example(13, "finished")};
    struct live_runs l = {.there = true,
                          .running = running,
                          .running_count = 1,
                          .ended = ended,
                          .ended_count = 1,
                          .finished = 1,
                          .waiting = 3,
                          .queue_seconds_left = 250};
    struct watch_page page = {"results.db", 80, 24, false};
    struct text out = {0};
    static const char *const figures[] = {
        "3 waiting",
        "1 finished",
        "4:10",
        "1 running",
        "run 14",
        "47%",
        "31 s",
        "26541 samples/s",
        "loss 0.412",
        "accuracy 84.12%",
        "staleness 15.0",
        "829 updates/s",
        "█",
        "▁",
        "worker 3",
        "1.8",
        "run 13  finished  accuracy 84.12%  1:05  asynchronous, generation"};
    watch_page_add(&page, &l, &out);
    for (size_t i = 0; i < COUNT_OF(figures); i++)
        if (strstr(out.at, figures[i]) == NULL)
            fail_msg("'%s' is not in:\n%s", figures[i], out.at);
    assert_null(strchr(out.at, '\033'));
    text_free(&out);
}

static void a_sparkline_spans_minimum_to_maximum(void **state)
{
    (void)state;
    static const struct {
        struct live_curve curve;
        unsigned columns;
        const char *wanted;
    } cases[] = {
        {{.at = {0, 1, 2, 3, 4, 5, 6, 7}, .count = 8}, 8, "▁▂▃▄▅▆▇█"},
        {{.at = {3, 1}, .count = 2}, 8, "█▁"},
        {{.at = {0, 0, 7, 7}, .count = 4}, 2, "▁█"},
        {{.at = {5, 5, 5}, .count = 3}, 8, "▁▁▁"},
        {{.at = {0, INFINITY, 1}, .count = 3}, 8, "▁!█"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct text out = {0};
        watch_spark_add(&cases[i].curve, cases[i].columns, &out);
        assert_string_equal(out.at, cases[i].wanted);
        text_free(&out);
    }
    struct text none = {0};
    watch_spark_add(&(struct live_curve){.at = {1}, .count = 1}, 8, &none);
    assert_int_equal(none.length, 0);
}

/* ---- on a terminal ------------------------------------------------------------------------------
 */

struct terminal {
    int fd;
    pid_t pid;
    struct termios before;
    char seen[1 << 18]; /* everything that the program has written */
    size_t length;
};

static void open_terminal(struct process_rig *r, struct terminal *t, const char *no_colour)
{
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    int terminal = -1;
    memset(t, 0, sizeof *t);
    assert_int_equal(openpty(&t->fd, &terminal, NULL, NULL, &size), 0);
    assert_int_equal(tcgetattr(terminal, &t->before), 0);
    t->pid = fork();
    assert_true(t->pid >= 0);
    if (t->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(t->fd);
        if (chdir(r->folder) != 0 || login_tty(terminal) != 0)
            _exit(126);
        setenv("TERM", "xterm-256color", 1);
        no_colour != NULL ? setenv("NO_COLOR", no_colour, 1) : unsetenv("NO_COLOR");
        execl(process_program(), "gradlag", "watch", (char *)NULL);
        _exit(127);
    }
    close(terminal);
}

static void read_some(struct terminal *t)
{
    struct pollfd ready = {.fd = t->fd, .events = POLLIN};
    if (poll(&ready, 1, 50) == 1) {
        ssize_t got = read(t->fd, t->seen + t->length, sizeof t->seen - 1 - t->length);
        t->length += got > 0 ? (size_t)got : 0;
        t->seen[t->length] = '\0';
    }
}

/* Reads until the program pauses between two pages. */
static void read_all(struct terminal *t)
{
    size_t before;
    do {
        before = t->length;
        read_some(t);
    } while (t->length > before);
}

/* Reads until `text` appears after offset `from`; returns the offset of its end. */
static size_t await_text(struct terminal *t, size_t from, const char *text)
{
    double until = clock_seconds() + RIG_LIMIT_S;
    const char *at;
    while ((at = strstr(t->seen + from, text)) == NULL) {
        read_some(t);
        if (clock_seconds() > until)
            fail_msg("'%s' is not in: %s", text, t->seen);
    }
    return (size_t)(at - t->seen) + strlen(text);
}

static int await_end(struct terminal *t)
{
    double until = clock_seconds() + RIG_LIMIT_S;
    int how = 0;
    while (waitpid(t->pid, &how, WNOHANG) == 0) {
        read_some(t);
        assert_true(clock_seconds() < until);
    }
    for (int i = 0; i < 4; i++)
        read_some(t);
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

/* The program restored the settings, the cursor and the screen. */
static void expect_restored(struct terminal *t)
{
    static const char leave[] = "\033[?25h\033[?1049l";
    struct termios now;
    assert_true(t->length > sizeof leave);
    assert_string_equal(t->seen + t->length - (sizeof leave - 1), leave);
    assert_int_equal(tcgetattr(t->fd, &now), 0);
    assert_int_equal(now.c_lflag, t->before.c_lflag);
    assert_memory_equal(now.c_cc, t->before.c_cc, sizeof now.c_cc);
    close(t->fd);
}

/* A page ends without a newline; the next page begins with \033[H (cursor home). */
static size_t line_length(const char *line)
{
    const char *home = strstr(line + 1, "\033[H");
    size_t length = strcspn(line, "\n");
    return home != NULL && (size_t)(home - line) < length ? (size_t)(home - line) : length;
}

static void expect_within(struct terminal *t, size_t from, unsigned width)
{
    for (const char *line = t->seen + from; *line != '\0';) {
        size_t length = line_length(line);
        if (columns_of(line, length) > width)
            fail_msg("a line is wider than %u columns: %.*s", width, (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static void watch_shows_a_run_on_a_terminal_and_restores_the_terminal(void **state)
{
    struct process_rig *r = *state;
    static struct terminal t;
    open_terminal(r, &t, "1");
    await_text(&t, 0, "results.db");
    process_start(r, (const char *const[]){"run", RIG_LONG, "workers=2", "--quiet", NULL});
    await_text(&t, 0, "1 running");
    await_text(&t, 0, "samples/s");
    expect_within(&t, 0, 80);
    read_all(&t);
    size_t narrow = t.length;
    struct winsize size = {.ws_row = 12, .ws_col = 40};
    assert_int_equal(ioctl(t.fd, TIOCSWINSZ, &size), 0);
    narrow = await_text(&t, narrow, "\033[J"); /* the old page is complete */
    await_text(&t, narrow, "\033[J");
    expect_within(&t, narrow, 40);
    assert_null(strstr(t.seen, "\033[1m")); /* NO_COLOR */
    assert_int_equal(kill(r->pid, SIGINT), 0);
    process_wait(r);
    await_text(&t, 0, "stopped");
    assert_int_equal(write(t.fd, "q", 1), 1);
    assert_int_equal(await_end(&t), OK);
    expect_restored(&t);
}

static void control_c_restores_the_terminal(void **state)
{
    struct process_rig *r = *state;
    static struct terminal t;
    open_terminal(r, &t, NULL);
    await_text(&t, 0, "results.db");
    assert_non_null(strstr(t.seen, "\033[1m"));
    assert_int_equal(write(t.fd, "\003", 1), 1);
    assert_int_equal(await_end(&t), OK);
    expect_restored(&t);
}

static void without_a_terminal_watch_prints_plain_lines(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "watch", "--once"), OK);
    assert_non_null(strstr(process_errors(r), "results.db"));
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "workers=2", "pace=gamma"), OK);
    assert_int_equal(RIG_RUN(r, "watch", "--once"), OK);
    assert_non_null(strstr(process_output(r), "run 1  finished"));
    assert_non_null(strstr(process_output(r), "accuracy"));
    assert_null(strchr(process_output(r), '\033'));
}

/* Cutting never splits a UTF-8 character, at any offset. */
static void a_long_error_is_cut_between_characters(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", "dataset=cifar10", "dataset.path=."), ERROR_DATA);
    for (int before = 0; before < 3; before++) {
        char change[240];
        snprintf(change, sizeof change,
                 "sqlite3 $TMPDIR/results.db \"UPDATE run SET error = substr('..', 1, %d) || "
                 "replace(hex(zeroblob(200)), '00', '×…')\"",
                 before);
        assert_int_equal(process_shell(r, change), OK);
        assert_int_equal(RIG_RUN(r, "watch", "--once"), OK);
        size_t length = strlen(process_output(r));
        assert_true(length > 150 && length < 300);
        assert_non_null(strstr(process_output(r), "…\n"));
        process_write(r, "output", process_output(r));
        assert_int_equal(process_shell(r, "iconv -f UTF-8 -t UTF-8 $TMPDIR/output"), OK);
    }
}

static void watch_reports_that_no_run_is_running(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma"), OK);
    process_start(r, (const char *const[]){"watch", NULL});
    for (double until = clock_seconds() + RIG_LIMIT_S;
         strstr(process_errors(r), "gradlag: results.db") == NULL && clock_seconds() < until;)
        usleep(50000);
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), OK);
    process_expect_errors_contain(r, "gradlag: results.db");
}

static void the_metrics_have_a_line_for_each_known_number(void **state)
{
    (void)state;
    struct live_run running[] = {example(3, "running"), example(4, "running")};
    snprintf(running[1].title, sizeof running[1].title, "a \"b\" \\ c\nd");
    running[1].staleness = NAN;
    const struct live_runs l = {
        .running = running, .running_count = 2, .more_running = 5, .finished = 8, .waiting = 1};
    struct text page = {0};
    metrics_page_add(&l, &page);
    assert_non_null(strstr(page.at, "\ngradlag_runs{status=\"running\"} 7\n"));
    assert_non_null(strstr(page.at, "\ngradlag_runs{status=\"queued\"} 1\n"));
    assert_non_null(strstr(page.at, "# TYPE gradlag_run_loss gauge\ngradlag_run_loss{run=\"3\","));
    assert_non_null(
        strstr(page.at, "gradlag_run_loss{run=\"4\",title=\"a \\\"b\\\" \\\\ c\\nd\"} 0.4123\n"));
    assert_non_null(strstr(page.at, "gradlag_run_staleness_mean{run=\"3\""));
    assert_null(strstr(page.at, "gradlag_run_staleness_mean{run=\"4\""));
    text_free(&page);
}

/* A silent client and a request without a page do not keep others from their answer. */
static void metrics_of_a_running_run_are_served_on_loopback(void **state)
{
    struct process_rig *r = *state;
    static const char script[] =
        "gradlag run " RUN_OF_A_WHILE " --quiet & run=$!\n"
        "gradlag watch --metrics 0 >log & watch=$!\n"
        "for i in $(seq 600); do grep -q metrics log && break; sleep 0.1; done\n"
        "port=$(sed 's/.*127.0.0.1:\\([0-9]*\\).*/\\1/' log)\n"
        "exec 5<>/dev/tcp/127.0.0.1/$port\n"
        "get() { exec 4<>/dev/tcp/127.0.0.1/$port; printf \"$1\\r\\n\\r\\n\" >&4; cat <&4; exec "
        "4>&-; }\n"
        "for i in $(seq 300); do get 'GET /metrics HTTP/1.1' >page; grep -q "
        "'^gradlag_run_loss{run=\"1\"' "
        "page && break; sleep 0.1; done\n"
        "get 'GET / HTTP/1.1' >none; get 'POST /metrics HTTP/1.1' >post\n"
        "get 'HEAD /metrics?a=1 HTTP/1.1' >head\n"
        /* The server answers while this client still sends, if sending takes less than 2 s. */
        "trap '' PIPE\n"
        "for i in 1 2 3; do\n"
        "exec 4<>/dev/tcp/127.0.0.1/$port; head -c 5000 /dev/zero | tr '\\0' a >&4; sleep 0.3\n"
        "printf ' HTTP/1.1\r\n' >&4; sleep 0.1; printf '\r\n' >&4; cat <&4 >long; exec 4>&-\n"
        "grep -q ' 431 ' long && break; done\n"
        "rm results.db*; mkdir results.db; get 'GET /metrics HTTP/1.1' >broken; rmdir results.db\n"
        "kill $run; wait $run\n"
        "kill $watch; wait $watch; echo $? >code\n"
        "head -n 1 page none post long broken; echo $(wc -l <head); cat page code\n";
    assert_int_equal(process_shell(r, script), 0);
    const char *out = process_output(r);
    assert_non_null(strstr(out, "HTTP/1.1 200 "));
    assert_non_null(strstr(out, "HTTP/1.1 404 "));
    assert_non_null(strstr(out, "HTTP/1.1 405 "));
    assert_non_null(strstr(out, "gradlag_runs{status=\"running\"} 1\n"));
    assert_non_null(strstr(out, "\ngradlag_run_loss{run=\"1\""));
    assert_non_null(strstr(out, "HTTP/1.1 431 "));
    assert_non_null(strstr(out, "HTTP/1.1 503 "));
    assert_non_null(strstr(out, "\n5\n")); /* the lines of an answer without a body */
    assert_string_equal(out + strlen(out) - 3, "\n0\n");
    assert_int_equal(RIG_RUN(r, "watch", "--metrics", "70000"), ERROR_USAGE);
    process_expect_error(r, "70000");
    assert_int_equal(RIG_RUN(r, "watch", "--metrics", "1", "--once"), ERROR_USAGE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_page_fits_its_terminal),
        cmocka_unit_test(a_narrow_page_has_no_part_of_a_number),
        cmocka_unit_test(a_page_of_80_columns_shows_every_figure),
        cmocka_unit_test(a_sparkline_spans_minimum_to_maximum),
        TEST(watch_shows_a_run_on_a_terminal_and_restores_the_terminal),
        TEST(control_c_restores_the_terminal),
        TEST(without_a_terminal_watch_prints_plain_lines),
        TEST(a_long_error_is_cut_between_characters),
        TEST(watch_reports_that_no_run_is_running),
        cmocka_unit_test(the_metrics_have_a_line_for_each_known_number),
        TEST(metrics_of_a_running_run_are_served_on_loopback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
