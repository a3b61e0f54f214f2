#include "results/report/plot.h"

#include "base/text.h"
#include "results/report/html.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL_GAP = 15, COLOURS = 8, SWATCH = 34 };
#define CHARACTER_WIDTH 7.9 /* the width of n, a wide letter, in a name */

/* ---- series -------------------------------------------------------------------------------------
 */

static void add_classes(struct text *out, struct plot_style style)
{
    static const char *const dashes[] = {"", " dashed", " dotted"};
    text_add(out, "k%u c%u%s%s", style.index, style.index % COLOURS,
             dashes[style.dash < COUNT_OF(dashes) ? style.dash : 0],
             style.index >= COLOURS ? " again" : "");
}

void plot_series_begin(struct plot *p, struct plot_style style)
{
    text_add(p->out, "<g class=\"series ");
    add_classes(p->out, style);
    text_add(p->out, "\">");
}

void plot_series_end(struct plot *p)
{
    text_add(p->out, "</g>\n");
}

struct point {
    double x, y; /* in pixels */
};

/* The area within the axes. */
struct plot_area {
    struct point from, to;
};

static struct plot_area area_of(const struct plot *p)
{
    return (struct plot_area){{p->left, p->top}, {p->width - p->right, p->height - p->bottom}};
}

static bool is_inside(const struct plot *p, struct point at)
{
    const struct plot_area a = area_of(p);
    const double least = 0.05; /* less than the plot's decimals show */
    return at.x >= a.from.x - least && at.x <= a.to.x + least && at.y >= a.from.y - least &&
           at.y <= a.to.y + least;
}

/* An arrow out of the area, for values that lie beyond it. `at` is on the edge. */
static void add_arrow(struct plot *p, struct point at)
{
    const struct plot_area a = area_of(p);
    const char *shape = at.y <= a.from.y + 0.1   ? "m-5 6l5-6l5 6"
                        : at.y >= a.to.y - 0.1   ? "m-5-6l5 6l5-6"
                        : at.x <= a.from.x + 0.1 ? "m6-5l-6 5l6 5"
                                                 : "m-6-5l6 5l-6 5";
    text_add(p->out, "<path class=\"beyond\" d=\"M%.1f %.1f%s\"/>", at.x, at.y, shape);
}

/* The part of a line within the area, by Liang and Barsky's method; false: there is none. */
static bool cut_line(const struct plot *p, struct point *from, struct point *to)
{
    const struct plot_area a = area_of(p);
    const struct point way = {to->x - from->x, to->y - from->y};
    const double steps[] = {-way.x, way.x, -way.y, way.y};
    const double room[] = {from->x - a.from.x, a.to.x - from->x, from->y - a.from.y,
                           a.to.y - from->y};
    double first = 0, last = 1;
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        if (steps[i] == 0 && room[i] < 0)
            return false;
        if (steps[i] < 0)
            first = fmax(first, room[i] / steps[i]);
        else if (steps[i] > 0)
            last = fmin(last, room[i] / steps[i]);
    }
    *to = (struct point){from->x + last * way.x, from->y + last * way.y};
    *from = (struct point){from->x + first * way.x, from->y + first * way.y};
    return first <= last;
}

