/*
 * report_curves.c — accuracy during training against samples and against time (loss for data
 * without classes and for runs without test split), one plot per column.
 */
#include "base/text.h"
#include "results/report/report_page.h"

#include <math.h>
#include <stdio.h>

enum {
    GROUP = 10,        /* series in one plot */
    TABLE_POINTS = 20, /* points of a curve in the table */
    MARKS = 4          /* marks on a curve */
};

struct curve {
    double x[PLOT_POINTS], y[PLOT_POINTS], low[PLOT_POINTS], high[PLOT_POINTS];
    size_t count;
};

static const struct sample *value_of(const struct report_section *s, const struct curve_point *p)
{
    return s->of_validation ? &p->validation_loss : s->by_loss ? &p->loss : &p->accuracy;
}

bool report_is_logarithmic(const struct report_data *d, const struct report_section *s)
{
    bool positive = s->by_loss;
    for (size_t i = 0; i < d->cell_count && positive; i++) {
        const struct report_cell *c = &d->cells[i];
        if (!report_is_of(d, s, c))
            continue;
        const struct sample *outcome = report_outcome_of(s, c);
        positive = outcome->n == 0 || outcome->least > 0;
        for (size_t k = 0; k < c->points && positive; k++) {
            const struct sample *v = value_of(s, &c->curve[k]);
            positive = v->n == 0 || v->least > 0;
        }
    }
    return positive;
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

/* Leaves out the first fifth, because its large range would hide the differences at the end. */
static void range_of_curves(const struct report_data *d, const struct report_section *s,
                            struct plot_axis *y)
{
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        if (!report_is_of(d, s, c))
            continue;
        for (size_t k = c->points / 5; k < c->points; k++) {
            const struct sample *v = value_of(s, &c->curve[k]);
            plot_range(y, v->n > 0 ? v->mean : NAN);
        }
    }
    report_range_end(s, y);
}

/* "damped: 89.24 % test accuracy, 30k samples" */
static void add_tip(struct text *out, const struct report_section *s, const char *label,
                    const struct curve *c, size_t i, bool by_time)
{
    text_add(out, "%s: ", label);
    html_number(out, c->y[i], report_outcome_decimals(s));
    text_add(out, "%s, ", report_outcome_unit(s));
    html_short(out, c->x[i]);
    text_add(out, by_time ? " seconds" : " samples");
}

static void draw_curve(struct plot *p, const struct report_data *d, const struct report_section *s,
                       const struct report_cell *c, bool by_time)
{
    static struct curve curve; /* 16 KiB, static because one thread writes the page */
    const struct report_series *its = &d->series[c->series];
    take_curve(s, c, by_time, &curve);
    plot_series_begin(p, its->style);
    if (c->points > 0 && c->curve[0].samples.n > 1)
        plot_band(p, curve.x, curve.low, curve.high, curve.count);
    plot_line(p, curve.x, curve.y, curve.count);
    size_t step = curve.count / MARKS + 1, between = curve.count / TABLE_POINTS + 1;
    for (size_t i = 0; i < curve.count; i++) {
        struct text tip = {0};
        bool last = i + 1 == curve.count;
        add_tip(&tip, s, its->label, &curve, i, by_time);
        if (last || (i + its->style.index) % step == step - 1)
            plot_mark(p, its->style, curve.x[i], curve.y[i], tip.at);
        else if (i % between == 0)
            plot_point(p, curve.x[i], curve.y[i], tip.at);
        text_free(&tip);
    }
    plot_series_end(p);
    plot_key(p, its->style, its->label);
}

/* Draws the curves of series `from` to `to` in one column. false: there are none. */
static bool add_panel(struct text *out, const struct report_data *d, const struct report_section *s,
                      int64_t column, size_t from, size_t to, bool by_time,
                      const struct plot_axis *y, bool large)
{
    char title[96];
    size_t curves = 0;
    struct plot p = {
        .out = out,
        .x = {.low = 0, .high = -INFINITY, .label = by_time ? "seconds of training" : "samples"},
        .y = *y,
        .width = large ? 440 : FIGURE_WIDTH,
        .height = large ? 300 : 250,
        .left = 42,
        .right = 14,
        .top = d->figures != NULL ? 26 : 12,
        .bottom = 40,
        .figures = d->figures,
        .class = large ? "half" : "panel",
        .title = title,
        .description = "One line per arm, its mean over seeds, in a band from the "
                       "smallest to the largest seed. The next table has the numbers."};
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        if (c->series >= from && c->series < to && c->column == column && c->points > 0) {
            const struct curve_point *last = &c->curve[c->points - 1];
            plot_range(&p.x, sample_mean(by_time ? &last->seconds : &last->samples));
            curves++;
        }
    }
    if (curves == 0 || !(p.x.high > 0))
        return false;
    p.x.high *= 1.02;
    p.y.label = d->figures != NULL ? report_outcome_name(s) : NULL; /* the page has a caption */
    snprintf(title, sizeof title, "%s against %s with %s", report_outcome_title(s),
             by_time ? "time" : "samples", report_column(s, column).text);
    text_add(out, "<div><h4>%s</h4>", report_column(s, column).text);
    plot_begin(&p);
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        if (c->series >= from && c->series < to && c->column == column && c->points > 0)
            draw_curve(&p, d, s, c, by_time);
    }
    plot_end(&p);
    text_add(out, "</div>\n");
    return true;
}

