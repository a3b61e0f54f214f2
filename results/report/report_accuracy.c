/*
 * report_accuracy.c — final accuracy against the number of workers, or against another key of the
 * columns; for data without classes, and for runs without test split, the loss.
 */
#include "base/text.h"
#include "results/report/report_page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    LABELS = 20,      /* more labels would be illegible */
    LABEL_WIDTH = 440 /* pixels; longer labels are truncated */
};

static double last_outcome(const struct report_section *s, const struct report_cell *c)
{
    return sample_mean(report_outcome_of(s, c));
}

/* The expected value of a cell; NaN: the experiment has none. */
static double expected_of(const struct report_section *s, const char *arm, int64_t column)
{
    for (size_t i = 0; s->about != NULL && i < s->about->arm_count; i++) {
        const struct report_arm *a = &s->about->arms[i];
        for (size_t k = 0; strcmp(a->name, arm) == 0 && k < a->expected_count; k++)
            if (a->expected[k].column == column)
                return a->expected[k].value;
    }
    return NAN;
}

/* Whether the section shows expected values. They belong to the columns of the experiment; the
 * section may have other columns. */
static bool any_expected(const struct report_section *s)
{
    const struct report_experiment *about = s->about;
    bool any = false;
    if (about == NULL || (about->axis != NULL && strcmp(about->axis, s->axis + 1) != 0))
        return false;
    for (size_t i = 0; i < about->arm_count; i++)
        any = any || about->arms[i].expected_count > 0;
    return any;
}

static void add_table_of_columns(struct text *out, const struct report_data *d,
                                 const struct report_section *s)
{
    bool expects = any_expected(s);
    const char *const titles[] = {"arm",
                                  s->axis,
                                  "#n",
                                  "#mean",
                                  "#95 % from",
                                  "#to",
                                  "#sd",
                                  "#least",
                                  "#most",
                                  "#collapsed",
                                  "#diverged",
                                  "#failed",
                                  expects ? "#expected" : NULL,
                                  NULL};
    struct html_table t;
    char caption[160];
    int decimals = report_outcome_decimals(s);
    html_details_begin(out, "The numbers", false);
    snprintf(caption, sizeof caption, "%s by arm and %s, over finished seeds",
             report_outcome_caption(s), s->axis + 1);
    html_table_begin(&t, out, caption, titles);
    for (size_t i = s->first_series; i < s->first_series + s->series_count; i++) {
        const struct report_cell *c;
        for (size_t k = 0; (c = report_cell_of(d, i, k)) != NULL; k++) {
            const struct sample *a = report_outcome_of(s, c);
            report_cell_series(&t, d, i);
            html_cell_count(&t, c->column);
            html_cell_count(&t, a->n);
            html_cell_number(&t, sample_mean(a), decimals);
            report_cell_interval(&t, s, a);
            html_cell_number(&t, sample_deviation(a), decimals);
            html_cell_number(&t, a->n > 0 ? a->least : NAN, decimals);
            html_cell_number(&t, a->n > 0 ? a->most : NAN, decimals);
            html_cell_count(&t, c->collapsed);
            html_cell_count(&t, report_diverged(s, c));
            html_cell_count(&t, c->count[RUN_FAILED] + c->count[RUN_STOPPED]);
            if (expects)
                html_cell_number(&t, expected_of(s, d->series[i].arm, c->column), decimals);
        }
    }
    html_table_end(&t);
    html_details_end(out);
}

/* Writes the number of diverged runs beside the mark, because the mean is over finished runs only.
 * If no run finished, the number is at the bottom of the plot. */
static void draw_lost(struct plot *p, unsigned diverged, double x, double y)
{
    char lost[32];
    if (diverged > 0) {
        snprintf(lost, sizeof lost, "×%u", diverged);
        plot_beside(p, x, isfinite(y) ? y - 7 : p->height - p->bottom - 6, "lost", lost);
    }
}

static void add_collapsed(struct text *tip, const struct report_cell *c)
{
    if (c->collapsed > 0)
        text_add(tip, ", %u collapsed to one class", c->collapsed);
}

/* Draws one series: line, intervals and marks. Marks of several series in one column are side by
 * side. */
