/*
 * scoreboard.h — a table of experiments with the numbers of claims that hold, and the page
 * docs/reproduction.md.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_SCOREBOARD_H
#define GRADLAG_EXPERIMENTS_CLAIMS_SCOREBOARD_H

#include "experiments/claims/reproduction.h"

struct scoreboard_line {
    char name[64];
    size_t planned, there; /* planned: runs and trials; there: those that finished or diverged */
    size_t claims[CLAIM_OUTCOMES], borderline;
    char *days, *commits; /* owned; when these runs ended, and the commits of gradlag that executed
                             them; NULL: none */
};
struct scoreboard { /* zero-initialise */
    struct scoreboard_line *lines;
    size_t count;
};
/* `judged`: all claims of the experiment. */
status scoreboard_add(struct scoreboard *b, const struct reproduction *r,
                      const struct judged_claim *judged) MUST_CHECK;
void scoreboard_print(const struct scoreboard *b, FILE *to);
void scoreboard_close(struct scoreboard *b);

/* Prints the page docs/reproduction.md: the board, then `experiments` as written by
 * scoreboard_print_experiment(). The last line has a hash of the page (scripts/check-board). */
void scoreboard_print_page(const struct scoreboard *b, const char *experiments, FILE *to);
/* Prints the tables, claims and discussion of one experiment as Markdown. */
void scoreboard_print_experiment(const struct reproduction *r, bool quick,
                                 const struct judged_claim *judged, FILE *to);
/* "PASS", "FAIL" or "–". */
const char *scoreboard_mark(enum claim_outcome outcome);
/* The observed value, or why there is none. */
void scoreboard_print_observed(const struct judged_claim *j, FILE *to);

#endif
