/*
 * report_speed.c — accuracy against updates and samples per second; times of each worker; the
 * slowest workers.
 */
#include "base/text.h"
#include "results/report/report_page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- throughput ---------------------------------------------------------------------------------
 */

static const struct sample *rate_of(const struct report_cell *c, bool updates)
{
    return updates ? &c->updates_per_second : &c->samples_per_second;
}

/* Draws a series by increasing columns. */
static void draw_path(struct plot *p, const struct report_data *d, const struct report_section *s,
                      size_t series, bool updates, bool numbers)
{
    double x[REPORT_COLUMNS], y[REPORT_COLUMNS];
    size_t count = 0;
    bool any = false;
    const struct report_cell *c;
    const struct report_series *its = &d->series[series];
    for (size_t k = 0; k < REPORT_COLUMNS && (c = report_cell_of(d, series, k)) != NULL; k++) {
        x[count] = sample_mean(rate_of(c, updates));
        y[count++] = sample_mean(report_outcome_of(s, c));
    }
    plot_series_begin(p, its->style);
    text_add(p->out, "<g class=\"thin\">");
    plot_line(p, x, y, count);
    text_add(p->out, "</g>");
    for (size_t k = 0; k < count; k++) {
        struct text tip = {0};
        char column[32];
        c = report_cell_of(d, series, k);
        if (!isfinite(x[k]) || !isfinite(y[k]))
            continue;
        any = true;
        text_add(&tip, "%s, %s: ", its->label, report_column(s, c->column).text);
        html_short(&tip, x[k]);
        text_add(&tip, " %s per second, ", updates ? "updates" : "samples");
        report_outcome(&tip, s, report_outcome_of(s, c));
        plot_mark(p, its->style, x[k], y[k], tip.at);
        snprintf(column, sizeof column, "%lld", (long long)c->column);
        if (numbers && (k == 0 || k + 1 == count)) /* only at both ends, to avoid overlap */
            plot_beside(p, plot_x(p, x[k]), plot_y(p, y[k]) - 5, "small", column);
        text_free(&tip);
    }
    plot_series_end(p);
    if (any)
        plot_key(p, its->style, its->label);
}

static void add_throughput_plot(struct text *out, const struct report_data *d,
                                const struct report_section *s, bool updates)
{
    int64_t counts[2];
    bool numbers = report_columns(d, s, counts, COUNT_OF(counts)) > 1;
    size_t end = s->first_series + s->series_count;
    char title[64], description[128];
    snprintf(title, sizeof title, "%s against %s per second", report_outcome_title(s),
             updates ? "updates" : "samples");
    struct plot p = {.out = out,
                     .x = {.low = INFINITY,
                           .high = -INFINITY,
                           .logarithmic = true,
                           .label = updates ? "updates per second" : "samples per second"},
                     .y = {.low = INFINITY,
                           .high = -INFINITY,
                           .label = report_outcome_name(s),
                           .logarithmic = report_is_logarithmic(d, s)},
                     .width = d->figures != NULL ? FIGURE_WIDTH : 440,
                     .height = d->figures != NULL ? 260 : 340,
                     .left = 42,
                     .right = 24,
                     .top = 26,
                     .bottom = 40,
                     .class = "half",
                     .figures = d->figures,
                     .title = title,
                     .description = description};
    snprintf(description, sizeof description,
             "One mark per arm and %s. The next table has the numbers.",
             report_over_workers(s) ? "number of workers" : s->axis + 1);
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        if (report_is_of(d, s, c)) {
            plot_range(&p.x, sample_mean(rate_of(c, updates)));
            plot_range(&p.y, sample_mean(report_outcome_of(s, c)));
        }
    }
    plot_range_end(&p.x);
    report_range_end(s, &p.y);
    plot_begin(&p);
    for (size_t i = s->first_series; i < end; i++)
        draw_path(&p, d, s, i, updates, numbers);
    plot_end(&p);
}