void plot_line(struct plot *p, const double *x, const double *y, size_t count)
{
    struct point last = {NAN, NAN}, arrows[2 * PLOT_POINTS];
    size_t arrow_count = 0;
    bool drawn = false; /* the path ends at the last point */
    text_add(p->out, "<path class=\"line\" d=\"M0 0");
    for (size_t i = 0; i < count && i < PLOT_POINTS; i++) {
        const struct point to = {plot_x(p, x[i]), plot_y(p, y[i])}, before = last;
        struct point from = before, end = to;
        if (!isfinite(to.x) || !isfinite(to.y))
            continue;
        last = to;
        if (isnan(from.x) || !cut_line(p, &from, &end)) {
            drawn = false;
            continue;
        }
        if (!drawn)
            text_add(p->out, "M%.1f %.1f", from.x, from.y);
        text_add(p->out, "L%.1f %.1f", end.x, end.y);
        drawn = is_inside(p, to);
        if (!drawn)
            arrows[arrow_count++] = end;
        if (!is_inside(p, before))
            arrows[arrow_count++] = from;
    }
    text_add(p->out, "\"/>");
    for (size_t i = 0; i < arrow_count; i++)
        add_arrow(p, arrows[i]);
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

void plot_band(struct plot *p, const double *x, const double *low, const double *high, size_t count)
{
    bool any = false;
    double width = p->width - p->left - p->right, height = p->height - p->top - p->bottom;
    /* An inner drawing cuts at the area. */
    text_add(p->out,
             "<svg x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" viewBox=\"%.1f %.1f %.1f "
             "%.1f\"><path class=\"band\" d=\"",
             p->left, p->top, width, height, p->left, p->top, width, height);
    for (size_t i = 0; i < count; i++)
        any = add_point(p, x[i], high[i], !any) || any;
    for (size_t i = count; i-- > 0;)
        any = add_point(p, x[i], low[i], !any) || any;
    text_add(p->out, "%s\"/></svg>", any ? "Z" : "M0 0");
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

static void add_tooltip(struct text *out, const char *tooltip)
{
    text_add(out, "<title>");
    html_text(out, tooltip);
    text_add(out, "</title>");
}

void plot_mark(struct plot *p, struct plot_style style, double x, double y, const char *tooltip)
{
    const struct point at = {plot_x(p, x), plot_y(p, y)};
    if (is_inside(p, at)) { /* false for NaN */
        draw_shape(p->out, style.index, at.x, at.y);
        text_add(p->out, ">");
        add_tooltip(p->out, tooltip);
        text_add(p->out, "</path>");
    }
}

void plot_point(struct plot *p, double x, double y, const char *tooltip)
{
    const struct point at = {plot_x(p, x), plot_y(p, y)};
    if (p->figures == NULL && is_inside(p, at)) {
        text_add(p->out, "<circle class=\"point\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\">", at.x, at.y);
        add_tooltip(p->out, tooltip);
        text_add(p->out, "</circle>");
    }
}

/* The end of an error bar: a cap, or an arrow if the end lies beyond the area. */
static void add_bar_end(struct plot *p, double x, double y)
{
    if (is_inside(p, (struct point){x, y}))
        text_add(p->out, "<path class=\"error\" d=\"M%.1f %.1fh6\"/>", x - 3, y);
    else
        add_arrow(p, (struct point){x, fmax(p->top, fmin(p->height - p->bottom, y))});
}

void plot_error_bar(struct plot *p, double x, double low, double high)
{
    struct point from = {plot_x(p, x), plot_y(p, low)}, to = {from.x, plot_y(p, high)};
    const double ends[] = {from.y, to.y};
    if (!isfinite(from.x) || !isfinite(from.y) || !isfinite(to.y) || !cut_line(p, &from, &to))
        return;
    text_add(p->out, "<path class=\"error\" d=\"M%.1f %.1fV%.1f\"/>", from.x, from.y, to.y);
    for (size_t i = 0; i < COUNT_OF(ends); i++)
        add_bar_end(p, from.x, ends[i]);
}

void plot_bar(struct plot *p, double x_from, double x_to, double y, const char *tooltip)
{
    double from = plot_x(p, x_from), to = plot_x(p, x_to), top = plot_y(p, y);
    double bottom = p->height - p->bottom, gap = to - from > 4 ? 1 : 0;
    text_add(p->out, "<rect class=\"bar\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">",
             from, top, fmax(0.6, to - from - gap), fmax(0, bottom - top));
    add_tooltip(p->out, tooltip);
    text_add(p->out, "</rect>");
}

void plot_part(struct plot *p, unsigned colour, double x_from, double x_to, double y, double height,
               const char *tooltip)
{
    double from = plot_x(p, x_from), to = plot_x(p, x_to), top = plot_y(p, y);
    char number[32];
    text_add(p->out,
             "<rect class=\"bar part c%u\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">",
             colour, from, top, to - from, height);
    add_tooltip(p->out, tooltip);
    text_add(p->out, "</rect>");
    snprintf(number, sizeof number, "%.0f %%", x_to - x_from);
    if (plot_name_width(number) + 4 < to - from) {
        char class[16];
        snprintf(class, sizeof class, "on%u", colour);
        plot_text(p, (from + to) / 2, top + height / 2 + 4, "middle", class, number);
    }
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

double plot_name_width(const char *name)
{
    double characters = 0;
    for (const char *c = name; *c != '\0'; c++)
        characters += ((unsigned char)*c & 0xc0) != 0x80; /* counts first bytes (UTF-8) */
    return CHARACTER_WIDTH * characters;
}

void plot_beside(struct plot *p, double x, double y, const char *class, const char *text)
{
    bool fits = x + 8 + plot_name_width(text) <= p->width;
    plot_text(p, fits ? x + 8 : x - 8, y, fits ? "start" : "end", class, text);
}

void plot_name(struct plot *p, double x, double y, double width, const char *name)
{
    struct text cut = {0};
    double room = width / CHARACTER_WIDTH;
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
        plot_series_begin(p, labels[i].style);
        text_add(p->out, "<path class=\"leader\" d=\"M%.1f %.1fL%.1f %.1f\"/>", edge + 4,
                 labels[i].y, edge + 20, labels[i].at);
        plot_name(p, edge + 24, labels[i].at + 4, p->right - 24, labels[i].text);
        plot_series_end(p);
    }
}

/* ---- keys ---------------------------------------------------------------------------------------
 */

static void draw_swatch(struct text *out, struct plot_style style)
{
    text_add(out, "<g class=\"");
    add_classes(out, style);
    text_add(out, "\"><path class=\"line\" d=\"M0 7H%d\"/>", SWATCH);
    draw_shape(out, style.index, SWATCH / 2.0, 7);
    text_add(out, "/></g>");
}

/* The number of bytes of `name` that fit into so many characters: up to a blank if possible. */
static size_t line_length(const char *name, size_t characters)
{
    size_t blank = 0, i = 0;
    for (; name[i] != '\0'; i++) {
        bool starts = ((unsigned char)name[i] & 0xc0) != 0x80;
        if (starts && characters-- == 0)
            return blank > 0 ? blank : i;
        blank = name[i] == ' ' ? i + 1 : blank;
    }
    return i;
}

/* The name beside a swatch, below the plot, in as many lines as necessary. */
static void add_key_name(struct plot *p, const char *name)
{
    const double left = SWATCH + 6;
    do {
        struct text line = {0};
        size_t length = line_length(name, (size_t)((p->width - left) / CHARACTER_WIDTH));
        text_add_bytes(&line, name, length);
        p->below += LABEL_GAP;
        plot_text(p, left, p->height + p->below - 2, "start", "name", line.at);
        text_free(&line);
        name += length;
    } while (*name != '\0');
}

static void begin_key(struct plot *p)
{
    if (p->below == 0)
        p->below = 6; /* a gap to the label of the axis */
}

void plot_key(struct plot *p, struct plot_style style, const char *name)
{
    if (p->figures == NULL)
        return;
    begin_key(p);
    text_add(p->out, "<g transform=\"translate(0 %.1f)\">", p->height + p->below + 2);
    draw_swatch(p->out, style);
    text_add(p->out, "</g>");
    add_key_name(p, name);
}

void plot_part_key(struct plot *p, unsigned colour, const char *name)
{
    if (p->figures == NULL)
        return;
    begin_key(p);
    text_add(p->out, "<rect class=\"bar c%u\" x=\"%d\" y=\"%.1f\" width=\"14\" height=\"11\"/>",
             colour, SWATCH - 14, p->height + p->below + 3);
    add_key_name(p, name);
}

/* Defines each style once, hidden; swatches refer to it by name. */
void plot_swatch_define(struct text *out, struct plot_style style)
{
    text_add(out, "<symbol id=\"w%u-%u\" viewBox=\"0 0 %d 14\">", style.index, style.dash, SWATCH);
    draw_swatch(out, style);
    text_add(out, "</symbol>\n");
}

void plot_swatch(struct text *out, struct plot_style style)
{
    text_add(out, "<svg class=\"swatch\" aria-hidden=\"true\"><use href=\"#w%u-%u\"/></svg>",
             style.index, style.dash);
}
