/*
 * plot_axes.c — the frame of a plot: ranges, ticks, axes, begin and end.
 */
#include "results/report/plot.h"

#include "base/text.h"
#include "results/report/figures.h"
#include "results/report/html.h"

#include <math.h>

enum { TICKS_AT_MOST = 24 };

void plot_range(struct plot_axis *a, double value)
{
    if (isfinite(value) && (!a->logarithmic || value > 0)) {
        a->low = fmin(a->low, value);
        a->high = fmax(a->high, value);
    }
}

void plot_range_end(struct plot_axis *a)
{
    if (!(a->low <= a->high)) {
        a->low = a->logarithmic ? 1 : 0;
        a->high = a->logarithmic ? 10 : 1;
    }
    if (a->logarithmic) {
        double air = fmax(pow(a->high / a->low, 0.06), 1.1);
        a->low /= air;
        a->high *= air;
    } else {
        double air = a->high > a->low ? 0.06 * (a->high - a->low) : fmax(0.5, fabs(a->low) / 20);
        a->low -= air;
        a->high += air;
    }
}

/* Position of a value on the axis: 0 at the low end, 1 at the high end. On a logarithmic axis, 0
 * and negative values are below the low end. */
static double share(const struct plot_axis *a, double value)
{
    if (a->logarithmic && value <= 0)
        return -1;
    if (a->logarithmic)
        return log(value / a->low) / log(a->high / a->low);
    return (value - a->low) / (a->high - a->low);
}

double plot_x(const struct plot *p, double x)
{
    return p->left + share(&p->x, x) * (p->width - p->left - p->right);
}

double plot_y(const struct plot *p, double y)
{
    return p->height - p->bottom - share(&p->y, y) * (p->height - p->top - p->bottom);
}

/* A step of 1, 2 or 5 times a power of ten, so that `span` has about `wanted` ticks. */
static double round_step(double span, double wanted)
{
    double rough = span / wanted, power = pow(10, floor(log10(rough))), digit = rough / power;
    return power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
}

static size_t linear_ticks(const struct plot_axis *a, double wanted, double out[TICKS_AT_MOST])
{
    size_t count = 0;
    double step = round_step(a->high - a->low, wanted);
    step = a->whole ? fmax(1, step) : step;
    for (double i = ceil(a->low / step); i * step <= a->high && count < TICKS_AT_MOST; i++)
        out[count++] = i * step + 0.0; /* not -0 */
    return count;
}

static size_t logarithmic_ticks(const struct plot_axis *a, double wanted, double out[TICKS_AT_MOST])
{
    static const double digits[] = {1, 2, 5};
    double decades = log10(a->high / a->low);
    size_t count = 0, each = decades <= wanted / 2 ? COUNT_OF(digits) : 1;
    double skip = fmax(1, ceil(decades / wanted));
    for (double d = floor(log10(a->low)); d <= log10(a->high); d++) {
        for (size_t i = 0; i < each && count < TICKS_AT_MOST; i++) {
            double tick = digits[i] * pow(10, d);
            if (tick >= a->low && tick <= a->high && fmod(d, skip) == 0)
                out[count++] = tick;
        }
    }
    return count > 1 || decades > 1 ? count : linear_ticks(a, wanted, out);
}

static size_t find_ticks(const struct plot_axis *a, double wanted, double out[TICKS_AT_MOST])
{
    if (a->ticks != NULL) {
        size_t count = 0;
        for (size_t i = 0; i < a->tick_count && count < TICKS_AT_MOST; i++)
            if (a->ticks[i] >= a->low && a->ticks[i] <= a->high)
                out[count++] = a->ticks[i];
        return count;
    }
    return a->logarithmic ? logarithmic_ticks(a, wanted, out) : linear_ticks(a, wanted, out);
}

/* The number at a tick, with enough digits to differ from its neighbours. */
static struct text number_at(const double *ticks, size_t count, size_t i)
{
    struct text number = {0};
    double step = INFINITY;
    for (size_t k = 1; k < count; k++)
        step = fmin(step, fabs(ticks[k] - ticks[k - 1]));
    double digits = ceil(log10(fabs(ticks[i]) / step)) + 1; /* -∞ for 0 */
    html_digits(&number, ticks[i], (int)fmax(3, fmin(digits, 15)));
    return number;
}

static void draw_x_axis(struct plot *p)
{
    double ticks[TICKS_AT_MOST], bottom = p->height - p->bottom, free = -INFINITY;
    size_t count = find_ticks(&p->x, (p->width - p->left - p->right) / 75, ticks);
    for (size_t i = 0; i < count; i++) {
        struct text number = number_at(ticks, count, i);
        double x = plot_x(p, ticks[i]), width = plot_name_width(number.at);
        text_add(p->out, "<path class=\"tick\" d=\"M%.1f %.1fv4\"/>", x, bottom);
        if (x - width / 2 >= free) { /* the last number must not cross the right edge */
            bool inside = x + width / 2 <= p->width;
            plot_text(p, inside ? x : p->width, bottom + 16, inside ? "middle" : "end", NULL,
                      number.at);
            free = x + width / 2 + 2;
        }
        text_free(&number);
    }
    if (p->x.label != NULL) {
        plot_text(p, (p->left + p->width - p->right) / 2, p->height - 4, "middle", "label",
                  p->x.label);
    }
}

static void draw_y_axis(struct plot *p)
{
    double ticks[TICKS_AT_MOST];
    struct text numbers[TICKS_AT_MOST];
    size_t count = find_ticks(&p->y, fmax(2, (p->height - p->top - p->bottom) / 45), ticks);
    for (size_t i = 0; i < count; i++) {
        numbers[i] = number_at(ticks, count, i);
        if (!p->y.no_numbers)
            p->left = fmax(p->left, plot_name_width(numbers[i].at) + 7);
    }
    for (size_t i = 0; i < count; i++) {
        double y = plot_y(p, ticks[i]);
        text_add(p->out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", p->left, y,
                 p->width - p->right);
        if (!p->y.no_numbers)
            plot_text(p, p->left - 7, y + 4, "end", NULL, numbers[i].at);
        text_free(&numbers[i]);
    }
    if (p->y.label != NULL) /* above the axis, not rotated */
        plot_text(p, 0, fmax(11, p->top - 9), "start", "label", p->y.label);
}

void plot_begin(struct plot *p)
{
    p->start = p->out->length;
    if (p->figures == NULL) {
        text_add(p->out,
                 "<svg class=\"plot%s%s\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
                 "height=\"%.0f\" role=\"img\">",
                 p->class != NULL ? " " : "", p->class != NULL ? p->class : "", p->width, p->height,
                 p->width, p->height);
    }
    text_add(p->out, "<title>");
    html_text(p->out, p->title);
    text_add(p->out, "</title><desc>");
    html_text(p->out, p->description);
    text_add(p->out, "</desc>\n");
    if (p->bare)
        return;
    draw_y_axis(p);
    text_add(p->out, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>", p->left, p->height - p->bottom,
             p->width - p->right);
    draw_x_axis(p);
}

void plot_end(struct plot *p)
{
    if (p->figures == NULL) {
        text_add(p->out, "</svg>\n");
    } else {
        figures_add(p->figures, p->title, p->width, p->height + p->below, p->out->at + p->start);
        p->out->length = p->start;
    }
}
