/*
 * report_accuracy.c — accuracy (or loss, where the data have no classes) against the number of
 * workers, against samples and against time.
 */
#include "results/report_page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    GROUP = 10,        /* series in one drawing */
    TABLE_POINTS = 20, /* of a curve, in the table */
    MARKS = 4          /* on a curve */
};

static double last_outcome(const struct report_section *s, const struct report_cell *c)
{
    return sample_mean(report_outcome_of(s, c));
}

/* ---- against the number of workers --------------------------------------------------------------
 */

static void add_table_of_workers(struct text *out, const struct report_data *d,
                                 const struct report_section *s)
{
    static const char *const titles[] = {"arm",       "#workers", "#n",     "#mean",
                                         "#± 95 %",   "#sd",      "#least", "#most",
                                         "#diverged", "#failed",  NULL};
    struct html_table t;
    int decimals = report_outcome_decimals(s);
    html_details_begin(out, "The numbers", false);
    html_table_begin(&t, out,
                     s->by_loss ? "Test loss by arm and workers, over seeds that finished"
                                : "Test accuracy in % by arm and workers, over seeds that finished",
                     titles);
    for (size_t i = s->first_series; i < s->first_series + s->series_count; i++) {
        const struct report_cell *c;
        for (size_t k = 0; (c = report_cell_of(d, i, k)) != NULL; k++) {
            const struct sample *a = report_outcome_of(s, c);
            report_cell_series(&t, d, i);
            html_cell_count(&t, c->workers);
            html_cell_count(&t, a->n);
            html_cell_number(&t, sample_mean(a), decimals);
            html_cell_number(&t, sample_interval(a), decimals);
            html_cell_number(&t, sample_deviation(a), decimals);
            html_cell_number(&t, a->n > 0 ? a->least : NAN, decimals);
            html_cell_number(&t, a->n > 0 ? a->most : NAN, decimals);
            html_cell_count(&t, c->count[RUN_DIVERGED]);
            html_cell_count(&t, c->count[RUN_FAILED] + c->count[RUN_STOPPED]);
        }
    }
    html_table_end(&t);
    html_details_end(out);
}

/* A mean of survivors must not pass for that of all: how many diverged stands beside the mark, or,
 * where none is left, at the foot of the drawing. */
static void draw_lost(struct plot *p, const struct report_cell *c, double x, double y)
{
    char lost[32];
    if (c->count[RUN_DIVERGED] > 0) {
        snprintf(lost, sizeof lost, "×%u", c->count[RUN_DIVERGED]);
        plot_text(p, x + 8, isfinite(y) ? y - 7 : p->height - p->bottom - 6, "start", "lost", lost);
    }
}

/* One series: its line, its intervals, its marks. A lone point has a line across, to be compared
 * with. Side by side where several share a number of workers. */
static void draw_series(struct plot *p, const struct report_data *d, const struct report_section *s,
                        size_t series)
{
    double x[REPORT_WORKER_COUNTS], y[REPORT_WORKER_COUNTS];
    size_t count = 0;
    const struct report_cell *c;
    const struct report_series *its = &d->series[series];
    double dx = 2.5 * ((double)(series - s->first_series) - 0.5 * (double)(s->series_count - 1));
    dx = fmax(-14, fmin(14, dx));
    plot_series_begin(p, its->style, NULL);
    for (size_t k = 0; k < REPORT_WORKER_COUNTS && (c = report_cell_of(d, series, k)) != NULL;
         k++) {
        x[count] = (double)c->workers;
        y[count++] = last_outcome(s, c);
    }
    if (count == 1) {
        double ends[] = {p->x.low, p->x.high}, same[] = {y[0], y[0]};
        text_add(p->out, "<g class=\"across\">");
        plot_line(p, ends, same, 2);
        text_add(p->out, "</g>");
    }
    text_add(p->out, "<g transform=\"translate(%.1f 0)\">", dx);
    plot_line(p, x, y, count);
    for (size_t k = 0; k < count; k++) {
        struct text tip = {0};
        c = report_cell_of(d, series, k);
        const struct sample *a = report_outcome_of(s, c);
        double half = sample_interval(a);
        plot_error_bar(p, x[k], y[k] - half, y[k] + half);
        text_add(&tip, "%s, %lld workers: ", its->label, (long long)c->workers);
        report_outcome(&tip, s, a);
        plot_mark(p, its->style, x[k], y[k], tip.at);
        draw_lost(p, c, plot_x(p, x[k]), plot_y(p, y[k]));
        text_free(&tip);
    }
    text_add(p->out, "</g>");
    plot_series_end(p);
}

