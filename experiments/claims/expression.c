#include "experiments/claims/expression.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 32, LEVELS = 8 };

struct reader {
    const char *whole, *at;
    const struct measures *measures;
    int depth;
};

static status sum(struct reader *r, double *value);

static void skip_spaces(struct reader *r)
{
    while (isspace((unsigned char)*r->at))
        r->at++;
}

static bool take(struct reader *r, char wanted)
{
    skip_spaces(r);
    if (*r->at == wanted) {
        r->at++;
        return true;
    }
    return false;
}

static status malformed(const struct reader *r, const char *expected)
{
    return error_set(ERROR_USAGE, __FILE__, __LINE__, "'%s': expected %s at '%s'", r->whole,
                     expected, *r->at == '\0' ? "the end" : r->at);
}

static status expect(struct reader *r, char character, const char *expected)
{
    return take(r, character) ? OK : malformed(r, expected);
}

/* Letters, digits and the characters of `also`. */
static status word(struct reader *r, const char *also, char out[64])
{
    size_t length = 0;
    skip_spaces(r);
    while ((isalnum((unsigned char)*r->at) || (*r->at != '\0' && strchr(also, *r->at) != NULL)) &&
           length < 63)
        out[length++] = *r->at++;
    out[length] = '\0';
    return length > 0 ? OK : malformed(r, "a name");
}

static status arm_name(struct reader *r, char out[64])
{
    return word(r, "_-.", out);
}

static status read_column(struct reader *r, int64_t *out)
{
    status result = OK;
    char names[LEVELS][64];
    const struct measures *m = r->measures;
    REQUIRE(m->levels >= 1 && m->levels <= LEVELS);
    for (size_t i = 0; i < m->levels; i++) {
        if (i > 0)
            TRY(expect(r, ',', "',' and another level of the column"));
        TRY(word(r, "_-.", names[i]));
    }
    TRY(m->column(m->context, names, out));
done:
    return result;
}

static bool at_level(struct reader *r)
{
    char name[64];
    const char *const at = r->at;
    const bool is = word(r, "_-.", name) == OK && r->measures->is_level(r->measures->context, name);
    r->at = at;
    return is;
}

/* (arm, other, workers) or (arm, workers, other, workers) */
static status pair(struct reader *r, const char *name, double *value)
{
    status result = OK;
    char arm[64], other[64];
    int64_t column = 0, other_column;
    TRY(arm_name(r, arm));
    TRY(expect(r, ',', "',' and another arm"));
    const bool two_counts = at_level(r);
    if (two_counts) {
        TRY(read_column(r, &column));
        TRY(expect(r, ',', "',' and another arm"));
    }
    TRY(arm_name(r, other));
    TRY(expect(r, ',', "',' and a column"));
    TRY(read_column(r, &other_column));
    TRY(expect(r, ')', "')'"));
    TRY(r->measures->pair(r->measures->context, name, arm, two_counts ? column : other_column,
                          other, other_column, value));
done:
    return result;
}

static status measure(struct reader *r, const char *name, double *value)
{
    status result = OK;
    char arm[64];
    int64_t column;
    double number = NAN;
    if (strncmp(name, "paired", 6) == 0 && r->measures->pair != NULL)
        return pair(r, name, value);
    TRY(arm_name(r, arm));
    TRY(expect(r, ',', "',' and a column"));
    TRY(read_column(r, &column));
    const bool has_number = take(r, ',');
    if (has_number)
        TRY(sum(r, &number));
    TRY(expect(r, ')', "')'"));
    if (has_number && isnan(number)) { /* the number itself is a measure without a value */
        *value = NAN;
        goto done;
    }
    TRY(r->measures->measure(r->measures->context, name, arm, column, number, value));
done:
    return result;
}

enum function_kind { MINIMUM, MAXIMUM, HYPOTENUSE, ABSOLUTE, FUNCTIONS };
static const char *const functions[] = {"min", "max", "hypot", "abs"};

static enum function_kind function_named(const char *name)
{
    enum function_kind kind = MINIMUM;
    while (kind < FUNCTIONS && strcmp(functions[kind], name) != 0)
        kind++;
    return kind;
}

/* NaN if one of them is NaN; fmin() and fmax() would ignore it. */
static double fold(enum function_kind kind, double so_far, double next)
{
    if (isnan(so_far) || isnan(next))
        return NAN;
    return kind == MINIMUM   ? fmin(so_far, next)
           : kind == MAXIMUM ? fmax(so_far, next)
                             : hypot(so_far, next);
}

/* The opening parenthesis has been read. */
static status function(struct reader *r, enum function_kind kind, double *value)
{
    status result = OK;
    TRY(sum(r, value));
    while (kind != ABSOLUTE && take(r, ',')) {
        double next;
        TRY(sum(r, &next));
        *value = fold(kind, *value, next);
    }
    *value = kind == ABSOLUTE || kind == HYPOTENUSE ? fabs(*value) : *value;
    TRY(expect(r, ')', "')'"));
done:
    return result;
}

static status primary(struct reader *r, double *value)
{
    status result = OK;
    char name[64], *end = NULL;
    if (++r->depth > DEEPEST)
        FAIL(ERROR_USAGE, "'%s' is nested deeper than %d", r->whole, DEEPEST);
    skip_spaces(r);
    if (take(r, '-')) {
        TRY(primary(r, value));
        *value = -*value;
    } else if (take(r, '(')) {
        TRY(sum(r, value));
        TRY(expect(r, ')', "')'"));
    } else if (isdigit((unsigned char)*r->at) || *r->at == '.') {
        *value = strtod(r->at, &end);
        if (end == r->at)
            TRY(malformed(r, "a number"));
        r->at = end;
    } else {
        TRY(word(r, "_", name));
        TRY(expect(r, '(', "'('"));
        enum function_kind kind = function_named(name);
        TRY(kind < FUNCTIONS ? function(r, kind, value) : measure(r, name, value));
    }
    r->depth--;
done:
    return result;
}

static status product(struct reader *r, double *value)
{
    status result = OK;
    double next;
    TRY(primary(r, value));
    for (bool times; (times = take(r, '*')) || take(r, '/');) {
        TRY(primary(r, &next));
        *value = times ? *value * next : *value / next;
    }
done:
    return result;
}

static status sum(struct reader *r, double *value)
{
    status result = OK;
    double next;
    TRY(product(r, value));
    for (bool plus; (plus = take(r, '+')) || take(r, '-');) {
        TRY(product(r, &next));
        *value += plus ? next : -next;
    }
done:
    return result;
}

status expression_value(const char *text, const struct measures *m, double *value)
{
    status result = OK;
    struct reader r = {.whole = text, .at = text, .measures = m};
    TRY(sum(&r, value));
    skip_spaces(&r);
    if (*r.at != '\0')
        TRY(malformed(&r, "an operator"));
done:
    return result;
}
