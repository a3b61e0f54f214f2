#include "results/query/show_run.h"

#include "base/terminal.h"
#include "base/text.h"
#include "results/query/query_bind.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Each of several servers has a row for its slice of a gradient. */
#define PARTS "parts of gradients, one at each server,"

enum { BAR_WIDTH = 40, HISTOGRAM_LINES = 24, CURVE_LINES = 25, EVENTS_SHOWN = 50 };

/* Prints the current row of `s`. */
typedef void row_printer(sqlite3_stmt *s, FILE *out);

/* Runs `sql` for one run (?1) and a limit (?2, if `sql` has it). If there are rows, prints `title`
 * (may be NULL) once, then `each` row. */
static status show_rows(sqlite3 *db, const char *sql, int64_t run_id, int limit, row_printer *title,
                        row_printer *each, FILE *out)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    TRY(database_prepare(db, &s, sql));
    sqlite3_bind_int64(s, 1, run_id);
    if (sqlite3_bind_parameter_count(s) > 1)
        sqlite3_bind_int(s, 2, limit);
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        if (title != NULL) {
            title(s, out);
            title = NULL;
        }
        each(s, out);
    }
    TRY(database_check(db, code, "read the run"));
done:
    sqlite3_finalize(s);
    return result;
}

static const char *text_or(sqlite3_stmt *s, int column, const char *otherwise)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text == NULL ? otherwise : text;
}

/* Formats a measured number with `decimals`: "NaN" if column `list` (not_a_number) names it, "-" if
 * it was not measured. */
static const char *measured(sqlite3_stmt *s, int column, int decimals, int list, char out[32])
{
    char wanted[80], listed[240];
    if (sqlite3_column_type(s, column) != SQLITE_NULL) {
        const double value = sqlite3_column_double(s, column);
        if (fabs(value) < 1e9)
            snprintf(out, 32, "%.*f", decimals, value);
        else
            snprintf(out, 32, "%.4g", value);
        return out;
    }
    snprintf(wanted, sizeof wanted, ",%s,", sqlite3_column_name(s, column));
    snprintf(listed, sizeof listed, ",%s,", text_or(s, list, ""));
    return strstr(listed, wanted) == NULL ? "-" : "NaN";
}

static void print_bar(FILE *out, double share)
{
    int length = (int)lround(share * BAR_WIDTH);
    for (int i = 0; i < length && i < BAR_WIDTH; i++)
        fputc('#', out);
    fputc('\n', out);
}

/* ---- the parts of the page ---------------------------------------------------------------------
 */

static void print_summary(sqlite3_stmt *s, FILE *out)
{
    enum {
        ID,
        UUID,
        EXPERIMENT,
        ARM,
        TAG,
        MODE,
        WORKERS,
        SEED,
        STATUS,
        STARTED,
        UPDATES,
        USED,
        COMPUTED,
        SECONDS,
        RATE,
        UPDATE_RATE,
        FINAL,
        BEST,
        VALIDATION,
        LOSS,
        SHA,
        ERROR,
        LIST,
        COLLAPSED,
        VIRTUAL,
        VALIDATION_BITS,
        BITS
    };
    char a[32], b[32], c[32], d[32];
    fprintf(out, "run %s: %s, %s, %s worker%s, seed %s\n", text_or(s, ID, "?"),
            text_or(s, STATUS, "?"), text_or(s, MODE, "?"), text_or(s, WORKERS, "?"),
            sqlite3_column_int64(s, WORKERS) == 1 ? "" : "s", text_or(s, SEED, "-"));
    fprintf(out, "  experiment     %s, arm %s, tag %s\n", text_or(s, EXPERIMENT, "-"),
            text_or(s, ARM, "-"), text_or(s, TAG, "-"));
    fprintf(out, "  uuid           %s\n", text_or(s, UUID, "-"));
    fprintf(out, "  started        %s\n", text_or(s, STARTED, "not yet"));
    fprintf(out, "  trained        %s s, %s updates, %s samples used of %s computed\n",
            measured(s, SECONDS, 2, LIST, a), text_or(s, UPDATES, "-"), text_or(s, USED, "-"),
            text_or(s, COMPUTED, "-"));
    fprintf(out, "  speed          %s samples/s, %s updates/s%s\n", measured(s, RATE, 0, LIST, a),
            measured(s, UPDATE_RATE, 1, LIST, b),
            sqlite3_column_int(s, VIRTUAL) == 1 ? " (virtual)" : "");
    fprintf(out, "  test accuracy  %s at the end, %s at best (validation %s, test loss %s)\n",
            measured(s, FINAL, 4, LIST, a), measured(s, BEST, 4, LIST, b),
            measured(s, VALIDATION, 4, LIST, c), measured(s, LOSS, 4, LIST, d));
    if (sqlite3_column_type(s, VALIDATION_BITS) != SQLITE_NULL) {
        fprintf(out, "  bits per byte  %s in the validation split, %s in the test split\n",
                measured(s, VALIDATION_BITS, 4, LIST, a), measured(s, BITS, 4, LIST, b));
    }
    if (sqlite3_column_int(s, COLLAPSED) == 1)
        fprintf(out, "  collapsed      at least 99 %% of the test predictions are one class\n");
    fprintf(out, "  parameters     %s\n", text_or(s, SHA, "-"));
    if (sqlite3_column_type(s, ERROR) != SQLITE_NULL)
        fprintf(out, "  error          %s\n", text_or(s, ERROR, ""));
}

