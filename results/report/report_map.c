/*
 * report_map.c — which side of an experiment's map is ahead in each column. The levels of the last
 * axis are the columns of a panel; those of the axis before it are its rows. Each combination of
 * the other axes has a panel.
 */
#include "base/text.h"
#include "results/report/report_page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CELL_HEIGHT = 30, CELL_LEAST = 40, CELL_MOST = 62, TITLE_HEIGHT = 22, PANEL_GAP = 18 };

/* The places of the cells, in cells and in pixels. */
struct map_layout {
    const struct report_map *map;
    size_t panels, rows, columns, across; /* across: panels beside each other */
    double names, cell, panel_width, panel_height;
    double most; /* the largest margin of a decided cell */
    int decimals;
};

/* Cells are in order of panel, row and column; all panels have the same rows and columns. */
static void count_cells(struct map_layout *l)
{
    const struct report_map_cell *at = l->map->cells;
    l->columns = l->rows = 1;
    while (l->columns < l->map->cell_count && strcmp(at[l->columns].row, at[0].row) == 0 &&
           strcmp(at[l->columns].panel, at[0].panel) == 0)
        l->columns++;
    while (l->rows * l->columns < l->map->cell_count &&
           strcmp(at[l->rows * l->columns].panel, at[0].panel) == 0)
        l->rows++;
    l->panels = l->map->cell_count / (l->rows * l->columns);
    l->names = plot_name_width(l->map->column_axis) + 8;
    for (size_t i = 0; i < l->map->cell_count; i++) {
        l->names = fmax(l->names, plot_name_width(at[i].row) + 8);
        if (at[i].ahead >= 0)
            l->most = fmax(l->most, at[i].margin);
    }
}

static void place(struct map_layout *l, double width)
{
    const double columns = (double)l->columns;
    l->cell = fmin(CELL_MOST, fmax(CELL_LEAST, (width - l->names - 2) / columns));
    l->panel_width = l->names + columns * l->cell;
    l->panel_height = TITLE_HEIGHT + (double)l->rows * CELL_HEIGHT + TITLE_HEIGHT + PANEL_GAP;
    l->across = (size_t)fmax(1, floor((width + PANEL_GAP) / (l->panel_width + PANEL_GAP)));
    const size_t down = (l->panels + l->across - 1) / l->across;
    l->across = (l->panels + down - 1) / down; /* the last row is about as long as the others */
}

enum { SHORT_NAME = 40 };

/* The shortest start of a side's name that no other side has, with a capital. */
static void short_name(const struct report_map *map, size_t side, char out[SHORT_NAME])
{
    const char *name = map->sides[side];
    size_t length = 1;
    for (size_t i = 0; i < map->side_count; i++) {
        size_t common = 0;
        while (name[common] != '\0' && name[common] == map->sides[i][common])
            common++;
        if (i != side && common + 1 > length)
            length = common + 1;
    }
    while (((unsigned char)name[length - 1] & 0x80) != 0 &&
           ((unsigned char)name[length] & 0xc0) == 0x80) /* the rest of a character in UTF-8 */
        length++;
    snprintf(out, SHORT_NAME, "%.*s", (int)length, name);
    if (out[0] >= 'a' && out[0] <= 'z')
        out[0] = (char)(out[0] - 'a' + 'A');
}

enum { VALUE = SHORT_NAME + 32 };

/* "S 1.9": the start of the side's name, and the margin; in parentheses if it is undecided; with a
 * star if some arms are missing. */
static void value_text(const struct map_layout *l, const struct report_map_cell *c, char out[VALUE])
{
    char side[SHORT_NAME];
    if (c->best_side < 0) {
        snprintf(out, VALUE, "–");
        return;
    }
    short_name(l->map, (size_t)c->best_side, side);
    snprintf(out, VALUE, c->ahead >= 0 ? "%s %.*f%s" : "(%s %.*f)%s", side, l->decimals, c->margin,
             c->missing > 0 ? "*" : "");
}

static void tip_text(const struct map_layout *l, const struct report_map_cell *c, struct text *out)
{
    text_add(out, "%s%s%s, %s: ", c->panel, c->panel[0] != '\0' ? ", " : "", c->row, c->column);
    if (c->best_side < 0) {
        text_add(out, "not measured");
        return;
    }
    text_add(out, "%s by %.*f", c->ahead >= 0 ? l->map->sides[c->ahead] : "undecided",
             l->decimals + 1, c->margin);
    if (isfinite(c->interval))
        text_add(out, " ± %.*f", l->decimals + 1, c->interval);
    text_add(out, " (%u seed%s); %s, then %s", c->seeds, c->seeds == 1 ? "" : "s", c->best,
             c->other);
    if (c->missing > 0)
        text_add(out, "; %u of %u arms are not measured here", c->missing, c->arms);
}

/* The first two sides are blue and orange. Black would look grey when it is pale. */
static unsigned colour_of(int side)
{
    return side == 0 ? 2 : side == 1 ? 1 : (unsigned)side + 1;
}

static void draw_cell(struct plot *p, const struct map_layout *l, const struct report_map_cell *c,
                      double x, double y)
{
    struct text tip = {0};
    char value[VALUE];
    tip_text(l, c, &tip);
    value_text(l, c, value);
    text_add(p->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" ", x + 1, y + 1,
             l->cell - 2, CELL_HEIGHT - 2);
    /* Pale enough that text on it stays legible. */
    if (c->ahead >= 0)
        text_add(p->out, "class=\"bar c%u\" fill-opacity=\"%.2f\"><title>", colour_of(c->ahead),
                 0.12 + 0.38 * c->margin / l->most);
    else
        text_add(p->out, "class=\"grid\" fill-opacity=\"0\"><title>");
    html_text(p->out, tip.at);
    text_add(p->out, "</title></rect>");
    plot_text(p, x + l->cell / 2, y + CELL_HEIGHT / 2 + 4, "middle",
              c->ahead >= 0 ? "label" : "small", value);
    text_free(&tip);
}

