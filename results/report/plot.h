/*
 * plot.h — plots as inline SVG: axes, lines, bands, bars, marks. Internal to results/.
 *
 * Colours, dashes and fonts are classes that report/style.css defines, so that one drawing serves
 * light and dark pages. A series is told apart by its colour, by the shape of its marks and by its
 * dashes: never by colour alone. Every plot has a title and a description for who cannot see it.
 */
#ifndef GRADLAG_RESULTS_REPORT_PLOT_H
#define GRADLAG_RESULTS_REPORT_PLOT_H

#include "base/text.h"

struct plot_axis {
    double low, high; /* low < high; both > 0 where logarithmic */
    bool logarithmic;
    const char *label;   /* NULL: none */
    const double *ticks; /* at these alone; NULL: at round numbers */
    size_t tick_count;
    bool no_numbers; /* ticks without numbers, as in a row of plots that share an axis */
};

/* Set up by the caller before plot_begin; sizes are in CSS pixels at the drawing's own size. */
struct plot {
    struct text *out;
    struct plot_axis x, y;
    double width, height, left, right, top, bottom; /* left, …: margins around the area */
    const char *title, *description;                /* copied into the page, escaped */
    const char *class;                              /* NULL: none */
};

/* How a series looks. */
struct plot_style {
    unsigned index; /* within its experiment: colour and shape */
    unsigned dash;  /* 0 solid, 1 dashed, 2 dotted */
};

/* Widens [low, high] to take in a finite value; begin with low = INFINITY, high = -INFINITY. */
void plot_range(struct plot_axis *a, double value);
/* Leaves some air around the range, and makes one of an empty one. */
void plot_range_end(struct plot_axis *a);

/* The drawing with its grid and axes. Between plot_inside and plot_outside what lies outside of
 * the axes is cut off. */
void plot_begin(struct plot *p);
void plot_inside(struct plot *p);
void plot_outside(struct plot *p);
void plot_end(struct plot *p);

double plot_x(const struct plot *p, double x);
double plot_y(const struct plot *p, double y);

/* What belongs to a series, so that it stands out when it is pointed at. */
void plot_series_begin(struct plot *p, struct plot_style style, const char *tooltip_or_null);
void plot_series_end(struct plot *p);

/* Within a series; points that are not finite are passed over. */
void plot_line(struct plot *p, const double *x, const double *y, size_t count);
void plot_band(struct plot *p, const double *x, const double *low, const double *high,
               size_t count);
void plot_mark(struct plot *p, struct plot_style style, double x, double y, const char *tooltip);
void plot_error_bar(struct plot *p, double x, double low, double high);
/* A bar from y's low end. */
void plot_bar(struct plot *p, double x_from, double x_to, double y, const char *tooltip);
/* A dashed line across, for a mean or a limit. */
void plot_vertical(struct plot *p, double x);

/* Text at a place in pixels; anchor: start, middle or end. */
void plot_text(struct plot *p, double x, double y, const char *anchor, const char *class,
               const char *text);
/* Labels at the right edge, each as near to its y as the others allow. */
struct plot_label {
    struct plot_style style;
    const char *text;
    double y;  /* wanted, in pixels */
    double at; /* where it came to stand */
};
void plot_labels(struct plot *p, struct plot_label *labels, size_t count);
/* The name of a series, cut where it would be wider than PLOT_NAME_WIDTH. */
enum { PLOT_NAME_WIDTH = 400 };
void plot_name(struct plot *p, double x, double y, const char *name);
/* About how wide a name comes out, in pixels. */
double plot_name_width(const char *name);

/* A short piece of line with its mark, for legends and tables; it must be defined once, within an
 * <svg>. */
void plot_swatch_define(struct text *out, struct plot_style style);
void plot_swatch(struct text *out, struct plot_style style);

#endif
