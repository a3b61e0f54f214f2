/* search.c — the registry of searches, spaces and ranges, and the functions for methods. */
#include "experiments/sweep/search.h"

#include "base/memory.h"
#include "base/text.h"
#include "experiments/config/keys.h"
#include "base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEARCH(name) extern const struct search_kind search_##name;
#include "experiments/sweep/search.def"
#undef SEARCH

static const struct about *const entries[] = {
#define SEARCH(name) &search_##name.about,
#include "experiments/sweep/search.def"
#undef SEARCH
};
const struct registry search_registry = {"search", entries, COUNT_OF(entries)};

const struct option search_keys[] = {
    {"search", OPTION_NAME, "grid", 0, 0, NULL, &search_registry,
     "the method that chooses settings for the best accuracy, or the lowest loss if the data have "
     "no classes, on the validation split"},
    {"search.seed", OPTION_INTEGER, "1", 0, 9007199254740992.0, NULL, NULL,
     "seed of the random draws; the same seed gives the same trials"},
    {"search.per", OPTION_TEXT, "", 0, 0, NULL, NULL,
     "sweep: keys, comma-separated; each combination of their values gets its own search"},
    {0},
};

bool search_is_key(const char *key)
{
    return strcmp(key, "search") == 0 || strncmp(key, "search.", 7) == 0;
}

/* ---- spaces -------------------------------------------------------------------------------------
 */

static struct dimension *append(struct space *s, const char *key, const char *origin)
{
    struct dimension *d = memory_append(&s->at, &s->count, sizeof *d);
    *d = (struct dimension){.key = text_copy(key), .origin = text_copy(origin)};
    return d;
}

static status check_room(const struct space *s, const char *key, const char *origin)
{
    status result = OK;
    if (s->count == SEARCH_DIMENSIONS) {
        FAIL(ERROR_USAGE, "%s: %s: a search can have at most %d keys; give some of them one value",
             origin, key, SEARCH_DIMENSIONS);
    }
done:
    return result;
}

status space_add_choice(struct space *s, const char *key, const char *const *values, size_t count,
                        const char *origin)
{
    status result = OK;
    TRY(check_room(s, key, origin));
    struct dimension *d = append(s, key, origin);
    TRY(memory_new(&d->values, count, sizeof *d->values, key));
    for (size_t i = 0; i < count; i++) {
        d->values[i] = text_copy(values[i]);
        d->count++;
    }
done:
    return result;
}

bool search_is_range(const char *text)
{
    const char *dots = strstr(text, "..");
    char *end = NULL;
    strtod(text, &end);
    /* strtod() reads "1..2" as "1." and leaves ".2" */
    return end != text && (end == dots || end == dots + 1);
}

/* Reads the number at the start of a text; returns its end, or NULL if there is none. */
static const char *read_number(const char *text, double *out)
{
    char copy[64], *end = NULL;
    const char *stop = strstr(text, "..");
    size_t length = stop != NULL ? (size_t)(stop - text) : strcspn(text, ":");
    if (length == 0 || length >= sizeof copy)
        return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    *out = strtod(copy, &end);
    return *end == '\0' && isfinite(*out) ? text + length : NULL;
}

/* ":log", ":5", in any order */
static bool read_suffixes(const char *text, struct dimension *d)
{
    while (*text == ':') {
        size_t length = strcspn(++text, ":");
        char *end = NULL;
        long points = strtol(text, &end, 10);
        if (length == 3 && strncmp(text, "log", 3) == 0)
            d->logarithmic = true;
        else if (end == text + length && points >= 2 && points <= SEARCH_TRIALS)
            d->points = (size_t)points;
        else
            return false;
        text += length;
    }
    return *text == '\0';
}

static status check_range(const struct dimension *d, const char *text, const struct option *o)
{
    status result = OK;
    if (d->low >= d->high) {
        FAIL(ERROR_USAGE, "%s: %s=%s: the range is empty; put the lower number first", d->origin,
             d->key, text);
    }
    if (d->logarithmic && d->low <= 0)
        FAIL(ERROR_USAGE, "%s: %s=%s: a range with :log must begin above 0", d->origin, d->key,
             text);
    if (o != NULL && o->type != OPTION_REAL && o->type != OPTION_INTEGER) {
        FAIL(ERROR_USAGE, "%s: %s=%s: %s is not a number; list the values to try, comma-separated",
             d->origin, d->key, text, d->key);
    }
    if (o != NULL && (d->low < o->minimum || d->high > o->maximum)) {
        FAIL(ERROR_USAGE, "%s: %s=%s: the key allows %.15g to %.15g", d->origin, d->key, text,
             o->minimum, o->maximum);
    }
done:
    return result;
}

