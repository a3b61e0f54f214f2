#include "results/report/report.h"

#include "base/clock.h"
#include "base/sha256.h"
#include "base/text.h"
#include "results/store/database.h"
#include "results/report/report_page.h"
#include "base/output_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCRIPT "results/report/report.js"

/* With so many experiments, the browser renders only visible sections. */
enum { MANY_SECTIONS = 8 };

/* ---- shared by the parts ------------------------------------------------------------------------
 */

void report_figure_begin(struct text *out, const char *title, const char *caption_format, ...)
{
    char caption[512];
    va_list arguments;
    va_start(arguments, caption_format);
    vsnprintf(caption, sizeof caption, caption_format, arguments);
    va_end(arguments);
    text_add(out, "<figure><h3>");
    html_text(out, title);
    text_add(out, "</h3><figcaption>");
    html_text(out, caption);
    text_add(out, "</figcaption>\n");
}

void report_figure_end(struct text *out)
{
    text_add(out, "</figure>\n");
}

void report_cell_series(struct html_table *t, const struct report_data *d, size_t series)
{
    html_cell_open(t, "arm");
    plot_swatch(t->out, d->series[series].style);
    html_text(t->out, d->series[series].label);
    html_cell_close(t);
}

void report_range_end(const struct report_section *s, struct plot_axis *a)
{
    plot_range_end(a);
    if (!s->by_loss) {
        double air = 0.02 * (a->high - a->low); /* so that marks at the ends are complete */
        a->high = fmin(a->high, 100 + air);
        a->low = fmax(a->low, -air);
    }
}

/* The texts about the outcome of a section. */
struct outcome_texts {
    const char *name, *title, *caption, *unit;
};

static const struct outcome_texts *texts_of(const struct report_section *s)
{
    static const struct outcome_texts accuracy = {"test accuracy, %", "Test accuracy",
                                                  "Test accuracy in %", " % test accuracy"},
                                      loss = {"test loss", "Test loss", "Test loss", " test loss"},
                                      validation = {"validation loss", "Validation loss",
                                                    "Validation loss", " validation loss"},
                                      nats = {"validation loss, nats", "Validation loss",
                                              "Validation loss in nats", " nats validation loss"};
    return s->in_nats ? &nats : s->of_validation ? &validation : s->by_loss ? &loss : &accuracy;
}

bool report_over_workers(const struct report_section *s)
{
    return strcmp(s->axis, "#workers") == 0;
}

struct report_column report_column(const struct report_section *s, int64_t column)
{
    struct report_column c;
    if (report_over_workers(s))
        snprintf(c.text, sizeof c.text, "%lld worker%s", (long long)column, column == 1 ? "" : "s");
    else
        snprintf(c.text, sizeof c.text, "%s=%lld", s->axis + 1, (long long)column);
    return c;
}

const char *report_outcome_name(const struct report_section *s)
{
    return texts_of(s)->name;
}

const char *report_outcome_title(const struct report_section *s)
{
    return texts_of(s)->title;
}

const char *report_outcome_caption(const struct report_section *s)
{
    return texts_of(s)->caption;
}

const char *report_outcome_unit(const struct report_section *s)
{
    return texts_of(s)->unit;
}

int report_outcome_decimals(const struct report_section *s)
{
    return s->by_loss ? 5 : 2;
}

void report_interval(const struct report_section *s, const struct sample *a, double ends[2])
{
    const double half = sample_interval(a);
    ends[0] = a->mean - half;
    ends[1] = a->mean + half;
    if (!s->by_loss && !isnan(half)) {
        ends[0] = fmax(0, ends[0]);
        ends[1] = fmin(100, ends[1]);
    }
}

void report_cell_interval(struct html_table *t, const struct report_section *s,
                          const struct sample *a)
{
    double ends[2];
    report_interval(s, a, ends);
    for (size_t i = 0; i < COUNT_OF(ends); i++)
        html_cell_number(t, ends[i], report_outcome_decimals(s));
}

void report_outcome(struct text *out, const struct report_section *s, const struct sample *outcome)
{
    int decimals = report_outcome_decimals(s);
    html_number(out, sample_mean(outcome), decimals);
    if (outcome->n > 1) {
        double ends[2];
        report_interval(s, outcome, ends);
        text_add(out, " (95 %%: ");
        html_number(out, ends[0], decimals);
        text_add(out, " to ");
        html_number(out, ends[1], decimals);
        text_add(out, ")");
    }
    text_add(out, "%s (n %u)", report_outcome_unit(s), outcome->n);
}

