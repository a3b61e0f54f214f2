#include "results/query/show_comparison.h"

#include "base/text.h"
#include "results/query/query_bind.h"
#include "results/query/query_output.h"
#include "results/query/statistics.h"

#include <stdlib.h>

struct comparison {
    sqlite3 *db;
    int64_t ids[COMPARED_AT_MOST];
    size_t count;
    struct text list; /* "3,7" */
    struct query_style style;
    FILE *out;
};

/* ---- tables with a column per run --------------------------------------------------------------
 */

/* Prints the rows of `sql` under `title`; without rows `none`. */
static status show_table(const struct comparison *c, const char *title, const char *sql,
                         const char *none)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    char *table = NULL;
    size_t length = 0, rows = 0;
    FILE *part = open_memstream(&table, &length);
    REQUIRE(part != NULL);
    TRY(database_prepare(c->db, &s, sql));
    TRY(query_output_write(c->db, s, &c->style, part, &rows));
    if (rows > 0)
        fprintf(c->out, "\n%s\n\n%s", title, table);
    else
        fputs(none, c->out);
done:
    sqlite3_finalize(s);
    fclose(part);
    free(table);
    return result;
}

/* source: a SELECT of position, label, run and value. One row per label, in order of position, if
 * `condition` holds for its values. */
static status show_by_run(const struct comparison *c, const char *title, const char *label,
                          const char *source, const char *condition, const char *none)
{
    struct text sql = {0};
    text_add(&sql, "SELECT label AS \"%s\"", label);
    for (size_t i = 0; i < c->count; i++)
        text_add(&sql, ", max(value) FILTER (WHERE run = %lld) AS \"run %lld\"",
                 (long long)c->ids[i], (long long)c->ids[i]);
    text_add(&sql, " FROM (%s) WHERE run IN (%s) GROUP BY label HAVING %s ORDER BY min(position)",
             source, c->list.at, condition);
    status result = show_table(c, title, sql.at, none);
    text_free(&sql);
    return result;
}

/* Members of a JSON object that are not equal in all runs. */
static status show_differing(const struct comparison *c, const char *title, const char *column,
                             const char *none)
{
    struct text source = {0}, condition = {0};
    text_add(&source,
             "SELECT j.id AS position, j.key AS label, run.id AS run, "
             "CASE j.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' "
             "ELSE nullif(CAST(j.value AS TEXT), '') END AS value "
             "FROM run, json_each(run.%s) AS j WHERE j.key NOT IN ('argv', 'folder')",
             column);
    text_add(&condition, "count(DISTINCT value) + (count(value) BETWEEN 1 AND %zu) > 1",
             c->count - 1);
    status result = show_by_run(c, title, "key", source.at, condition.at, none);
    text_free(&source);
    text_free(&condition);
    return result;
}

/* Numbers are printed as text, so that numbers of different sizes in one column keep their digits.
 */
static const struct {
    const char *label, *format; /* format NULL: the expression is a text */
    const char *expression;
} results[] = {
    {"status", NULL, "status"},
    {"test accuracy", "%.4f", "final_accuracy"},
    {"best test accuracy", "%.4f", "best_accuracy"},
    {"validation accuracy", "%.4f", "validation_accuracy"},
    {"test loss", "%.4f", "final_loss"},
    {"validation loss", NULL,
     "(SELECT CASE WHEN validation_loss IS NOT NULL THEN printf('%.4f', validation_loss) "
     "WHEN instr(',' || e.not_a_number || ',', ',validation_loss,') > 0 THEN 'NaN' END "
     "FROM evaluation AS e WHERE run_id = run.id ORDER BY e.updates DESC LIMIT 1)"},
    {"one class predicted", NULL, "CASE collapsed WHEN 1 THEN 'yes' END"},
    {"mean staleness", "%.2f", "mean_staleness"},
    {"greatest staleness", "%d", "max_staleness"},
    {"samples/s", "%.0f", "samples_per_second"},
    {"updates/s", "%.1f", "updates_per_second"},
    {"updates", "%d", "updates"},
    {"samples used", "%d", "samples_used"},
    {"seconds", "%.2f", "train_seconds"},
    {"clock", NULL, "(SELECT clock FROM run_clock WHERE run_id = run.id)"},
    {"error", NULL, "error"},
};

/* 'NaN' if it is not a number, NULL if it was not measured. */
static void add_number(struct text *sql, const char *format, const char *column)
{
    text_add(sql,
             "CASE WHEN %s IS NOT NULL THEN printf('%s', %s) "
             "WHEN instr(',' || not_a_number || ',', ',%s,') > 0 THEN 'NaN' END",
             column, format, column, column);
}

