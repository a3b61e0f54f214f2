#include "experiments/run/run_summary_text.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/run/progress.h"
#include "experiments/run/rerun_command.h"
#include "experiments/run/staleness_spread.h"
#include "results/query/query.h"
#include "base/options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The cv is over applied gradients. */
status run_summary_read(const char *results, int64_t run_id, const options *o,
                        struct run_figures *out)
{
    /* Give the run's number: with run_id = run.id SQLite would first compute the view for all
     * runs. */
    static const char form[] =
        "WITH counted AS (SELECT sum(pushes) AS gradients, "
        "1.0 * sum(staleness * pushes) / sum(pushes) AS mean, "
        "1.0 * sum(staleness * staleness * pushes) / sum(pushes) AS square "
        "FROM staleness_histogram WHERE run_id = %lld) "
        "SELECT final_accuracy, best_accuracy, validation_accuracy, final_loss, "
        "samples_per_second, updates, train_seconds, mean_staleness, max_staleness, "
        "max(0, square - mean * mean), collapsed, mean, gradients, "
        "(SELECT clock FROM run_clock WHERE run_id = run.id) = 'virtual', validation_loss, "
        "abs(final_loss) = 9e999 OR instr(run.not_a_number, 'final_loss') > 0, "
        "abs(validation_loss) = 9e999 OR instr(last.not_a_number, 'validation_loss') > 0 "
        "FROM run, counted LEFT JOIN (SELECT validation_loss, not_a_number FROM evaluation "
        "WHERE run_id = %lld ORDER BY updates DESC LIMIT 1) AS last ON true WHERE id = %lld";
    char sql[sizeof form + 72];
    double v[17] = {0};
    snprintf(sql, sizeof sql, form, (long long)run_id, (long long)run_id, (long long)run_id);
    status result = query_numbers(results, sql, v, COUNT_OF(v));
    /* Some builds of SQLite have no sqrt(). */
    v[9] = v[11] != 0 ? sqrt(v[9]) / v[11] : NAN;
    const struct staleness_spread spread = {
        .mean = v[11], .cv = v[9], .gradients = isfinite(v[12]) ? (uint64_t)v[12] : 0};
    *out =
        (struct run_figures){.accuracy = v[0],
                             .best_accuracy = v[1],
                             .validation_accuracy = v[2],
                             .validation_loss = v[14],
                             .loss = v[3],
                             .samples_per_second = v[4],
                             .updates = v[5],
                             .train_seconds = v[6],
                             .mean_staleness = v[7],
                             .max_staleness = v[8],
                             .staleness_cv = v[9],
                             .expected_cv = o != NULL ? staleness_spread_too_wide(o, &spread) : NAN,
                             .is_virtual = v[13] > 0,
                             .collapsed = v[10] > 0, /* false if unknown */
                             .loss_diverged = v[15] > 0,
                             .validation_loss_diverged = v[16] > 0};
    return result;
}

/* A text column of the run's row; "" where it is NULL. */
static status row_text(const char *results, int64_t run_id, const char *column, char *out,
                       size_t room)
{
    char sql[128], *value = NULL;
    snprintf(sql, sizeof sql, "SELECT %s FROM run WHERE id = %lld", column, (long long)run_id);
    status result = query_value(results, sql, NULL, 0, &value);
    snprintf(out, room, "%s", value != NULL ? value : "");
    memory_free(value);
    return result;
}

static void add_loss(struct text *out, const char *name, double loss, bool diverged)
{
    if (diverged)
        text_add(out, "  %s not finite", name);
    else if (isfinite(loss))
        text_add(out, fabs(loss) < 1e9 ? "  %s %.4f" : "  %s %.4g", name, loss);
}

static void add_accuracy(struct text *out, const struct run_figures *f)
{
    const bool tested = isfinite(f->accuracy) || isfinite(f->loss) || f->loss_diverged;
    if (isfinite(f->accuracy))
        text_add(out, "accuracy %.2f%%%s", 100 * f->accuracy,
                 f->collapsed ? " (collapsed to one class)" : "");
    else if (isfinite(f->validation_accuracy) && !tested)
        text_add(out, "validation accuracy %.2f%%", 100 * f->validation_accuracy);
    else
        text_add(out, "accuracy not measured");
    if (tested)
        add_loss(out, "loss", f->loss, f->loss_diverged);
    else
        add_loss(out, "validation loss", f->validation_loss, f->validation_loss_diverged);
}

