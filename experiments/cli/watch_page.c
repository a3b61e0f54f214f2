#include "experiments/cli/watch_page.h"

#include "base/terminal.h"
#include "base/text.h"
#include "experiments/run/progress.h"

#include <math.h>
#include <string.h>

enum { SILENT_S = 15 /* a longer time without progress is shown */ };
static const double slow_factor = 1.2; /* a worker is slow from this factor on */

/* ---- lines as wide as the terminal --------------------------------------------------------------
 */

enum style { PLAIN, BOLD, DIM, GREEN, RED, YELLOW };

struct page {
    const struct watch_page *o;
    struct text *out;
    unsigned lines, columns; /* lines written so far; columns of the current line */
    bool full;               /* no line is left */
};

static void put_style(struct page *p, enum style style)
{
    static const char *const codes[] = {"\033[0m",  "\033[1m",  "\033[2m",
                                        "\033[32m", "\033[31m", "\033[33m"};
    if (p->o->colour)
        text_add(p->out, "%s", codes[style]);
}

static bool is_in_number(char byte)
{
    return (byte >= '0' && byte <= '9') || byte == '.';
}

/* The end of the part of the text that fits the line. It is not inside a number, because a part of
 * a number reads like another number. */
static const char *fitting(const struct page *p, const char *text)
{
    const char *c = text + terminal_fitting(text, p->o->width - p->columns);
    if (is_in_number(*c))
        while (c > text && is_in_number(c[-1]))
            c--;
    return c;
}

/* Writes the text as far as it fits; a space replaces a character that is not printable. */
static void put(struct page *p, enum style style, const char *text)
{
    const char *end = fitting(p, text);
    if (style != PLAIN)
        put_style(p, style);
    while (text < end) {
        const struct terminal_character c = terminal_character_at(text);
        text_add_bytes(p->out, c.printable ? text : " ", c.printable ? c.bytes : 1);
        p->columns += c.columns;
        text += c.bytes;
    }
    if (*end != '\0')
        p->columns = p->o->width; /* nothing follows a text that was cut */
    if (style != PLAIN)
        put_style(p, PLAIN);
}

static void put_text(struct page *p, enum style style, struct text *t)
{
    put(p, style, t->at != NULL ? t->at : "");
    text_free(t);
}

static bool end_line(struct page *p)
{
    text_add(p->out, "\n");
    p->lines++;
    p->columns = 0;
    p->full = p->lines == p->o->height;
    return !p->full;
}

/* ---- parts of a line ----------------------------------------------------------------------------
 */

void watch_spark_add(const struct live_curve *curve, unsigned columns, struct text *out)
{
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double least = INFINITY, greatest = -INFINITY;
    size_t count = curve->count < columns ? curve->count : columns;
    double means[LIVE_POINTS];
    if (count < 2)
        return;
    for (size_t i = 0; i < count; i++) {
        size_t from = i * curve->count / count, to = (i + 1) * curve->count / count;
        double sum = 0;
        for (size_t k = from; k < to; k++)
            sum += curve->at[k];
        means[i] = sum / (double)(to - from);
        least = isfinite(means[i]) ? fmin(least, means[i]) : least;
        greatest = isfinite(means[i]) ? fmax(greatest, means[i]) : greatest;
    }
    for (size_t i = 0; i < count; i++) {
        double height = greatest > least ? (means[i] - least) / (greatest - least) : 0;
        text_add(out, "%s", isfinite(means[i]) ? bars[(size_t)(height * 7 + 0.5)] : "!");
    }
}

static void add_staleness(const struct live_run *r, struct text *out)
{
    if (r->asynchronous && isfinite(r->staleness))
        text_add(out, "  staleness %.1f", r->staleness);
}

static void add_numbers(const struct live_run *r, struct text *out)
{
    if (isfinite(r->samples_per_second))
        text_add(out, "  %.0f samples/s", r->samples_per_second);
    if (isfinite(r->loss))
        text_add(out, "  loss %.3f", r->loss);
    if (isfinite(r->accuracy))
        text_add(out, "  accuracy %.2f%%", 100 * r->accuracy);
    add_staleness(r, out);
}

static void add_part(const struct live_run *r, struct text *out)
{
    if (isfinite(r->part))
        text_add(out, "  %3.0f%%", 100 * fmin(r->part, 1));
    if (isfinite(r->seconds_left)) {
        char left[32];
        progress_duration(r->seconds_left, left);
        text_add(out, "  %s left", left);
    }
}

static bool is_slow(const struct live_run *r)
{
    return r->slowest >= 0 && r->slowest_factor >= slow_factor;
}

static void add_silence(const struct live_run *r, struct text *out)
{
    char time[32];
    if (r->silent_seconds > SILENT_S) {
        progress_duration(r->silent_seconds, time);
        text_add(out, "  no progress for %s", time);
    }
}

void watch_line_add(const struct live_run *r, struct text *out)
{
    text_add(out, "run %lld  %s", (long long)r->id, r->title);
    add_part(r, out);
    add_numbers(r, out);
    if (is_slow(r))
        text_add(out, "  worker %d is slow (%.1f×)", r->slowest, r->slowest_factor);
    add_silence(r, out);
}

