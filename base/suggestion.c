#include "base/suggestion.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

size_t text_distance(const char *a, const char *b)
{
    enum { LONGEST = 63 };
    size_t row[LONGEST + 1],
        before[LONGEST + 1] = {0}; /* distances of the first i and i − 1 letters of a */
    size_t m = strlen(a), n = strlen(b);
    if (m > LONGEST || n > LONGEST)
        return strcmp(a, b) == 0 ? 0 : LONGEST;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t earlier[LONGEST + 1]; /* distances of i − 2 letters */
        memcpy(earlier, before, sizeof earlier);
        memcpy(before, row, sizeof before);
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t least = before[j - 1] + (a[i - 1] != b[j - 1]);
            least = least < before[j] + 1 ? least : before[j] + 1;
            least = least < row[j - 1] + 1 ? least : row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                least = least < earlier[j - 2] + 1 ? least : earlier[j - 2] + 1;
            row[j] = least;
        }
    }
    return row[n];
}

static size_t largest_distance(const struct suggestion *n)
{
    return 1 + strlen(n->wanted) / 3;
}

void suggestion_add(struct suggestion *n, const char *name)
{
    enum { BEGINNING = 4 };
    size_t length = strlen(n->wanted), distance = text_distance(n->wanted, name);
    if (length >= BEGINNING && distance > largest_distance(n) &&
        strncmp(name, n->wanted, length) == 0)
        distance = largest_distance(n); /* the user typed only the beginning */
    bool swapped =
        distance == n->distance && strlen(name) == length; /* for "modle": "model", not "mode" */
    if (n->nearest == NULL || distance < n->distance || (swapped && strlen(n->nearest) != length)) {
        n->nearest = name;
        n->distance = distance;
    }
    text_add(&n->all, "%s%s", n->all.length > 0 ? ", " : "", name);
}

status suggestion_fail(struct suggestion *n, const char *instead, const char *format, ...)
{
    bool near = n->nearest != NULL && n->distance <= largest_distance(n);
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    const char *all = n->all.at != NULL ? n->all.at : "none";
    status result =
        error_set(ERROR_USAGE, __FILE__, __LINE__, "%s '%s'.%s%s%s %s%s", what, n->wanted,
                  near ? " Did you mean '" : "", near ? n->nearest : "", near ? "'?" : "",
                  instead != NULL ? instead : "There is: ", instead != NULL ? "" : all);
    text_free(&n->all);
    return result;
}