static void add_staleness(struct text *out, const struct run_figures *f)
{
    if (isfinite(f->mean_staleness) && isfinite(f->max_staleness)) {
        text_add(out, "staleness %.2f", f->mean_staleness);
        if (isfinite(f->staleness_cv)) {
            text_add(out, " (cv %.2f", f->staleness_cv);
            if (isfinite(f->expected_cv))
                text_add(out, " where its pace explains %.2f", f->expected_cv);
            text_add(out, ", max %.0f)", f->max_staleness);
        } else if (f->max_staleness > 0) { /* record=evaluations: no rows of single gradients */
            text_add(out, " (max %.0f)", f->max_staleness);
        }
    }
}

/* Marks simulated rates and times. */
static const char *clock_of(const struct run_figures *f)
{
    return f->is_virtual ? " (virtual)" : "";
}

void run_summary_line(const struct run_figures *f, struct text *out)
{
    char time[32];
    progress_elapsed(f->train_seconds, time);
    add_accuracy(out, f);
    if (isfinite(f->samples_per_second))
        text_add(out, "  %.0f samples/s  %s%s", f->samples_per_second, time, clock_of(f));
    if (isfinite(f->mean_staleness) && f->mean_staleness > 0) {
        text_add(out, "  ");
        add_staleness(out, f);
    }
}

static void warn_of_spread(int64_t run_id, const struct run_figures *f)
{
    if (isfinite(f->expected_cv)) {
        log_warning("run %lld: staleness spreads wider (cv %.2f) than the pace explains (cv %.2f). "
                    "The steps were delayed, most likely by other work on this machine's cores. "
                    "Repeat the run on an idle machine, with fewer workers, with a longer "
                    "pace.mean_ms, or with engine=virtual",
                    (long long)run_id, f->staleness_cv, f->expected_cv);
    }
}

status run_summary_warn(const char *results, int64_t run_id, const options *o)
{
    struct run_figures f;
    const status result = run_summary_read(results, run_id, o, &f);
    if (result == OK)
        warn_of_spread(run_id, &f);
    return result;
}

status run_summary_print(const char *results, int64_t run_id, const options *o, FILE *to)
{
    status result = OK;
    struct run_figures f;
    struct text line = {0};
    char sha256[80], how[32], time[32];
    TRY(run_summary_read(results, run_id, o, &f));
    TRY(row_text(results, run_id, "parameters_sha256", sha256, sizeof sha256));
    TRY(row_text(results, run_id, "status", how, sizeof how));
    progress_elapsed(f.train_seconds, time);
    add_accuracy(&line, &f);
    fprintf(to, "run %-5lld %s  %s\n", (long long)run_id, how, line.at != NULL ? line.at : "");
    line.length = 0;
    add_staleness(&line, &f);
    if (line.length > 0)
        fprintf(to, "          %s\n", line.at);
    if (isfinite(f.samples_per_second)) {
        fprintf(to, "          %.0f samples/s  %.0f updates/s  %.0f updates in %s%s\n",
                f.samples_per_second, f.updates / f.train_seconds, f.updates, time, clock_of(&f));
    }
    if (sha256[0] != '\0')
        fprintf(to, "          parameters %s\n", sha256);
    line.length = 0;
    text_add(&line, "gradlag show %lld", (long long)run_id);
    rerun_add_results(&line, results);
    fprintf(to, "          %s\n", line.at);
    warn_of_spread(run_id, &f);
done:
    text_free(&line);
    return result;
}

void run_summary_title(const struct options *o, char out[128])
{
    bool async = strcmp(options_text(o, "mode"), "async") == 0;
    struct text title = {0};
    if (options_text(o, "arm")[0] != '\0') {
        text_add(&title, "%s ×%lld", options_text(o, "arm"),
                 (long long)options_integer(o, "workers"));
    } else {
        text_add(&title, "%s ×%lld %s", options_text(o, "mode"),
                 (long long)options_integer(o, "workers"), options_text(o, "model"));
        if (async && strcmp(options_text(o, "damping"), "none") != 0)
            text_add(&title, " %s", options_text(o, "damping"));
    }
    if (options_integer(o, "delay") > 0)
        text_add(&title, " delay %lld", (long long)options_integer(o, "delay"));
    text_add(&title, " seed %lld", (long long)options_integer(o, "seed"));
    snprintf(out, 128, "%s", title.at);
    text_free(&title);
}
