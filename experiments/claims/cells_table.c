/* cells_table.c — the tables of an experiment: scores, rates and staleness, differences. */
#include "experiments/claims/cells.h"

#include "base/text.h"
#include "experiments/print_columns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE_WIDTH = 18 };
enum { LABEL_WIDTH = 40, CELL_WIDTH = 19, EXPECTED_WIDTH = 8, COLUMN_WIDTH = 7, RUNS_WIDTH = 6 };

/* A table in plain text or in Markdown. With several axes there is one table for each combination
 * of levels of all axes but the last. It shows the columns [begin, end) of the cells. */
struct table {
    const struct cells *c;
    FILE *to;
    size_t begin, end;
    bool markdown;
};

static void put(const struct table *t, const char *text, int width)
{
    if (t->markdown)
        print_cell(t->to, text);
    else
        print_padded(t->to, text, width);
}

/* Like put(), aligned right in a text table; ASCII only. */
static void put_right(const struct table *t, const char *text, int width)
{
    if (t->markdown)
        print_cell(t->to, text);
    else
        fprintf(t->to, "%*s", width, text);
}

static void end_line(const struct table *t)
{
    fputs(t->markdown ? "|\n" : "\n", t->to);
}

/* In Markdown an empty line must precede a table. */
static void end_caption(const struct table *t)
{
    fputs(t->markdown ? "\n\n" : "\n", t->to);
}

/* The line below the titles; the last `numbers` columns are aligned right. */
static void put_rule(const struct table *t, size_t columns, size_t numbers)
{
    for (size_t i = 0; t->markdown && i < columns; i++)
        fputs(i + numbers < columns ? "|---" : "|---:", t->to);
    if (t->markdown)
        end_line(t);
}

/* The source's figure for the cell; NaN: it has none. */
static double expected_of(const struct arm *arm, int64_t column)
{
    for (size_t i = 0; i < arm->expected_count; i++)
        if (arm->expected[i].column == column)
            return arm->expected[i].value;
    return NAN;
}

static bool any_expected(const struct cells *c)
{
    bool any = false;
    for (size_t i = 0; i < c->count; i++)
        any = any || !isnan(expected_of(c->at[i].arm, c->at[i].column));
    return any;
}

static int cell_width(const struct cells *c)
{
    return CELL_WIDTH + (any_expected(c) ? EXPECTED_WIDTH : 0);
}

/* Losses have a digit more than percent. */
static int decimals_of(const struct cells *c)
{
    return c->metric == METRIC_ACCURACY ? 2 : 3;
}

static void cell_text(const struct cells *c, const struct cell *cell, struct text *out)
{
    const int decimals = decimals_of(c);
    if (cell->finished == 0)
        text_add(out, "%s", cell->diverged > 0 ? "diverged" : "–");
    else if (c->metric == METRIC_ACCURACY && isnan(cell->score))
        text_add(out, "loss %.6g (%u)", cell->loss, cell->finished);
    else if (isnan(cell->deviation))
        text_add(out, "%.*f (%u)", decimals, cell->score, cell->finished);
    else
        text_add(out, "%.*f ± %.*f (%u)", decimals, cell->score, decimals, cell->deviation,
                 cell->finished);
    if (cell->finished > 0 && cell->finished < cell->planned)
        text_add(out, " of %u", cell->planned);
    double expected = expected_of(cell->arm, cell->column);
    if (!isnan(expected))
        text_add(out, " [%g]", expected);
}

/* Columns that differ only in the last axis are in one group. */
static int64_t group_of(const struct cells *c, size_t column)
{
    const struct experiment *e = c->experiment;
    return e->axis_count == 0 ? 0 : c->columns[column] / (int64_t)e->axes[e->axis_count - 1].count;
}

/* The next group of columns; false after the last. Begin with end 0. */
static bool next_group(struct table *t)
{
    t->begin = t->end;
    while (t->end < t->c->column_count && group_of(t->c, t->end) == group_of(t->c, t->begin))
        t->end++;
    return t->begin < t->end;
}