static void add_throughput_table(struct text *out, const struct report_data *d,
                                 const struct report_section *s)
{
    const char *const titles[] = {"arm",           s->axis,    "#n",       "#updates/s", "#± 95 %",
                                  "#samples/s",    "#± 95 %",  "#outcome", "#95 % from", "#to",
                                  "#n of outcome", "#seconds", NULL};
    struct html_table t;
    char caption[112];
    int decimals = report_outcome_decimals(s);
    html_details_begin(out, "The numbers", false);
    snprintf(caption, sizeof caption,
             "Updates and samples per second, and outcome: %s; means over finished seeds",
             report_outcome_name(s));
    html_table_begin(&t, out, caption, titles);
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        const struct sample *a = report_outcome_of(s, c);
        if (!report_is_of(d, s, c) || c->count[RUN_FINISHED] == 0)
            continue;
        report_cell_series(&t, d, c->series);
        html_cell_count(&t, c->column);
        html_cell_count(&t, c->updates_per_second.n);
        html_cell_number(&t, sample_mean(&c->updates_per_second), 1);
        html_cell_number(&t, sample_interval(&c->updates_per_second), 1);
        html_cell_number(&t, sample_mean(&c->samples_per_second), 0);
        html_cell_number(&t, sample_interval(&c->samples_per_second), 0);
        html_cell_number(&t, sample_mean(a), decimals);
        report_cell_interval(&t, s, a);
        html_cell_count(&t, a->n);
        html_cell_number(&t, sample_mean(&c->seconds), 1);
    }
    html_table_end(&t);
    html_details_end(out);
}

/* A cell with a diverged run comes last: the mean over its other seeds is not comparable. */
static bool is_better(const struct report_section *s, const struct report_cell *a,
                      const struct report_cell *b)
{
    if (b == NULL || (report_diverged(s, a) > 0) != (report_diverged(s, b) > 0))
        return b == NULL || report_diverged(s, b) > 0;
    const double x = sample_mean(report_outcome_of(s, a)), y = sample_mean(report_outcome_of(s, b));
    return s->by_loss ? x < y : x > y;
}

/* Compares the fastest configuration with the most accurate one. */
static void add_choice(struct text *out, const struct report_data *d,
                       const struct report_section *s)
{
    const struct report_cell *fastest = NULL, *best = NULL;
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        const double outcome = sample_mean(report_outcome_of(s, c));
        if (!report_is_of(d, s, c) || !isfinite(outcome) || c->updates_per_second.n == 0)
            continue;
        best = is_better(s, c, best) ? c : best;
        fastest = fastest == NULL || c->updates_per_second.mean > fastest->updates_per_second.mean
                      ? c
                      : fastest;
    }
    if (fastest == NULL)
        return;
    const struct report_cell *const both[] = {fastest, best};
    static const char *const ranks[] = {"Most updates per second", "Best outcome"};
    text_add(out, "<p class=\"lead\">");
    for (size_t i = 0; i < COUNT_OF(both); i++) {
        text_add(out, "%s: <b>", ranks[i]);
        html_text(out, d->series[both[i]->series].label);
        text_add(out, "</b> with %s, ", report_column(s, both[i]->column).text);
        html_short(out, both[i]->updates_per_second.mean);
        text_add(out, " updates/s, ");
        report_outcome(out, s, report_outcome_of(s, both[i]));
        text_add(out, i == 0 ? ".<br>" : ".</p>\n");
    }
}

void report_throughput(struct text *out, const struct report_data *d,
                       const struct report_section *s)
{
    const bool over_workers = report_over_workers(s);
    const char *axis = s->axis + 1;
    bool any = false;
    for (size_t i = 0; i < d->cell_count; i++)
        any = any || (report_is_of(d, s, &d->cells[i]) && d->cells[i].updates_per_second.n > 0);
    if (!any)
        return;
    report_figure_begin(out, s->by_loss ? "Throughput against loss" : "Throughput against accuracy",
                        "The rightmost mark has the highest throughput, the %s mark the best "
                        "outcome. A line connects the marks of one arm from %s %s; the numbers are "
                        "the %s at its ends.",
                        s->by_loss ? "lowest" : "highest",
                        over_workers ? "few to many" : "small to large", axis,
                        over_workers ? axis : "values");
    add_choice(out, d, s);
    text_add(out, "<div class=\"panels two\">");
    add_throughput_plot(out, d, s, true);
    add_throughput_plot(out, d, s, false);
    text_add(out, "</div>\n");
    add_throughput_table(out, d, s);
    report_figure_end(out);
}

/* ---- where time goes ----------------------------------------------------------------------------
 */

/* Parts of a worker's step, in microseconds. */
enum { COMPUTE, EXCHANGE, WAIT, QUEUE, APPLY, PARTS };
static const char *const part_names[PARTS] = {"computing", "exchanging gradients",
                                              "waiting for parameters or stages",
                                              "queued at the server", "applying"};
static const unsigned part_colours[PARTS] = {2, 1, 3, 4, 5};

