#include "results/query/query_output.h"

#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* ---- numbers and text in full ------------------------------------------------------------------
 */

static void add_real(struct text *t, double value, const char *infinity)
{
    if (isinf(value)) {
        text_add(t, "%s%s", value < 0 ? "-" : "", infinity);
        return;
    }
    text_add_real(t, value);
}

static void add_blob(struct text *t, sqlite3_stmt *s, int column)
{
    const unsigned char *bytes = sqlite3_column_blob(s, column);
    int count = sqlite3_column_bytes(s, column);
    for (int i = 0; i < count; i++)
        text_add(t, "%02x", bytes[i]);
}

static const char *column_text(sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text == NULL ? "" : text;
}

static void add_csv_text(struct text *t, const char *value)
{
    if (strpbrk(value, ",\"\r\n") == NULL) {
        text_add_bytes(t, value, strlen(value));
        return;
    }
    text_add(t, "\"");
    for (const char *c = value; *c != '\0'; c++) {
        text_add_bytes(t, c, 1);
        if (*c == '"')
            text_add(t, "\"");
    }
    text_add(t, "\"");
}

static void add_csv_row(struct text *t, sqlite3_stmt *s)
{
    size_t start = t->length;
    for (int i = 0; i < sqlite3_column_count(s); i++) {
        text_add(t, "%s", i > 0 ? "," : "");
        switch (sqlite3_column_type(s, i)) {
        case SQLITE_NULL:
            break;
        case SQLITE_FLOAT:
            add_real(t, sqlite3_column_double(s, i), "inf");
            break;
        case SQLITE_BLOB:
            add_blob(t, s, i);
            break;
        default:
            add_csv_text(t, column_text(s, i));
        }
    }
    /* Most readers skip empty lines. */
    text_add(t, "%s\n", t->length == start ? "\"\"" : "");
}

static void add_json_row(struct text *t, sqlite3_stmt *s)
{
    text_add(t, "{");
    for (int i = 0; i < sqlite3_column_count(s); i++) {
        text_add(t, "%s", i > 0 ? ", " : "");
        text_add_json(t, sqlite3_column_name(s, i));
        text_add(t, ": ");
        switch (sqlite3_column_type(s, i)) {
        case SQLITE_NULL:
            text_add(t, "null");
            break;
        case SQLITE_INTEGER:
            text_add(t, "%lld", (long long)sqlite3_column_int64(s, i));
            break;
        case SQLITE_FLOAT:
            add_real(t, sqlite3_column_double(s, i), "1e999");
            break;
        case SQLITE_BLOB:
            text_add(t, "\"");
            add_blob(t, s, i);
            text_add(t, "\"");
            break;
        default:
            text_add_json(t, column_text(s, i));
        }
    }
    text_add(t, "}");
}

static status write_csv(sqlite3 *db, sqlite3_stmt *s, FILE *out, size_t *rows)
{
    status result = OK;
    struct text line = {0};
    int code;
    for (int i = 0; i < sqlite3_column_count(s); i++) {
        text_add(&line, "%s", i > 0 ? "," : "");
        add_csv_text(&line, sqlite3_column_name(s, i));
    }
    text_add(&line, "\n");
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        add_csv_row(&line, s);
        ++*rows;
        fwrite(line.at, 1, line.length, out);
        line.length = 0;
    }
    TRY(database_check(db, code, "read the answer"));
    fwrite(line.at, 1, line.length, out); /* the header of an empty result */
done:
    text_free(&line);
    return result;
}

static status write_json(sqlite3 *db, sqlite3_stmt *s, FILE *out, size_t *rows)
{
    status result = OK;
    struct text line = {0};
    int code;
    text_add(&line, "[");
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        text_add(&line, "%s", *rows == 0 ? "\n" : ",\n");
        add_json_row(&line, s);
        fwrite(line.at, 1, line.length, out);
        line.length = 0;
        ++*rows;
    }
    TRY(database_check(db, code, "read the answer"));
    text_add(&line, "%s]\n", *rows == 0 ? "" : "\n");
    fwrite(line.at, 1, line.length, out);
