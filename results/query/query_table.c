#include "results/query/query_table.h"

#include "base/memory.h"
#include "base/terminal.h"
#include "results/query/query_bind.h"
#include "results/query/table_layout.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* ---- the rows ----------------------------------------------------------------------------------
 */

static size_t keep_text(struct query_table *t, const char *value)
{
    size_t offset = t->text.length;
    text_add_bytes(&t->text, value, strlen(value) + 1);
    return offset;
}

static status add_row(struct query_table *t, sqlite3_stmt *s)
{
    status result = OK;
    if (t->rows == t->capacity) {
        size_t capacity = t->capacity == 0 ? 64 : 2 * t->capacity;
        struct query_table_cell *grown = NULL;
        TRY(memory_new(&grown, capacity * t->columns, sizeof *grown,
                       "a table; ask for fewer rows with LIMIT, or for --csv"));
        if (t->rows > 0)
            memcpy(grown, t->cells, t->rows * t->columns * sizeof *grown);
        memory_free(t->cells);
        t->cells = grown;
        t->capacity = capacity;
    }
    struct query_table_cell *row = t->cells + t->rows++ * t->columns;
    for (size_t i = 0; i < t->columns; i++) {
        int column = (int)i;
        row[i].type = sqlite3_column_type(s, column);
        row[i].number = sqlite3_column_double(s, column);
        row[i].text = 0;
        if (row[i].type != SQLITE_FLOAT && row[i].type != SQLITE_NULL)
            row[i].text = keep_text(t, database_column_text(s, column));
    }
done:
    return result;
}

/* ---- numbers -----------------------------------------------------------------------------------
 */

/* Number of decimals for the reals of a column: four significant digits for the largest, without
 * common trailing zeros. −1: all are so small that they need an exponent. */
static int decimals_of(const struct query_table *t, size_t column)
{
    double greatest = 0;
    for (size_t i = 0; i < t->rows; i++) {
        const struct query_table_cell *c = &t->cells[i * t->columns + column];
        if (c->type == SQLITE_FLOAT && isfinite(c->number))
            greatest = fmax(greatest, fabs(c->number));
    }
    if (greatest == 0)
        return 0;
    int most = 3 - (int)floor(log10(greatest));
    if (most > 7)
        return -1;
    most = most < 0 ? 0 : most;
    int needed = 0;
    for (size_t i = 0; i < t->rows; i++) {
        const struct query_table_cell *c = &t->cells[i * t->columns + column];
        char digits[400];
        if (c->type != SQLITE_FLOAT || !isfinite(c->number))
            continue;
        int length = snprintf(digits, sizeof digits, "%.*f", most, c->number);
        int kept = most;
        while (kept > 0 && digits[--length] == '0')
            kept--;
        needed = kept > needed ? kept : needed;
    }
    return needed;
}

const char *query_table_cell(const struct query_table *t, size_t row, size_t column,
                             char buffer[400])
{
    const struct query_table_cell *c = &t->cells[row * t->columns + column];
    const int decimals = t->column[column].decimals;
    if (c->type == SQLITE_NULL)
        return "-";
    if (c->type != SQLITE_FLOAT)
        return t->text.at + c->text;
    double size = fabs(c->number);
    if (decimals < 0)
        snprintf(buffer, 400, "%.3e", c->number);
    else if (size > 0 && size < pow(10, 1 - decimals))
        snprintf(buffer, 400, "%.2g",
                 c->number); /* a small value beside large ones must not print as 0 */
    else
        snprintf(buffer, 400, "%.*f", decimals, c->number);
    return buffer;
}

static void measure(struct query_table *t, size_t column, bool markdown)
{
    char buffer[400];
    struct query_table_column *c = &t->column[column];
    c->decimals = decimals_of(t, column);
    c->right = t->rows > 0;
    for (size_t row = 0; row < t->rows; row++) {
        int type = t->cells[row * t->columns + column].type;
        const char *text = query_table_cell(t, row, column, buffer);
        unsigned columns = terminal_text_columns(text);
        for (const char *bar = text; markdown && (bar = strchr(bar, '|')) != NULL; bar++)
            columns++; /* for the '\' before it */
        c->cells = columns > c->cells ? columns : c->cells;
        c->right = c->right && type != SQLITE_TEXT && type != SQLITE_BLOB;
    }
}

/* ---- text --------------------------------------------------------------------------------------
 */

/* Adds the first characters of `from` that fit `limit` columns, at most up to `end`; returns their
 * columns. A space replaces a character that is not printable, so that text stays on its line and
 * cannot control the terminal. */
static unsigned add_characters(struct text *line, const char *from, const char *end, unsigned limit,
                               bool markdown)
{
    unsigned columns = 0;
    while (from < end) {
        struct terminal_character c = terminal_character_at(from);
        bool escaped = markdown && *from == '|';
        if (columns + c.columns + escaped > limit)
            break;
        text_add(line, "%s", escaped ? "\\" : "");
        text_add_bytes(line, c.printable ? from : " ", c.printable ? c.bytes : 1);
        columns += c.columns + escaped;
        from += c.bytes;
    }
    return columns;
}

