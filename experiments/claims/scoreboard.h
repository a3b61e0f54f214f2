/*
 * scoreboard.h — experiments beside each other: how many of each one's claims hold.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_SCOREBOARD_H
#define GRADLAG_EXPERIMENTS_CLAIMS_SCOREBOARD_H

#include "experiments/claims/reproduction.h"

struct scoreboard_line {
    char name[64];
    size_t planned, there; /* runs, trials among them; those that finished or diverged */
    size_t claims[CLAIM_OUTCOMES];
    char *days, *commits; /* owned: when and by what those were made; NULL where none are there */
};
struct scoreboard { /* zero-initialise */
    struct scoreboard_line *lines;
    size_t count, capacity;
};
/* `judged`: all of its claims. */
status scoreboard_add(struct scoreboard *b, const struct reproduction *r,
                      const struct judged_claim *judged) MUST_CHECK;
void scoreboard_print(const struct scoreboard *b, FILE *to);
void scoreboard_close(struct scoreboard *b);

/* The page docs/reproduction.md: the board, then `experiments` as scoreboard_print_experiment()
 * wrote them, and a last line that tells whether anybody changed it since. */
void scoreboard_print_page(const struct scoreboard *b, const char *experiments, FILE *to);
/* One experiment's tables, claims and discussion as Markdown. */
void scoreboard_print_experiment(const struct reproduction *r, bool quick,
                                 const struct judged_claim *judged, FILE *to);
/* "PASS", "FAIL" or "–", and what was observed: a number, or why there is none. */
const char *scoreboard_mark(enum claim_outcome outcome);
void scoreboard_print_observed(const struct judged_claim *j, FILE *to);

#endif