done:
    text_free(&line);
    return result;
}

/* ---- tables ------------------------------------------------------------------------------------
 */

struct query_output_cell {
    int type;      /* SQLITE_NULL, … */
    double number; /* SQLITE_INTEGER, SQLITE_FLOAT */
    size_t text;   /* offset into the table's text; unused for reals */
};

struct query_output_table {
    size_t columns, rows, capacity;
    struct query_output_cell *cells; /* rows × columns, row-major */
    struct text text;                /* NUL-separated */
};

static size_t keep_text(struct query_output_table *t, const char *value)
{
    size_t offset = t->text.length;
    text_add_bytes(&t->text, value, strlen(value) + 1);
    return offset;
}

static status add_row(struct query_output_table *t, sqlite3_stmt *s)
{
    status result = OK;
    if (t->rows == t->capacity) {
        size_t capacity = t->capacity == 0 ? 64 : 2 * t->capacity;
        struct query_output_cell *grown = NULL;
        TRY(memory_new(&grown, capacity * t->columns, sizeof *grown,
                       "a table; ask for fewer rows with LIMIT, or for --csv"));
        if (t->rows > 0)
            memcpy(grown, t->cells, t->rows * t->columns * sizeof *grown);
        memory_free(t->cells);
        t->cells = grown;
        t->capacity = capacity;
    }
    struct query_output_cell *row = t->cells + t->rows++ * t->columns;
    for (size_t i = 0; i < t->columns; i++) {
        int column = (int)i;
        row[i].type = sqlite3_column_type(s, column);
        row[i].number = sqlite3_column_double(s, column);
        row[i].text = 0;
        if (row[i].type != SQLITE_FLOAT && row[i].type != SQLITE_NULL)
            row[i].text = keep_text(t, column_text(s, column));
    }
done:
    return result;
}

/* Number of decimals for the reals of a column: four significant digits for the largest, without
 * common trailing zeros. −1: all are so small that they need an exponent. */