static void draw_series(struct plot *p, const struct report_data *d, const struct report_section *s,
                        size_t series)
{
    double x[REPORT_COLUMNS], y[REPORT_COLUMNS];
    size_t count = 0;
    bool any = false;
    const struct report_cell *c;
    const struct report_series *its = &d->series[series];
    double dx = 2.5 * ((double)(series - s->first_series) - 0.5 * (double)(s->series_count - 1));
    double most = p->width > FIGURE_WIDTH ? 14 : 5;
    dx = fmax(-most, fmin(most, dx));
    plot_series_begin(p, its->style);
    for (size_t k = 0; k < REPORT_COLUMNS && (c = report_cell_of(d, series, k)) != NULL; k++) {
        x[count] = (double)c->column;
        y[count++] = last_outcome(s, c);
    }
    text_add(p->out, "<g transform=\"translate(%.1f 0)\">", dx);
    plot_line(p, x, y, count);
    for (size_t k = 0; k < count; k++) {
        struct text tip = {0};
        c = report_cell_of(d, series, k);
        const struct sample *a = report_outcome_of(s, c);
        double ends[2];
        report_interval(s, a, ends);
        plot_error_bar(p, x[k], ends[0], ends[1]);
        any = any || a->n > 0 || report_diverged(s, c) > 0;
        text_add(&tip, "%s, %s: ", its->label, report_column(s, c->column).text);
        report_outcome(&tip, s, a);
        add_collapsed(&tip, c);
        plot_mark(p, its->style, x[k], y[k], tip.at);
        draw_lost(p, report_diverged(s, c), plot_x(p, x[k]), plot_y(p, y[k]));
        text_free(&tip);
    }
    text_add(p->out, "</g>");
    plot_series_end(p);
    if (any)
        plot_key(p, its->style, its->label);
}

/* Draws one series as a row. */
static void draw_row(struct plot *p, const struct report_data *d, const struct report_section *s,
                     size_t series, double y)
{
    const struct report_series *its = &d->series[series];
    const struct report_cell *c;
    plot_series_begin(p, its->style);
    for (size_t k = 0; (c = report_cell_of(d, series, k)) != NULL; k++) {
        const struct sample *a = report_outcome_of(s, c);
        double ends[2];
        struct text tip = {0};
        report_interval(s, a, ends);
        text_add(&tip, "%s: ", its->label);
        report_outcome(&tip, s, a);
        add_collapsed(&tip, c);
        if (a->n > 1)
            plot_line(p, ends, (double[]){y, y}, 2);
        if (a->n > 0)
            plot_mark(p, its->style, a->mean, y, tip.at);
        draw_lost(p, report_diverged(s, c), a->n > 0 ? plot_x(p, a->mean) : p->left, plot_y(p, y));
        text_free(&tip);
    }
    plot_series_end(p);
}

static void label_series(struct plot *p, const struct report_data *d,
                         const struct report_section *s, size_t from, size_t to)
{
    struct plot_label labels[LABELS];
    size_t count = 0;
    for (size_t i = from; i < to && count < COUNT_OF(labels); i++) {
        const struct report_cell *c, *last = NULL;
        for (size_t k = 0; (c = report_cell_of(d, i, k)) != NULL; k++)
            last = isfinite(last_outcome(s, c)) ? c : last;
        if (last != NULL) {
            labels[count++] = (struct plot_label){.style = d->series[i].style,
                                                  .text = d->series[i].label,
                                                  .y = plot_y(p, last_outcome(s, last))};
        }
    }
    plot_labels(p, labels, count);
}

