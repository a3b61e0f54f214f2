/*
 * command_watch.c — `gradlag watch`: shows the running runs of a results file, repeatedly.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "experiments/command.h"
#include "experiments/run/launch.h"
#include "experiments/cli/metrics_page.h"
#include "experiments/cli/terminal_screen.h"
#include "experiments/cli/watch_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ENDED_LINES = 200, /* more than the lines of a terminal */
    PLAIN_EVERY_S = 10,
    IDLE_S = 10,    /* plain lines: end after this time without a running run */
    PATIENCE_S = 5, /* a shorter error is ignored: the file may be incomplete */
};

const char command_watch_help[] =
    "gradlag watch [results=FILE] [--once] [--metrics PORT]\n\n"
    "Shows the running runs of a results file: progress, curves of loss and test accuracy,\n"
    "samples per second, staleness, slow workers, remaining time; below them the runs that\n"
    "ended. The file is only read; if it does not exist yet, watch waits for it. Press q or\n"
    "Ctrl-C to end.\n\n"
    "If stdout is not a terminal, watch prints a line for each run every ten seconds and when it\n"
    "ends, until no run is running.\n\n"
    "  --once          print the current state and end\n"
    "  --metrics PORT  show nothing; answer GET http://127.0.0.1:PORT/metrics with the running\n"
    "                  runs in Prometheus' text format (0: a free port), until Ctrl-C\n\n"
    "  gradlag watch results=study.db\n";

/* Reads the results file; an error that lasts less than PATIENCE_S is ignored. */
struct watch {
    const char *path;
    double failing_since; /* 0: the last read succeeded */
};

static status read_runs(struct watch *w, struct live_runs *l, bool *seen)
{
    status result = live_runs_read(l, w->path, ENDED_LINES);
    *seen = result == OK;
    if (result == OK) {
        w->failing_since = 0;
        return OK;
    }
    if (w->failing_since == 0)
        w->failing_since = clock_seconds();
    return clock_seconds() - w->failing_since < PATIENCE_S ? OK : result;
}

/* ---- on a terminal ------------------------------------------------------------------------------
 */

static void show(const struct watch *w, const struct live_runs *l)
{
    struct watch_page page = {.path = w->path, .colour = terminal_wants_colour()};
    struct text text = {0};
    terminal_screen_size(&page.width, &page.height);
    watch_page_add(&page, l, &text);
    terminal_screen_show(text.at, text.length);
    text_free(&text);
}

static status watch_on_screen(struct watch *w)
{
    status result = OK;
    struct live_runs l = {0};
    bool seen;
    TRY(terminal_screen_open());
    do {
        live_runs_free(&l);
        TRY(read_runs(w, &l, &seen));
        if (seen)
            show(w, &l);
    } while (terminal_screen_wait(1));
done:
    terminal_screen_close();
    live_runs_free(&l);
    return result;
}

/* ---- in plain lines -----------------------------------------------------------------------------
 */

/* The runs that were running at the last read. */
struct seen_runs {
    int64_t ids[LIVE_RUNS];
    size_t count;
};

static bool was_running(const struct seen_runs *before, int64_t id)
{
    for (size_t i = 0; i < before->count; i++)
        if (before->ids[i] == id)
            return true;
    return false;
}

static void print_line(struct text *line)
{
    for (char *c = line->at; *c != '\0'; c++)
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? ' ' : *c;
    puts(line->at);
    fflush(stdout);
    line->length = 0;
}

static void print_ended(const struct live_runs *l, const struct seen_runs *before, bool all)
{
    struct text line = {0};
    for (size_t i = l->ended_count; i-- > 0;) {
        if (all || was_running(before, l->ended[i].id)) {
            watch_end_add(&l->ended[i], &line);
            print_line(&line);
        }
    }
    text_free(&line);
}

static void print_running(const struct live_runs *l)
{
    struct text line = {0};
    for (size_t i = 0; i < l->running_count; i++) {
        watch_line_add(&l->running[i], &line);
        print_line(&line);
    }
    if (l->waiting > 0) {
        text_add(&line, "%u waiting", l->waiting);
        watch_queue_add(l, &line);
        print_line(&line);
    }
    text_free(&line);
}

static void store_running(struct seen_runs *out, const struct live_runs *l)
{
    out->count = l->running_count;
    for (size_t i = 0; i < l->running_count; i++)
        out->ids[i] = l->running[i].id;
}

static bool is_idle(const struct live_runs *l)
{
    return l->there && l->running_count == 0;
}

static status watch_in_lines(struct watch *w, bool once)
{
    status result = OK;
    struct live_runs l = {0};
    struct seen_runs before = {.count = 0};
    double printed = 0, busy = clock_seconds();
    bool seen, noticed = false;
    while (launch_stop_requests() == 0) {
        TRY(read_runs(w, &l, &seen));
        if (seen && !l.there && !noticed) {
            log_info("%s does not exist yet%s", w->path,
                     once ? "" : "; waiting for a run to create it");
            noticed = true;
        }
        double now = clock_seconds();
        if (seen) {
            print_ended(&l, &before, once);
            store_running(&before, &l);
            busy = is_idle(&l) ? busy : now;
        }
        if (seen && (printed == 0 || now - printed >= PLAIN_EVERY_S || once)) {
            print_running(&l);
            printed = now;
        }
        if (seen && !noticed && is_idle(&l) && !once) {
            log_info("%s: no run is running; waiting %d s for one (--once shows ended runs)",
                     w->path, IDLE_S);
            noticed = true;
        }
        if ((once && seen) || (seen && is_idle(&l) && now - busy >= IDLE_S))
            break;
        live_runs_free(&l);
        clock_sleep_until_ns(clock_ns() + UINT64_C(500000000));
    }
done:
    live_runs_free(&l);
    return result;
}

static status serve_metrics(const struct watch *w, const char *port, bool once)
{
    status result = OK;
    char *end;
    const unsigned long number = strtoul(port, &end, 10);
    if (port[0] < '0' || port[0] > '9' || *end != '\0' || number > 65535)
        FAIL(ERROR_USAGE, "watch: --metrics %s: a port is a number from 0 to 65535", port);
    if (once)
        FAIL(ERROR_USAGE, "watch: --once and --metrics exclude each other");
    TRY(metrics_serve(w->path, (unsigned)number));
done:
    return result;
}

status command_watch(int argc, char **argv)
{
    status result = OK;
    struct watch w = {.path = command_results(&argc, argv)};
    bool once = command_flag(&argc, argv, "--once");
    const char *port = NULL;
    TRY(command_value(&argc, argv, "--metrics", &port));
    TRY(command_no_flags_left(argc, argv, "watch", "--once and --metrics PORT"));
    TRY(command_no_settings_left(argc, argv, "watch", "results=FILE"));
    if (argc > 0)
        FAIL(ERROR_USAGE, "watch: '%s' is not an argument of watch, which takes results=FILE",
             argv[0]);
    if (port != NULL) {
        TRY(serve_metrics(&w, port, once));
    } else if (!once && terminal_screen_is_terminal()) {
        TRY(watch_on_screen(&w));
    } else {
        launch_catch_signals();
        TRY(watch_in_lines(&w, once));
    }
done:
    return result;
}