static void draw_panel(struct plot *p, const struct map_layout *l, size_t panel)
{
    const struct report_map_cell *cells = &l->map->cells[panel * l->rows * l->columns];
    const double left = (double)(panel % l->across) * (l->panel_width + PANEL_GAP),
                 top = (double)(panel / l->across) * l->panel_height, x0 = left + l->names,
                 y0 = top + TITLE_HEIGHT;
    plot_text(p, x0, top + 14, "start", "name", cells[0].panel);
    for (size_t r = 0; r < l->rows; r++) {
        const double y = y0 + (double)r * CELL_HEIGHT;
        plot_text(p, x0 - 6, y + CELL_HEIGHT / 2 + 4, "end", NULL, cells[r * l->columns].row);
        for (size_t k = 0; k < l->columns; k++)
            draw_cell(p, l, &cells[r * l->columns + k], x0 + (double)k * l->cell, y);
    }
    const double y = y0 + (double)l->rows * CELL_HEIGHT + 14;
    for (size_t k = 0; k < l->columns; k++)
        plot_text(p, x0 + ((double)k + 0.5) * l->cell, y, "middle", NULL, cells[k].column);
    plot_text(p, x0 - 6, y, "end", "small", l->map->column_axis);
}

static void add_plot(struct text *out, const struct report_data *d, struct map_layout *l, bool wide)
{
    char description[256];
    const double width = wide ? 1060 : FIGURE_WIDTH;
    place(l, width);
    const size_t down = (l->panels + l->across - 1) / l->across;
    snprintf(description, sizeof description,
             "The side that is ahead and its margin in %zu cells, %zu panels of %zu rows and %zu "
             "columns. The table after it has the numbers.",
             l->map->cell_count, l->panels, l->rows, l->columns);
    struct plot p = {.out = out,
                     .bare = true,
                     .width = width,
                     .height = (double)down * l->panel_height - PANEL_GAP + 4,
                     .class = wide ? "wide" : "narrow",
                     .figures = d->figures,
                     .title = "Which side is ahead",
                     .description = description};
    plot_begin(&p);
    for (size_t i = 0; i < l->panels; i++)
        draw_panel(&p, l, i);
    for (size_t i = 0; i < l->map->side_count; i++)
        plot_part_key(&p, colour_of((int)i), l->map->sides[i]);
    plot_end(&p);
}

static void add_table(struct text *out, const struct map_layout *l)
{
    static const char *const titles[] = {"cell",   "ahead",    "#margin",        "#± 95 %",
                                         "#seeds", "best arm", "best other arm", NULL};
    struct html_table t;
    char ahead[128];
    html_details_begin(out, "The numbers", false);
    html_table_begin(&t, out, "Margin: mean difference of the best two sides on the same seeds",
                     titles);
    for (const struct report_map_cell *c = l->map->cells; c < l->map->cells + l->map->cell_count;
         c++) {
        html_cell_open(&t, NULL);
        html_text(t.out, c->panel);
        text_add(t.out, c->panel[0] != '\0' ? ", " : "");
        html_text(t.out, c->row);
        text_add(t.out, c->row[0] != '\0' ? ", " : "");
        html_text(t.out, c->column);
        html_cell_close(&t);
        snprintf(ahead, sizeof ahead, "%s%s",
                 c->best_side < 0 ? "not measured"
                 : c->ahead < 0   ? "undecided"
                                  : l->map->sides[c->ahead],
                 c->missing > 0 ? "*" : ""); /* a cell that is not measured has missing 0 */
        html_cell_text(&t, ahead);
        html_cell_number(&t, c->margin, l->decimals + 1);
        html_cell_number(&t, c->interval, l->decimals + 1);
        html_cell_count(&t, c->seeds);
        html_cell_text(&t, c->best);
        html_cell_text(&t, c->other);
    }
    html_table_end(&t);
    html_details_end(out);
}

static bool lacks_arms(const struct map_layout *l)
{
    for (size_t i = 0; i < l->map->cell_count; i++)
        if (l->map->cells[i].missing > 0)
            return true;
    return false;
}

void report_map(struct text *out, const struct report_data *d, const struct report_section *s)
{
    if (s->about == NULL || s->about->map.cell_count == 0)
        return;
    struct map_layout l = {.map = &s->about->map, .decimals = s->about->map.by_loss ? 3 : 1};
    struct text sides = {0};
    for (size_t i = 0; i < l.map->side_count; i++) {
        char side[SHORT_NAME];
        short_name(l.map, i, side);
        text_add(&sides, "%s%s: %s ahead", i > 0 ? ", " : "", side, l.map->sides[i]);
    }
    count_cells(&l);
    report_figure_begin(out, "Which side is ahead",
                        "%s, each by its best arm on the validation split. The number is the "
                        "margin in %s; the colour is stronger where it is larger. In parentheses: "
                        "undecided, 0 is in the 95 %% interval of the margin.%s",
                        sides.at, l.map->unit,
                        lacks_arms(&l) ? " With a star: without arms that are not measured there; "
                                         "one of them may be better."
                                       : "");
    for (int wide = d->figures == NULL; wide >= 0; wide--)
        add_plot(out, d, &l, wide);
    add_table(out, &l);
    report_figure_end(out);
    text_free(&sides);
}