double report_figure_width(const struct report_data *d, const struct report_section *s, double more)
{
    double widest = 0;
    for (size_t i = s->first_series; i < s->first_series + s->series_count; i++)
        widest = fmax(widest, plot_name_width(d->series[i].label));
    return widest + more > FIGURE_WIDTH ? 2 * FIGURE_WIDTH : FIGURE_WIDTH;
}

void report_legend(struct text *out, const struct report_data *d, const struct report_section *s)
{
    text_add(out, "<ul class=\"legend\" aria-label=\"Arms\">");
    for (size_t i = s->first_series; i < s->first_series + s->series_count; i++) {
        text_add(out, "<li class=\"key k%u\">", d->series[i].style.index);
        plot_swatch(out, d->series[i].style);
        html_text(out, d->series[i].label);
        text_add(out, "</li>");
    }
    text_add(out, "</ul>\n");
}

/* ---- the page -----------------------------------------------------------------------------------
 */

static unsigned ended(const unsigned count[RUN_STATUSES])
{
    return count[RUN_FINISHED] + count[RUN_DIVERGED] + count[RUN_FAILED] + count[RUN_STOPPED];
}

static size_t going_on(const struct report_data *d)
{
    return d->run_count - ended(d->count);
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* CSS: pointing at a series in the legend or a plot fades the others. */
static void add_pointing_rules(struct text *out, const struct report_data *d)
{
    size_t most = 0;
    for (size_t i = 0; i < d->section_count; i++)
        most = d->sections[i].series_count > most ? d->sections[i].series_count : most;
    for (size_t i = 0; i < most; i++) {
        text_add(out,
                 ".experiment:has(.key.k%zu:hover) .series:not(.k%zu),"
                 ".plot:has(.series.k%zu:hover) .series:not(.k%zu){opacity:.12}\n",
                 i, i, i, i);
    }
}

static void add_swatches(struct text *out, const struct report_data *d)
{
    text_add(out, "<svg class=\"defined\" aria-hidden=\"true\">\n");
    for (size_t i = 0; i < d->series_count; i++) {
        bool known = false;
        for (size_t k = 0; k < i && !known; k++) {
            known = d->series[k].style.index == d->series[i].style.index &&
                    d->series[k].style.dash == d->series[i].style.dash;
        }
        if (!known)
            plot_swatch_define(out, d->series[i].style);
    }
    text_add(out, "</svg>\n");
}

/* Adds the SHA-256 of `script` in base64: the browser runs only the script with this hash. */
static void add_hash(struct text *out, const char *script)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct sha256 hash;
    char hex[65] = "", three[7] = "";
    sha256_begin(&hash);
    sha256_add(&hash, script, strlen(script));
    sha256_end(&hash, hex);
    for (size_t i = 0; i < 64; i += 6) { /* ten times three bytes, then two */
        memset(three, '0', 6);
        memcpy(three, hex + i, i + 6 <= 64 ? 6 : 64 - i);
        unsigned long bits = strtoul(three, NULL, 16);
        for (int k = 3; k >= 0; k--) {
            bool padding = k == 0 && i + 6 > 64;
            text_add(out, "%c", padding ? '=' : digits[bits >> (6 * k) & 63]);
        }
    }
}

