#include "results/query/table_layout.h"

#include "base/terminal.h"

#include <string.h>

enum { BETWEEN = 2 };

static unsigned larger(unsigned a, unsigned b)
{
    return a > b ? a : b;
}

static unsigned smaller(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* ---- the heading -------------------------------------------------------------------------------
 */

/* Bytes of the first word of a name, with the '_' or space that ends it. */
static size_t word_of(const char *name)
{
    size_t length = strcspn(name, "_ ");
    return length + (name[length] != '\0');
}

static unsigned columns_of(const char *name, size_t bytes)
{
    unsigned columns = 0;
    for (const char *c = name; c < name + bytes;) {
        struct terminal_character at = terminal_character_at(c);
        columns += at.columns;
        c += at.bytes;
    }
    return columns;
}

size_t table_layout_heading(const char *name, unsigned width)
{
    size_t bytes = word_of(name);
    while (name[bytes] != '\0') {
        size_t more = bytes + word_of(name + bytes);
        if (columns_of(name, more) > width)
            break;
        bytes = more;
    }
    return bytes;
}

static unsigned longest_word(const char *name)
{
    unsigned longest = 0;
    for (size_t bytes; *name != '\0'; name += bytes) {
        bytes = word_of(name);
        longest = larger(longest, columns_of(name, bytes));
    }
    return longest;
}

/* ---- widths ------------------------------------------------------------------------------------
 */

/* The width of a column with its name in one line. */
static unsigned full_width(const struct query_table_column *c)
{
    return larger(c->cells, terminal_text_columns(c->name));
}

/* The width of a column with its name in several lines and its text shortened to `most` columns. */
static unsigned least_width(const struct query_table_column *c, unsigned most)
{
    unsigned word = longest_word(c->name);
    return c->right ? larger(c->cells, smaller(word, most)) : smaller(larger(c->cells, word), most);
}

/* The width of the table; most: as in least_width(); 0: full widths. */
static unsigned total_width(const struct query_table *t, unsigned most)
{
    unsigned total = 0;
    for (size_t i = 0; i < t->columns; i++) {
        const struct query_table_column *c = &t->column[i];
        if (query_table_shows(c))
            total += (total > 0 ? BETWEEN : 0) + (most == 0 ? full_width(c) : least_width(c, most));
    }
    return total;
}

static void set_widths(struct query_table *t, unsigned most)
{
    for (size_t i = 0; i < t->columns; i++) {
        struct query_table_column *c = &t->column[i];
        c->width = most == 0 ? full_width(c) : least_width(c, most);
        c->shortened =
            query_table_shows(c) && (c->cells > c->width || longest_word(c->name) > c->width);
    }
}

/* ---- the columns of the table ------------------------------------------------------------------
 */

static bool same_in_all_rows(const struct query_table *t, size_t column)
{
    char first[400], other[400];
    const char *wanted = query_table_cell(t, 0, column, first);
    int type = t->cells[column].type;
    for (size_t row = 1; row < t->rows; row++) {
        const struct query_table_cell *c = &t->cells[row * t->columns + column];
        if (c->type != type || strcmp(query_table_cell(t, row, column, other), wanted) != 0 ||
            (type != SQLITE_TEXT && type != SQLITE_BLOB && c->number != t->cells[column].number))
            return false;
    }
    return true;
}

/* At least one column stays in the table. */
static void take_out_shared(struct query_table *t)
{
    size_t shared = 0;
    for (size_t i = 0; i < t->columns; i++)
        shared += t->column[i].shared = same_in_all_rows(t, i);
    if (shared == t->columns)
        t->column[0].shared = false;
}

/* Leaves out the last column that is in the table; false if it is the only one. */
static bool leave_out_last(struct query_table *t)
{
    size_t last = t->columns, count = 0;
    for (size_t i = 0; i < t->columns; i++) {
        if (query_table_shows(&t->column[i])) {
            last = i;
            count++;
        }
    }
    if (count > 1)
        t->column[last].left_out = true;
    return count > 1;
}

bool table_layout(struct query_table *t, unsigned width)
{
    unsigned most = 0;
    bool fits = width == 0 || total_width(t, 0) <= width;
    if (!fits && t->rows == 1)
        return false;
    if (!fits && t->rows > 1)
        take_out_shared(t);
    if (!fits && total_width(t, 0) > width) {
        while (total_width(t, TABLE_TEXT_LEAST) > width && leave_out_last(t))
            continue;
        for (most = width; most > TABLE_TEXT_LEAST && total_width(t, most) > width;)
            most--;
    }
    set_widths(t, most);
    return true;
}