static status show_results(const struct comparison *c)
{
    struct text source = {0};
    text_add(&source,
             "SELECT j.id AS position, j.key AS label, run.id AS run, j.value AS value FROM ("
             "SELECT *, updates / train_seconds AS updates_per_second FROM run) AS run, "
             "json_each(json_object(");
    for (size_t i = 0; i < COUNT_OF(results); i++) {
        text_add(&source, "%s'%s', ", i > 0 ? ", " : "", results[i].label);
        if (results[i].format != NULL)
            add_number(&source, results[i].format, results[i].expression);
        else
            text_add(&source, "%s", results[i].expression);
    }
    text_add(&source, ")) AS j");
    status result = show_by_run(c, "results", "result", source.at, "count(value) > 0", "");
    text_free(&source);
    return result;
}

/* ---- curves ------------------------------------------------------------------------------------
 */

/* Prints `column` of table evaluation. The rows are the evaluations of the first run that has any;
 * of a long run, every n-th and the last. Runs are evaluated after a whole update, so the same
 * evaluation may have slightly different numbers of samples in other runs. */
static status show_curve(const struct comparison *c, const char *title, const char *column)
{
    struct text sql = {0};
    text_add(&sql, "WITH named (run, position) AS (VALUES ");
    for (size_t i = 0; i < c->count; i++)
        text_add(&sql, "%s(%lld, %zu)", i > 0 ? ", " : "", (long long)c->ids[i], i);
    text_add(&sql,
             "), grid AS (SELECT samples FROM ("
             "  SELECT samples, row_number() OVER (ORDER BY updates) AS i, count(*) OVER () AS n"
             "  FROM evaluation WHERE run_id = (SELECT run FROM named WHERE EXISTS ("
             "   SELECT 1 FROM evaluation WHERE run_id = run) ORDER BY position LIMIT 1))"
             " WHERE i = n OR (i - 1) %% ((n + 24) / 25) = 0),"
             " pair AS (SELECT run_id AS run, grid.samples AS at, e.%s AS value,"
             "  instr(',' || not_a_number || ',', ',%s,') > 0 AS is_nan,"
             "  row_number() OVER (PARTITION BY run_id, updates ORDER BY"
             "   abs(e.samples - grid.samples)) AS of_evaluation,"
             "  row_number() OVER (PARTITION BY run_id, grid.samples ORDER BY"
             "   abs(e.samples - grid.samples)) AS of_grid"
             "  FROM evaluation AS e JOIN grid ON abs(e.samples - grid.samples)"
             "   <= 0.05 * grid.samples WHERE run_id IN (%s)) "
             "SELECT at AS samples",
             column, column, c->list.at);
    for (size_t i = 0; i < c->count; i++)
        text_add(&sql,
                 ", max(CASE WHEN is_nan THEN 'NaN' ELSE value END) FILTER (WHERE run = %lld)"
                 " AS \"run %lld\"",
                 (long long)c->ids[i], (long long)c->ids[i]);
    if (c->count == 2)
        text_add(&sql,
                 ", max(value) FILTER (WHERE run = %lld) - max(value) FILTER (WHERE run = %lld)"
                 " AS \"run %lld - run %lld\"",
                 (long long)c->ids[1], (long long)c->ids[0], (long long)c->ids[1],
                 (long long)c->ids[0]);
    text_add(&sql, " FROM pair WHERE of_evaluation = 1 AND of_grid = 1 GROUP BY at HAVING "
                   "max(value IS NOT NULL OR "
                   "is_nan) ORDER BY at");
    status result = show_table(c, title, sql.at, "");
    text_free(&sql);
    return result;
}

/* ---- the same seeds ----------------------------------------------------------------------------
 */

static void print_difference(const char *name, const struct sample *s, unsigned seeds, FILE *out)
{
    if (s->n > 0)
        fprintf(out, ", %s %+.4f", name, sample_mean(s));
    if (s->n > 1)
        fprintf(out, " ± %.4f", sample_interval(s));
    if (s->n > 0 && s->n < seeds)
        fprintf(out, " (%u seed%s)", s->n, s->n == 1 ? "" : "s");
}

/* Prints the differences `other` − `first` on the seeds that both sides have. A side consists of
 * all finished runs with the settings, experiment and arm of its run. Runs of one seed share
 * initial weights and data order. A trial of tuning may have the same settings, but it belongs to
 * another experiment and does not count: its result chose the settings. Without a test split, the
 * loss is that of the validation split. */
