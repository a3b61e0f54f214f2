#include "results/report/html.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

void html_text(struct text *out, const char *text)
{
    for (const char *c = text == NULL ? "" : text; *c != '\0';) {
        size_t length = text_utf8_length(c);
        const char *as = NULL;
        switch (*c) {
        case '&':
            as = "&amp;";
            break;
        case '<':
            as = "&lt;";
            break;
        case '>':
            as = "&gt;";
            break;
        case '"':
            as = "&quot;";
            break;
        case '\'':
            as = "&#39;";
            break;
        default:
            as = length == 0                                              ? "\xef\xbf\xbd"
                 : length == 1 && ((unsigned char)*c < 0x20 || *c == 127) ? " "
                                                                          : NULL;
        }
        length = length == 0 ? 1 : length;
        text_add_bytes(out, as != NULL ? as : c, as != NULL ? strlen(as) : length);
        c += length;
    }
}

/* Text between two `mark`s becomes an element. */
static const struct {
    const char *mark, *element;
} inline_marks[] = {{"`", "code"}, {"**", "strong"}, {"*", "em"}};

/* The marked span that begins at `text`. It must end in this paragraph, without blanks inside its
 * marks. NULL: none. */
static const char *find_span(const char *text, const char *end, size_t mark)
{
    const char *what = inline_marks[mark].mark;
    size_t length = strlen(what);
    if (strncmp(text, what, length) != 0 || text[length] == ' ' || text[length] == '\n')
        return NULL;
    const char *close = strstr(text + length, what);
    bool whole = close != NULL && close < end && close > text + length && close[-1] != ' ';
    return whole ? close : NULL;
}

static void add_escaped(struct text *out, const char *from, const char *to)
{
    struct text copy = {0};
    text_add_bytes(&copy, from, (size_t)(to - from));
    html_text(out, copy.at);
    text_free(&copy);
}

static void add_paragraph(struct text *out, const char *text, const char *end)
{
    const char *plain = text;
    text_add(out, "<p>");
    while (text < end) {
        const char *close = NULL;
        size_t mark = 0;
        while (mark < COUNT_OF(inline_marks) && (close = find_span(text, end, mark)) == NULL)
            mark++;
        if (close == NULL) {
            text++;
            continue;
        }
        size_t length = strlen(inline_marks[mark].mark);
        add_escaped(out, plain, text);
        text_add(out, "<%s>", inline_marks[mark].element);
        add_escaped(out, text + length, close);
        text_add(out, "</%s>", inline_marks[mark].element);
        plain = text = close + length;
    }
    add_escaped(out, plain, end);
    text_add(out, "</p>\n");
}

void html_prose(struct text *out, const char *markdown)
{
    for (const char *at = markdown == NULL ? "" : markdown; *at != '\0';) {
        const char *blank = strstr(at, "\n\n");
        const char *end = blank != NULL ? blank : at + strlen(at);
        const char *next = end + strspn(end, "\n");
        while (end > at && end[-1] == '\n')
            end--;
        add_paragraph(out, at, end);
        at = next;
    }
}

void html_number(struct text *out, double value, int decimals)
{
    if (isnan(value))
        text_add(out, "–");
    else if (isinf(value))
        text_add(out, "%s∞", value < 0 ? "−" : "");
    else if (decimals > 0 && fabs(value) >= 1e9)
        text_add(out, "%s%.4g", value < 0 ? "−" : "", fabs(value));
    else
        text_add(out, "%s%.*f", value < 0 ? "−" : "", decimals, fabs(value));
}

void html_digits(struct text *out, double value, int digits)
{
    static const struct {
        double from;
        const char *suffix;
    } units[] = {{1e9, "G"}, {1e6, "M"}, {1e4, "k"}};
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        if (fabs(value) >= units[i].from && fabs(value) < 1e12) {
            double scale = units[i].from == 1e4 ? 1e3 : units[i].from;
            text_add(out, "%.*g%s", digits, value / scale, units[i].suffix);
            return;
        }
    }
    if (isfinite(value))
        text_add(out, "%.*g", fabs(value) >= 1000 && digits < 4 ? 4 : digits, value);
    else
        html_number(out, value, 0);
}

void html_short(struct text *out, double value)
{
    html_digits(out, value, 3);
}

/* ---- tables -------------------------------------------------------------------------------------
 */

static bool is_number(const struct html_table *t, size_t column)
{
    return t->titles[column][0] == '#';
}

void html_table_begin(struct html_table *t, struct text *out, const char *caption,
                      const char *const *titles)
{
    *t = (struct html_table){.out = out, .titles = titles};
    text_add(out, "<div class=\"scroll\" tabindex=\"0\"><table><caption>");
    html_text(out, caption);
    text_add(out, "</caption><thead><tr>");
    for (; titles[t->columns] != NULL; t->columns++) {
        bool number = is_number(t, t->columns);
        text_add(out, "<th scope=\"col\"%s>", number ? " class=\"number\"" : "");
        html_text(out, titles[t->columns] + number);
        text_add(out, "</th>");
    }
    text_add(out, "</tr></thead><tbody>\n");
}

void html_cell_open(struct html_table *t, const char *class_or_null)
{
    const char *its = class_or_null != NULL ? class_or_null : is_number(t, t->at) ? "number" : "";
    text_add(t->out, t->at == 0 ? "<tr>" : "");
    if (its[0] != '\0')
        text_add(t->out, "<td class=\"%s\">", its);
    else
        text_add(t->out, "<td>");
}

void html_cell_close(struct html_table *t)
{
    text_add(t->out, "</td>");
    if (++t->at == t->columns) {
        text_add(t->out, "</tr>\n");
        t->at = 0;
    }
}

void html_cell_text(struct html_table *t, const char *text)
{
    html_cell_open(t, NULL);
    html_text(t->out, text);
    html_cell_close(t);
}

void html_cell_number(struct html_table *t, double value, int decimals)
{
    html_cell_open(t, NULL);
    html_number(t->out, value, decimals);
    html_cell_close(t);
}

void html_cell_count(struct html_table *t, int64_t value)
{
    html_cell_open(t, NULL);
    text_add(t->out, "%lld", (long long)value);
    html_cell_close(t);
}

void html_table_end(struct html_table *t)
{
    REQUIRE(t->at == 0);
    text_add(t->out, "</tbody></table></div>\n");
}

void html_details_begin(struct text *out, const char *summary, bool open)
{
    text_add(out, "<details%s><summary>", open ? " open" : "");
    html_text(out, summary);
    text_add(out, "</summary>\n");
}

void html_details_end(struct text *out)
{
    text_add(out, "</details>\n");
}
