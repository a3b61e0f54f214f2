/*
 * report_claims.c — the question of an experiment, its claims and their outcomes.
 */
#include "base/text.h"
#include "results/report/report_page.h"
#include "results/query/statistics.h"

#include <math.h>
#include <string.h>

enum { SHOWN_AT_ONCE = 12 }; /* more claims are collapsed, so that plots stay visible */

static const char *const outcomes[] = {"PASS", "FAIL", "open"};
static const char *const classes[] = {"pass", "fail", "open"};

static void add_line(struct text *out, const char *line, size_t length)
{
    struct text copy = {0};
    text_add_bytes(&copy, line, length);
    html_text(out, copy.at);
    text_free(&copy);
}

/* Writes each line of the verdict as a paragraph. */
static void add_verdict(struct text *out, const char *verdict)
{
    if (verdict == NULL || verdict[0] == '\0')
        return;
    text_add(out, "<div class=\"verdict\">\n");
    for (const char *line = verdict; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (length > 0) {
            text_add(out, "<p>");
            add_line(out, line, length);
            text_add(out, "</p>\n");
        }
        line += length + (line[length] == '\n');
    }
    text_add(out, "</div>\n");
}

/* Draws the observed value on a scale whose middle half is the band. Values far outside are at the
 * edge. */
static void add_band(struct text *out, const struct report_claim *c)
{
    double width = c->high > c->low ? c->high - c->low : fmax(fabs(c->low), 1);
    double place = 100 * (0.25 + 0.5 * (c->observed - c->low) / width);
    double band = c->high > c->low ? 50 : 1;
    place = isnan(place) ? 0 : fmax(2, fmin(98, place));
    const double half = isfinite(c->interval) ? 50 * c->interval / width : 0;
    text_add(out,
             "<svg class=\"band-of\" width=\"100%%\" height=\"16\" aria-hidden=\"true\">"
             "<path class=\"axis\" d=\"M0 8h2000\"/><rect class=\"allowed\" x=\"25%%\" y=\"3\" "
             "width=\"%.0f%%\" height=\"10\" rx=\"2\"/>",
             band);
    if (isfinite(c->observed)) {
        text_add(out,
                 "<line class=\"axis\" x1=\"%.1f%%\" x2=\"%.1f%%\" y1=\"8\" y2=\"8\" "
                 "stroke-width=\"2\"/>",
                 fmax(0, place - half), fmin(100, place + half));
        text_add(out, "<circle class=\"%s\" cx=\"%.1f%%\" cy=\"8\" r=\"5\"/>",
                 c->outcome == REPORT_PASS ? "pass" : "fail", place);
    }
    text_add(out, "</svg>");
}

/* Writes the claims with this outcome; all claims for REPORT_OPEN + 1. */
static void add_claims(struct text *out, const struct report_experiment *e, const char *caption,
                       unsigned which)
{
    static const char *const titles[] = {"",       "claim", "#observed", "#band", "in its band",
                                         "source", NULL};
    struct html_table t;
    html_table_begin(&t, out, caption, titles);
    for (size_t i = 0; i < e->claim_count; i++) {
        const struct report_claim *c = &e->claims[i];
        if (which <= REPORT_OPEN && c->outcome != which)
            continue;
        html_cell_open(&t, NULL);
        text_add(out, "<span class=\"badge %s\">%s</span>", classes[c->outcome],
                 outcomes[c->outcome]);
        html_cell_close(&t);
        html_cell_open(&t, "claim");
        html_text(out, c->text);
        if (c->why != NULL) {
            text_add(out, "<div class=\"why\">");
            html_text(out, c->why);
            text_add(out, "</div>");
        }
        html_cell_close(&t);
        html_cell_number(&t, c->observed, band_decimals(c->observed, c->low, c->high));
        html_cell_open(&t, NULL);
        text_add(out, "[%g, %g]", c->low, c->high);
        html_cell_close(&t);
        html_cell_open(&t, "bar");
        add_band(out, c);
        html_cell_close(&t);
        html_cell_open(&t, "claim from");
        html_text(out, c->source);
        html_cell_close(&t);
    }
    html_table_end(&t);
}

static void add_tuning(struct text *out, const struct report_experiment *e)
{
    if (e->tuning != NULL && e->tuning[0] != '\0') {
        html_details_begin(
            out, "Settings that tuning chose on the validation split, and numbers of trials",
            false);
        text_add(out, "<div class=\"scroll\" tabindex=\"0\"><pre>");
        for (const char *line = e->tuning; *line != '\0';) {
            size_t length = strcspn(line, "\n");
            add_line(out, line, length);
            text_add(out, "\n");
            line += length + (line[length] == '\n');
        }
        text_add(out, "</pre></div>\n");
        html_details_end(out);
    }
}

static size_t count_outcome(const struct report_experiment *e, enum report_outcome outcome)
{
    size_t count = 0;
    for (size_t i = 0; i < e->claim_count; i++)
        count += e->claims[i].outcome == outcome;
    return count;
}

void report_tally(struct text *out, const struct report_experiment *e)
{
    for (enum report_outcome o = REPORT_PASS; e != NULL && o <= REPORT_OPEN; o++) {
        size_t count = count_outcome(e, o);
        if (count > 0) {
            text_add(out, " <span class=\"badge %s\">%zu %s</span>", classes[o], count,
                     outcomes[o]);
        }
    }
}

static void add_all_claims(struct text *out, const struct report_experiment *e)
{
    text_add(out, "<p class=\"tally\">");
    report_tally(out, e);
    if (e->part != NULL) {
        text_add(out, " <span class=\"faint\">claims judged as ");
        html_text(out, e->part);
        text_add(out, "</span>");
    }
    text_add(out, "</p>\n");
    if (count_outcome(e, REPORT_FAIL) > 0)
        add_claims(out, e, "Claims that failed", REPORT_FAIL);
    text_add(out, "<details%s><summary>All %zu claims, with their bands and sources</summary>\n",
             e->claim_count <= SHOWN_AT_ONCE && count_outcome(e, REPORT_OPEN) < e->claim_count
                 ? " open"
                 : "",
             e->claim_count);
    add_claims(out, e, "The shaded part is the band of the claim", REPORT_OPEN + 1);
    html_details_end(out);
}

void report_claims(struct text *out, const struct report_data *d, const struct report_section *s)
{
    const struct report_experiment *e = s->about;
    (void)d;
    if (e == NULL)
        return;
    add_verdict(out, e->verdict);
    add_tuning(out, e);
    if (e->claim_count > 0)
        add_all_claims(out, e);
    if (e->discussion != NULL) {
        text_add(out, "<div class=\"discussion\">\n");
        html_prose(out, e->discussion);
        text_add(out, "</div>\n");
    }
}