/* The same as a row of its own. */
static void draw_row(struct plot *p, const struct report_data *d, const struct report_section *s,
                     size_t series, double y)
{
    const struct report_series *its = &d->series[series];
    const struct report_cell *c;
    plot_series_begin(p, its->style, NULL);
    for (size_t k = 0; (c = report_cell_of(d, series, k)) != NULL; k++) {
        const struct sample *a = report_outcome_of(s, c);
        double half = sample_interval(a), ends[2] = {a->mean - half, a->mean + half};
        struct text tip = {0};
        text_add(&tip, "%s: ", its->label);
        report_outcome(&tip, s, a);
        if (a->n > 1 && (!s->by_loss || ends[0] > 0)) {
            plot_line(p, ends, (double[]){y, y}, 2);
        }
        if (a->n > 0) {
            plot_mark(p, its->style, a->mean, y, tip.at);
        }
        draw_lost(p, c, a->n > 0 ? plot_x(p, a->mean) : p->left, plot_y(p, y));
        text_free(&tip);
    }
    plot_series_end(p);
}

static void label_series(struct plot *p, const struct report_data *d,
                         const struct report_section *s, size_t from, size_t to)
{
    struct plot_label labels[2 * GROUP];
    size_t count = 0;
    for (size_t i = from; i < to && count < COUNT_OF(labels); i++) {
        const struct report_cell *c, *last = NULL;
        for (size_t k = 0; (c = report_cell_of(d, i, k)) != NULL; k++) {
            last = isfinite(last_outcome(s, c)) ? c : last;
        }
        if (last != NULL) {
            labels[count++] = (struct plot_label){.style = d->series[i].style,
                                                  .text = d->series[i].label,
                                                  .y = plot_y(p, last_outcome(s, last))};
        }
    }
    plot_labels(p, labels, count);
}

/* Room for the longest label, within reason. */
static double label_width(const struct report_data *d, const struct report_section *s)
{
    double most = 60;
    for (size_t i = s->first_series; i < s->first_series + s->series_count; i++) {
        most = fmax(most, plot_name_width(d->series[i].label));
    }
    return most + 30;
}

static void range_of_outcomes(const struct report_data *d, const struct report_section *s,
                              struct plot_axis *a)
{
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        const struct sample *o = report_outcome_of(s, c);
        if (report_is_of(d, s, c) && o->n > 0) {
            plot_range(a, o->least);
            plot_range(a, o->most);
        }
    }
    report_range_end(s, a);
}

static void add_plot_of_workers(struct text *out, const struct report_data *d,
                                const struct report_section *s, const int64_t *workers,
                                size_t count)
{
    double ticks[REPORT_WORKER_COUNTS];
    char description[256];
    size_t end = s->first_series + s->series_count;
    bool labelled = s->series_count <= 2 * GROUP;
    struct plot p = {.out = out,
                     .x = {.low = (double)workers[0] / 1.25,
                           .high = (double)workers[count - 1] * 1.25,
                           .logarithmic = true,
                           .label = "workers",
                           .ticks = ticks,
                           .tick_count = count},
                     .y = {.low = INFINITY,
                           .high = -INFINITY,
                           .label = report_outcome_name(s),
                           .logarithmic = s->by_loss},
                     .width = 1080,
                     .height = fmax(420, labelled ? 15.0 * (double)s->series_count + 80 : 0),
                     .left = 46,
                     .right = labelled ? label_width(d, s) : 12,
                     .top = 26,
                     .bottom = 40,
                     .class = "wide",
                     .title = "Outcome against the number of workers",
                     .description = description};
    for (size_t i = 0; i < count; i++) {
        ticks[i] = (double)workers[i];
    }
    range_of_outcomes(d, s, &p.y);
    snprintf(description, sizeof description,
             "%s over %lld to %lld workers, one line for each of %zu arms, with 95 %% intervals. "
             "The table below has the numbers.",
             report_outcome_name(s), (long long)workers[0], (long long)workers[count - 1],
             s->series_count);
    text_add(out, "<div class=\"scroll\" tabindex=\"0\">");
    plot_begin(&p);
    plot_inside(&p);
    for (size_t i = s->first_series; i < end; i++) {
        draw_series(&p, d, s, i);
    }
    plot_outside(&p);
    if (labelled) {
        label_series(&p, d, s, s->first_series, end);
    }
    plot_end(&p);
    text_add(out, "</div>\n");
}