static void add_head(struct text *out, const struct report_data *d,
                     const struct report_request *request)
{
    text_add(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                  "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                  "<meta name=\"color-scheme\" content=\"light dark\">\n"
                  "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                  "style-src 'unsafe-inline'; img-src data:; script-src 'sha256-");
    add_hash(out, database_text(SCRIPT));
    text_add(out, "'\">\n<link rel=\"icon\" href=\"data:,\">\n");
    if (request->reload_s > 0)
        text_add(out, "<meta http-equiv=\"refresh\" content=\"%u\">\n", request->reload_s);
    text_add(out, "<title>gradlag: ");
    html_text(out, request->experiment != NULL ? request->experiment : file_name(request->path));
    text_add(out, "</title>\n<style>\n%s%s", database_text("results/report/style.css"),
             database_text("results/report/plot.css"));
    add_pointing_rules(out, d);
    text_add(out, "</style></head>\n<body%s>\n",
             d->section_count > MANY_SECTIONS ? " class=\"many\"" : "");
    add_swatches(out, d);
}

static void add_masthead(struct text *out, const struct report_data *d,
                         const struct report_request *request)
{
    char now[32];
    clock_utc(now);
    text_add(out, "<header><p class=\"brand\">gradlag report</p><h1>");
    html_text(out, file_name(request->path));
    text_add(out,
             "</h1><p class=\"facts\">%zu run%s: %u finished, %u diverged, %u failed, "
             "%u stopped",
             d->run_count, d->run_count == 1 ? "" : "s", d->count[RUN_FINISHED],
             d->count[RUN_DIVERGED], d->count[RUN_FAILED], d->count[RUN_STOPPED]);
    if (going_on(d) > 0) {
        text_add(out, ", <b>%u running, %u queued</b>", d->count[RUN_RUNNING],
                 d->count[RUN_QUEUED]);
    }
    text_add(out, ". Written %.10s %.5s UTC.</p></header>\n", now, now + 11);
}

/* Runs without a panel come after the panels of their experiment. */
static const char *panel_name(const struct report_section *s)
{
    return s->panel[0] != '\0' ? s->panel : "other runs";
}

static void add_title(struct text *out, const struct report_section *s, bool whole)
{
    if (s->name[0] == '\0')
        text_add(out, "Runs without experiment");
    else
        html_text(out, s->name);
    if (!whole) {
        text_add(out, ": ");
        html_text(out, panel_name(s));
    }
}

static void add_contents(struct text *out, const struct report_data *d)
{
    text_add(out, "<nav aria-label=\"Contents\"><ul>");
    for (size_t i = 0; i < d->section_count; i++) {
        if (!d->sections[i].first)
            continue;
        text_add(out, "<li><a href=\"#e%zu\">", i);
        add_title(out, &d->sections[i], true);
        text_add(out, "</a>");
        report_tally(out, d->sections[i].about);
        text_add(out, "</li>");
    }
    text_add(out, "<li><a href=\"#failures\">Did not finish</a></li><li><a href=\"#runs\">All "
                  "runs</a></li></ul></nav>\n<main>\n");
}

static void add_facts(struct text *out, const struct report_section *s)
{
    text_add(out, "<p class=\"facts\">%u run%s: %u finished", s->runs, s->runs == 1 ? "" : "s",
             s->count[RUN_FINISHED]);
    if (s->collapsed > 0) {
        text_add(out,
                 " (<b>%u collapsed</b>: at least 99 %% of the test predictions are one class)",
                 s->collapsed);
    }
    text_add(out, ", %u diverged, %u failed or stopped", s->count[RUN_DIVERGED],
             s->count[RUN_FAILED] + s->count[RUN_STOPPED]);
    if (ended(s->count) < s->runs)
        text_add(out, ", <b>%u to come</b>", s->runs - ended(s->count));
    text_add(out, ".</p>\n");
}

static void add_parts(struct text *out, const struct report_data *d, const struct report_section *s)
{
    static report_part *const parts[] = {report_legend,     report_outcomes,  report_curves,
                                         report_throughput, report_staleness, report_time};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        parts[i](out, d, s);
}

/* Adds what concerns the whole experiment, then links to its panels if it has several. */
static void add_whole(struct text *out, const struct report_data *d, const struct report_section *s)
{
    if (s->about != NULL) {
        text_add(out, "<p class=\"question\">");
        html_text(out, s->about->question);
        text_add(out, "</p>\n");
    }
    if (s->panel[0] == '\0')
        add_facts(out, s);
    report_claims(out, d, s);
    report_map(out, d, s);
    for (size_t i = 0; s->panel[0] != '\0' && i < d->section_count; i++) {
        if (strcmp(d->sections[i].name, s->name) != 0)
            continue;
        text_add(out, "%s<a href=\"#e%zu\">", &d->sections[i] == s ? "<p>Panels: " : " · ", i);
        html_text(out, panel_name(&d->sections[i]));
        text_add(out, "</a>%s",
                 i + 1 == d->section_count || d->sections[i + 1].first ? "</p>\n" : "");
    }
}

static void add_section(struct text *out, const struct report_data *d,
                        const struct report_section *s)
{
    text_add(out, "<section class=\"experiment\" id=\"e%zu\">", (size_t)(s - d->sections));
    if (s->first) {
        text_add(out, "<h2>");
        add_title(out, s, true);
        text_add(out, "</h2>\n");
        if (s->trials)
            add_facts(out, s);
        else
            add_whole(out, d, s);
    }
    if (s->panel[0] != '\0' || !s->first) {
        text_add(out, "<h2>");
        add_title(out, s, false);
        text_add(out, "</h2>\n");
        add_facts(out, s);
    }
    if (s->trials)
        report_trials(out, d, s);
    else
        add_parts(out, d, s);
    if (s->first && s->about != NULL && s->about->source != NULL) {
        text_add(out, "<p class=\"source\">");
        html_text(out, s->about->source);
        text_add(out, "</p>\n");
    }
    text_add(out, "</section>\n");
}

/* Draws the parts again, as figures. Parts without plots add none. */
static void draw_figures(struct figures *figures, struct report_data *d)
{
    struct text dropped = {0};
    d->figures = figures;
    for (size_t i = 0; i < d->section_count; i++) {
        const struct report_section *s = &d->sections[i];
        figures->section = s->name;
        figures->panel = "";
        if (s->first && !s->trials)
            report_map(&dropped, d, s);
        figures->panel = s->panel;
        if (!s->trials)
            add_parts(&dropped, d, s);
    }
    d->figures = NULL;
    text_free(&dropped);
}

static status compose(struct text *out, const struct report_data *d, sqlite3 *db,
                      const struct report_request *request)
{
    status result = OK;
    add_head(out, d, request);
    add_masthead(out, d, request);
    add_contents(out, d);
    for (size_t i = 0; i < d->section_count; i++)
        add_section(out, d, &d->sections[i]);
    report_failures(out, d);
    TRY(report_runs(out, d, db, request->experiment));
    text_add(
        out,
        "</main>\n<footer><p>Intervals are 95 %% intervals of the mean by Student's t; n is the "
        "number of runs, which differ only in the seed. Written by gradlag from ");
    html_text(out, file_name(request->path));
    text_add(out, ".</p></footer>\n<script>%s</script>\n</body></html>\n", database_text(SCRIPT));
done:
    return result;
}

/* ---- the file -----------------------------------------------------------------------------------
 */

static status write_whole(const char *path, const struct text *page)
{
    status result = OK;
    struct output_file file = {0};
    TRY(output_file_open_or_stdout(&file, path));
    (void)!fwrite(page->at, 1, page->length, file.to); /* output_file_close() reports errors */
    TRY(output_file_close(&file, false));
done:
    output_file_abandon(&file);
    if (result != OK) {
        const struct error why = error_save();
        result = error_set(result, __FILE__, __LINE__, "report %s, or name another file with -o",
                           why.message);
    }
    return result;
}

static status check_found(const struct report_data *d, const struct report_request *request)
{
    status result = OK;
    if (d->run_count == 0 && request->experiment != NULL) {
        FAIL(ERROR_USAGE,
             "%s: the file has no runs of the experiment '%s'; `gradlag query \"SELECT DISTINCT "
             "experiment FROM run\" results=%s` lists its experiments",
             request->path, request->experiment, request->path);
    }
done:
    return result;
}

status report_write(const struct report_request *request, const char *out,
                    struct report_outline *outline)
{
    status result = OK;
    sqlite3 *db = NULL;
    struct report_data d = {0};
    struct text page = {0};
    struct figures figures = {0};
    TRY(database_open_reader(&db, request->path));
    /* One transaction, so that all parts show the same moment of running runs. */
    TRY(database_execute(db, "BEGIN", "read the runs"));
    TRY(report_data_read(&d, db, request));
    TRY(check_found(&d, request));
    TRY(compose(&page, &d, db, request));
    if (request->figures != NULL)
        draw_figures(&figures, &d);
    database_rollback(db); /* converting figures takes time, and runs may be writing */
    database_close(&db);
    TRY(write_whole(out, &page));
    if (request->figures != NULL)
        TRY(figures_write(&figures, request->figures, request->each_figure, request->context));
    if (outline != NULL)
        *outline = (struct report_outline){d.run_count, going_on(&d), page.length, figures.count};
done:
    report_data_close(&d);
    if (db != NULL)
        database_rollback(db);
    database_close(&db);
    figures_free(&figures);
    text_free(&page);
    return result;
}

status report_experiments(const char *path, void (*each)(void *context, const char *name),
                          void *context)
{
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int code;
    TRY(database_open_reader(&db, path));
    TRY(database_prepare(db, &s,
                         "SELECT experiment FROM run WHERE experiment IS NOT NULL "
                         "GROUP BY experiment ORDER BY min(id)"));
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        each(context, (const char *)sqlite3_column_text(s, 0));
    TRY(database_check(db, code, "read the experiments"));
done:
    sqlite3_finalize(s);
    database_close(&db);
    return result;
}
