/*
 * report_staleness.c — histograms of staleness, one row per arm, with one scale per column.
 */
#include "base/text.h"
#include "results/report/report_page.h"

#include <math.h>
#include <stdio.h>

enum { BARS = 40 }; /* at most */

struct summary {
    double pushes, mean, deviation, most, tallest;
};

static struct summary summarize(const struct report_cell *c)
{
    struct summary s = {0};
    double sum = 0, squares = 0;
    for (size_t i = 0; i < c->bins; i++) {
        double tau = (double)c->histogram[i].staleness, n = c->histogram[i].pushes;
        s.pushes += n;
        sum += n * tau;
        squares += n * tau * tau;
        s.most = fmax(s.most, tau);
    }
    s.mean = sum / s.pushes;
    s.deviation = sqrt(fmax(0, squares / s.pushes - s.mean * s.mean));
    return s;
}

/* Bars of equal width from 0; the last bar includes all larger values. A file from elsewhere may
 * have values below 0; the first bar includes them. */
struct bars {
    double share[BARS];
    int64_t count, width;
};

static struct bars fill_bars(const struct report_cell *c, double reach)
{
    struct bars b = {.width = (int64_t)(reach / BARS) + 1};
    b.count = (int64_t)(reach / (double)b.width) + 1;
    double pushes = summarize(c).pushes;
    for (size_t i = 0; i < c->bins; i++) {
        const int64_t bar = c->histogram[i].staleness / b.width;
        b.share[bar < 0 ? 0 : bar < b.count ? bar : b.count - 1] += c->histogram[i].pushes / pushes;
    }
    return b;
}

/* The end of the scale for all cells of a column; a few outliers are left out. */
static double reach_of(const struct report_data *d, const struct report_section *s, int64_t column)
{
    double most = 0, mean = 0;
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        if (report_is_of(d, s, c) && c->column == column && c->bins > 0) {
            struct summary its = summarize(c);
            most = fmax(most, its.most);
            mean = fmax(mean, its.mean + 4 * its.deviation);
        }
    }
    return fmin(most, 1.5 * mean + 4);
}

static void add_histogram(struct text *out, const struct report_data *d,
                          const struct report_section *s, const struct report_cell *c, double reach)
{
    struct bars b = fill_bars(c, reach);
    struct summary its = summarize(c);
    const struct report_series *series = &d->series[c->series];
    double end = (double)(b.count * b.width), tallest = 0;
    bool figure = d->figures != NULL;
    char title[256];
    snprintf(title, sizeof title, "Staleness with %s, %s", report_column(s, c->column).text,
             series->label);
    for (int64_t i = 0; i < b.count; i++)
        tallest = fmax(tallest, b.share[i]);
    struct plot p = {
        .out = out,
        /* The bar of staleness 3 reaches from 2.5 to 3.5. */
        .x = {.low = -0.5, .high = end - 0.5, .whole = true, .label = figure ? "staleness" : NULL},
        .y = {.low = 0,
              .high = 100 * tallest * 1.05,
              .no_numbers = !figure,
              .ticks = figure ? NULL : &tallest,
              .label = figure ? "gradients, %" : NULL},
        .width = figure ? FIGURE_WIDTH : 170,
        .height = figure ? 180 : 84,
        .left = figure ? 42 : 4,
        .right = figure ? 12 : 4,
        .top = figure ? 26 : 4,
        .bottom = figure ? 40 : 20,
        .class = "mini",
        .figures = d->figures,
        .title = title,
        .description = "Share of gradients by staleness; the dashed line is the mean."};
    plot_begin(&p);
    plot_series_begin(&p, series->style);
    for (int64_t i = 0; i < b.count; i++) {
        char tip[96], to[32] = "";
        if (i == b.count - 1 && its.most >= end)
            snprintf(to, sizeof to, " and more");
        else if (b.width > 1)
            snprintf(to, sizeof to, " to %lld", (long long)((i + 1) * b.width - 1));
        snprintf(tip, sizeof tip, "τ %lld%s: %.1f %%", (long long)(i * b.width), to,
                 100 * b.share[i]);
        if (b.share[i] > 0)
            plot_bar(&p, (double)(i * b.width) - 0.5, (double)((i + 1) * b.width) - 0.5,
                     100 * b.share[i], tip);
    }
    plot_series_end(&p);
    plot_vertical(&p, its.mean);
    plot_key(&p, series->style, series->label);
    plot_end(&p);
    text_add(out, "<div class=\"under\">%s: mean <b>", report_column(s, c->column).text);
    html_number(out, its.mean, 1);
    text_add(out, "</b> · cv ");
    html_number(out, its.mean > 0 ? its.deviation / its.mean : NAN, 2);
    text_add(out, " · most %.0f%s</div>", its.most, its.most >= end ? ", in the last bar" : "");
}