static status show_pairs(const struct comparison *c, int64_t first, int64_t other)
{
    status result = OK;
    static const char sql[] =
        "WITH finished AS (SELECT named.id AS side, w.settings, w.seed,"
        "  avg(run.final_accuracy) AS accuracy, avg(run.final_loss) AS loss,"
        "  avg((SELECT validation_loss FROM last_evaluation WHERE run_id = run.id))"
        "   AS validation_loss"
        "  FROM run_with_settings AS named JOIN run_with_settings AS w"
        "  ON w.settings = named.settings AND w.experiment IS named.experiment"
        "  AND w.arm IS named.arm JOIN run ON run.id = w.id"
        "  WHERE named.id IN (?1, ?2) AND w.status = 'finished' GROUP BY named.id, w.seed) "
        "SELECT b.accuracy - a.accuracy, b.loss - a.loss, b.validation_loss - a.validation_loss"
        " FROM finished AS a JOIN finished AS b ON a.seed = b.seed AND a.settings <> b.settings "
        "WHERE a.side = ?1 AND b.side = ?2";
    sqlite3_stmt *s = NULL;
    struct sample differences[3] = {0}; /* of the three columns */
    unsigned seeds = 0;
    int code;
    TRY(database_prepare(c->db, &s, sql));
    sqlite3_bind_int64(s, 1, first);
    sqlite3_bind_int64(s, 2, other);
    for (; (code = sqlite3_step(s)) == SQLITE_ROW; seeds++) {
        for (int i = 0; i < 3; i++)
            if (sqlite3_column_type(s, i) != SQLITE_NULL)
                sample_add(&differences[i], sqlite3_column_double(s, i));
    }
    TRY(database_check(c->db, code, "compare runs of the same seeds"));
    if (seeds > 0) {
        fprintf(c->out, "  run %lld - run %lld: %u seed%s", (long long)other, (long long)first,
                seeds, seeds == 1 ? "" : "s");
        print_difference("accuracy", &differences[0], seeds, c->out);
        print_difference("loss", &differences[1], seeds, c->out);
        if (differences[1].n == 0)
            print_difference("validation loss", &differences[2], seeds, c->out);
        fprintf(c->out, "\n");
    }
done:
    sqlite3_finalize(s);
    return result;
}

static status show_all_pairs(const struct comparison *c)
{
    status result = OK;
    struct comparison part = *c;
    char *lines = NULL;
    size_t length = 0;
    part.out = open_memstream(&lines, &length);
    REQUIRE(part.out != NULL);
    for (size_t i = 1; i < c->count; i++)
        TRY(show_pairs(&part, c->ids[0], c->ids[i]));
    fflush(part.out);
    if (length > 0)
        fprintf(c->out,
                "\ndifferences on the same seeds: mean and 95 %% interval over finished runs\n\n%s",
                lines);
done:
    fclose(part.out);
    free(lines);
    return result;
}

/* ---- the page ----------------------------------------------------------------------------------
 */

static status find_runs(struct comparison *c, const char *const *runs)
{
    status result = OK;
    for (size_t i = 0; i < c->count; i++) {
        TRY(query_run_id(c->db, runs[i], &c->ids[i]));
        for (size_t k = 0; k < i; k++)
            if (c->ids[k] == c->ids[i])
                FAIL(ERROR_USAGE, "show: '%s' and '%s' are the same run; name different runs",
                     runs[k], runs[i]);
        text_add(&c->list, "%s%lld", i > 0 ? "," : "", (long long)c->ids[i]);
    }
done:
    return result;
}

/* Whether a run has no test loss, so that only its validation loss is comparable. */
static status lacks_test_loss(const struct comparison *c, bool *out)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct text sql = {0};
    text_add(&sql,
             "SELECT 1 FROM evaluation WHERE run_id IN (%s) GROUP BY run_id "
             "HAVING count(test_loss) = 0",
             c->list.at);
    TRY(database_prepare(c->db, &s, sql.at));
    const int code = sqlite3_step(s);
    TRY(database_check(c->db, code, "read the evaluations"));
    *out = code == SQLITE_ROW;
done:
    sqlite3_finalize(s);
    text_free(&sql);
    return result;
}

static status show_page(const struct comparison *c)
{
    status result = OK;
    bool by_validation;
    fprintf(c->out, "runs %s\n", c->list.at);
    TRY(show_differing(c, "settings that differ", "config", "\nno setting differs\n"));
    TRY(show_results(c));
    TRY(show_all_pairs(c));
    TRY(show_curve(c, "test accuracy by samples", "test_accuracy"));
    TRY(show_curve(c, "test loss by samples", "test_loss"));
    TRY(lacks_test_loss(c, &by_validation));
    if (by_validation)
        TRY(show_curve(c, "validation loss by samples", "validation_loss"));
    TRY(show_differing(c, "machine and program: what differs", "host", ""));
done:
    return result;
}

status show_comparison(const char *path, const char *const *runs, size_t count, unsigned width,
                       FILE *to)
{
    status result = OK;
    char *page = NULL;
    size_t length = 0;
    REQUIRE(count >= 2 && count <= COMPARED_AT_MOST);
    struct comparison c = {.count = count,
                           .style = {QUERY_TABLE, width, "gradlag show RUN RUN >FILE"},
                           .out = open_memstream(&page, &length)};
    REQUIRE(c.out != NULL);
    TRY(database_open_reader(&c.db, path));
    TRY(find_runs(&c, runs));
    /* One transaction, so that all parts show the same moment of a running run. */
    TRY(database_execute(c.db, "BEGIN", "read the runs"));
    TRY(show_page(&c));
done:
    if (c.db != NULL)
        database_rollback(c.db);
    database_close(&c.db);
    REQUIRE(fclose(c.out) == 0); /* a memory stream cannot fail */
    if (result == OK)
        fwrite(page, 1, length, to);
    free(page);
    text_free(&c.list);
    return result;
}