status space_add_range(struct space *s, const char *key, const char *text, const char *origin)
{
    status result = OK;
    const struct option *o = keys_find(key);
    TRY(check_room(s, key, origin));
    struct dimension *d = append(s, key, origin);
    const char *at = read_number(text, &d->low);
    at = at != NULL && strncmp(at, "..", 2) == 0 ? read_number(at + 2, &d->high) : NULL;
    if (at == NULL || !read_suffixes(at, d)) {
        FAIL(
            ERROR_USAGE,
            "%s: %s=%s is not a valid range; write LOW..HIGH, with :log for a log scale and :N for "
            "N grid points, for example 0.001..0.3:log",
            origin, key, text);
    }
    d->whole = o != NULL && o->type == OPTION_INTEGER;
    TRY(check_range(d, text, o));
done:
    return result;
}

void space_close(struct space *s)
{
    for (size_t i = 0; i < s->count; i++) {
        struct dimension *d = &s->at[i];
        for (size_t k = 0; k < d->count; k++)
            memory_free(d->values[k]);
        memory_free(d->values);
        memory_free(d->key);
        memory_free(d->origin);
    }
    free(s->at);
    *s = (struct space){0};
}

/* Four digits, and one more for each power of ten by which the largest number exceeds the width of
 * the range. */
static int digits(const struct dimension *d)
{
    const double most = fmax(fabs(d->low), fabs(d->high));
    return 4 + (int)fmin(fmax(floor(log10(most / (d->high - d->low))), 0), 11);
}

/* Trials use the rounded number, so that the rows record exactly it. */
static double rounded(const struct dimension *d, double number)
{
    char text[32];
    if (d->whole)
        return nearbyint(number);
    snprintf(text, sizeof text, "%.*g", digits(d), number);
    return strtod(text, NULL);
}

double dimension_place(const struct dimension *d, double number)
{
    return d->logarithmic ? log(number / d->low) / log(d->high / d->low)
                          : (number - d->low) / (d->high - d->low);
}

double dimension_number(const struct dimension *d, double place)
{
    if (place <= 0 || place >= 1)
        return place <= 0 ? d->low : d->high; /* not rounded */
    const double number = d->logarithmic ? d->low * pow(d->high / d->low, place)
                                         : d->low + place * (d->high - d->low);
    return fmin(fmax(rounded(d, number), d->low), d->high);
}

/* ---- searches -----------------------------------------------------------------------------------
 */

static bool is_of_method(const char *key)
{
    for (const struct option *o = search_keys; o->key != NULL; o++)
        if (strcmp(o->key, key) == 0)
            return false;
    return true;
}

status search_open(struct search *out, const struct space *space, const struct settings *settings)
{
    status result = OK;
    const struct about *about = NULL;
    *out = (struct search){.space = space};
    TRY(options_open(&out->options));
    TRY(options_declare(out->options, search_keys));
    for (int dotted = 0; dotted <= 1; dotted++) {
        for (size_t i = 0; i < settings->count; i++) {
            const struct setting *s = &settings->at[i];
            if (is_of_method(s->key) == dotted)
                TRY(options_set(out->options, s->key, s->value, s->origin));
        }
        if (!dotted) {
            TRY(registry_require(&search_registry, options_text(out->options, "search"), &about));
            out->kind = (const struct search_kind *)about;
            if (about->options != NULL)
                TRY(options_declare(out->options, about->options));
        }
    }
    out->seed = (uint64_t)options_integer(out->options, "search.seed");
    if (out->kind->check != NULL)
        TRY(out->kind->check(out));
    if (search_total(out) > SEARCH_TRIALS) {
        FAIL(ERROR_USAGE, "the search has %zu trials; the limit is %d: give fewer values or points",
             search_total(out), SEARCH_TRIALS);
    }
done:
    if (result != OK)
        search_close(out);
    return result;
}

