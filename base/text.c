#include "base/text.h"

#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void text_reserve(struct text *t, size_t more)
{
    if (t->length + more + 1 <= t->capacity)
        return;
    size_t capacity = t->capacity == 0 ? 256 : t->capacity;
    while (capacity < t->length + more + 1)
        capacity *= 2;
    char *grown = realloc(t->at, capacity);
    REQUIRE(grown != NULL);
    t->at = grown;
    t->capacity = capacity;
}

void text_add_bytes(struct text *t, const char *bytes, size_t length)
{
    text_reserve(t, length);
    memcpy(t->at + t->length, bytes, length);
    t->length += length;
    t->at[t->length] = '\0';
}

status text_add_file(struct text *t, FILE *file)
{
    status result = OK;
    char part[4096];
    size_t got;
    while ((got = fread(part, 1, sizeof part, file)) > 0)
        text_add_bytes(t, part, got);
    if (ferror(file))
        FAIL(ERROR_DATA, "%s", strerror(errno));
done:
    return result;
}

void text_add_integer(struct text *t, int64_t value)
{
    char digits[24];
    size_t at = sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        digits[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (value < 0)
        digits[--at] = '-';
    text_add_bytes(t, &digits[at], sizeof digits - at);
}

/* Adds a whole multiple of 1e-9, as most recorded values are, several times faster than printf. The
 * multiple is below 2^53 and therefore exact, so `units` / 1e9 rounds as reading the decimal does.
 * A decimal of at most 15 digits is already the shortest one. False: the value is no such multiple,
 * or printf writes it with an exponent or as '-0'. */
static bool add_billionths(struct text *t, double value)
{
    const double units = nearbyint(value * 1e9);
    if (!(fabs(value) >= 1e-4 && fabs(units) < 1e15) || units / 1e9 != value)
        return false;
    const int64_t whole = (int64_t)fabs(units) / 1000000000;
    int64_t rest = (int64_t)fabs(units) % 1000000000;
    char digits[] = ".000000000";
    size_t length = sizeof digits - 1;
    for (size_t i = length - 1; i > 0; i--, rest /= 10)
        digits[i] = (char)('0' + rest % 10);
    while (digits[length - 1] == '0')
        length--;
    text_add_bytes(t, "-", value < 0);
    text_add_integer(t, whole);
    text_add_bytes(t, digits, length > 1 ? length : 0);
    return true;
}

void text_add_real(struct text *t, double value)
{
    char digits[32], shorter[32];
    if (add_billionths(t, value))
        return;
    /* If 16 digits are too few, 15 are as well. */
    snprintf(digits, sizeof digits, "%.16g", value);
    if (strtod(digits, NULL) != value) {
        snprintf(digits, sizeof digits, "%.17g", value);
    } else {
        snprintf(shorter, sizeof shorter, "%.15g", value);
        if (strtod(shorter, NULL) == value)
            memcpy(digits, shorter, sizeof digits);
    }
    text_add_bytes(t, digits, strlen(digits));
}

void text_add(struct text *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    REQUIRE(length >= 0);
    text_reserve(t, (size_t)length);
    va_start(arguments, format);
    vsnprintf(t->at + t->length, (size_t)length + 1, format, arguments);
    va_end(arguments);
    t->length += (size_t)length;
}

void text_first_line(const char *path, char *out, size_t room)
{
    FILE *file = fopen(path, "r");
    if (file == NULL || fgets(out, (int)room, file) == NULL)
        out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    if (file != NULL)
        fclose(file);
}

size_t text_utf8_length(const char *at)
{
    const unsigned char *c = (const unsigned char *)at;
    static const struct {
        unsigned char first, last, next_low, next_high;
        size_t length;
    } forms[] = {
        {0x01, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        if (c[0] < forms[i].first || c[0] > forms[i].last)
            continue;
        bool whole =
            forms[i].length == 1 || (c[1] >= forms[i].next_low && c[1] <= forms[i].next_high);
        for (size_t k = 2; whole && k < forms[i].length; k++)
            whole = (c[k] & 0xc0) == 0x80;
        bool character = c[0] != 0xef || c[1] != 0xbf || c[2] < 0xbe; /* not U+FFFE, U+FFFF */
        return whole && character ? forms[i].length : 0;
    }
    return 0;
}

void text_add_json(struct text *t, const char *value)
{
    if (value == NULL) {
        text_add(t, "null");
        return;
    }
    text_add(t, "\"");
    for (const char *c = value; *c != '\0';) {
        const size_t length = text_utf8_length(c);
        if (*c == '"' || *c == '\\')
            text_add(t, "\\%c", *c);
        else if (length == 0)
            text_add(t, "\\ufffd");
        else if ((unsigned char)*c < 0x20)
            text_add(t, "\\u%04x", (unsigned)*c);
        else
            text_add_bytes(t, c, length);
        c += length > 0 ? length : 1;
    }
    text_add(t, "\"");
}

void text_free(struct text *t)
{
    free(t->at);
    *t = (struct text){0};
}

char *text_copy(const char *s)
{
    size_t bytes = strlen(s) + 1;
    char *copy = memory_allocate(bytes);
    REQUIRE(copy != NULL);
    memcpy(copy, s, bytes);
    return copy;
}

bool text_to_integer(const char *text, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0 && !isspace((unsigned char)text[0]);
}

bool text_to_real(const char *text, double *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtod(text, &end);
    const bool underflow = *out == 0 && errno == ERANGE, hexadecimal = strpbrk(text, "xX") != NULL;
    return end != text && *end == '\0' && isfinite(*out) && !underflow && !hexadecimal &&
           !isspace((unsigned char)text[0]);
}