/* "slow, 10g", the levels of the group; nothing with one axis. */
static void put_group(const struct table *t)
{
    const struct experiment *e = t->c->experiment;
    if (e->axis_count < 2)
        return;
    for (size_t i = 0; i + 1 < e->axis_count; i++) {
        const struct experiment_axis *a = &e->axes[i];
        const char *level = a->levels[experiment_level(e, t->c->columns[t->begin], i)].name;
        fprintf(t->to, "%s%s%s%s", i > 0 ? ", " : "\n", a->named ? "" : a->name,
                a->named ? "" : "=", level);
    }
    end_caption(t);
}

/* "16", the level of the last axis. */
static void column_name(const struct cells *c, int64_t column, char out[64])
{
    const struct experiment *e = c->experiment;
    const size_t last = e->axis_count - 1;
    if (e->axis_count == 0)
        snprintf(out, 64, "%lld", (long long)column);
    else
        snprintf(out, 64, "%s", e->axes[last].levels[experiment_level(e, column, last)].name);
}

static const char *columns_name(const struct experiment *e)
{
    return e->axis_count == 0 ? e->axis : e->axes[e->axis_count - 1].name;
}

static void put_columns(const struct table *t)
{
    char text[64];
    snprintf(text, sizeof text, "arm \\ %s", columns_name(t->c->experiment));
    put(t, text, LABEL_WIDTH);
    for (size_t w = t->begin; w < t->end; w++) {
        column_name(t->c, t->c->columns[w], text);
        put(t, text, cell_width(t->c));
    }
    end_line(t);
    put_rule(t, t->end - t->begin + 1, 0);
}

/* Whether the arm has cells in these columns. */
static bool has_cells(const struct cells *c, const struct arm *arm, size_t begin, size_t end)
{
    bool any = false;
    for (size_t w = begin; w < end; w++)
        any = any || cells_find(c, arm->name, c->columns[w]) != NULL;
    return any;
}

static void put_score_table(const struct table *t)
{
    const struct cells *c = t->c;
    put_group(t);
    put_columns(t);
    for (size_t a = 0; a < c->experiment->arm_count; a++) {
        const struct arm *arm = &c->experiment->arms[a];
        if (!has_cells(c, arm, t->begin, t->end))
            continue;
        put(t, arm->label, LABEL_WIDTH);
        for (size_t w = t->begin; w < t->end; w++) {
            struct text text = {0};
            const struct cell *cell = cells_find(c, arm->name, c->columns[w]);
            if (cell != NULL)
                cell_text(c, cell, &text);
            put(t, text.at != NULL ? text.at : "", cell_width(c));
            text_free(&text);
        }
        end_line(t);
    }
}

static void put_scores(struct table t)
{
    const struct cells *c = t.c;
    static const char *const titles[] = {[METRIC_ACCURACY] = "Test accuracy in %",
                                         [METRIC_LOSS] = "Test loss",
                                         [METRIC_VALIDATION_LOSS] = "Validation loss"};
    fprintf(t.to, "%s: mean ± standard deviation (runs)%s", titles[c->metric],
            any_expected(c) ? " [expected]" : "");
    end_caption(&t);
    while (next_group(&t))
        put_score_table(&t);
}

/* "+1.70 ± 0.52 (3)"; contract: p->n > 0 */
static void margin_text(const struct cells *c, const struct paired *p, char out[64])
{
    const int decimals = decimals_of(c);
    char interval[24] = "";
    if (p->n > 1)
        snprintf(interval, sizeof interval, fabs(p->interval) < 1e9 ? " ± %.*f" : " ± %.*g",
                 decimals, p->interval);
    snprintf(out, 64, fabs(p->mean) < 1e9 ? "%+.*f%s (%u)" : "%+.*g%s (%u)", decimals, p->mean,
             interval, p->n);
}