static const struct report_cell *cell_with(const struct report_data *d, size_t series,
                                           int64_t column)
{
    const struct report_cell *c;
    for (size_t k = 0; (c = report_cell_of(d, series, k)) != NULL; k++)
        if (c->column == column && c->bins > 0)
            return c;
    return NULL;
}

static bool any_histogram(const struct report_data *d, size_t series, const int64_t *columns,
                          size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (cell_with(d, series, columns[i]) != NULL)
            return true;
    return false;
}

/* Writes the columns in which some gradient was stale; returns their number. */
static size_t columns_of(const struct report_data *d, const struct report_section *s,
                         int64_t columns[REPORT_COLUMNS])
{
    int64_t all[REPORT_COLUMNS];
    size_t all_count = report_columns(d, s, all, COUNT_OF(all)), count = 0;
    for (size_t i = 0; i < all_count; i++) {
        bool any = false;
        for (size_t k = s->first_series; k < s->first_series + s->series_count; k++) {
            const struct report_cell *c = cell_with(d, k, all[i]);
            any = any || (c != NULL && summarize(c).most > 0);
        }
        if (any)
            columns[count++] = all[i];
    }
    return count;
}

/* One row of histograms per arm; on a narrow page a row has several lines. */
static void add_rows(struct text *out, const struct report_data *d, const struct report_section *s,
                     const int64_t *columns, size_t count)
{
    for (size_t k = s->first_series; k < s->first_series + s->series_count; k++) {
        if (!any_histogram(d, k, columns, count))
            continue;
        text_add(out, "<div class=\"key k%u\"><h4>", d->series[k].style.index);
        plot_swatch(out, d->series[k].style);
        html_text(out, d->series[k].label);
        text_add(out, "</h4><div class=\"histograms\">\n");
        for (size_t i = 0; i < count; i++) {
            const struct report_cell *c = cell_with(d, k, columns[i]);
            text_add(out, "<div>");
            if (c != NULL)
                add_histogram(out, d, s, c, reach_of(d, s, columns[i]));
            text_add(out, "</div>\n");
        }
        text_add(out, "</div></div>\n");
    }
}

static void add_numbers(struct text *out, const struct report_data *d,
                        const struct report_section *s)
{
    const char *const titles[] = {"arm",     s->axis, "#n",    "#gradients", "#mean",
                                  "#± 95 %", "#cv",   "#most", NULL};
    const char *const shares[] = {"arm", s->axis, "#from", "#to", "#gradients", "#share %", NULL};
    struct html_table t;
    html_details_begin(out, "The numbers", false);
    html_table_begin(&t, out,
                     "Staleness of applied gradients: mean over seeds of a run's mean; cv is the "
                     "standard deviation over the mean, of all gradients",
                     titles);
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        if (report_is_of(d, s, c) && c->bins > 0) {
            struct summary its = summarize(c);
            report_cell_series(&t, d, c->series);
            html_cell_count(&t, c->column);
            html_cell_count(&t, c->staleness.n);
            html_cell_number(&t, its.pushes, 0);
            html_cell_number(&t, c->staleness.n > 0 ? sample_mean(&c->staleness) : its.mean, 2);
            html_cell_number(&t, sample_interval(&c->staleness), 2);
            html_cell_number(&t, its.mean > 0 ? its.deviation / its.mean : NAN, 2);
            html_cell_number(&t, its.most, 0);
        }
    }
    html_table_end(&t);
    html_table_begin(&t, out, "Gradients by staleness", shares);
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        if (!report_is_of(d, s, c) || c->bins == 0)
            continue;
        struct summary its = summarize(c);
        struct bars b = fill_bars(c, reach_of(d, s, c->column));
        for (int64_t k = 0; k < b.count; k++) {
            double last = (double)((k + 1) * b.width - 1);
            if (b.share[k] > 0) {
                report_cell_series(&t, d, c->series);
                html_cell_count(&t, c->column);
                html_cell_count(&t, k * b.width);
                html_cell_number(&t, k == b.count - 1 ? fmax(last, its.most) : last, 0);
                html_cell_number(&t, b.share[k] * its.pushes, 0);
                html_cell_number(&t, 100 * b.share[k], 2);
            }
        }
    }
    html_table_end(&t);
    html_details_end(out);
}

void report_staleness(struct text *out, const struct report_data *d, const struct report_section *s)
{
    int64_t columns[REPORT_COLUMNS];
    size_t count = columns_of(d, s, columns);
    if (count == 0)
        return;
    report_figure_begin(out, "Staleness",
                        "Share of applied gradients by staleness τ, all seeds together; the dashed "
                        "line is the mean. Arms without recorded gradients are left out: "
                        "synchronous gradients have staleness 0.");
    add_rows(out, d, s, columns, count);
    add_numbers(out, d, s);
    report_figure_end(out);
}