static status show_summary(sqlite3 *db, int64_t id, FILE *out)
{
    /* A run that has not ended has the counts of its last progress report. The progress of a
     * virtual run holds seconds of the host. Losses of text are also printed in bits: divided by
     * ln 2. */
    static const char sql[] =
        "WITH self AS ("
        "  SELECT *, coalesce(progress ->> '$.updates', updates) AS u,"
        "   coalesce(progress ->> '$.samples', samples_used) AS n,"
        "   CASE WHEN progress ->> '$.updates' IS NULL THEN train_seconds"
        "    WHEN engine IS NOT 'virtual' THEN progress ->> '$.seconds' END AS t"
        "  FROM run WHERE id = ?1), "
        "last AS (SELECT validation_loss / 0.6931471805599453 AS validation_bits,"
        "   test_loss / 0.6931471805599453 AS test_bits FROM evaluation"
        "   WHERE run_id = (SELECT id FROM self WHERE dataset IN ('text', 'grammar'))"
        "   ORDER BY updates DESC LIMIT 1) "
        "SELECT id, uuid, experiment, arm, tag, mode, workers, seed, status, started_at, u, n, "
        "samples_computed, t AS train_seconds, coalesce(samples_per_second, n / t) AS "
        "samples_per_second, u / t, final_accuracy, best_accuracy, validation_accuracy, "
        "final_loss, "
        "parameters_sha256, error, not_a_number, collapsed, "
        "(SELECT clock FROM run_clock WHERE run_id = self.id) = 'virtual',"
        "validation_bits, test_bits FROM self LEFT JOIN last";
    return show_rows(db, sql, id, 0, NULL, print_summary, out);
}

/* A JSON object's members, one per line. */
static void title_json(sqlite3_stmt *s, FILE *out)
{
    fprintf(out, "\n%s\n", text_or(s, 3, ""));
}

static void print_member(sqlite3_stmt *s, FILE *out)
{
    fprintf(out, "  %-*s  %s\n", sqlite3_column_int(s, 2), text_or(s, 0, ""), text_or(s, 1, "-"));
}

static status show_json(sqlite3 *db, int64_t id, const char *title, const char *column, FILE *out)
{
    struct text sql = {0};
    text_add(&sql,
             "SELECT j.key, CASE j.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' "
             "ELSE j.value END, max(length(j.key)) OVER (), '%s' FROM run, json_each(run.%s) AS j "
             "WHERE run.id = ?1 AND run.%s IS NOT NULL ORDER BY j.id",
             title, column, column);
    status result = show_rows(db, sql.at, id, 0, title_json, print_member, out);
    text_free(&sql);
    return result;
}

static void title_curve(sqlite3_stmt *s, FILE *out)
{
    (void)s;
    fprintf(out, "\ncurve\n  %9s %9s %9s %10s %11s %10s %9s %8s\n", "updates", "samples", "seconds",
            "train loss", "valid. loss", "validation", "test loss", "test");
}

static void print_evaluation(sqlite3_stmt *s, FILE *out)
{
    enum { VALIDATION_LOSS = 4, VALIDATION, LOSS, ACCURACY, LIST };
    char a[32], b[32], c[32], d[32], e[32], f[32];
    fprintf(out, "  %9s %9s %9s %10s %11s %10s %9s %8s  ", text_or(s, 0, "-"), text_or(s, 1, "-"),
            measured(s, 2, 2, LIST, a), measured(s, 3, 4, LIST, b),
            measured(s, VALIDATION_LOSS, 4, LIST, c), measured(s, VALIDATION, 4, LIST, d),
            measured(s, LOSS, 4, LIST, e), measured(s, ACCURACY, 4, LIST, f));
    print_bar(out, sqlite3_column_double(s, ACCURACY));
}