static void put_lead(const struct table *t, int64_t column)
{
    struct lead l;
    char text[64];
    cells_lead(t->c, column, &l);
    column_name(t->c, column, text);
    put(t, text, COLUMN_WIDTH + 1);
    snprintf(text, sizeof text, "%s%s",
             l.ahead == NULL ? "not measured"
             : l.decided     ? l.ahead->name
                             : "undecided",
             l.missing > 0 && l.ahead != NULL ? "*" : "");
    put(t, text, SIDE_WIDTH);
    text[0] = '\0';
    if (l.ahead != NULL)
        margin_text(t->c, &l.margin, text);
    put(t, text, CELL_WIDTH + 1);
    snprintf(text, sizeof text, isfinite(l.seeds) ? "%.0f" : "", l.seeds);
    put(t, text, COLUMN_WIDTH);
    put(t, l.best != NULL ? l.best->arm->label : "", LABEL_WIDTH);
    put(t, l.second != NULL ? l.second->arm->label : "", LABEL_WIDTH);
    end_line(t);
}

/* One row for each column, because names of sides are long. */
static void put_lead_table(const struct table *t)
{
    put_group(t);
    put(t, columns_name(t->c->experiment), COLUMN_WIDTH + 1);
    put(t, "ahead", SIDE_WIDTH);
    put(t, "margin", CELL_WIDTH + 1);
    put(t, "seeds", COLUMN_WIDTH);
    put(t, "best arm", LABEL_WIDTH);
    put(t, "best other arm", LABEL_WIDTH);
    end_line(t);
    put_rule(t, 6, 0);
    for (size_t w = t->begin; w < t->end; w++)
        put_lead(t, t->c->columns[w]);
}

static bool lacks_arms(const struct cells *c)
{
    struct lead l = {.missing = 0};
    for (size_t i = 0; i < c->column_count && (l.missing == 0 || l.ahead == NULL); i++)
        cells_lead(c, c->columns[i], &l);
    return l.missing > 0 && l.ahead != NULL;
}

static void put_leads(struct table t)
{
    const struct experiment *e = t.c->experiment;
    if (e->side_count == 0)
        return;
    for (size_t i = 0; i < e->side_count; i++)
        fprintf(t.to, "%s%s", i > 0 ? " or " : "Ahead: ", e->sides[i].name);
    fprintf(t.to,
            ", each by its best arm on the validation split. Margin: mean difference ± half of "
            "its 95 %% interval (number of pairs). Undecided: 0 is in the interval; column "
            "seeds: about how many would decide%s",
            lacks_arms(t.c) ? ". *: without arms that are not measured there; one of them may be "
                              "better"
                            : "");
    end_caption(&t);
    while (next_group(&t))
        put_lead_table(&t);
    fputc('\n', t.to);
}

static const struct {
    const char *title;
    size_t offset;
    int width, decimals;
    bool of_staleness; /* empty if the mean staleness is 0 */
} details[] = {
    {"seconds", offsetof(struct cell, seconds), 9, 1, false},
    {"updates/s", offsetof(struct cell, updates_per_second), 11, 0, false},
    {"samples/s", offsetof(struct cell, samples_per_second), 11, 0, false},
    {"staleness", offsetof(struct cell, staleness), 11, 2, true},
    {"cv", offsetof(struct cell, staleness_cv), 7, 2, true},
    {"max", offsetof(struct cell, staleness_max), 6, 0, true},
};

static void put_details_of(const struct table *t, const struct cell *cell)
{
    char text[64];
    put(t, cell->arm->label, LABEL_WIDTH);
    column_name(t->c, cell->column, text);
    put_right(t, text, COLUMN_WIDTH);
    snprintf(text, sizeof text, "%u", cell->finished);
    put_right(t, text, RUNS_WIDTH);
    for (size_t i = 0; i < COUNT_OF(details); i++) {
        double value;
        memcpy(&value, (const char *)cell + details[i].offset, sizeof value);
        bool known = !isnan(value) && (!details[i].of_staleness || cell->staleness > 0);
        snprintf(text, sizeof text, "%.*f", details[i].decimals, value);
        put_right(t, known ? text : "", details[i].width);
    }
    end_line(t);
}

