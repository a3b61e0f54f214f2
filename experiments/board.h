/*
 * board.h — experiments beside each other: how many of each one's claims hold.
 */
#ifndef GRADLAG_EXPERIMENTS_BOARD_H
#define GRADLAG_EXPERIMENTS_BOARD_H

#include "experiments/reproduction.h"

struct board_line {
    char name[64];
    size_t planned, there; /* runs, trials among them; those that finished or diverged */
    size_t claims[CLAIM_OUTCOMES];
    char *days, *commits; /* owned: when and by what those were made; NULL where none are there */
};
struct board { /* zero-initialise */
    struct board_line *lines;
    size_t count, capacity;
};
/* `judged`: all of its claims. */
status board_add(struct board *b, const struct reproduction *r,
                 const struct judged_claim *judged) MUST_CHECK;
void board_print(const struct board *b, FILE *to);
void board_close(struct board *b);

/* The page docs/reproduction.md: the board, then `experiments` as board_print_experiment() wrote
 * them, and a last line that tells whether anybody changed it since. */
void board_print_page(const struct board *b, const char *experiments, FILE *to);
/* One experiment's tables, claims and discussion as Markdown. */
void board_print_experiment(const struct reproduction *r, bool quick,
                            const struct judged_claim *judged, FILE *to);
/* "PASS", "FAIL" or "–", and what was observed: a number, or why there is none. */
const char *board_mark(enum claim_outcome outcome);
void board_print_observed(const struct judged_claim *j, FILE *to);

#endif