static void take_parts(const struct time_sums *t, double out[PARTS])
{
    double steps = fmax(t->steps, 1), pull = t->pull / steps;
    /* Synchronous modes have no server, so no queue, and the rank applies the update. A stage of a
     * pipeline without flushes also waits. */
    bool alone = t->synchronous;
    out[COMPUTE] = t->compute / steps;
    out[EXCHANGE] = t->exchange / steps;
    out[QUEUE] = alone ? 0 : fmin(t->queue / steps, pull);
    out[APPLY] = alone ? t->apply / steps : fmin(t->apply / steps, pull - out[QUEUE]);
    out[WAIT] = alone ? pull : pull - out[QUEUE] - out[APPLY];
}

/* One bar of shares per arm and column, below its name. */
static void draw_parts(struct plot *p, const struct report_data *d, const struct report_section *s,
                       const struct report_cell *c, double row)
{
    double parts[PARTS], whole = 0, from = 0, y = plot_y(p, row);
    struct text name = {0};
    take_parts(&c->time, parts);
    for (size_t k = 0; k < PARTS; k++)
        whole += parts[k];
    text_add(&name, "%s: %s", report_column(s, c->column).text, d->series[c->series].label);
    plot_name(p, p->left, y - 5, p->width - p->left, name.at);
    for (size_t k = 0; k < PARTS; k++) {
        double share = 100 * parts[k] / whole;
        struct text tip = {0};
        text_add(&tip, "%s, %s %.1f %%, %.3g ms", name.at, part_names[k], share, parts[k] / 1000);
        if (share > 0)
            plot_part(p, part_colours[k], from, from + share, row, 18, tip.at);
        from += share;
        text_free(&tip);
    }
    text_free(&name);
}

static bool is_timed(const struct report_data *d, const struct report_section *s,
                     const struct report_cell *c)
{
    return report_is_of(d, s, c) && c->time.steps > 0;
}

static size_t timed_cells(const struct report_data *d, const struct report_section *s)
{
    size_t count = 0;
    for (size_t i = 0; i < d->cell_count; i++)
        count += is_timed(d, s, &d->cells[i]);
    return count;
}

static void add_time_plot(struct text *out, const struct report_data *d,
                          const struct report_section *s)
{
    enum { ROW = 44 };
    size_t rows = timed_cells(d, s);
    struct plot p = {
        .out = out,
        .x = {.low = 0, .high = 100, .label = "share of a step, %"},
        .y = {.low = 0, .high = (double)rows, .ticks = (double[]){-1}, .tick_count = 1},
        .width = d->figures == NULL ? 440 : report_figure_width(d, s, 100),
        .height = ROW * (double)rows + 44,
        .left = 4,
        .right = 14,
        .top = 4,
        .bottom = 40,
        .class = "time",
        .figures = d->figures,
        .title = "Where time goes",
        .description = "The shares of a worker's step that it spends computing, "
                       "exchanging and waiting. The next table has the numbers."};
    plot_begin(&p);
    for (size_t i = 0; i < d->cell_count; i++)
        if (is_timed(d, s, &d->cells[i]))
            draw_parts(&p, d, s, &d->cells[i], (double)rows-- - 20.0 / ROW);
    for (size_t i = 0; i < PARTS; i++)
        plot_part_key(&p, part_colours[i], part_names[i]);
    plot_end(&p);
}

static void add_parts_legend(struct text *out)
{
    text_add(out, "<ul class=\"parts\">");
    for (size_t i = 0; i < PARTS; i++) {
        text_add(out,
                 "<li><svg width=\"14\" height=\"14\" aria-hidden=\"true\"><rect class=\"bar c%u\" "
                 "width=\"14\" height=\"14\"/></svg> %s</li>",
                 part_colours[i], part_names[i]);
    }
    text_add(out, "</ul>\n");
}

static bool any_inner(const struct report_data *d, const struct report_section *s)
{
    bool any = false;
    for (size_t i = 0; i < d->cell_count; i++)
        any = any || (report_is_of(d, s, &d->cells[i]) && d->cells[i].time.forward > 0);
    return any;
}