/* With one number of workers there is no line to draw: a row for each arm. */
static void add_plot_of_arms(struct text *out, const struct report_data *d,
                             const struct report_section *s, int64_t workers)
{
    enum { ROW = 26 };
    char description[256];
    double left = label_width(d, s);
    struct plot p = {
        .out = out,
        .x = {.low = INFINITY,
              .high = -INFINITY,
              .label = report_outcome_name(s),
              .logarithmic = s->by_loss},
        .y = {.low = 0, .high = (double)s->series_count, .tick_count = 0, .ticks = &left},
        .width = fmax(1060, left + 560),
        .height = ROW * (double)s->series_count + 50,
        .left = left,
        .right = 20,
        .top = 8,
        .bottom = 42,
        .class = "rows",
        .title = "Outcome of each arm",
        .description = description};
    snprintf(description, sizeof description,
             "%s with %lld workers, a row for each of %zu arms, with 95 %% intervals. The table "
             "below has the numbers.",
             report_outcome_name(s), (long long)workers, s->series_count);
    range_of_outcomes(d, s, &p.x);
    text_add(out, "<div class=\"scroll\" tabindex=\"0\">");
    plot_begin(&p);
    for (size_t i = 0; i < s->series_count; i++) {
        const struct report_series *its = &d->series[s->first_series + i];
        double y = plot_y(&p, (double)(s->series_count - i) - 0.5);
        plot_series_begin(&p, its->style, NULL);
        plot_name(&p, 0, y + 4, its->label);
        text_add(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", p.left, y, p.width - p.right);
        plot_series_end(&p);
    }
    plot_inside(&p);
    for (size_t i = 0; i < s->series_count; i++) {
        draw_row(&p, d, s, s->first_series + i, (double)(s->series_count - i) - 0.5);
    }
    plot_outside(&p);
    plot_end(&p);
    text_add(out, "</div>\n");
}

void report_workers(struct text *out, const struct report_data *d, const struct report_section *s)
{
    int64_t workers[REPORT_WORKER_COUNTS];
    size_t count = report_worker_counts(d, s, workers, COUNT_OF(workers));
    if (s->count[RUN_FINISHED] == 0) {
        return;
    }
    char title[96];
    if (count > 1) {
        snprintf(title, sizeof title, "%s against the number of workers",
                 s->by_loss ? "Loss" : "Accuracy");
    } else {
        snprintf(title, sizeof title, "%s with %lld worker%s", s->by_loss ? "Loss" : "Accuracy",
                 (long long)workers[0], workers[0] == 1 ? "" : "s");
    }
    report_figure_begin(
        out, title,
        "Mean over seeds at the end of training; bars are 95 %% intervals (from "
        "two seeds on)%s.",
        s->count[RUN_DIVERGED] > 0 ? "; ×2: two runs diverged, and are not in the mean" : "");
    if (count > 1) {
        add_plot_of_workers(out, d, s, workers, count);
    } else {
        add_plot_of_arms(out, d, s, workers[0]);
    }
    add_table_of_workers(out, d, s);
    report_figure_end(out);
}

/* ---- curves -------------------------------------------------------------------------------------
 */

struct curve {
    double x[512], y[512], low[512], high[512];
    size_t count;
};

static const struct sample *value_of(const struct report_section *s, const struct curve_point *p)
{
    return s->by_loss ? &p->loss : &p->accuracy;
}

static void take_curve(const struct report_section *s, const struct report_cell *c, bool by_time,
                       struct curve *out)
{
    out->count = 0;
    for (size_t i = 0; i < c->points && out->count < COUNT_OF(out->x); i++) {
        const struct sample *v = value_of(s, &c->curve[i]);
        if (v->n > 0) {
            out->x[out->count] = sample_mean(by_time ? &c->curve[i].seconds : &c->curve[i].samples);
            out->y[out->count] = v->mean;
            out->low[out->count] = v->least;
            out->high[out->count++] = v->most;
        }
    }
}

/* From the first fifth on: how training begins would squeeze how it ends. */
static void range_of_curves(const struct report_data *d, const struct report_section *s,
                            struct plot_axis *y)
{
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        if (!report_is_of(d, s, c)) {
            continue;
        }
        for (size_t k = c->points / 5; k < c->points; k++) {
            const struct sample *v = value_of(s, &c->curve[k]);
            plot_range(y, v->n > 0 ? v->mean : NAN);
        }
    }
    report_range_end(s, y);
}