static void put_detail_table(const struct table *t)
{
    const struct cells *c = t->c;
    put_group(t);
    put(t, "arm", LABEL_WIDTH);
    put_right(t, columns_name(c->experiment), COLUMN_WIDTH);
    put_right(t, "runs", RUNS_WIDTH);
    for (size_t i = 0; i < COUNT_OF(details); i++)
        put_right(t, details[i].title, details[i].width);
    end_line(t);
    put_rule(t, COUNT_OF(details) + 3, COUNT_OF(details) + 2);
    for (size_t a = 0; a < c->experiment->arm_count; a++) {
        for (size_t w = t->begin; w < t->end; w++) {
            const struct cell *cell = cells_find(c, c->experiment->arms[a].name, c->columns[w]);
            if (cell != NULL && cell->finished > 0)
                put_details_of(t, cell);
        }
    }
}

static void put_details(struct table t)
{
    fprintf(t.to, "Training time, rates, and staleness as mean, cv (standard deviation / mean) "
                  "and maximum");
    end_caption(&t);
    while (next_group(&t))
        put_detail_table(&t);
}

/* The arm to compare the others with: undamped asynchrony, or the first arm that has cells. */
static const struct arm *baseline(const struct cells *c)
{
    const struct experiment *e = c->experiment;
    const struct arm *undamped =
        e->verdict.undamped != NULL ? experiment_arm(e, e->verdict.undamped) : NULL;
    for (size_t a = 0; undamped == NULL && a < e->arm_count; a++)
        undamped = has_cells(c, &e->arms[a], 0, c->column_count) ? &e->arms[a] : NULL;
    return undamped;
}

static bool pair_text(const struct cells *c, const struct cell *cell, const struct cell *base,
                      char out[64])
{
    struct paired p = {.n = 0};
    out[0] = '\0';
    if (cell != NULL && base != NULL)
        cells_pair(c, cell, base, &p);
    if (p.n > 0)
        margin_text(c, &p, out);
    return p.n > 0;
}

/* Whether the arm and the baseline have a pair of runs in these columns. */
static bool has_pairs(const struct table *t, const struct arm *arm, const struct arm *base)
{
    const struct cells *c = t->c;
    char text[64];
    bool any = false;
    for (size_t w = t->begin; arm != base && w < t->end; w++)
        any = any || pair_text(c, cells_find(c, arm->name, c->columns[w]),
                               cells_find(c, base->name, c->columns[w]), text);
    return any;
}

static void put_pair_table(const struct table *t, const struct arm *base, bool first)
{
    const struct cells *c = t->c;
    bool has_title = false;
    char text[64];
    for (size_t a = 0; a < c->experiment->arm_count; a++) {
        const struct arm *arm = &c->experiment->arms[a];
        if (!has_pairs(t, arm, base))
            continue;
        if (first && !has_title) {
            fprintf(t->to,
                    "\n%s '%s' on the same seeds: mean difference ± half of its 95 %% interval "
                    "(pairs)",
                    c->metric == METRIC_ACCURACY ? "Points of accuracy above" : "Loss above",
                    base->label);
            end_caption(t);
        }
        if (!has_title) {
            put_group(t);
            put_columns(t);
        }
        has_title = true;
        put(t, arm->label, LABEL_WIDTH);
        for (size_t w = t->begin; w < t->end; w++) {
            pair_text(c, cells_find(c, arm->name, c->columns[w]),
                      cells_find(c, base->name, c->columns[w]), text);
            put(t, text, cell_width(c));
        }
        end_line(t);
    }
}

static void put_pairs(struct table t)
{
    const struct arm *base = baseline(t.c);
    for (bool first = true; base != NULL && next_group(&t); first = false)
        put_pair_table(&t, base, first);
}

void cells_print(const struct cells *c, FILE *to)
{
    const struct table t = {.c = c, .to = to};
    put_leads(t);
    put_scores(t);
    fputc('\n', to);
    put_details(t);
    put_pairs(t);
}

void cells_print_markdown(const struct cells *c, FILE *to)
{
    const struct table t = {.c = c, .to = to, .markdown = true};
    put_leads(t);
    put_scores(t);
    fputs("\n<details><summary>Time, rates, staleness; differences on the same seeds</summary>\n\n",
          to);
    put_details(t);
    put_pairs(t);
    fputs("\n</details>\n", to);
}
