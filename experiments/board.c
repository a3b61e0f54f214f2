#include "experiments/board.h"

#include "experiments/print.h"

#include <stdlib.h>

enum { NAME_WIDTH = 26 };

static void count_runs(const struct plan *p, struct board_line *line)
{
    line->planned += p->count;
    line->there += p->count - plan_missing(p);
}

void board_add(struct board *b, const struct reproduction *r, const struct judged_claim *judged)
{
    if (b->count == b->capacity) {
        b->capacity = b->capacity == 0 ? 32 : 2 * b->capacity;
        b->lines = realloc(b->lines, b->capacity * sizeof *b->lines);
        REQUIRE(b->lines != NULL);
    }
    struct board_line *line = &b->lines[b->count++];
    *line = (struct board_line){.planned = r->later};
    snprintf(line->name, sizeof line->name, "%s", r->e.name);
    count_runs(&r->tuning.trials.plan, line);
    line->planned += trials_to_come(&r->tuning.trials);
    count_runs(&r->plan, line);
    for (size_t i = 0; i < r->e.claim_count; i++) {
        line->claims[judged[i].outcome]++;
    }
}

void board_close(struct board *b)
{
    free(b->lines);
    *b = (struct board){0};
}

static const char *line_verdict(const struct board_line *line)
{
    return line->claims[CLAIM_FAIL] > 0   ? "FAIL"
           : line->claims[CLAIM_OPEN] > 0 ? "open"
           : line->claims[CLAIM_PASS] > 0 ? "PASS"
                                          : "–";
}

void board_print(const struct board *b, bool markdown, FILE *to)
{
    if (markdown) {
        fputs("| experiment | | claims held | failed | not measured | runs there |\n"
              "|---|---|---:|---:|---:|---:|\n",
              to);
    } else {
        fputs("The board\n", to);
        print_padded(to, "experiment", NAME_WIDTH);
        fputs("      held failed  open   runs there\n", to);
    }
    for (size_t i = 0; i < b->count; i++) {
        const struct board_line *l = &b->lines[i];
        size_t claims = l->claims[CLAIM_PASS] + l->claims[CLAIM_FAIL] + l->claims[CLAIM_OPEN];
        if (markdown) {
            fprintf(to, "| [%s](#%s) | %s | %zu of %zu | %zu | %zu | %zu of %zu |\n", l->name,
                    l->name, line_verdict(l), l->claims[CLAIM_PASS], claims, l->claims[CLAIM_FAIL],
                    l->claims[CLAIM_OPEN], l->there, l->planned);
        } else {
            print_padded(to, l->name, NAME_WIDTH);
            print_padded(to, line_verdict(l), 5);
            fprintf(to, "%5zu %6zu %5zu   %zu of %zu\n", l->claims[CLAIM_PASS],
                    l->claims[CLAIM_FAIL], l->claims[CLAIM_OPEN], l->there, l->planned);
        }
    }
}

/* ---- one experiment -----------------------------------------------------------------------------
 */

const char *board_mark(enum claim_outcome outcome)
{
    return outcome == CLAIM_PASS ? "PASS" : outcome == CLAIM_FAIL ? "FAIL" : "–";
}

void board_print_observed(const struct judged_claim *j, FILE *to)
{
    if (j->lacking != NULL && j->outcome == CLAIM_OPEN) {
        fprintf(to, "not measured: of %u runs of %s with %lld workers %u are there",
                j->lacking->planned, j->lacking->arm->name, (long long)j->lacking->workers,
                j->lacking->finished + j->lacking->diverged + j->lacking->failed);
    } else if (j->lacking != NULL) {
        fprintf(to, "%s with %lld workers: of %u runs %u finished, %u diverged, %u failed",
                j->lacking->arm->name, (long long)j->lacking->workers, j->lacking->planned,
                j->lacking->finished, j->lacking->diverged, j->lacking->failed);
    } else if (j->outcome == CLAIM_OPEN) {
        fprintf(to, "not measured in this part");
    } else {
        fprintf(to, "observed %.2f", j->value);
    }
}

/* A line of Markdown's table is cut at each '|'. */
static void put_cell(FILE *to, const char *text)
{
    fputs("| ", to);
    for (; *text != '\0'; text++) {
        fprintf(to, "%s%c", *text == '|' ? "\\" : "", *text);
    }
    fputc(' ', to);
}

void board_print_experiment(const struct reproduction *r, bool quick,
                            const struct judged_claim *judged, FILE *to)
{
    fprintf(to, "\n## %s\n\n%s%s", r->e.name, r->e.question, quick ? " (The quick part.)" : "");
    if (r->e.source != NULL) {
        fprintf(to, " Source: %s", r->e.source);
    }
    fprintf(to, "\n\n");
    cells_print_markdown(&r->cells, to);
    if (r->e.claim_count > 0) {
        fputs("\n| claim | | | band | source |\n|---|---|---|---|---|\n", to);
    }
    for (size_t i = 0; i < r->e.claim_count; i++) {
        const struct judged_claim *j = &judged[i];
        put_cell(to, j->claim->text);
        fprintf(to, "| %s | ", board_mark(j->outcome));
        board_print_observed(j, to);
        fprintf(to, " | [%g, %g] ", j->low, j->high);
        put_cell(to, j->claim->source != NULL ? j->claim->source : "");
        fputs("|\n", to);
    }
}