static int decimals_of(const struct query_output_table *t, size_t column)
{
    double greatest = 0;
    for (size_t i = 0; i < t->rows; i++) {
        const struct query_output_cell *c = &t->cells[i * t->columns + column];
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
        const struct query_output_cell *c = &t->cells[i * t->columns + column];
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

static const char *cell_text(const struct query_output_table *t, const struct query_output_cell *c,
                             int decimals, char buffer[400])
{
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

/* Width of UTF-8 text on a terminal, in characters. In Markdown, '|' is escaped and takes two. */
static int width_of(const char *text, bool markdown)
{
    int width = 0;
    for (; *text != '\0'; text++) {
        width += ((unsigned char)*text & 0xc0) != 0x80;
        width += markdown && *text == '|';
    }
    return width;
}

struct layout {
    int decimals, width;
    bool right; /* numbers */
};

static void set_layouts(const struct query_output_table *t, sqlite3_stmt *s, bool markdown,
                        struct layout *layouts)
{
    char buffer[400];
    for (size_t column = 0; column < t->columns; column++) {
        struct layout *l = &layouts[column];
        l->decimals = decimals_of(t, column);
        l->width = width_of(sqlite3_column_name(s, (int)column), markdown);
        l->right = t->rows > 0;
        for (size_t i = 0; i < t->rows; i++) {
            const struct query_output_cell *c = &t->cells[i * t->columns + column];
            int width = width_of(cell_text(t, c, l->decimals, buffer), markdown);
            l->width = width > l->width ? width : l->width;
            l->right = l->right && c->type != SQLITE_TEXT && c->type != SQLITE_BLOB;
        }
    }
}

/* Replaces control characters, so that text stays on its line and cannot control the terminal. */
static void add_padded(struct text *line, const char *value, const struct layout *l, bool last,
                       bool markdown)
{
    int padding = l->width - width_of(value, markdown);
    if (l->right)
        text_add(line, "%*s", padding, "");
    for (const char *c = value; *c != '\0'; c++) {
        text_add(line, "%s", markdown && *c == '|' ? "\\" : "");
        text_add_bytes(line, (unsigned char)*c < 0x20 || *c == 0x7f ? " " : c, 1);
    }
    if (!l->right && !last)
        text_add(line, "%*s", padding, "");
}

static void add_rule(struct text *line, const struct layout *layouts, size_t columns, bool markdown)
{
    text_add(line, "%s", markdown ? "|" : "");
    for (size_t column = 0; column < columns; column++) {
        const struct layout *l = &layouts[column];
        int width = l->width + (markdown ? 2 : 0);
        for (int i = 0; i < width; i++)
            text_add(line, "%s", markdown && l->right && i == width - 1 ? ":" : "-");
        text_add(line, "%s", markdown ? "|" : column + 1 < columns ? "  " : "");
    }
    text_add(line, "\n");
}

static void add_cells(struct text *line, const char *value, const struct layout *layouts,
                      size_t column, size_t columns, bool markdown)
{
    bool last = column + 1 == columns;
    if (!markdown) {
        add_padded(line, value, &layouts[column], last, false);
        text_add(line, "%s", last ? "\n" : "  ");
        return;
    }
    text_add(line, "%s", column == 0 ? "| " : "");
    add_padded(line, value, &layouts[column], false, true);
    text_add(line, "%s", last ? " |\n" : " | ");
}

static void write_table(const struct query_output_table *t, sqlite3_stmt *s,
                        const struct layout *layouts, bool markdown, FILE *out)
{
    struct text line = {0};
    char buffer[400];
    for (size_t i = 0; i < t->columns; i++)
        add_cells(&line, sqlite3_column_name(s, (int)i), layouts, i, t->columns, markdown);
    add_rule(&line, layouts, t->columns, markdown);
    for (size_t row = 0; row < t->rows; row++) {
        for (size_t i = 0; i < t->columns; i++) {
            const struct query_output_cell *c = &t->cells[row * t->columns + i];
            add_cells(&line, cell_text(t, c, layouts[i].decimals, buffer), layouts, i, t->columns,
                      markdown);
        }
        fwrite(line.at, 1, line.length, out);
        line.length = 0;
    }
    fwrite(line.at, 1, line.length, out);
    text_free(&line);
}

static status write_aligned(sqlite3 *db, sqlite3_stmt *s, bool markdown, FILE *out, size_t *rows)
{
    status result = OK;
    struct query_output_table t = {.columns = (size_t)sqlite3_column_count(s)};
    struct layout *layouts = NULL;
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        TRY(add_row(&t, s));
    TRY(database_check(db, code, "read the answer"));
    TRY(memory_new(&layouts, t.columns, sizeof *layouts, "a table"));
    set_layouts(&t, s, markdown, layouts);
    write_table(&t, s, layouts, markdown, out);
    *rows = t.rows;
done:
    memory_free(layouts);
    memory_free(t.cells);
    text_free(&t.text);
    return result;
}

status query_output_write(sqlite3 *db, sqlite3_stmt *s, enum query_format format, FILE *out,
                          size_t *rows)
{
    status result = OK;
    size_t count = 0;
    errno = 0;
    switch (format) {
    case QUERY_CSV:
        TRY(write_csv(db, s, out, &count));
        break;
    case QUERY_JSON:
        TRY(write_json(db, s, out, &count));
        break;
    case QUERY_TABLE:
    case QUERY_MARKDOWN:
        TRY(write_aligned(db, s, format == QUERY_MARKDOWN, out, &count));
        break;
    }
    if (fflush(out) != 0 || ferror(out)) {
        FAIL(ERROR_OTHER, "the result could not be written: %s; check the space on the disk",
             strerror(errno));
    }
    if (rows != NULL)
        *rows = count;
done:
    return result;
}