static void add_time_row(struct html_table *t, const struct report_data *d,
                         const struct report_cell *c, bool inner)
{
    double parts[PARTS], whole = 0;
    take_parts(&c->time, parts);
    for (size_t k = 0; k < PARTS; k++)
        whole += parts[k];
    report_cell_series(t, d, c->series);
    html_cell_count(t, c->column);
    html_cell_count(t, c->count[RUN_FINISHED] > 0 ? c->count[RUN_FINISHED] : c->runs);
    html_cell_number(t, whole / 1000, 2);
    html_cell_number(t, sample_interval(&c->step_us) / 1000, 2);
    for (size_t k = 0; k < PARTS; k++) {
        bool has =
            c->time.synchronous ? k != QUEUE && (k != WAIT || c->time.pull > 0) : k != EXCHANGE;
        html_cell_number(t, has ? parts[k] / 1000 : NAN, 2);
    }
    const double of_compute[] = {c->time.data, c->time.forward, c->time.backward};
    for (size_t k = 0; inner && k < COUNT_OF(of_compute); k++)
        html_cell_number(t, c->time.forward > 0 ? of_compute[k] / c->time.steps / 1000 : NAN, 2);
}

static void add_time_table(struct text *out, const struct report_data *d,
                           const struct report_section *s)
{
    const char *const titles[] = {"arm",      s->axis,     "#n",        "#step, ms", "#± 95 %",
                                  "#compute", "#exchange", "#wait",     "#queue",    "#apply",
                                  "#data",    "#forward",  "#backward", NULL};
    const char *shorter[COUNT_OF(titles)];
    bool inner = any_inner(d, s);
    struct html_table t;
    memcpy(shorter, titles, sizeof titles);
    shorter[inner ? COUNT_OF(titles) - 1 : COUNT_OF(titles) - 4] = NULL;
    html_details_begin(out, "The numbers", false);
    html_table_begin(&t, out,
                     inner ? "Mean milliseconds per step of a worker (data, forward and backward "
                             "are parts of compute); – was not measured"
                           : "Mean milliseconds per step of a worker; – was not measured",
                     shorter);
    for (size_t i = 0; i < d->cell_count; i++)
        if (is_timed(d, s, &d->cells[i]))
            add_time_row(&t, d, &d->cells[i], inner);
    html_table_end(&t);
    html_details_end(out);
}

static void add_slowest_table(struct text *out, const struct report_data *d,
                              const struct report_section *s)
{
    const char *const titles[] = {"arm",
                                  s->axis,
                                  "#n",
                                  "#run",
                                  "#slowest worker",
                                  "#step ms",
                                  "#× the mean",
                                  "beyond the mean",
                                  "#share of steps",
                                  "#even share",
                                  NULL};
    struct html_table t;
    html_table_begin(&t, out,
                     "The slowest worker of each arm by compute time, in the run (of n) with "
                     "the largest ratio to the mean",
                     titles);
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        const struct report_run *r = report_is_of(d, s, c) ? c->uneven : NULL;
        if (r == NULL)
            continue;
        double times = r->slowest_compute_us / r->mean_compute_us;
        report_cell_series(&t, d, c->series);
        html_cell_count(&t, c->column);
        html_cell_count(&t, c->count[RUN_FINISHED] > 0 ? c->count[RUN_FINISHED] : c->runs);
        report_cell_run(&t, r);
        html_cell_count(&t, r->slowest);
        html_cell_number(&t, r->slowest_compute_us / 1000, 2);
        html_cell_number(&t, times, 2);
        html_cell_open(&t, "bar");
        text_add(out,
                 "<svg width=\"100%%\" height=\"10\" aria-hidden=\"true\"><rect class=\"bar c1\" "
                 "width=\"%.1f%%\" height=\"10\"/></svg>",
                 100 * fmin(1, times - 1));
        html_cell_close(&t);
        html_cell_number(&t, r->slowest_share, 3);
        html_cell_number(&t, 1.0 / (double)r->time_workers, 3);
    }
    html_table_end(&t);
}

static bool any_slowest(const struct report_data *d, const struct report_section *s)
{
    bool any = false;
    for (size_t i = 0; i < d->cell_count; i++)
        any = any || (report_is_of(d, s, &d->cells[i]) && d->cells[i].uneven != NULL);
    return any;
}

void report_time(struct text *out, const struct report_data *d, const struct report_section *s)
{
    if (timed_cells(d, s) == 0)
        return;
    report_figure_begin(
        out, "Where time goes",
        "Shares of a worker's step, mean over steps, workers and seeds. With pace=, "
        "the pace determines the time of computing.");
    add_parts_legend(out);
    add_time_plot(out, d, s);
    add_time_table(out, d, s);
    report_figure_end(out);
    if (any_slowest(d, s)) {
        report_figure_begin(
            out, "The slowest worker", "%s",
            "A full bar is twice the mean. With a barrier, a slow worker delays all "
            "workers; without one, it makes fewer and staler gradients.");
        add_slowest_table(out, d, s);
        report_figure_end(out);
    }
}
