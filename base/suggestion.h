/* suggestion.h — the error for an unknown name: suggests the nearest known name and lists them. */
#ifndef GRADLAG_BASE_SUGGESTION_H
#define GRADLAG_BASE_SUGGESTION_H

#include "base/text.h"

struct suggestion { /* the caller sets `wanted`; the other members start as zeros */
    const char *wanted, *nearest;
    size_t distance;
    struct text all; /* "a, b, c" */
};
/* Adds a known name; borrowed until suggestion_fail(). */
void suggestion_add(struct suggestion *s, const char *name);
/* ERROR_USAGE "FORMAT 'WANTED'. Did you mean 'NEAREST'? There is: a, b, c". If the list is too long
 * for a message, `instead` says where it can be read; else `instead` is NULL. Frees the list. */
status suggestion_fail(struct suggestion *s, const char *instead, const char *format, ...)
    PRINTF_LIKE(3, 4);
/* Optimal string alignment distance: letters inserted, removed, replaced, or neighbours swapped. */
size_t text_distance(const char *a, const char *b);

#endif