/* The most important figures come first, because a terminal cuts the line. */
void watch_end_add(const struct live_run *r, struct text *out)
{
    bool finished = strcmp(r->status, "finished") == 0;
    bool has_accuracy = isfinite(r->accuracy);
    text_add(out, "run %lld  %s", (long long)r->id, r->status);
    if (finished && has_accuracy)
        text_add(out, "  accuracy %.2f%%", 100 * r->accuracy);
    else if (finished && isfinite(r->loss))
        text_add(out, "  loss %.3f", r->loss);
    if (finished && isfinite(r->train_seconds)) {
        char took[32];
        progress_elapsed(r->train_seconds, took);
        text_add(out, "  %s", took);
    }
    text_add(out, "  %s", r->title);
    if (finished && has_accuracy && isfinite(r->loss))
        text_add(out, "  loss %.3f", r->loss);
    if (finished)
        add_staleness(r, out);
    if (r->error[0] != '\0')
        text_add(out, "  %s", r->error);
}

/* Adds nothing without queued runs: each running run shows its own time. */
void watch_queue_add(const struct live_runs *l, struct text *out)
{
    char time[32];
    if (l->waiting > 0 && l->queue_seconds_left > 0) {
        progress_duration(l->queue_seconds_left, time);
        text_add(out, "  about %s left in all", time);
    }
}

/* ---- the page -----------------------------------------------------------------------------------
 */

static void put_heading(struct page *p, const struct live_runs *l)
{
    struct text line = {0};
    const struct {
        size_t count;
        const char *what;
        enum style style;
    } counts[] = {
        {l->running_count + l->more_running, "running", GREEN},
        {l->waiting, "waiting", PLAIN},
        {l->finished, "finished", PLAIN},
        {l->diverged, "diverged", YELLOW},
        {l->failed, "failed", RED},
        {l->stopped, "stopped", PLAIN},
    };
    text_add(&line, "%s", p->o->path);
    put_text(p, BOLD, &line);
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        if (counts[i].count > 0 || i == 0) {
            text_add(&line, "  %zu %s", counts[i].count, counts[i].what);
            put_text(p, counts[i].style, &line);
        }
    }
    watch_queue_add(l, &line);
    put_text(p, PLAIN, &line);
    end_line(p);
}

/* Writes a line of one style; an empty one is skipped. False: the page is full. */
static bool put_line(struct page *p, enum style style, struct text *line)
{
    bool any = line->length > 0;
    put_text(p, style, line);
    return !any || end_line(p);
}

static void add_curve(const char *what, const struct live_curve *curve, unsigned columns,
                      struct text *out)
{
    struct text spark = {0};
    watch_spark_add(curve, columns, &spark);
    if (spark.length > 0)
        text_add(out, "  %s %s", what, spark.at);
    text_free(&spark);
}

static bool put_figures(struct page *p, const struct live_run *r)
{
    struct text line = {0};
    add_numbers(r, &line);
    put_text(p, PLAIN, &line);
    if (isfinite(r->updates_per_second)) {
        text_add(&line, "  %.0f updates/s", r->updates_per_second);
        put_text(p, DIM, &line);
    }
    if (p->columns == 0)
        put(p, DIM, "  starting");
    return end_line(p);
}

/* Title and progress, then figures, curves, and warnings. */
static void put_running(struct page *p, const struct live_run *r)
{
    struct text line = {0};
    unsigned columns = p->o->width > 40 ? (p->o->width - 24) / 2 : 8;
    text_add(&line, "run %lld  %s", (long long)r->id, r->title);
    put_text(p, BOLD, &line);
    add_part(r, &line);
    put_text(p, PLAIN, &line);
    if (!end_line(p) || !put_figures(p, r))
        return;
    add_curve("loss", &r->loss_curve, columns, &line);
    add_curve("accuracy", &r->accuracy_curve, columns, &line);
    if (!put_line(p, PLAIN, &line))
        return;
    if (is_slow(r)) {
        text_add(&line, "  worker %d is slow: its steps take %.1f times as long as the others'",
                 r->slowest, r->slowest_factor);
    }
    if (!put_line(p, YELLOW, &line))
        return;
    add_silence(r, &line);
    (void)put_line(p, RED, &line);
}

static enum style style_of(const struct live_run *r)
{
    return strcmp(r->status, "finished") == 0   ? GREEN
           : strcmp(r->status, "diverged") == 0 ? YELLOW
           : strcmp(r->status, "failed") == 0   ? RED
                                                : PLAIN;
}

static void put_ended(struct page *p, const struct live_run *r)
{
    struct text line = {0};
    text_add(&line, "run %lld  ", (long long)r->id);
    put_text(p, PLAIN, &line);
    put(p, style_of(r), r->status);
    watch_end_add(r, &line);
    /* Number and status were written already, in colour. */
    const char *rest = strstr(line.at, r->status);
    put(p, PLAIN, rest != NULL ? rest + strlen(r->status) : "");
    text_free(&line);
    end_line(p);
}

static void put_runs(struct page *p, const struct live_runs *l)
{
    struct text line = {0};
    for (size_t i = 0; i < l->running_count && !p->full; i++)
        put_running(p, &l->running[i]);
    if (l->more_running > 0 && !p->full) {
        text_add(&line, "and %zu more running", l->more_running);
        put_text(p, DIM, &line);
        end_line(p);
    }
    if (l->ended_count > 0 && p->lines + 2 < p->o->height) {
        end_line(p);
        put(p, DIM, "ended, newest first");
        end_line(p);
    }
    for (size_t i = 0; i < l->ended_count && !p->full; i++)
        put_ended(p, &l->ended[i]);
}

void watch_page_add(const struct watch_page *page, const struct live_runs *l, struct text *out)
{
    struct page p = {.o = page, .out = out};
    if (!l->there) {
        put(&p, BOLD, page->path);
        put(&p, PLAIN, " does not exist yet; waiting for a run to create it");
        end_line(&p);
        return;
    }
    put_heading(&p, l);
    if (l->running_count == 0 && l->waiting == 0) {
        put(&p, DIM, "no run is running");
        end_line(&p);
    }
    put_runs(&p, l);
}