/* Adds text of at most `limit` columns. If the text does not fit, … replaces its middle: the last
 * third shows its end, because names often differ there. Returns the columns. */
static unsigned add_limited(struct text *line, const char *value, unsigned limit)
{
    const char *end = value + strlen(value), *rest = value;
    unsigned columns = terminal_text_columns(value), last = (limit - 1) / 3;
    if (columns <= limit)
        return add_characters(line, value, end, limit, false);
    for (; columns > last; rest += terminal_character_at(rest).bytes)
        columns -= terminal_character_at(rest).columns;
    columns = add_characters(line, value, end, limit - 1 - last, false);
    text_add(line, "…");
    return columns + 1 + add_characters(line, rest, end, last, false);
}

static void add_padded(struct text *line, const char *value, const struct query_table_column *c,
                       bool last, bool markdown)
{
    size_t start = line->length;
    unsigned columns = markdown ? add_characters(line, value, value + strlen(value), UINT_MAX, true)
                                : add_limited(line, value, c->width);
    unsigned padding = c->width > columns ? c->width - columns : 0;
    if (!c->right && last)
        return;
    text_add(line, "%*s", (int)padding, "");
    if (c->right) {
        memmove(line->at + start + padding, line->at + start, line->length - start - padding);
        memset(line->at + start, ' ', padding);
    }
}

/* Adds an item of a list, on a new line if it does not fit the current one; *at: columns of the
 * current line. */
static void add_item(struct text *lines, unsigned *at, unsigned width, const char *item)
{
    unsigned columns = terminal_text_columns(item);
    bool fits = *at == 0 || *at + 1 + columns <= width;
    text_add(lines, "%s%s", !fits ? "\n  " : *at > 0 ? " " : "", item);
    *at = (fits ? *at + (*at > 0) : 2) + columns;
}

/* ---- tables ------------------------------------------------------------------------------------
 */

/* The last column that is in the table, which needs no padding. */
static size_t last_column(const struct query_table *t)
{
    size_t last = 0;
    for (size_t i = 0; i < t->columns; i++)
        if (query_table_shows(&t->column[i]))
            last = i;
    return last;
}

/* Adds what column i shows in one line of the table. */
static void add_cell(struct text *line, const struct query_table *t, size_t i, size_t last,
                     const char *value, bool markdown)
{
    text_add(line, "%s", markdown && i == 0 ? "| " : "");
    add_padded(line, value, &t->column[i], i == last && !markdown, markdown);
    text_add(line, "%s%s", markdown ? " |" : i < last ? " " : "", i < last ? " " : "\n");
}

static void add_rule(struct text *line, const struct query_table *t, bool markdown)
{
    size_t last = last_column(t);
    text_add(line, "%s", markdown ? "|" : "");
    for (size_t i = 0; i <= last; i++) {
        const struct query_table_column *c = &t->column[i];
        if (!query_table_shows(c))
            continue;
        unsigned width = c->width + (markdown ? 2 : 0);
        for (unsigned k = 0; k < width; k++)
            text_add(line, "%s", markdown && c->right && k == width - 1 ? ":" : "-");
        text_add(line, "%s", markdown ? "|" : i < last ? "  " : "");
    }
    text_add(line, "\n");
}

/* The names of the columns, in as many lines as they need. */
static status add_heading(struct text *lines, const struct query_table *t, bool markdown)
{
    status result = OK;
    const char **rest = NULL;
    struct text part = {0};
    size_t last = last_column(t);
    bool more = true;
    TRY(memory_new(&rest, t->columns, sizeof *rest, "a table"));
    for (size_t i = 0; i < t->columns; i++)
        rest[i] = t->column[i].name;
    while (more) {
        more = false;
        for (size_t i = 0; i <= last; i++) {
            if (!query_table_shows(&t->column[i]))
                continue;
            size_t bytes = table_layout_heading(rest[i], t->column[i].width);
            part.length = 0;
            text_add(&part, "%.*s", (int)bytes, rest[i]);
            add_cell(lines, t, i, last, part.at, markdown);
            rest[i] += bytes;
            more = more || rest[i][0] != '\0';
        }
        while (lines->length > 1 && lines->at[lines->length - 2] == ' ')
            lines->at[--lines->length - 1] = '\n';
    }
done:
    text_free(&part);
    memory_free(rest);
    return result;
}

/* "all 6 rows: mode=async, lr=0.03" */
static void add_shared(struct text *lines, struct query_table *t, unsigned width)
{
    struct text item = {0};
    char buffer[400];
    unsigned at = 0;
    size_t left = 0;
    for (size_t i = 0; i < t->columns; i++)
        left += t->column[i].shared;
    if (left == 0)
        return;
    text_add(&item, "all %zu rows:", t->rows);
    add_item(lines, &at, width, item.at);
    for (size_t i = 0; i < t->columns; i++) {
        struct query_table_column *c = &t->column[i];
        if (!c->shared)
            continue;
        unsigned name = terminal_text_columns(c->name) + 4; /* with indent, '=' and ',' */
        c->width = width > name + TABLE_TEXT_LEAST ? width - name : TABLE_TEXT_LEAST;
        c->shortened = c->cells > c->width;
        item.length = 0;
        text_add(&item, "%s=", c->name);
        add_limited(&item, query_table_cell(t, 0, i, buffer), c->width);
        text_add(&item, "%s", --left > 0 ? "," : "");
        add_item(lines, &at, width, item.at);
    }
    text_add(lines, "\n\n");
    text_free(&item);
}

