/*
 * html.h — the report's HTML: text that cannot turn into markup, numbers for reading, tables.
 * Internal to results/.
 */
#ifndef GRADLAG_RESULTS_REPORT_HTML_H
#define GRADLAG_RESULTS_REPORT_HTML_H

#include "base/text.h"

/* Adds text of unknown origin, in an element or in a quoted attribute; NULL adds nothing. Control
 * characters come out as spaces, bytes that are not UTF-8 as U+FFFD. */
void html_text(struct text *out, const char *text);
/* Markdown as paragraphs with `code`, *emphasis* and **strong** in them; what else it has stays as
 * it is written. NULL adds nothing. */
void html_prose(struct text *out, const char *markdown);
/* A number with so many decimals; an en dash where it is NaN. */
void html_number(struct text *out, double value, int decimals);
/* Three significant digits and k, M or G: 850, 27.5k. */
void html_short(struct text *out, double value);

/* A table whose columns are titles, ended by NULL. A title that begins with '#' (taken off) is of
 * numbers. Cells come one by one, row by row. */
struct html_table {
    struct text *out;
    const char *const *titles;
    size_t columns, at; /* at: the cell that comes next */
};
void html_table_begin(struct html_table *t, struct text *out, const char *caption,
                      const char *const *titles);
void html_cell_text(struct html_table *t, const char *text);
void html_cell_number(struct html_table *t, double value, int decimals);
void html_cell_count(struct html_table *t, int64_t value);
/* Begins and ends a cell whose content the caller adds to t->out. */
void html_cell_open(struct html_table *t, const char *class_or_null);
void html_cell_close(struct html_table *t);
void html_table_end(struct html_table *t);

/* <details> with a summary; closed when the page opens unless `open`. */
void html_details_begin(struct text *out, const char *summary, bool open);
void html_details_end(struct text *out);

#endif