static void add_panels(struct text *out, const struct report_data *d,
                       const struct report_section *s, bool by_time)
{
    int64_t columns[REPORT_COLUMNS];
    size_t count = report_columns(d, s, columns, COUNT_OF(columns));
    struct plot_axis y = {
        .low = INFINITY, .high = -INFINITY, .logarithmic = report_is_logarithmic(d, s)};
    range_of_curves(d, s, &y);
    size_t groups = (s->series_count + GROUP - 1) / GROUP;
    bool large = count * groups <= 2 && d->figures == NULL;
    for (size_t g = 0; g < groups; g++) { /* groups of about equal size */
        size_t from = s->series_count * g / groups, to = s->series_count * (g + 1) / groups;
        if (groups > 1) {
            text_add(out, "<p class=\"group\">Arms %zu to %zu of %zu</p>", from + 1, to,
                     s->series_count);
        }
        text_add(out, "<div class=\"panels%s\">\n", large ? " two" : "");
        for (size_t i = 0; i < count; i++) {
            (void)add_panel(out, d, s, columns[i], s->first_series + from, s->first_series + to,
                            by_time, &y, large);
        }
        text_add(out, "</div>\n");
    }
}

static void add_table_of_curves(struct text *out, const struct report_data *d,
                                const struct report_section *s)
{
    const char *const titles[] = {"arm",        s->axis, "#n",     "#samples", "#seconds", "#mean",
                                  "#95 % from", "#to",   "#least", "#most",    NULL};
    struct html_table t;
    char caption[96];
    int decimals = report_outcome_decimals(s);
    html_details_begin(out, "The numbers", false);
    snprintf(caption, sizeof caption, "%s during training, means over seeds",
             report_outcome_caption(s));
    html_table_begin(&t, out, caption, titles);
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        size_t step = c->points / TABLE_POINTS + 1;
        for (size_t k = 0; report_is_of(d, s, c) && k < c->points; k++) {
            const struct sample *v = value_of(s, &c->curve[k]);
            if (k % step != 0 && k + 1 < c->points)
                continue;
            report_cell_series(&t, d, c->series);
            html_cell_count(&t, c->column);
            html_cell_count(&t, c->curve[k].samples.n);
            html_cell_number(&t, sample_mean(&c->curve[k].samples), 0);
            html_cell_number(&t, sample_mean(&c->curve[k].seconds), 2);
            html_cell_number(&t, sample_mean(v), decimals);
            report_cell_interval(&t, s, v);
            html_cell_number(&t, v->n > 0 ? v->least : NAN, decimals);
            html_cell_number(&t, v->n > 0 ? v->most : NAN, decimals);
        }
    }
    html_table_end(&t);
    html_details_end(out);
}

static bool any_curve(const struct report_data *d, const struct report_section *s)
{
    for (size_t i = 0; i < d->cell_count; i++)
        if (report_is_of(d, s, &d->cells[i]) && d->cells[i].points > 1)
            return true;
    return false;
}

void report_curves(struct text *out, const struct report_data *d, const struct report_section *s)
{
    const char *what = s->by_loss ? "Loss" : "Accuracy";
    char title[64];
    if (!any_curve(d, s))
        return;
    snprintf(title, sizeof title, "%s against samples", what);
    report_figure_begin(out, title,
                        "%s. Means over seeds, in bands from the smallest to the largest seed; "
                        "samples are those of applied gradients. An arrow: the line goes on "
                        "beyond the plot.",
                        report_outcome_caption(s));
    add_panels(out, d, s, false);
    report_figure_end(out);
    snprintf(title, sizeof title, "%s against time", what);
    report_figure_begin(out, title,
                        "%s against seconds of training, without evaluation%s. Each plot has its "
                        "own scale of time.",
                        report_outcome_caption(s), "; for simulated clusters virtual seconds");
    add_panels(out, d, s, true);
    add_table_of_curves(out, d, s);
    report_figure_end(out);
}
