#include "experiments/run/progress.h"

#include "base/clock.h"
#include "base/terminal.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PLAIN_EVERY_S = 5, LIVE_EVERY_MS = 100 };

void progress_open(struct progress *p, const char *title, bool staleness, bool quiet)
{
    const char *term = getenv("TERM");
    bool terminal = isatty(STDERR_FILENO) == 1 && (term == NULL || strcmp(term, "dumb") != 0);
    *p = (struct progress){.quiet = quiet, .live = terminal, .staleness = staleness};
    p->colour = terminal && terminal_wants_colour();
    p->shown_ns = clock_ns();
    snprintf(p->title, sizeof p->title, "%s", title);
}

void progress_duration(double seconds, char out[32])
{
    long s = seconds < 0 || !isfinite(seconds) ? 0 : lround(seconds);
    if (s < 60)
        snprintf(out, 32, "%ld s", s);
    else if (s < 3600)
        snprintf(out, 32, "%ld:%02ld", s / 60, s % 60);
    else
        snprintf(out, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
}

void progress_elapsed(double seconds, char out[32])
{
    if (seconds > 0 && seconds < 9.95)
        snprintf(out, 32, "%.2g s", seconds);
    else
        progress_duration(seconds, out);
}

/* `narrow`: short labels, for a terminal of 80 columns. */
static void add_line(const struct progress *p, const struct training_progress *now, bool narrow,
                     struct text *line)
{
    double part =
        now->total_samples == 0 ? 0.0 : (double)now->samples_used / (double)now->total_samples;
    double rate = now->seconds > 0 ? (double)now->samples_used / now->seconds : 0.0;
    text_add(line, "%s  %3.0f%%", p->title, 100.0 * fmin(part, 1.0));
    text_add(line, narrow ? "  %.0f/s" : "  %.0f samples/s", rate);
    if (rate > 0 && now->total_samples >= now->samples_used) {
        char left[32];
        progress_duration((double)(now->total_samples - now->samples_used) / rate, left);
        text_add(line, "  %s left", left);
    }
    if (isfinite(now->loss))
        text_add(line, "  loss %.3f", now->loss);
    if (isfinite(now->test_accuracy))
        text_add(line, narrow ? "  acc %.1f%%" : "  accuracy %.2f%%", 100.0 * now->test_accuracy);
    if (p->staleness)
        text_add(line, narrow ? "  lag %.1f" : "  staleness %.1f", now->mean_staleness);
}

static bool is_due(const struct progress *p)
{
    uint64_t every = (uint64_t)(p->live ? LIVE_EVERY_MS : PLAIN_EVERY_S * 1000) * 1000000u;
    return !p->quiet && clock_ns() - p->shown_ns >= every;
}

/* Cuts the line to `columns` columns, at the end of a field: part of a number reads like another
 * number. */
static void cut(struct text *line, unsigned columns)
{
    const size_t fits = terminal_fitting(line->at, columns);
    size_t end = fits;
    if (fits < line->length)
        while (end > 0 && strncmp(line->at + end, "  ", 2) != 0)
            end--;
    line->length = end > 0 ? end : fits; /* one field that does not fit is cut anywhere */
}

/* The first `bold` bytes of the line are bold. */
static void show(struct progress *p, struct text *line, size_t bold)
{
    struct text out = {0};
    if (p->live)
        cut(line, terminal_columns(STDERR_FILENO) - 1);
    bold = bold < line->length ? bold : line->length;
    text_add(&out, "%s", p->live ? "\r\033[K" : "");
    text_add(&out, p->colour ? "\033[1m%.*s\033[0m" : "%.*s", (int)bold, line->at);
    text_add(&out, "%.*s%s", (int)(line->length - bold), line->at + bold, p->live ? "" : "\n");
    ssize_t written = write(STDERR_FILENO, out.at, out.length);
    (void)written;
    p->shown = p->live;
    p->shown_ns = clock_ns();
    text_free(&out);
}

void progress_show(struct progress *p, const struct training_progress *now)
{
    struct text line = {0};
    if (is_due(p)) {
        add_line(p, now, p->live && terminal_columns(STDERR_FILENO) < 120, &line);
        show(p, &line, strlen(p->title));
    }
    text_free(&line);
}

void progress_text(struct progress *p, const char *text)
{
    struct text line = {0};
    if (is_due(p)) {
        text_add(&line, "%s", text);
        show(p, &line, 0);
    }
    text_free(&line);
}

void progress_clear(struct progress *p)
{
    if (p->shown) {
        ssize_t written = write(STDERR_FILENO, "\r\033[K", 4);
        (void)written;
        p->shown = false;
    }
}