void search_close(struct search *s)
{
    options_close(&s->options);
    free(s->trials);
    *s = (struct search){0};
}

static bool waits_for_scores(const struct search *s)
{
    for (size_t i = s->round_begin; i < s->count; i++)
        if (isnan(s->trials[i].score))
            return true;
    return false;
}

status search_next(struct search *s, size_t *added)
{
    status result = OK;
    size_t before = s->count;
    *added = 0;
    if (!waits_for_scores(s) && s->count < search_total(s)) {
        TRY(s->kind->propose(s));
        s->round_begin = before;
        *added = s->count - before;
    }
done:
    return result;
}

bool search_has_ended(const struct search *s)
{
    return !waits_for_scores(s) && s->count == search_total(s);
}

size_t search_total(const struct search *s)
{
    return s->kind->total(s);
}

const struct trial *search_best(const struct search *s)
{
    const struct trial *best = NULL;
    for (size_t i = 0; i < s->count; i++) {
        const struct trial *t = &s->trials[i];
        if (t->part == 1 && !isnan(t->score) && (best == NULL || t->score > best->score))
            best = t;
    }
    return best;
}

/* Whether value `at` is the least or the largest of a list of three or more numbers. */
static bool is_extreme(const struct dimension *d, size_t at)
{
    bool least = true, most = true;
    double chosen, value;
    if (d->count < 3 || !text_to_real(d->values[at], &chosen))
        return false;
    for (size_t i = 0; i < d->count; i++) {
        if (!text_to_real(d->values[i], &value))
            return false;
        least = least && chosen <= value;
        most = most && chosen >= value;
    }
    return least || most;
}

bool search_is_at_edge(const struct search *s, const struct trial *t)
{
    bool edge = false;
    for (size_t i = 0; i < s->space->count; i++) {
        const struct dimension *d = &s->space->at[i];
        double place = d->values != NULL ? NAN : dimension_place(d, t->at[i]);
        edge = edge || place < 0.05 || place > 0.95 ||
               (d->values != NULL && is_extreme(d, (size_t)t->at[i]));
    }
    return edge;
}

void search_settings(const struct search *s, const struct trial *t, struct settings *out)
{
    for (size_t i = 0; i < s->space->count; i++) {
        const struct dimension *d = &s->space->at[i];
        char number[32];
        snprintf(number, sizeof number, d->whole ? "%.0f" : "%.15g", t->at[i]);
        settings_add(out, d->key, d->values != NULL ? d->values[(size_t)t->at[i]] : number,
                     d->origin);
    }
}

/* ---- for methods --------------------------------------------------------------------------------
 */

struct trial *search_add(struct search *s, double part)
{
    struct trial *t = memory_append(&s->trials, &s->count, sizeof *t);
    *t = (struct trial){.part = part, .score = NAN};
    return t;
}

void search_draw(const struct search *s, uint64_t number, struct trial *out)
{
    for (size_t i = 0; i < s->space->count; i++) {
        const struct dimension *d = &s->space->at[i];
        struct random_stream r;
        random_open(&r, RANDOM_SEARCH, s->seed, (uint32_t)i, number);
        out->at[i] = d->values != NULL ? random_below(&r, (uint32_t)d->count)
                                       : dimension_number(d, random_uniform(&r));
    }
}

static int by_score(const void *a, const void *b, void *context)
{
    const struct trial *trials = context;
    size_t i = *(const size_t *)a, j = *(const size_t *)b;
    double x = trials[i].score, y = trials[j].score;
    return x != y ? (x < y) - (x > y) : (i > j) - (i < j);
}

void search_rank(const struct search *s, size_t begin, size_t end, size_t *out)
{
    for (size_t i = begin; i < end; i++)
        out[i - begin] = i;
    qsort_r(out, end - begin, sizeof *out, by_score, s->trials);
}

bool search_has_tried(const struct search *s, const struct trial *t)
{
    for (size_t i = 0; i < s->count; i++) {
        const struct trial *other = &s->trials[i];
        if (other != t && other->part == t->part &&
            memcmp(other->at, t->at, s->space->count * sizeof *t->at) == 0)
            return true;
    }
    return false;
}