static void draw_curve(struct plot *p, const struct report_data *d, const struct report_section *s,
                       const struct report_cell *c, bool by_time)
{
    static struct curve curve; /* 16 KiB: the page is written by one thread */
    const struct report_series *its = &d->series[c->series];
    take_curve(s, c, by_time, &curve);
    struct text tip = {0};
    text_add(&tip, "%s, %lld workers (n %u)", its->label, (long long)c->workers,
             c->points > 0 ? c->curve[0].samples.n : 0);
    plot_series_begin(p, its->style, tip.at);
    if (c->points > 0 && c->curve[0].samples.n > 1) {
        plot_band(p, curve.x, curve.low, curve.high, curve.count);
    }
    plot_line(p, curve.x, curve.y, curve.count);
    size_t step = curve.count / MARKS + 1;
    for (size_t i = 0; i < curve.count; i++) {
        if (i + 1 == curve.count || (i + its->style.index) % step == step - 1) {
            plot_mark(p, its->style, curve.x[i], curve.y[i], tip.at);
        }
    }
    plot_series_end(p);
    text_free(&tip);
}

/* The curves of one number of workers; `from` to `to` are series. False where there are none. */
static bool add_panel(struct text *out, const struct report_data *d, const struct report_section *s,
                      int64_t workers, size_t from, size_t to, bool by_time,
                      const struct plot_axis *y, bool large)
{
    char title[96];
    size_t curves = 0;
    struct plot p = {
        .out = out,
        .x = {.low = 0, .high = -INFINITY, .label = by_time ? "seconds of training" : "samples"},
        .y = *y,
        .width = large ? 530 : 350,
        .height = large ? 330 : 250,
        .left = 42,
        .right = 14,
        .top = 12,
        .bottom = 40,
        .class = large ? "half" : "panel",
        .title = title,
        .description = "One line per arm, its mean over seeds, in a band from the "
                       "least to the greatest seed. The table below has the numbers."};
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        if (c->series >= from && c->series < to && c->workers == workers && c->points > 0) {
            const struct curve_point *last = &c->curve[c->points - 1];
            plot_range(&p.x, sample_mean(by_time ? &last->seconds : &last->samples));
            curves++;
        }
    }
    if (curves == 0 || !(p.x.high > 0)) {
        return false;
    }
    p.x.high *= 1.02;
    snprintf(title, sizeof title, "%s against %s with %lld workers",
             s->by_loss ? "Test loss" : "Test accuracy", by_time ? "time" : "samples",
             (long long)workers);
    text_add(out, "<div><h4>%lld worker%s</h4>", (long long)workers, workers == 1 ? "" : "s");
    plot_begin(&p);
    plot_inside(&p);
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        if (c->series >= from && c->series < to && c->workers == workers && c->points > 0) {
            draw_curve(&p, d, s, c, by_time);
        }
    }
    plot_outside(&p);
    plot_end(&p);
    text_add(out, "</div>\n");
    return true;
}

