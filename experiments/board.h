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
};
struct board { /* zero-initialise */
    struct board_line *lines;
    size_t count, capacity;
};
/* `judged`: all of its claims. */
void board_add(struct board *b, const struct reproduction *r, const struct judged_claim *judged);
void board_print(const struct board *b, bool markdown, FILE *to);
void board_close(struct board *b);

/* One experiment's tables and claims as Markdown. */
void board_print_experiment(const struct reproduction *r, bool quick,
                            const struct judged_claim *judged, FILE *to);
/* "PASS", "FAIL" or "–", and what was observed. */
const char *board_mark(enum claim_outcome outcome);
void board_print_observed(const struct judged_claim *j, FILE *to);

#endif
