/*
 * plot.h — plots as SVG: axes, lines, bands, bars, marks. Internal to results/.
 *
 * A plot is a part of the page, or a figure: a file of its own. Colours and dashes are classes that
 * report/plot.css defines, so that one drawing serves light and dark pages and figures. A series is
 * told apart by its colour, by the shape of its marks and by its dashes: not only by colour. Every
 * plot has a title and a description for screen readers.
 */
#ifndef GRADLAG_RESULTS_REPORT_PLOT_H
#define GRADLAG_RESULTS_REPORT_PLOT_H

#include "base/text.h"

struct plot_axis {
    double low, high; /* low < high; both > 0 if logarithmic */
    bool logarithmic;
    const char *label;   /* NULL: none */
    const double *ticks; /* positions of ticks; NULL: round numbers */
    size_t tick_count;
    bool no_numbers; /* y only: ticks without numbers */
    bool whole;      /* ticks at whole numbers only */
};

/* Set up by the caller before plot_begin; sizes are in CSS pixels at the drawing's own size. */
struct plot {
    struct text *out;
    struct plot_axis x, y;
    double width, height, left, right, top, bottom; /* left, …: margins around the area */
    const char *title, *description;                /* copied into the page, escaped */
    const char *class;                              /* NULL: none */
    bool bare;               /* without axes; x, y and the margins are not used */
    struct figures *figures; /* NULL: on the page; else plot_end() adds the plot to them */
    size_t start;            /* set by plot_begin(): its place in `out` */
    double below;            /* height of the keys under the plot so far */
};

/* How a series looks. */
struct plot_style {
    unsigned index; /* within its experiment: colour and shape */
    unsigned dash;  /* 0 solid, 1 dashed, 2 dotted */
};

/* Extends [low, high] to a finite value; begin with low = INFINITY, high = -INFINITY. */
void plot_range(struct plot_axis *a, double value);
/* Adds margins to the range; replaces an empty range. */
void plot_range_end(struct plot_axis *a);

/* plot_begin writes the grid and the axes. It widens the left margin if the numbers at the y axis
 * need more. */
void plot_begin(struct plot *p);
void plot_end(struct plot *p);

/* Positions in pixels. On a logarithmic axis, 0 and negative values are beyond the low end. */
double plot_x(const struct plot *p, double x);
double plot_y(const struct plot *p, double y);

/* Groups the parts of a series, so that pointing at it highlights it. */
void plot_series_begin(struct plot *p, struct plot_style style);
void plot_series_end(struct plot *p);

/* Call these within a series. Points that are not finite are skipped. What lies beyond the axes is
 * cut; where a line or an error bar is cut, it ends in an arrow. Lines have at most PLOT_POINTS. */
enum { PLOT_POINTS = 512 };
void plot_line(struct plot *p, const double *x, const double *y, size_t count);
void plot_band(struct plot *p, const double *x, const double *low, const double *high,
               size_t count);
void plot_mark(struct plot *p, struct plot_style style, double x, double y, const char *tooltip);
/* A place without a mark that has a tooltip; on the page only. */
void plot_point(struct plot *p, double x, double y, const char *tooltip);
void plot_error_bar(struct plot *p, double x, double low, double high);
/* A bar from the low end of the y axis. */
void plot_bar(struct plot *p, double x_from, double x_to, double y, const char *tooltip);
/* A part of a horizontal bar, with its share in percent as text. It begins at y and is `height`
 * pixels high. */
void plot_part(struct plot *p, unsigned colour, double x_from, double x_to, double y, double height,
               const char *tooltip);
/* A dashed vertical line, for a mean or a limit. */
void plot_vertical(struct plot *p, double x);

/* Text at a position in pixels; anchor: start, middle or end. */
void plot_text(struct plot *p, double x, double y, const char *anchor, const char *class,
               const char *text);
/* Text beside a mark at a position in pixels, on the side where there is room. */
void plot_beside(struct plot *p, double x, double y, const char *class, const char *text);
/* Labels at the right edge, each as close to its y as possible without overlap. */
struct plot_label {
    struct plot_style style;
    const char *text;
    double y;  /* wanted, in pixels */
    double at; /* out: its position */
};
void plot_labels(struct plot *p, struct plot_label *labels, size_t count);
/* Writes the name of a series; "…" replaces what does not fit into so many pixels. */
void plot_name(struct plot *p, double x, double y, double width, const char *name);
/* Estimated width of a name in pixels. */
double plot_name_width(const char *name);

/* A line of the legend under a figure; on the page, which has its own legend, nothing. */
void plot_key(struct plot *p, struct plot_style style, const char *name);
void plot_part_key(struct plot *p, unsigned colour, const char *name);

/* A short line with its mark, for legends and tables. Define each style once within an <svg>. */
void plot_swatch_define(struct text *out, struct plot_style style);
void plot_swatch(struct text *out, struct plot_style style);

#endif
