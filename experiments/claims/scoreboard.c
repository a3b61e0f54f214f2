#include "experiments/claims/scoreboard.h"

#include "base/memory.h"
#include "base/sha256.h"
#include "base/text.h"
#include "experiments/print_columns.h"
#include "results/query/query.h"
#include "results/query/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_WIDTH = 26, RUNS_WIDTH = 15 };

static void count_runs(const struct plan *p, struct scoreboard_line *line)
{
    line->planned += p->count;
    line->there += p->count - plan_missing(p) - plan_failed(p);
}

static void add_ids(const struct plan *p, struct text *ids)
{
    for (size_t i = 0; i < p->count; i++) {
        const struct planned_run *r = &p->runs[i];
        if (r->state == PLANNED_FINISHED || r->state == PLANNED_DIVERGED)
            text_add(ids, "%s%lld", ids->length > 0 ? "," : "", (long long)r->run_id);
    }
}

/* The days and commits of its runs. */
static status read_origin(const struct reproduction *r, struct scoreboard_line *line)
{
    static const char days[] =
        "SELECT min(day) || CASE WHEN max(day) > min(day) THEN ' to ' || max(day) ELSE '' END"
        " FROM (SELECT substr(finished_at, 1, 10) AS day FROM run WHERE id IN (%s))";
    static const char commits[] =
        "SELECT group_concat(name, ', ') FROM (SELECT substr(host ->> '$.commit', 1, 7) ||"
        " CASE WHEN host ->> '$.dirty' THEN '-dirty' ELSE '' END AS name FROM run"
        " WHERE id IN (%s) GROUP BY name ORDER BY min(id))";
    const struct {
        const char *sql;
        char **out;
    } questions[] = {{days, &line->days}, {commits, &line->commits}};
    status result = OK;
    struct text ids = {0};
    add_ids(&r->tuning.trials.plan, &ids);
    add_ids(&r->plan, &ids);
    for (size_t i = 0; ids.length > 0 && i < COUNT_OF(questions); i++) {
        struct text sql = {0};
        text_add(&sql, questions[i].sql, ids.at);
        result = query_value(reproduction_results(r), sql.at, NULL, 0, questions[i].out);
        text_free(&sql);
        TRY(result);
    }
done:
    text_free(&ids);
    return result;
}

status scoreboard_add(struct scoreboard *b, const struct reproduction *r,
                      const struct judged_claim *judged)
{
    status result = OK;
    struct scoreboard_line *line = memory_append(&b->lines, &b->count, sizeof *line);
    *line = (struct scoreboard_line){.planned = r->later};
    snprintf(line->name, sizeof line->name, "%s", r->e.name);
    count_runs(&r->tuning.trials.plan, line);
    line->planned += trials_remaining_runs(&r->tuning.trials);
    count_runs(&r->plan, line);
    for (size_t i = 0; i < r->e.claim_count; i++)
        line->claims[judged[i].outcome]++, line->borderline += judged[i].borderline;
    TRY(read_origin(r, line));
done:
    return result;
}

void scoreboard_close(struct scoreboard *b)
{
    for (size_t i = 0; i < b->count; i++) {
        memory_free(b->lines[i].days);
        memory_free(b->lines[i].commits);
    }
    free(b->lines);
    *b = (struct scoreboard){0};
}

static const char *line_verdict(const struct scoreboard_line *line)
{
    return line->claims[CLAIM_FAIL] > 0   ? "FAIL"
           : line->claims[CLAIM_OPEN] > 0 ? "open"
           : line->claims[CLAIM_PASS] > 0 ? "PASS"
                                          : "–";
}

static const char *or_dash(const char *text)
{
    return text != NULL ? text : "–";
}

static void print_markdown(const struct scoreboard *b, FILE *to)
{
    fputs("| experiment | | claims held | failed | not measured | runs done | date | commit |\n"
          "|---|---|---:|---:|---:|---:|---|---|\n",
          to);
    for (size_t i = 0; i < b->count; i++) {
        const struct scoreboard_line *l = &b->lines[i];
        size_t claims = l->claims[CLAIM_PASS] + l->claims[CLAIM_FAIL] + l->claims[CLAIM_OPEN];
        fprintf(to, "| [%s](#%s) | %s | %zu of %zu", l->name, l->name, line_verdict(l),
                l->claims[CLAIM_PASS], claims);
        if (l->borderline > 0)
            fprintf(to, ", %zu borderline", l->borderline);
        fprintf(to, " | %zu | %zu | %zu of %zu | %s | %s |\n", l->claims[CLAIM_FAIL],
                l->claims[CLAIM_OPEN], l->there, l->planned, or_dash(l->days), or_dash(l->commits));
    }
}

void scoreboard_print(const struct scoreboard *b, FILE *to)
{
    char runs[48];
    fputs("The board\n", to);
    print_padded(to, "experiment", NAME_WIDTH);
    fputs("      held failed  open   runs done      commit, date\n", to);
    for (size_t i = 0; i < b->count; i++) {
        const struct scoreboard_line *l = &b->lines[i];
        print_padded(to, l->name, NAME_WIDTH);
        print_padded(to, line_verdict(l), 5);
        fprintf(to, "%5zu %6zu %5zu   ", l->claims[CLAIM_PASS], l->claims[CLAIM_FAIL],
                l->claims[CLAIM_OPEN]);
        snprintf(runs, sizeof runs, "%zu of %zu", l->there, l->planned);
        if (l->commits != NULL) {
            print_padded(to, runs, RUNS_WIDTH);
            fprintf(to, "%s, %s\n", l->commits, l->days);
        } else {
            fprintf(to, "%s\n", runs);
        }
    }
}

