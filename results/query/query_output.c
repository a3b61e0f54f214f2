#include "results/query/query_output.h"

#include "base/text.h"
#include "results/query/query_bind.h"
#include "results/query/query_table.h"

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
        text_add_bytes(t, ",", i > 0);
        switch (sqlite3_column_type(s, i)) {
        case SQLITE_NULL:
            break;
        case SQLITE_INTEGER:
            text_add_integer(t, sqlite3_column_int64(s, i));
            break;
        case SQLITE_FLOAT:
            add_real(t, sqlite3_column_double(s, i), "inf");
            break;
        case SQLITE_BLOB:
            add_blob(t, s, i);
            break;
        default:
            add_csv_text(t, database_column_text(s, i));
        }
    }
    /* Most readers skip empty lines. */
    text_add_bytes(t, "\"\"", t->length == start ? 2 : 0);
    text_add_bytes(t, "\n", 1);
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
            text_add_json(t, database_column_text(s, i));
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
    TRY(query_check_step(db, code));
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
    TRY(query_check_step(db, code));
    text_add(&line, "%s]\n", *rows == 0 ? "" : "\n");
    fwrite(line.at, 1, line.length, out);
done:
    text_free(&line);
    return result;
}

status query_output_write(sqlite3 *db, sqlite3_stmt *s, const struct query_style *style, FILE *out,
                          size_t *rows)
{
    status result = OK;
    size_t count = 0;
    errno = 0;
    switch (style->format) {
    case QUERY_CSV:
        TRY(write_csv(db, s, out, &count));
        break;
    case QUERY_JSON:
        TRY(write_json(db, s, out, &count));
        break;
    case QUERY_TABLE:
    case QUERY_MARKDOWN:
    case QUERY_VERTICAL:
        TRY(query_table_write(db, s, style, out, &count));
        break;
    }
    if (fflush(out) != 0 || ferror(out)) {
        FAIL(ERROR_OTHER, "the rows cannot be written: %s; check the space on the disk",
             strerror(errno));
    }
    if (rows != NULL)
        *rows = count;
done:
    return result;
}
