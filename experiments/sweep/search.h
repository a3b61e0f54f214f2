/*
 * search.h — searches: which settings to try next, given the scores of earlier trials.
 *
 * A search applies a method to a space. It proposes trials in rounds. The trials of one round may
 * run in any order, also at the same time; the next round depends on all earlier scores. Proposals
 * are a pure function of the space, the options, the seed and the scores so far. An interrupted
 * search is therefore continued by starting it again with the same options.
 *
 * A method is one file experiments/sweep/search_NAME.c and one line in
 * experiments/sweep/search.def. One thread uses a search.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_SEARCH_H
#define GRADLAG_EXPERIMENTS_SWEEP_SEARCH_H

#include "experiments/config/config.h"
#include "base/registry.h"

enum { SEARCH_DIMENSIONS = 32, SEARCH_TRIALS = 10000, SEARCH_REDRAWS = 32 };

/* One key and its possible values: a choice of several values, or a range of numbers. */
struct dimension {
    char *key, *origin; /* owned */
    char **values;      /* [count], owned; NULL: a range */
    size_t count;
    double low, high;
    bool logarithmic, whole; /* of a range: a log scale; whole numbers only */
    size_t points;           /* of a range: number of grid points; 0: not given */
};
struct space { /* zero-initialise */
    struct dimension *at;
    size_t count;
};

/* Whether a text has the form of a range: "0.001..0.3", "0.001..0.3:log", "16..256:log:5". */
bool search_is_range(const char *text);
/* Appends a range. ERROR_USAGE "ORIGIN: KEY=…": not two numbers, empty, a log scale from 0 or
 * below, or outside the limits of the key. */
status space_add_range(struct space *s, const char *key, const char *text,
                       const char *origin) MUST_CHECK;
/* Appends a choice; copies the values. */
status space_add_choice(struct space *s, const char *key, const char *const *values, size_t count,
                        const char *origin) MUST_CHECK;
void space_close(struct space *s);

struct trial {
    double at[SEARCH_DIMENSIONS]; /* of a choice: the index of the value; of a range: the number */
    double part;                  /* of the full length of a run, (0, 1] */
    double score;                 /* higher is better; NaN: not known yet */
};

struct search { /* zero-initialise; methods read it, only search_*() write it */
    const struct search_kind *kind;
    const struct space *space; /* borrowed */
    options *options;          /* search, search.seed, and the method's own keys */
    uint64_t seed;
    struct trial *trials; /* all proposed trials, in order */
    size_t count, round_begin;
};

struct search_kind {
    struct about about;
    /* Appends the next round with search_add(). Called when all trials have scores and there are
     * fewer than total() of them. */
    status (*propose)(struct search *s);
    /* Number of trials of the whole search. */
    size_t (*total)(const struct search *s);
    /* ERROR_USAGE: the method cannot work with the space or the options. May be NULL. */
    status (*check)(const struct search *s);
};
extern const struct registry search_registry;
extern const struct option search_keys[]; /* of every search; ended by key == NULL */

/* Whether the key belongs to a search and not to a run: "search", "search.trials". */
bool search_is_key(const char *key);
/* `settings` has only keys of the search. The space must outlive the search. ERROR_USAGE */
status search_open(struct search *out, const struct space *space,
                   const struct settings *settings) MUST_CHECK;
void search_close(struct search *s);
/* Proposes the next round if all trials have scores. *added is the number of new trials; 0: the
 * search has ended, or scores are missing. */
status search_next(struct search *s, size_t *added) MUST_CHECK;
bool search_has_ended(const struct search *s);
size_t search_total(const struct search *s);
/* The full-length trial with the best score, the first of several; NULL: there is none. */
const struct trial *search_best(const struct search *s);
/* Whether a value of the trial is the least or largest of a list of three or more numbers, or lies
 * within 5 % of an end of its range. */
bool search_is_at_edge(const struct search *s, const struct trial *t);
/* The settings of a trial, without the length of the run. */
void search_settings(const struct search *s, const struct trial *t, struct settings *out);

/* ---- for methods --------------------------------------------------------------------------------
 */
struct trial *search_add(struct search *s, double part);
/* Draws a point uniformly from the space, with random stream `number`. */
void search_draw(const struct search *s, uint64_t number, struct trial *out);
/* The position of a number in its range, [0, 1], uniform on its scale; and the number at a
 * position, rounded as search_settings() writes it. */
double dimension_place(const struct dimension *d, double number);
double dimension_number(const struct dimension *d, double place);
/* Sorts trials [begin, end) by score, the best first, equal scores by order, and writes their
 * indices to out[0 … end − begin). */
void search_rank(const struct search *s, size_t begin, size_t end, size_t *out);
/* Whether another trial of this length has the same point. */
bool search_has_tried(const struct search *s, const struct trial *t);

#endif
