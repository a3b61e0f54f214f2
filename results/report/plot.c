#include "results/report/plot.h"

#include "base/text.h"
#include "results/report/html.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TICKS_AT_MOST = 24, LABEL_GAP = 15, COLOURS = 8 };

/* ---- axes ---------------------------------------------------------------------------------------
 */

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

/* Position of a value on the axis: 0 at the low end, 1 at the high end. */
static double share(const struct plot_axis *a, double value)
{
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
    for (double i = ceil(a->low / step); i * step <= a->high && count < TICKS_AT_MOST; i++)
        out[count++] = i * step;
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

static void draw_x_axis(struct plot *p)
{
    double ticks[TICKS_AT_MOST], bottom = p->height - p->bottom;
    size_t count = find_ticks(&p->x, (p->width - p->left - p->right) / 75, ticks);
    for (size_t i = 0; i < count; i++) {
        struct text number = {0};
        double x = plot_x(p, ticks[i]);
        text_add(p->out, "<path class=\"tick\" d=\"M%.1f %.1fv4\"/>", x, bottom);
        html_short(&number, ticks[i]);
        if (!p->x.no_numbers) { /* the last number must not cross the right edge */
            bool inside = x + plot_name_width(number.at) / 2 <= p->width;
            plot_text(p, inside ? x : p->width, bottom + 16, inside ? "middle" : "end", NULL,
                      number.at);
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
    size_t count = find_ticks(&p->y, fmax(2, (p->height - p->top - p->bottom) / 45), ticks);
    for (size_t i = 0; i < count; i++) {
        struct text number = {0};
        double y = plot_y(p, ticks[i]);
        text_add(p->out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", p->left, y,
                 p->width - p->right);
        html_short(&number, ticks[i]);
        if (!p->y.no_numbers)
            plot_text(p, p->left - 7, y + 4, "end", NULL, number.at);
        text_free(&number);
    }
    if (p->y.label != NULL) /* above the axis, not rotated */
        plot_text(p, 0, fmax(11, p->top - 9), "start", "label", p->y.label);
}

void plot_begin(struct plot *p)
{
    text_add(p->out,
             "<svg class=\"plot%s%s\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
             "role=\"img\"><title>",
             p->class != NULL ? " " : "", p->class != NULL ? p->class : "", p->width, p->height,
             p->width, p->height);
    html_text(p->out, p->title);
    text_add(p->out, "</title><desc>");
    html_text(p->out, p->description);
    text_add(p->out, "</desc>\n");
    draw_y_axis(p);
    text_add(p->out, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>", p->left, p->height - p->bottom,
             p->width - p->right);
    draw_x_axis(p);
}

void plot_inside(struct plot *p)
{
    double width = p->width - p->left - p->right, height = p->height - p->top - p->bottom;
    text_add(p->out,
             "<svg x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" viewBox=\"%.1f %.1f %.1f "
             "%.1f\">\n",
             p->left, p->top, width, height, p->left, p->top, width, height);
}

void plot_outside(struct plot *p)
{
    text_add(p->out, "</svg>\n");
}

void plot_end(struct plot *p)
{
    text_add(p->out, "</svg>\n");
}

/* ---- series -------------------------------------------------------------------------------------
 */

static void add_classes(struct text *out, struct plot_style style)
{
    static const char *const dashes[] = {"", " dashed", " dotted"};
    text_add(out, "k%u c%u%s%s", style.index, style.index % COLOURS,
             dashes[style.dash < COUNT_OF(dashes) ? style.dash : 0],
             style.index >= COLOURS ? " again" : "");
}

void plot_series_begin(struct plot *p, struct plot_style style, const char *tooltip_or_null)
{
    text_add(p->out, "<g class=\"series ");
    add_classes(p->out, style);
    text_add(p->out, "\">");
    if (tooltip_or_null != NULL) {
        text_add(p->out, "<title>");
        html_text(p->out, tooltip_or_null);
        text_add(p->out, "</title>");
    }
}

void plot_series_end(struct plot *p)
{
    text_add(p->out, "</g>\n");
}

/* One point of a path. */
static bool add_point(struct plot *p, double x, double y, bool first)
{
    double px = plot_x(p, x), py = plot_y(p, y);
    bool there = isfinite(px) && isfinite(py);
    if (there)
        text_add(p->out, "%s%.1f %.1f", first ? "M" : "L", px, py);
    return there;
}

void plot_line(struct plot *p, const double *x, const double *y, size_t count)
{
    bool any = false;
    text_add(p->out, "<path class=\"line\" d=\"");
    for (size_t i = 0; i < count; i++)
        any = add_point(p, x[i], y[i], !any) || any;
    text_add(p->out, "%s\"/>", any ? "" : "M0 0");
}

void plot_band(struct plot *p, const double *x, const double *low, const double *high, size_t count)
{
    bool any = false;
    text_add(p->out, "<path class=\"band\" d=\"");
    for (size_t i = 0; i < count; i++)
        any = add_point(p, x[i], high[i], !any) || any;
    for (size_t i = count; i-- > 0;)
        any = add_point(p, x[i], low[i], !any) || any;
    text_add(p->out, "%s\"/>", any ? "Z" : "M0 0");
}

/* Shapes of marks; the first ones differ most. */
static void draw_shape(struct text *out, unsigned index, double x, double y)
{
    static const char *const shapes[] = {
        "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",    /* circle */
        "m-3.6-3.6h7.2v7.2h-7.2Z",               /* square */
        "m0-4.8l4.6 8.2h-9.2Z",                  /* triangle */
        "m0-5.2l5.2 5.2l-5.2 5.2l-5.2-5.2Z",     /* diamond */
        "m0 4.8l4.6-8.2h-9.2Z",                  /* inverted triangle */
        "m-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3Z", /* plus */
        "m-4.6 0l2.3-4h4.6l2.3 4l-2.3 4h-4.6Z",  /* hexagon */
        ("m-4.2-2.1l2.1-2.1l2.1 2.1l2.1-2.1l2.1 2.1l-2.1 2.1l2.1 2.1l-2.1 2.1l-2.1-2.1l-2.1 2.1"
         "l-2.1-2.1l2.1-2.1Z"), /* cross */
        "m-5-2.2h10v4.4h-10Z",  /* horizontal bar */
        "m-2.2-5h4.4v10h-4.4Z", /* vertical bar */
    };
    text_add(out, "<path class=\"mark\" d=\"M%.1f %.1f%s\"", x, y,
             shapes[index % COUNT_OF(shapes)]);
}

void plot_mark(struct plot *p, struct plot_style style, double x, double y, const char *tooltip)
{
    double px = plot_x(p, x), py = plot_y(p, y);
    if (isfinite(px) && isfinite(py)) {
        draw_shape(p->out, style.index, px, py);
        text_add(p->out, "><title>");
        html_text(p->out, tooltip);
        text_add(p->out, "</title></path>");
    }
}

void plot_error_bar(struct plot *p, double x, double low, double high)
{
    double px = plot_x(p, x), from = plot_y(p, low), to = plot_y(p, high);
    if (isfinite(px) && isfinite(from) && isfinite(to)) {
        text_add(p->out, "<path class=\"error\" d=\"M%.1f %.1fV%.1fm-3 0h6M%.1f %.1fh6\"/>", px,
                 from, to, px - 3, from);
    }
}

void plot_bar(struct plot *p, double x_from, double x_to, double y, const char *tooltip)
{
    double from = plot_x(p, x_from), to = plot_x(p, x_to), top = plot_y(p, y);
    double bottom = p->height - p->bottom, gap = to - from > 4 ? 1 : 0;
    text_add(p->out,
             "<rect class=\"bar\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>",
             from, top, fmax(0.6, to - from - gap), fmax(0, bottom - top));
    html_text(p->out, tooltip);
    text_add(p->out, "</title></rect>");
}

void plot_vertical(struct plot *p, double x)
{
    static const char *const layers[] = {"limit under",
                                         "limit"}; /* visible on bars of any colour */
    for (size_t i = 0; i < COUNT_OF(layers); i++) {
        text_add(p->out, "<path class=\"%s\" d=\"M%.1f %.1fV%.1f\"/>", layers[i], plot_x(p, x),
                 p->top, p->height - p->bottom);
    }
}

/* ---- text ---------------------------------------------------------------------------------------
 */

void plot_text(struct plot *p, double x, double y, const char *anchor, const char *class,
               const char *text)
{
    text_add(p->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s%s%s>", x, y, anchor,
             class != NULL ? " class=\"" : "", class != NULL ? class : "",
             class != NULL ? "\"" : "");
    html_text(p->out, text);
    text_add(p->out, "</text>");
}

#define CHARACTER_WIDTH 7.2

double plot_name_width(const char *name)
{
    double characters = 0;
    for (const char *c = name; *c != '\0'; c++)
        characters += ((unsigned char)*c & 0xc0) != 0x80; /* the first byte of each */
    return fmin(CHARACTER_WIDTH * characters, PLOT_NAME_WIDTH);
}

void plot_name(struct plot *p, double x, double y, const char *name)
{
    struct text cut = {0};
    double room = PLOT_NAME_WIDTH / CHARACTER_WIDTH;
    const char *end = name;
    for (; *end != '\0'; end++) {
        bool starts = ((unsigned char)*end & 0xc0) != 0x80;
        if (starts && (room -= 1) < 1 && end[1] != '\0')
            break;
    }
    text_add_bytes(&cut, name, (size_t)(end - name));
    text_add(&cut, "%s", *end != '\0' ? "…" : "");
    plot_text(p, x, y, "start", "name", cut.at);
    text_free(&cut);
}

static int by_wanted_place(const void *a, const void *b)
{
    const struct plot_label *x = a, *y = b;
    return (x->y > y->y) - (x->y < y->y);
}

/* Moves labels down so that lines do not overlap, then up from the bottom edge. */
static void spread(struct plot_label *labels, size_t count, double top, double bottom)
{
    for (size_t i = 0; i < count; i++) {
        double least = i == 0 ? top : labels[i - 1].at + LABEL_GAP;
        labels[i].at = fmax(labels[i].y, least);
    }
    for (size_t i = count; i-- > 0;) {
        double most = i + 1 == count ? bottom : labels[i + 1].at - LABEL_GAP;
        labels[i].at = fmin(labels[i].at, most);
    }
}

void plot_labels(struct plot *p, struct plot_label *labels, size_t count)
{
    double edge = p->width - p->right;
    qsort(labels, count, sizeof *labels, by_wanted_place);
    spread(labels, count, 8, p->height - p->bottom + 4);
    for (size_t i = 0; i < count; i++) {
        plot_series_begin(p, labels[i].style, NULL);
        text_add(p->out, "<path class=\"leader\" d=\"M%.1f %.1fL%.1f %.1f\"/>", edge + 4,
                 labels[i].y, edge + 20, labels[i].at);
        plot_name(p, edge + 24, labels[i].at + 4, labels[i].text);
        plot_series_end(p);
    }
}

/* Defines each style once, hidden; swatches refer to it by name. */
void plot_swatch_define(struct text *out, struct plot_style style)
{
    text_add(out, "<symbol id=\"w%u-%u\" viewBox=\"0 0 34 14\"><g class=\"", style.index,
             style.dash);
    add_classes(out, style);
    text_add(out, "\"><path class=\"line\" d=\"M0 7H34\"/>");
    draw_shape(out, style.index, 17, 7);
    text_add(out, "/></g></symbol>\n");
}

void plot_swatch(struct text *out, struct plot_style style)
{
    text_add(out, "<svg class=\"swatch\" aria-hidden=\"true\"><use href=\"#w%u-%u\"/></svg>",
             style.index, style.dash);
}
