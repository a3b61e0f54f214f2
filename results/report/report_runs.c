/*
 * report_runs.c — tables of runs: unfinished runs, trials of tuning, and the configuration and
 * provenance of every run.
 */
#include "base/text.h"
#include "results/report/report_page.h"

#include "results/store/database.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void report_cell_run(struct html_table *t, const struct report_run *r)
{
    html_cell_open(t, NULL);
    text_add(t->out, "<a href=\"#run-%lld\">%lld</a>", (long long)r->id, (long long)r->id);
    html_cell_close(t);
}

/* "crossover: alike, free": the experiment and the panel. */
static void add_experiment(struct text *out, const struct report_run *r)
{
    html_text(out, r->experiment);
    text_add(out, "%s", r->panel[0] != '\0' ? ": " : "");
    html_text(out, r->panel);
}

void report_failures(struct text *out, const struct report_data *d)
{
    static const char *const titles[] = {"#run",  "status",   "experiment", "arm", "#workers",
                                         "#seed", "#updates", "why",        NULL};
    unsigned count = d->count[RUN_DIVERGED] + d->count[RUN_FAILED] + d->count[RUN_STOPPED];
    struct html_table t;
    text_add(out, "<section id=\"failures\"><h2>Runs that did not finish</h2>\n");
    if (count == 0) {
        text_add(out, "<p>No run diverged, failed or was stopped.</p></section>\n");
        return;
    }
    text_add(out, "<p>%u diverged, %u failed, %u stopped, of %zu runs.</p>\n",
             d->count[RUN_DIVERGED], d->count[RUN_FAILED], d->count[RUN_STOPPED], d->run_count);
    html_table_begin(&t, out, "Diverged, failed and stopped runs", titles);
    for (size_t i = 0; i < d->run_count; i++) {
        const struct report_run *r = &d->runs[i];
        if (r->status != RUN_DIVERGED && r->status != RUN_FAILED && r->status != RUN_STOPPED)
            continue;
        report_cell_run(&t, r);
        html_cell_open(&t, NULL);
        text_add(out, "<span class=\"badge fail\">%s</span>", run_status_name(r->status));
        html_cell_close(&t);
        html_cell_open(&t, NULL);
        add_experiment(out, r);
        html_cell_close(&t);
        report_cell_series(&t, d, d->cells[r->cell].series);
        html_cell_count(&t, r->workers);
        html_cell_count(&t, r->seed);
        html_cell_number(&t, r->updates, 0);
        html_cell_open(&t, "claim");
        html_text(out, r->why != NULL ? r->why : "not known");
        html_cell_close(&t);
    }
    html_table_end(&t);
    text_add(out, "</section>\n");
}

/* ---- trials -------------------------------------------------------------------------------------
 */

void report_trials(struct text *out, const struct report_data *d, const struct report_section *s)
{
    const char *const titles[] = {"arm and settings tried",
                                  s->axis,
                                  "#n",
                                  "#mean",
                                  "#95 % from",
                                  "#to",
                                  "#diverged",
                                  "#failed",
                                  NULL};
    struct html_table t;
    text_add(
        out,
        "<p>%u trials of %zu arms and settings. The best settings by the validation split are used "
        "in the experiment.</p>\n",
        s->runs, s->series_count);
    html_details_begin(out, "The trials", false);
    html_table_begin(&t, out,
                     s->in_nats         ? "Final loss on the validation split, in nats"
                     : s->of_validation ? "Final loss on the validation split"
                     : s->by_loss       ? "Final loss on the test split; there is no loss on the "
                                          "validation split"
                                        : "Final accuracy in % on the validation split",
                     titles);
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_cell *c = &d->cells[i];
        const struct sample *tried = s->by_loss ? report_outcome_of(s, c) : &c->validation;
        if (report_is_of(d, s, c)) {
            html_cell_text(&t, d->series[c->series].label);
            html_cell_count(&t, c->column);
            html_cell_count(&t, tried->n);
            html_cell_number(&t, sample_mean(tried), s->by_loss ? 5 : 2);
            report_cell_interval(&t, s, tried);
            html_cell_count(&t, report_diverged(s, c));
            html_cell_count(&t, c->count[RUN_FAILED] + c->count[RUN_STOPPED]);
        }
    }
    html_table_end(&t);
    html_details_end(out);
}

/* ---- every run ----------------------------------------------------------------------------------
 */

static void add_fact(struct text *out, const char *name, const char *value)
{
    if (value != NULL && value[0] != '\0') {
        text_add(out, "<dt>%s</dt><dd>", name);
        html_text(out, value);
        text_add(out, "</dd>");
    }
}

static void add_number(struct text *out, const char *name, double value, int decimals)
{
    if (!isnan(value)) {
        text_add(out, "<dt>%s</dt><dd>", name);
        html_number(out, value, decimals);
        text_add(out, "</dd>");
    }
}

