#include "experiments/sweep/sweep_axis.h"

#include "base/memory.h"
#include "base/text.h"
#include "experiments/sweep/search.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static status add(struct axis *a, const char *value, size_t length)
{
    status result = OK;
    if (a->count == AXIS_VALUES)
        FAIL(ERROR_USAGE, "%s: %s has more than %d values", a->origin, a->key, AXIS_VALUES);
    char *copy = text_copy(value);
    copy[length] = '\0';
    a->values[a->count++] = copy;
done:
    return result;
}

static status add_points(struct axis *a, const char *range)
{
    status result = OK;
    struct space space = {0};
    TRY(space_add_range(&space, a->key, range, a->origin));
    const struct dimension *d = &space.at[0];
    if (d->points == 0) {
        const double numbers = d->whole && !d->logarithmic ? d->high - d->low + 1 : 5;
        FAIL(ERROR_USAGE,
             "%s: %s=%s is a range without a number of points; give the number (%s:%.0f), or a "
             "search that chooses the points, for example search=tpe (`gradlag list searches`)",
             a->origin, a->key, range, range, fmin(numbers, 5));
    }
    for (size_t i = 0; i < d->points; i++) {
        char number[40];
        snprintf(number, sizeof number, "%.15g",
                 dimension_number(d, (double)i / (double)(d->points - 1)));
        TRY(add(a, number, strlen(number)));
    }
done:
    space_close(&space);
    return result;
}

status axis_read(struct axis *out, const struct setting *s)
{
    status result = OK;
    const char *start = s->value;
    int depth = 0;
    *out = (struct axis){.key = s->key, .origin = s->origin};
    if (search_is_range(s->value)) {
        TRY(add_points(out, s->value));
        goto done;
    }
    if (s->whole) {
        TRY(add(out, s->value, strlen(s->value)));
        goto done;
    }
    for (const char *at = s->value;; at++) {
        depth += (*at == '(') - (*at == ')');
        if (*at != '\0' && (*at != ',' || depth > 0))
            continue;
        size_t length = (size_t)(at - start);
        if (*at == ',' || start > s->value) { /* an item of a list: spaces around it do not count */
            for (; length > 0 && *start == ' '; length--)
                start++;
            for (; length > 0 && start[length - 1] == ' '; length--) {
            }
        }
        if (length >= 2 && start[0] == '(' && start[length - 1] == ')') {
            start++;
            length -= 2;
        }
        TRY(add(out, start, length));
        if (*at == '\0')
            break;
        start = at + 1;
    }
done:
    return result;
}

void axis_free(struct axis *a)
{
    for (size_t v = 0; v < a->count; v++)
        memory_free(a->values[v]);
    a->count = 0;
}

void axes_choose(const struct axis *axes, size_t count, size_t number, struct settings *out)
{
    size_t below = 1;
    for (size_t i = 0; i < count; i++)
        below *= axes[i].count;
    for (size_t i = 0; i < count; i++) {
        below /= axes[i].count;
        settings_add(out, axes[i].key, axes[i].values[number / below % axes[i].count],
                     axes[i].origin);
    }
}

void axes_combine(const struct axis *axes, size_t count, const struct settings *fixed,
                  size_t number, struct settings *out)
{
    struct settings all = {0};
    settings_add_all(&all, fixed);
    axes_choose(axes, count, number, &all);
    settings_add_dotted_first(out, &all);
    settings_free(&all);
}

/* ---- dotted keys --------------------------------------------------------------------------------
 */

/* The last setting that chooses the part of a dotted key; NULL: there is none. */
static const struct setting *choice_of(const struct settings *read, const char *dotted)
{
    const size_t length = strcspn(dotted, ".");
    for (size_t i = read->count; i-- > 0;)
        if (strlen(read->at[i].key) == length && strncmp(read->at[i].key, dotted, length) == 0)
            return &read->at[i];
    return NULL;
}

/* ERROR_USAGE: part `value` does not have the key. `choice` NULL: the default part does not. */
static status check_with(const struct setting *choice, const char *value,
                         const struct setting *dotted)
{
    status result = OK;
    struct settings chosen = {0};
    options *o = NULL;
    if (choice != NULL)
        settings_add(&chosen, choice->key, value, choice->origin);
    TRY(config_compose_unchecked(&o, &chosen));
    if (!options_declared(o, dotted->key))
        TRY(options_set(o, dotted->key, dotted->value, dotted->origin));
done:
    options_close(&o);
    settings_free(&chosen);
    return result;
}

static status check_dotted(const struct settings *read, const struct setting *dotted)
{
    status result = OK;
    struct axis a = {0};
    const struct setting *choice = choice_of(read, dotted->key);
    if (choice == NULL)
        return check_with(NULL, NULL, dotted);
    TRY(axis_read(&a, choice));
    for (size_t v = 0; v < a.count; v++) {
        result = check_with(choice, a.values[v], dotted);
        if (result == OK)
            break;
    }
done:
    axis_free(&a);
    return result;
}

status axes_check_dotted(const struct settings *read)
{
    status result = OK;
    for (size_t i = 0; i < read->count; i++) {
        const char *key = read->at[i].key;
        if (strchr(key, '.') != NULL && !search_is_key(key) && !settings_is_overruled(read, i))
            TRY(check_dotted(read, &read->at[i]));
    }
done:
    return result;
}
