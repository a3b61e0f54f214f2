/*
 * html.h — HTML of the report: escaped text, rounded numbers, tables.
 * Internal to results/.
 */
#ifndef GRADLAG_RESULTS_REPORT_HTML_H
#define GRADLAG_RESULTS_REPORT_HTML_H

#include "base/text.h"

/* Adds escaped text, for an element or a quoted attribute; NULL adds nothing. Control characters
 * become spaces; bytes that are not UTF-8 become U+FFFD. */
void html_text(struct text *out, const char *text);
/* Adds Markdown: paragraphs, `code`, *emphasis* and **strong**. Other markup stays as text. NULL
 * adds nothing. */
void html_prose(struct text *out, const char *markdown);
/* A number with so many decimals, from 1e9 on with a power of ten; an en dash for NaN. */
void html_number(struct text *out, double value, int decimals);
/* Three significant digits and k, M or G: 850, 27.5k. */
void html_short(struct text *out, double value);
/* The same with so many significant digits. */
void html_digits(struct text *out, double value, int digits);

/* A table. `titles` ends with NULL; a leading '#' (not shown) marks a column of numbers. The caller
 * adds cells row by row. */
struct html_table {
    struct text *out;
    const char *const *titles;
    size_t columns, at; /* at: column of the next cell */
};
void html_table_begin(struct html_table *t, struct text *out, const char *caption,
                      const char *const *titles);
void html_cell_text(struct html_table *t, const char *text);
void html_cell_number(struct html_table *t, double value, int decimals);
void html_cell_count(struct html_table *t, int64_t value);
/* Begin and end a cell; the caller adds its content to t->out. */
void html_cell_open(struct html_table *t, const char *class_or_null);
void html_cell_close(struct html_table *t);
void html_table_end(struct html_table *t);

/* <details> with a summary; closed when the page opens unless `open`. */
void html_details_begin(struct text *out, const char *summary, bool open);
void html_details_end(struct text *out);

#endif
