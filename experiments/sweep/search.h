/*
 * search.h — searches: which settings a tuning tries next, given how well those did that it tried.
 *
 * A search is a method over a space. It proposes trials in rounds: those of one round may be made
 * side by side, in any order; the next round follows from all before it. What it proposes is a pure
 * function of its space, its options, its seed and the scores so far, so a search that was cut
 * short is taken up by asking the same questions again. A method is one file
 * experiments/sweep/search_NAME.c and one line in experiments/sweep/search.def.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_SEARCH_H
#define GRADLAG_EXPERIMENTS_SWEEP_SEARCH_H

#include "experiments/config/config.h"
#include "base/registry.h"

enum { SEARCH_DIMENSIONS = 32, SEARCH_TRIALS = 10000 };

/* One key, and what it may be: one of several values, or a number of a range. */
struct dimension {
    char *key, *origin; /* owned */
    char **values;      /* owned; as many as count; NULL: a range */
    size_t count;
    double low, high;
    bool logarithmic, whole; /* of a range: even on a log scale; whole numbers alone */
    size_t points;           /* of a range, for a grid: so many; 0: not said */
};
struct space { /* zero-initialise */
    struct dimension *at;
    size_t count;
};

/* "0.001..0.3", "0.001..0.3:log", "16..256:log:5": whether a text is meant as a range. */
bool search_is_range(const char *text);
/* Appends a range. ERROR_USAGE "ORIGIN: KEY=…": no numbers, empty, a log scale from 0 or below, or
 * what the key cannot be. */
status space_add_range(struct space *s, const char *key, const char *text,
                       const char *origin) MUST_CHECK;
/* Appends a choice of the values; copies them. */
status space_add_choice(struct space *s, const char *key, const char *const *values, size_t count,
                        const char *origin) MUST_CHECK;
void space_close(struct space *s);

struct trial {
    double at[SEARCH_DIMENSIONS]; /* of a choice: its index; of a range: the number */
    double part;                  /* of the full length of a run, (0, 1] */
    double score;                 /* higher is better; NAN: not known yet */
};

struct search { /* zero-initialise; read by methods, written by search_*() */
    const struct search_kind *kind;
    const struct space *space; /* borrowed */
    options *options;          /* search, search.seed, and the method's own */
    uint64_t seed;
    struct trial *trials; /* all that were proposed, in order */
    size_t count, round_begin;
};

struct search_kind {
    struct about about;
    /* Appends the next round with search_add(); nothing: the search has ended. All trials have
     * scores. */
    status (*propose)(struct search *s);
    /* How many trials it makes in all. */
    size_t (*total)(const struct search *s);
    /* ERROR_USAGE: the space or the options are not for this method; or NULL. */
    status (*check)(const struct search *s);
};
extern const struct registry search_registry;

/* Whether a key is one of a search and none of a run: "search", "search.trials". */
bool search_owns(const char *key);
/* `settings`: the search's keys alone. The space must outlive it. ERROR_USAGE */
status search_open(struct search *out, const struct space *space,
                   const struct settings *settings) MUST_CHECK;
void search_close(struct search *s);
/* Goes on if all trials of the last round have scores; *added is how many new ones there are: 0,
 * the search has ended, or waits for scores. */
status search_next(struct search *s, size_t *added) MUST_CHECK;
bool search_has_ended(const struct search *s);
size_t search_total(const struct search *s);
/* Of all trials together, in full runs. */
double search_cost(const struct search *s);
/* The best trial of full length with a score, the first of several; NULL: none. */
const struct trial *search_best(const struct search *s);
/* Whether one of its numbers is the first or last of more than two values, or lies within a
 * twentieth of a range's end. */
bool search_is_at_edge(const struct search *s, const struct trial *t);
/* The settings of a trial, the length of the run apart. */
void search_settings(const struct search *s, const struct trial *t, struct settings *out);

/* ---- for methods --------------------------------------------------------------------------------
 */
struct trial *search_add(struct search *s, double part);
/* A trial whose numbers are drawn evenly over the space, from the stream `number`. */
void search_draw(const struct search *s, uint64_t number, struct trial *out);
/* The place of a number in its range, [0, 1], evenly on its scale; and back, rounded as it will be
 * written. */
double dimension_place(const struct dimension *d, double number);
double dimension_number(const struct dimension *d, double place);
/* Trials [begin, end) by score, the best first; of equal ones the earlier. `out`: as many. */
void search_rank(const struct search *s, size_t begin, size_t end, size_t *out);
/* Whether a trial of this length has been proposed at the same point. */
bool search_has_tried(const struct search *s, const struct trial *t);

#endif