static void add_panels(struct text *out, const struct report_data *d,
                       const struct report_section *s, bool by_time)
{
    int64_t workers[REPORT_WORKER_COUNTS];
    size_t count = report_worker_counts(d, s, workers, COUNT_OF(workers));
    struct plot_axis y = {.low = INFINITY, .high = -INFINITY, .logarithmic = s->by_loss};
    range_of_curves(d, s, &y);
    size_t groups = (s->series_count + GROUP - 1) / GROUP;
    bool large = count * groups <= 2;
    for (size_t g = 0; g < groups; g++) { /* of like size */
        size_t from = s->series_count * g / groups, to = s->series_count * (g + 1) / groups;
        if (groups > 1) {
            text_add(out, "<p class=\"group\">Arms %zu to %zu of %zu</p>", from + 1, to,
                     s->series_count);
        }
        text_add(out, "<div class=\"panels%s\">\n", large ? " two" : "");
        for (size_t i = 0; i < count; i++) {
            (void)add_panel(out, d, s, workers[i], s->first_series + from, s->first_series + to,
                            by_time, &y, large);
        }
        text_add(out, "</div>\n");
    }
}

static void add_table_of_curves(struct text *out, const struct report_data *d,
                                const struct report_section *s)
{
    static const char *const titles[] = {"arm",   "#workers", "#n",     "#samples", "#seconds",
                                         "#mean", "#± 95 %",  "#least", "#most",    NULL};
    struct html_table t;
    int decimals = report_outcome_decimals(s);
    html_details_begin(out, "The numbers", false);
    html_table_begin(&t, out,
                     s->by_loss ? "Test loss during training, means over seeds"
                                : "Test accuracy in % during training, means over seeds",
                     titles);
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        size_t step = c->points / TABLE_POINTS + 1;
        for (size_t k = 0; report_is_of(d, s, c) && k < c->points; k++) {
            const struct sample *v = value_of(s, &c->curve[k]);
            if (k % step != 0 && k + 1 < c->points) {
                continue;
            }
            report_cell_series(&t, d, c->series);
            html_cell_count(&t, c->workers);
            html_cell_count(&t, c->curve[k].samples.n);
            html_cell_number(&t, sample_mean(&c->curve[k].samples), 0);
            html_cell_number(&t, sample_mean(&c->curve[k].seconds), 2);
            html_cell_number(&t, sample_mean(v), decimals);
            html_cell_number(&t, sample_interval(v), decimals);
            html_cell_number(&t, v->n > 0 ? v->least : NAN, decimals);
            html_cell_number(&t, v->n > 0 ? v->most : NAN, decimals);
        }
    }
    html_table_end(&t);
    html_details_end(out);
}

static bool any_curve(const struct report_data *d, const struct report_section *s)
{
    for (size_t i = 0; i < d->cell_count; i++) {
        if (report_is_of(d, s, &d->cells[i]) && d->cells[i].points > 1) {
            return true;
        }
    }
    return false;
}

void report_curves(struct text *out, const struct report_data *d, const struct report_section *s)
{
    const char *what = s->by_loss ? "Loss" : "Accuracy";
    char title[64];
    if (!any_curve(d, s)) {
        return;
    }
    snprintf(title, sizeof title, "%s against samples", what);
    report_figure_begin(out, title,
                        "%s. Means over seeds, in bands from the least to the greatest seed; "
                        "samples are those of applied gradients.",
                        s->by_loss ? "Test loss" : "Test accuracy in %");
    add_panels(out, d, s, false);
    report_figure_end(out);
    snprintf(title, sizeof title, "%s against time", what);
    report_figure_begin(out, title,
                        "%s against seconds of training, evaluation excluded%s. Each drawing has "
                        "its own scale of time.",
                        s->by_loss ? "Test loss" : "Test accuracy in %",
                        "; of simulated clusters their own seconds");
    add_panels(out, d, s, true);
    add_table_of_curves(out, d, s);
    report_figure_end(out);
}