static void add_head(struct text *out, const struct report_data *d, const struct report_run *r)
{
    bool bad = r->status == RUN_DIVERGED || r->status == RUN_FAILED || r->status == RUN_STOPPED;
    text_add(out, "<details class=\"run\" id=\"run-%lld\"><summary><b>%lld</b> ", (long long)r->id,
             (long long)r->id);
    add_experiment(out, r);
    text_add(out, "%s", r->experiment[0] != '\0' ? " · " : "");
    html_text(out, d->series[d->cells[r->cell].series].label);
    text_add(out, " · %lld worker%s · seed %lld · <span class=\"%s\">%s</span>",
             (long long)r->workers, r->workers == 1 ? "" : "s", (long long)r->seed,
             bad ? "bad" : "good", run_status_name(r->status));
    if (!isnan(r->accuracy))
        text_add(out, " · %.2f %%", r->accuracy);
    if (r->collapsed)
        text_add(out, " · <span class=\"bad\">collapsed to one class</span>");
    text_add(out, "</summary><dl>");
    add_fact(out, "uuid", r->uuid);
    add_fact(out, "tag", r->tag);
    add_fact(out, "started", r->started_at);
    add_fact(out, "finished", r->finished_at);
    add_fact(out, "error", r->why);
    add_number(out, "test accuracy %", r->accuracy, 2);
    add_number(out, "test loss", r->loss, 4);
    add_number(out, "test loss, bits per byte", r->bits, 4);
    add_number(out, "validation accuracy %", r->validation, 2);
    add_number(out, "validation loss", r->validation_loss, 4);
    add_number(out, "updates", r->updates, 0);
    add_number(out, "samples used", r->samples_used, 0);
    add_number(out, "samples computed", r->samples_computed, 0);
    add_number(out, "seconds of training", r->seconds, 2);
    add_number(out, "updates/s", r->updates_per_second, 1);
    add_number(out, "samples/s", r->samples_per_second, 0);
    add_number(out, "mean staleness", r->mean_staleness, 2);
    add_number(out, "most staleness", r->max_staleness, 0);
    add_fact(out, "parameters", r->sha256);
    if (r->provenance > 0) {
        text_add(out,
                 "<dt>made by</dt><dd><a href=\"#host-%lld\">machine and program of run "
                 "%lld</a></dd>",
                 (long long)r->provenance, (long long)r->provenance);
    }
    text_add(out, "</dl>");
}

/* Writes key=value; values that are not common to all runs are bold. */
static void add_setting(struct text *out, sqlite3_stmt *s)
{
    bool own = sqlite3_column_int(s, 3) == 0;
    text_add(out, "%s", own ? "<b>" : "");
    html_text(out, (const char *)sqlite3_column_text(s, 1));
    text_add(out, "=");
    html_text(out, (const char *)sqlite3_column_text(s, 2));
    text_add(out, "%s\n", own ? "</b>" : "");
}

/* Writes runs and their configurations; both are in the same order. */
static status add_runs(struct text *out, const struct report_data *d, sqlite3 *db,
                       const char *experiment)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(report_query(db, &s, "configurations", experiment));
    int code = sqlite3_step(s);
    for (size_t i = 0; i < d->run_count; i++) {
        const struct report_run *r = &d->runs[i];
        add_head(out, d, r);
        text_add(out, "<pre class=\"settings\">");
        while (code == SQLITE_ROW && sqlite3_column_int64(s, 0) <= r->id) {
            if (sqlite3_column_int64(s, 0) == r->id)
                add_setting(out, s);
            code = sqlite3_step(s);
        }
        text_add(out, "</pre></details>\n");
    }
    if (code != SQLITE_ROW)
        TRY(database_check(db, code, "read the configurations"));
done:
    sqlite3_finalize(s);
    return result;
}

static status add_provenance(struct text *out, sqlite3 *db, const char *experiment)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int64_t last = 0;
    int code;
    TRY(report_query(db, &s, "provenance", experiment));
    text_add(out, "<h3>Machines and programs</h3>\n");
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        int64_t first = sqlite3_column_int64(s, 0);
        if (first != last) {
            text_add(out,
                     "%s<details class=\"run\" id=\"host-%lld\"><summary>run %lld: %lld run%s"
                     "</summary><dl>",
                     last != 0 ? "</dl></details>\n" : "", (long long)first, (long long)first,
                     (long long)sqlite3_column_int64(s, 3),
                     sqlite3_column_int64(s, 3) == 1 ? "" : "s");
            last = first;
        }
        text_add(out, "<dt>");
        html_text(out, (const char *)sqlite3_column_text(s, 1));
        text_add(out, "</dt><dd>");
        const char *value = (const char *)sqlite3_column_text(s, 2);
        html_text(out, value != NULL ? value : "–");
        text_add(out, "</dd>");
    }
    text_add(out, "%s", last != 0 ? "</dl></details>\n" : "<p>Not recorded.</p>\n");
    TRY(database_check(db, code, "read the provenance"));
done:
    sqlite3_finalize(s);
    return result;
}

status report_runs(struct text *out, const struct report_data *d, sqlite3 *db,
                   const char *experiment)
{
    status result = OK;
    text_add(out,
             "<section id=\"runs\"><h2>All runs</h2>\n<p>The configuration of each run; settings "
             "that differ between runs are bold. <code>gradlag show RUN</code> shows more of "
             "one, <code>gradlag query</code> answers questions.</p>\n");
    html_details_begin(out, "Configuration of every run", false);
    TRY(add_runs(out, d, db, experiment));
    html_details_end(out);
    TRY(add_provenance(out, db, experiment));
    text_add(out, "</section>\n");
done:
    return result;
}