static status show_curve(sqlite3 *db, int64_t id, FILE *out)
{
    /* For a long run: every n-th evaluation, and the last. */
    static const char sql[] =
        "SELECT updates, samples, seconds, train_loss, validation_loss, validation_accuracy, "
        "test_loss, test_accuracy, not_a_number FROM ("
        "  SELECT *, row_number() OVER (ORDER BY updates) AS i, count(*) OVER () AS n"
        "  FROM evaluation WHERE run_id = ?1) "
        "WHERE i = n OR (i - 1) % ((n + ?2 - 1) / ?2) = 0 ORDER BY updates";
    return show_rows(db, sql, id, CURVE_LINES, title_curve, print_evaluation, out);
}

static void title_staleness(sqlite3_stmt *s, FILE *out)
{
    fprintf(out,
            "\nstaleness of the %s %s that were used: mean %.2f, most %s\n"
            "  %9s %7s %6s\n",
            text_or(s, 7, "0"), sqlite3_column_int(s, 8) != 0 ? PARTS : "gradients",
            sqlite3_column_double(s, 5), text_or(s, 6, "0"), "versions", "share", "scale");
}

static void print_bin(sqlite3_stmt *s, FILE *out)
{
    char bin[48];
    int64_t low = sqlite3_column_int64(s, 0), high = sqlite3_column_int64(s, 1);
    snprintf(bin, sizeof bin, low == high ? "%lld" : "%lld-%lld", (long long)low, (long long)high);
    fprintf(out, "  %9s %5.1f %% %6.3f  ", bin, 100 * sqlite3_column_double(s, 2),
            sqlite3_column_double(s, 4));
    print_bar(out, sqlite3_column_double(s, 3));
}

static status show_staleness(sqlite3 *db, int64_t id, FILE *out)
{
    /* Bins of equal width, so that the histogram fits on a screen. */
    static const char sql[] =
        "WITH bound AS ("
        "  SELECT max(staleness) AS most, (max(staleness) + ?2) / ?2 AS width"
        "  FROM staleness_histogram WHERE run_id = ?1),"
        " bin AS ("
        "  SELECT staleness / width * width AS low, width, sum(share) AS share,"
        "   sum(mean_scale * pushes) / sum(pushes) AS mean_scale"
        "  FROM staleness_histogram, bound WHERE run_id = ?1 GROUP BY 1) "
        "SELECT low, low + width - 1, share, share / max(share) OVER (), mean_scale,"
        " (SELECT 1.0 * sum(staleness * pushes) / sum(pushes) FROM staleness_histogram"
        "  WHERE run_id = ?1), (SELECT most FROM bound),"
        " (SELECT sum(pushes) FROM staleness_histogram WHERE run_id = ?1),"
        " (SELECT config ->> '$.servers' > 1 FROM run WHERE id = ?1) "
        "FROM bin ORDER BY low";
    return show_rows(db, sql, id, HISTOGRAM_LINES, title_staleness, print_bin, out);
}

static void print_dropped(sqlite3_stmt *s, FILE *out)
{
    fprintf(out, "  not used: %s %s\n", text_or(s, 1, "0"), text_or(s, 0, "?"));
}

static status show_dropped(sqlite3 *db, int64_t id, FILE *out)
{
    /* Table run_staleness has one total for all outcomes. It is read only if the file has no rows
     * of `push` of the run. */
    static const char sql[] = "SELECT outcome, count(*) FROM push WHERE run_id = ?1 "
                              "AND outcome NOT IN ('applied', 'aggregated') GROUP BY outcome "
                              "UNION ALL SELECT 'dropped', sum(dropped) FROM run_staleness "
                              "WHERE run_id = ?1 AND NOT EXISTS (SELECT 1 FROM push "
                              "WHERE run_id = ?1) HAVING sum(dropped) > 0";
    return show_rows(db, sql, id, 0, NULL, print_dropped, out);
}

/* One phase of a step; shares are of the worker's own time. */
static void print_phase(FILE *out, const char *name, sqlite3_stmt *s, int column, double total)
{
    if (sqlite3_column_type(s, column) != SQLITE_NULL) {
        double us = sqlite3_column_double(s, column);
        double share = total > 0 ? us / total : 0;
        fprintf(out, "  %-24s %10.0f us %5.1f %%  ", name, us, 100 * share);
        print_bar(out, share);
    }
}