/* Adds the names of the shortened columns, or of those that are left out. */
static void add_names(struct text *lines, unsigned *at, const struct query_table *t, bool shortened,
                      const struct query_style *style)
{
    struct text item = {0};
    size_t left = 0;
    for (size_t i = 0; i < t->columns; i++)
        left += shortened ? t->column[i].shortened : t->column[i].left_out;
    if (left > 0)
        add_item(lines, at, style->width, shortened ? "shortened:" : "left out:");
    for (size_t i = 0; i < t->columns && left > 0; i++) {
        if (!(shortened ? t->column[i].shortened : t->column[i].left_out))
            continue;
        item.length = 0;
        text_add(&item, "%s%s", t->column[i].name, --left > 0 ? "," : ";");
        add_item(lines, at, style->width, item.at);
    }
    text_free(&item);
}

/* Names the columns that are shortened or left out, and the command that prints everything. */
static void add_note(struct text *lines, const struct query_table *t,
                     const struct query_style *style)
{
    struct text item = {0};
    unsigned at = 0;
    size_t start = lines->length;
    text_add(lines, "\n");
    add_names(lines, &at, t, true, style);
    add_names(lines, &at, t, false, style);
    if (at == 0) {
        lines->length = start;
        return;
    }
    add_item(lines, &at, style->width, "everything:");
    for (const char *word = style->complete; *word != '\0'; word += strspn(word, " ")) {
        item.length = 0;
        text_add(&item, "%.*s", (int)strcspn(word, " "), word);
        add_item(lines, &at, style->width, item.at);
        word += strcspn(word, " ");
    }
    text_add(lines, "\n");
    text_free(&item);
}

static status write_table(struct query_table *t, const struct query_style *style, FILE *out)
{
    status result = OK;
    const bool markdown = style->format == QUERY_MARKDOWN;
    const size_t last = last_column(t);
    struct text lines = {0};
    char buffer[400];
    add_shared(&lines, t, style->width);
    TRY(add_heading(&lines, t, markdown));
    add_rule(&lines, t, markdown);
    for (size_t row = 0; row < t->rows; row++) {
        for (size_t i = 0; i <= last; i++)
            if (query_table_shows(&t->column[i]))
                add_cell(&lines, t, i, last, query_table_cell(t, row, i, buffer), markdown);
        fwrite(lines.at, 1, lines.length, out);
        lines.length = 0;
    }
    if (t->rows > 0)
        add_note(&lines, t, style);
    fwrite(lines.at, 1, lines.length, out);
done:
    text_free(&lines);
    return result;
}

/* ---- one line per column -----------------------------------------------------------------------
 */

static void write_vertical(const struct query_table *t, FILE *out)
{
    struct text lines = {0};
    char buffer[400];
    struct query_table_column name = {0};
    for (size_t i = 0; i < t->columns; i++) {
        unsigned columns = terminal_text_columns(t->column[i].name);
        name.width = columns > name.width ? columns : name.width;
    }
    for (size_t row = 0; row < t->rows; row++) {
        text_add(&lines, "%srow %zu\n", row > 0 ? "\n" : "", row + 1);
        for (size_t i = 0; i < t->columns; i++) {
            const char *value = query_table_cell(t, row, i, buffer);
            text_add(&lines, "  ");
            add_padded(&lines, t->column[i].name, &name, false, false);
            text_add(&lines, "  ");
            add_characters(&lines, value, value + strlen(value), UINT_MAX, false);
            text_add(&lines, "\n");
        }
        fwrite(lines.at, 1, lines.length, out);
        lines.length = 0;
    }
    text_free(&lines);
}

status query_table_write(sqlite3 *db, sqlite3_stmt *s, const struct query_style *style, FILE *out,
                         size_t *rows)
{
    status result = OK;
    struct query_table t = {.columns = (size_t)sqlite3_column_count(s)};
    const bool markdown = style->format == QUERY_MARKDOWN;
    int code;
    TRY(memory_new(&t.column, t.columns, sizeof *t.column, "a table"));
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        TRY(add_row(&t, s));
    TRY(query_check_step(db, code));
    for (size_t i = 0; i < t.columns; i++) {
        t.column[i].name = sqlite3_column_name(s, (int)i);
        measure(&t, i, markdown);
    }
    bool readable = table_layout(&t, markdown ? 0 : style->width);
    if (readable && style->format != QUERY_VERTICAL)
        TRY(write_table(&t, style, out));
    else
        write_vertical(&t, out);
    *rows = t.rows;
done:
    memory_free(t.column);
    memory_free(t.cells);
    text_free(&t.text);
    return result;
}