void scoreboard_print_page(const struct scoreboard *b, const char *experiments, FILE *to)
{
    static const char head[] =
        "<!-- Generated by `make board RESULTS=FILE` (`gradlag reproduce --all --no-run --markdown "
        "results=FILE`). Do not edit:\n"
        "     the texts are in experiments/questions/*.yaml, the figures in FILE. -->\n\n"
        "# Results of the experiments\n\n"
        "This page shows each experiment file: its question, the results of its runs, and whether "
        "its claims hold. Run one again with\n"
        "`gradlag reproduce NAME`; draw it with `gradlag report`. The format of the files: "
        "[experiment files](experiment-files.md).\n\n"
        "Every band comes from the source that its claim names; a file whose bands were written "
        "after first runs of ours says so. On\n"
        "2026-11-24 and 26, after first runs, open ends of bands were closed and wide bands "
        "narrowed (commits `dfadd78`, `c881d5d`). No failed\n"
        "claim was removed; the text below it explains why it failed. Figures are of the test set "
        "unless the table\n"
        "names a loss, with the number of runs in parentheses; `[79.8]` is\n"
        "the source's figure for that cell. A claim is borderline if it holds, but not all of the "
        "95 % "
        "interval of its value is in the band\n"
        "(jackknife over seeds). Synchronous runs and runs with `engine=virtual` of commit "
        "`174a135` or later repeat bit for bit\n"
        "on each x86 processor with AVX2. Such runs of earlier commits need AVX-512 with bfloat16 "
        "(`AVX512_CORE_BF16` of oneDNN).\n"
        "Asynchronous runs of processes do not repeat: their standard deviation shows how much "
        "they vary.\n\n"
        "The runs of 2026-11-25 and later are in `docs/board.db.xz`, without the rows of single "
        "gradients and steps. To see how a figure came about:\n\n"
        "    xz -dc docs/board.db.xz >board.db\n"
        "    gradlag reproduce NAME --no-run results=board.db     # the same tables\n"
        "    gradlag report results=board.db experiment=NAME      # plots, every run with its "
        "settings\n"
        "    make repeat RESULTS=board.db                         # ten runs again, bit for "
        "bit; a run takes seconds to minutes\n\n";
    char *page = NULL, sum[65];
    size_t length = 0;
    struct sha256 hash;
    FILE *memory = open_memstream(&page, &length);
    REQUIRE(memory != NULL);
    fputs(head, memory);
    print_markdown(b, memory);
    fputs(experiments, memory);
    fputc('\n', memory);
    REQUIRE(fclose(memory) == 0);
    sha256_begin(&hash);
    sha256_add(&hash, page, length);
    sha256_end(&hash, sum);
    fwrite(page, 1, length, to);
    fprintf(to, "<!-- sha256 of all above: %s -->\n", sum);
    free(page);
}

/* ---- one experiment -----------------------------------------------------------------------------
 */

const char *scoreboard_mark(enum claim_outcome outcome)
{
    return outcome == CLAIM_PASS ? "PASS" : outcome == CLAIM_FAIL ? "FAIL" : "–";
}

static void print_value(const struct judged_claim *j, FILE *to)
{
    const int decimals = band_decimals(j->value, j->low, j->high);
    fprintf(to, "%.*f", decimals, j->value);
    if (isfinite(j->interval))
        fprintf(to, " ± %.*f", decimals, j->interval);
}

void scoreboard_print_observed(const struct judged_claim *j, FILE *to)
{
    struct text why = {0}, remark = {0};
    reproduction_explain(j, false, &why);
    if (why.length > 0)
        fprintf(to, "%s", why.at);
    else
        print_value(j, to);
    text_free(&why);
    reproduction_remark(j, false, &remark);
    if (remark.length > 0)
        fprintf(to, " (%s)", remark.at);
    text_free(&remark);
}

static void print_claims(const struct reproduction *r, const struct judged_claim *judged, FILE *to)
{
    if (r->e.claim_count > 0)
        fputs("\n| claim | | observed | band | source |\n|---|---|---:|---|---|\n", to);
    for (size_t i = 0; i < r->e.claim_count; i++) {
        const struct judged_claim *j = &judged[i];
        print_cell(to, j->claim->text);
        print_cell(to, scoreboard_mark(j->outcome));
        fputs("| ", to);
        scoreboard_print_observed(j, to);
        fprintf(to, " | [%g, %g] ", j->low, j->high);
        print_cell(to, j->claim->source != NULL ? j->claim->source : "");
        fputs("|\n", to);
    }
}

void scoreboard_print_experiment(const struct reproduction *r, bool quick,
                                 const struct judged_claim *judged, FILE *to)
{
    fprintf(to, "\n## %s\n\n%s%s", r->e.name, r->e.question, quick ? " (The quick part.)" : "");
    if (r->e.source != NULL)
        fprintf(to, "\n\nSource: %s", r->e.source);
    fprintf(to, "\n\n");
    cells_print_markdown(&r->cells, to);
    if (r->tuning.trials.count > 0) {
        fputs("\n<details><summary>What tuning chose</summary>\n\n```text", to);
        tuning_print(&r->tuning, to);
        fputs("```\n\n</details>\n", to);
    }
    print_claims(r, judged, to);
    if (r->e.discussion != NULL)
        fprintf(to, "\n%s\n", r->e.discussion);
}