static void print_time(sqlite3_stmt *s, FILE *out)
{
    double total = sqlite3_column_double(s, 1);
    bool exchanges = sqlite3_column_type(s, 6) != SQLITE_NULL;
    bool asynchronous = sqlite3_column_type(s, 3) != SQLITE_NULL && !exchanges;
    fprintf(out, "\nwhere a worker's time goes (mean of %s steps, %.0f us each)\n",
            text_or(s, 0, "0"), total);
    print_phase(out, "computing", s, 2, total);
    print_phase(out, "  gathering data", s, 7, total);
    print_phase(out, "  forward", s, 8, total);
    print_phase(out, "  backward", s, 9, total);
    print_phase(out, "exchanging gradients", s, 6, total);
    if (sqlite3_column_double(s, 10) > 0)
        print_phase(out, "  beside that, hidden", s, 10, total);
    print_phase(out, exchanges ? "waiting for other stages" : "waiting for parameters", s, 3,
                total);
    print_phase(out, asynchronous ? "  queued at the server" : "queued", s, 4, total);
    print_phase(out, asynchronous ? "  server applies" : "applying", s, 5, total);
}

static status show_time(sqlite3 *db, int64_t id, FILE *out)
{
    static const char sql[] =
        "SELECT sum(steps), sum(step_us * steps) / sum(steps), sum(compute_us * steps) / "
        "sum(steps), "
        "sum(pull_us * steps) / sum(steps), sum(queue_us * steps) / sum(steps), "
        "sum(apply_us * steps) / sum(steps), sum(exchange_us * steps) / sum(steps), "
        "sum(data_us * steps) / sum(steps), sum(forward_us * steps) / sum(steps), "
        "sum(backward_us * steps) / sum(steps), sum(hidden_us * steps) / sum(steps) "
        "FROM where_time_goes WHERE run_id = ?1 HAVING sum(steps) > 0";
    return show_rows(db, sql, id, 0, NULL, print_time, out);
}

static void title_events(sqlite3_stmt *s, FILE *out)
{
    bool all = sqlite3_column_int64(s, 6) <= EVENTS_SHOWN;
    fprintf(out, "\nevents%s\n", all ? "" : " (the last 50)");
}

static void print_event(sqlite3_stmt *s, FILE *out)
{
    char at[32];
    fprintf(out, "  %9s s  %-7s  %s", measured(s, 0, 2, 5, at), text_or(s, 1, ""),
            text_or(s, 2, ""));
    if (sqlite3_column_type(s, 3) != SQLITE_NULL)
        fprintf(out, ", worker %s", text_or(s, 3, ""));
    if (sqlite3_column_int(s, 7) > 0)
        fprintf(out, ", server %s", text_or(s, 7, ""));
    const char *detail = text_or(s, 4, "");
    fprintf(out, "%s%s\n", detail[0] == '\0' ? "" : ": ", detail);
}

static status show_events(sqlite3 *db, int64_t id, FILE *out)
{
    static const char sql[] =
        "SELECT at_seconds, severity, code, worker, detail, not_a_number, n, server FROM ("
        "  SELECT *, rowid AS i, count(*) OVER () AS n FROM event WHERE run_id = ?1"
        "  ORDER BY rowid DESC LIMIT ?2) ORDER BY i";
    return show_rows(db, sql, id, EVENTS_SHOWN, title_events, print_event, out);
}

/* Text of an untrusted file must not control the terminal. */
static void write_page(const char *page, FILE *out)
{
    while (*page != '\0') {
        struct terminal_character c = terminal_character_at(page);
        if (c.printable || *page == '\n')
            fwrite(page, 1, c.bytes, out);
        else
            fputc(' ', out);
        page += c.bytes;
    }
}

status show_run(const char *path, const char *run, FILE *to)
{
    status result = OK;
    sqlite3 *db = NULL;
    int64_t id;
    char *page = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&page, &length);
    REQUIRE(out != NULL);
    TRY(database_open_reader(&db, path));
    TRY(query_run_id(db, run, &id));
    /* One transaction, so that all parts show the same moment of a running run. */
    TRY(database_execute(db, "BEGIN", "read the run"));
    TRY(show_summary(db, id, out));
    TRY(show_curve(db, id, out));
    TRY(show_staleness(db, id, out));
    TRY(show_dropped(db, id, out));
    TRY(show_time(db, id, out));
    TRY(show_events(db, id, out));
    TRY(show_json(db, id, "configuration", "config", out));
    TRY(show_json(db, id, "host", "host", out));
done:
    if (db != NULL)
        database_rollback(db);
    database_close(&db);
    REQUIRE(fclose(out) == 0); /* a memory stream cannot fail */
    if (result == OK)
        write_page(page, to);
    free(page);
    return result;
}