/* The margin for the longest label, limited. */
static double label_width(const struct report_data *d, const struct report_section *s)
{
    double most = 60;
    for (size_t i = s->first_series; i < s->first_series + s->series_count; i++)
        most = fmax(most, plot_name_width(d->series[i].label));
    return fmin(most, LABEL_WIDTH) + 30;
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

static const char *axis_in_title(const struct report_section *s)
{
    return report_over_workers(s) ? "the number of workers" : s->axis + 1;
}

/* A column of 0 has no place on a logarithmic axis. */
static void add_plot_of_columns(struct text *out, const struct report_data *d,
                                const struct report_section *s, const int64_t *columns,
                                size_t count, bool wide)
{
    double ticks[REPORT_COLUMNS];
    char description[320], title[128], range[128];
    const bool over_workers = report_over_workers(s);
    const double low = (double)columns[0], high = (double)columns[count - 1];
    const bool logarithmic = low > 0;
    size_t end = s->first_series + s->series_count;
    bool labelled = wide && s->series_count <= LABELS;
    struct plot p = {.out = out,
                     .x = {.low = logarithmic ? low / 1.25 : low - 0.05 * (high - low),
                           .high = logarithmic ? high * 1.25 : high + 0.05 * (high - low),
                           .logarithmic = logarithmic,
                           .label = s->axis + 1,
                           .ticks = ticks,
                           .tick_count = count},
                     .y = {.low = INFINITY,
                           .high = -INFINITY,
                           .label = report_outcome_name(s),
                           .logarithmic = report_is_logarithmic(d, s)},
                     .width = wide ? 1080 : FIGURE_WIDTH,
                     .height =
                         fmax(wide ? 420 : 280, labelled ? 15.0 * (double)s->series_count + 80 : 0),
                     .left = 46,
                     .right = labelled ? label_width(d, s) : 12,
                     .top = 26,
                     .bottom = 40,
                     .class = wide ? "wide" : "narrow",
                     .figures = d->figures,
                     .title = title,
                     .description = description};
    for (size_t i = 0; i < count; i++)
        ticks[i] = (double)columns[i];
    range_of_outcomes(d, s, &p.y);
    snprintf(title, sizeof title, "%s against %s", report_outcome_title(s), axis_in_title(s));
    snprintf(range, sizeof range, "%s%s%lld to %lld%s", over_workers ? "" : s->axis + 1,
             over_workers ? "" : " ", (long long)columns[0], (long long)columns[count - 1],
             over_workers ? " workers" : "");
    snprintf(description, sizeof description,
             "%s over %s, one line for each of %zu arms, with 95 %% intervals. "
             "The next table has the numbers.",
             report_outcome_name(s), range, s->series_count);
    plot_begin(&p);
    for (size_t i = s->first_series; i < end; i++)
        draw_series(&p, d, s, i);
    if (labelled)
        label_series(&p, d, s, s->first_series, end);
    plot_end(&p);
}

/* The name of each row: left of it in a wide plot, above it in a narrow one. */
static void name_rows(struct plot *p, const struct report_data *d, const struct report_section *s,
                      bool wide)
{
    for (size_t i = 0; i < s->series_count; i++) {
        const struct report_series *its = &d->series[s->first_series + i];
        double y = plot_y(p, (double)(s->series_count - i) - 0.5);
        plot_series_begin(p, its->style);
        plot_name(p, 0, wide ? y + 4 : y - 9, wide ? p->left - 20 : p->width, its->label);
        text_add(p->out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", p->left, y,
                 p->width - p->right);
        plot_series_end(p);
    }
}

/* With one column, each arm is a row. */
static void add_plot_of_arms(struct text *out, const struct report_data *d,
                             const struct report_section *s, int64_t column, bool wide)
{
    const double row = wide ? 26 : 36, none = -1;
    char description[320], title[128];
    double left = wide ? label_width(d, s) : 8;
    struct plot p = {
        .out = out,
        .x = {.low = INFINITY,
              .high = -INFINITY,
              .label = report_outcome_name(s),
              .logarithmic = report_is_logarithmic(d, s)},
        .y = {.low = 0, .high = (double)s->series_count, .tick_count = 1, .ticks = &none},
        .width = wide                 ? fmax(1060, left + 560)
                 : d->figures != NULL ? report_figure_width(d, s, 0)
                                      : FIGURE_WIDTH,
        .height = row * (double)s->series_count + 50,
        .left = left,
        .right = 20,
        .top = 8,
        .bottom = 42,
        .class = wide ? "wide" : "narrow",
        .figures = d->figures,
        .title = title,
        .description = description};
    snprintf(description, sizeof description,
             "%s with %s, a row for each of %zu arms, with 95 %% intervals. The table "
             "after it has the numbers.",
             report_outcome_name(s), report_column(s, column).text, s->series_count);
    snprintf(title, sizeof title, "%s with %s", report_outcome_title(s),
             report_column(s, column).text);
    range_of_outcomes(d, s, &p.x);
    plot_begin(&p);
    name_rows(&p, d, s, wide);
    for (size_t i = 0; i < s->series_count; i++)
        draw_row(&p, d, s, s->first_series + i, (double)(s->series_count - i) - 0.5);
    plot_end(&p);
}

static bool any_diverged(const struct report_data *d, const struct report_section *s)
{
    for (size_t i = 0; i < d->cell_count; i++)
        if (report_is_of(d, s, &d->cells[i]) && report_diverged(s, &d->cells[i]) > 0)
            return true;
    return false;
}

void report_outcomes(struct text *out, const struct report_data *d, const struct report_section *s)
{
    int64_t columns[REPORT_COLUMNS];
    size_t count = report_columns(d, s, columns, COUNT_OF(columns));
    const char *what = s->by_loss ? "Loss" : "Accuracy";
    if (s->count[RUN_FINISHED] == 0)
        return;
    char title[112];
    if (count > 1)
        snprintf(title, sizeof title, "%s against %s", what, axis_in_title(s));
    else
        snprintf(title, sizeof title, "%s with %s", what, report_column(s, columns[0]).text);
    report_figure_begin(out, title,
                        "Mean over seeds at the end of training; bars are 95 %% intervals (for two "
                        "or more seeds), with an arrow where they go on beyond the plot%s.",
                        any_diverged(d, s) ? "; ×2: two runs diverged and are not in the mean"
                                           : "");
    /* The style sheet shows the wide plot on a screen, the narrow one on a telephone and on paper.
     */
    for (int wide = d->figures == NULL; wide >= 0; wide--)
        if (count > 1)
            add_plot_of_columns(out, d, s, columns, count, wide);
        else
            add_plot_of_arms(out, d, s, columns[0], wide);
    add_table_of_columns(out, d, s);
    report_figure_end(out);
}
