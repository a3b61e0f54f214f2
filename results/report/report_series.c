#include "results/report/report_series.h"

#include "base/memory.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* ---- sections -----------------------------------------------------------------------------------
 */

static bool is_trials(const char *name)
{
    static const char ending[] = "/tuning";
    size_t length = strlen(name), its = sizeof ending - 1;
    return length > its && strcmp(name + length - its, ending) == 0;
}

static const struct report_experiment *known_as(const struct report_request *q, const char *name)
{
    for (size_t i = 0; i < q->experiment_count; i++)
        if (strcmp(q->experiments[i].name, name) == 0)
            return &q->experiments[i];
    return NULL;
}

/* The panels of a run; if it has none, one panel without name. */
struct run_panels {
    const struct report_panel *at;
    size_t count;
};

static struct run_panels panels_of(const struct report_experiment *about, int64_t run)
{
    static const struct report_panel none = {.name = ""};
    const size_t count = about != NULL ? about->panel_count : 0;
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (about->panels[middle].run < run)
            low = middle + 1;
        else
            high = middle;
    }
    for (high = low; high < count && about->panels[high].run == run;)
        high++;
    return high == low ? (struct run_panels){&none, 1}
                       : (struct run_panels){&about->panels[low], high - low};
}

static bool has_panel(const struct run_panels *p)
{
    return p->at[0].name[0] != '\0';
}

/* `panel` NULL: the first section of the experiment. */
static struct report_section *section_named(struct report_data *d, const char *name,
                                            const char *panel)
{
    for (size_t i = 0; i < d->section_count; i++)
        if (strcmp(d->sections[i].name, name) == 0 &&
            (panel == NULL || strcmp(d->sections[i].panel, panel) == 0))
            return &d->sections[i];
    return NULL;
}

static struct report_section *add_section(struct report_data *d, const char *name,
                                          const char *panel, const struct report_experiment *about)
{
    const bool first = section_named(d, name, NULL) == NULL;
    struct report_section *s = &d->sections[d->section_count++];
    *s = (struct report_section){.name = name,
                                 .panel = panel,
                                 .first = first,
                                 .about = about,
                                 .trials = is_trials(name),
                                 .axis = "#workers"};
    return s;
}

static void count_run(struct report_data *d, struct report_run *r,
                      const struct report_experiment *about, const struct run_panels *panels)
{
    const struct report_cell *c = &d->cells[r->cell];
    r->panel = panels->at[0].name;
    for (size_t i = 0; i < panels->count; i++) {
        struct report_section *s = section_named(d, r->experiment, panels->at[i].name);
        if (s == NULL)
            s = add_section(d, r->experiment, panels->at[i].name, about);
        s->runs++;
        s->count[r->status]++;
        s->collapsed += r->collapsed;
        s->measured.accuracy |= c->accuracy.n > 0;
        s->measured.loss |= c->loss.n > 0;
        s->measured.validation |= c->validation.n > 0;
        s->measured.validation_loss |= c->validation_loss.n > 0;
    }
}

/* The metric of the experiment. Without one: accuracy, or the loss if finished runs have none. */
static void choose_outcome(struct report_section *s)
{
    const struct report_experiment *about = s->about;
    const bool asked =
        about != NULL && about->by_loss && (s->measured.loss || s->measured.validation_loss);
    s->by_loss = asked || (s->count[RUN_FINISHED] > 0 && !s->measured.accuracy);
    s->of_validation = s->by_loss && s->measured.validation_loss &&
                       (!s->measured.loss || s->trials || (asked && about->of_validation));
    s->in_nats = s->of_validation && s->measured.validation;
}

/* Orders experiments by their first runs, trials last; the panels of an experiment by their first
 * runs, then its runs without a panel. `panels`: of each cell. */
static status find_sections(struct report_data *d, const struct report_request *q,
                            const struct run_panels *panels)
{
    status result = OK;
    TRY(memory_new(&d->sections, d->cell_count, sizeof *d->sections, "the report's experiments"));
    for (int trials = 0; trials <= 1; trials++) {
        for (size_t i = 0; i < d->run_count; i++) {
            const char *name = d->runs[i].experiment;
            if (is_trials(name) != trials || section_named(d, name, NULL) != NULL)
                continue;
            for (size_t k = i; k < 2 * d->run_count; k++) {
                struct report_run *r = &d->runs[k % d->run_count];
                const struct run_panels *its = &panels[r->cell];
                if (strcmp(r->experiment, name) == 0 && has_panel(its) == (k < d->run_count))
                    count_run(d, r, known_as(q, name), its);
            }
        }
    }
    for (size_t i = 0; i < d->section_count; i++)
        choose_outcome(&d->sections[i]);
done:
    return result;
}

/* ---- settings -----------------------------------------------------------------------------------
 */

/* "key=value" within the settings of a cell. */
struct word {
    const char *at;
    size_t key, length; /* key: length of the key */
};

static bool next_word(const char **text, struct word *out)
{
    *text += strspn(*text, " ");
    size_t length = strcspn(*text, " ");
    *out = (struct word){.at = *text, .length = length, .key = strcspn(*text, "= ")};
    *text += length;
    return length > 0;
}

static bool is_of_key(const struct word *w, const char *key)
{
    return w->key == strlen(key) && strncmp(w->at, key, w->key) == 0;
}

static unsigned dash_of(const char *mode)
{
    return strcmp(mode, "async") == 0 ? 0 : strcmp(mode, "sync") == 0 ? 1 : 2;
}

/* A key, its first value, and whether other values occur. The empty key is in every cell. */
struct seen_key {
    struct word first;
    int64_t column; /* among cells of this column */
    bool varies;
    unsigned cells[3]; /* number of cells with the key, by mode */
};
struct seen_keys {
    struct seen_key *at;
    size_t count, capacity;
};

static bool same_key(const struct word *a, const struct word *b)
{
    return a->key == b->key && strncmp(a->at, b->at, a->key) == 0;
}

static void see(struct seen_keys *keys, const struct word *w, int64_t column, const char *mode)
{
    for (size_t i = 0; i < keys->count; i++) {
        struct seen_key *k = &keys->at[i];
        if (k->column == column && same_key(&k->first, w)) {
            k->varies = k->varies || k->first.length != w->length ||
                        strncmp(k->first.at, w->at, w->length) != 0;
            k->cells[dash_of(mode)]++;
            return;
        }
    }
    if (keys->count == keys->capacity) {
        keys->capacity = keys->capacity == 0 ? 64 : 2 * keys->capacity;
        keys->at = realloc(keys->at, keys->capacity * sizeof *keys->at);
        REQUIRE(keys->at != NULL);
    }
    struct seen_key *added = &keys->at[keys->count++];
    *added = (struct seen_key){.first = *w, .column = column};
    added->cells[dash_of(mode)] = 1;
}

/* Whether only some cells of a mode have the key, because defaults may be omitted. Dotted keys do
 * not count: they depend on the value of their prefix. */
static bool is_missing_somewhere(const struct seen_keys *keys, const struct seen_key *k)
{
    const struct seen_key *all = keys->at;
    if (memchr(k->first.at, '.', k->first.key) != NULL)
        return false;
    while (all->first.key > 0 || all->column != k->column)
        all++;
    for (size_t mode = 0; mode < COUNT_OF(k->cells); mode++)
        if (k->cells[mode] > 0 && k->cells[mode] < all->cells[mode])
            return true;
    return false;
}

static bool varies(const struct seen_keys *keys, const struct word *w)
{
    for (size_t i = 0; i < keys->count; i++) {
        const struct seen_key *k = &keys->at[i];
        if (same_key(&k->first, w) && (k->varies || is_missing_somewhere(keys, k)))
            return true;
    }
    return false;
}

/* ---- series -------------------------------------------------------------------------------------
 */

/* A cell in a panel. All its runs have the same arm. */
struct placed_cell {
    size_t cell, section, first_run;
    const char *arm, *panel;
};

static const char *label_of_arm(const struct report_section *s, const char *arm)
{
    for (size_t i = 0; s->about != NULL && i < s->about->arm_count; i++)
        if (strcmp(s->about->arms[i].name, arm) == 0)
            return s->about->arms[i].label;
    return arm;
}

static void name_cell(const struct report_section *s, const struct placed_cell *p,
                      const struct report_cell *c, const struct seen_keys *keys, struct text *out)
{
    const char *text = c->words;
    struct word w;
    text_add(out, "%s", label_of_arm(s, p->arm));
    while (next_word(&text, &w)) {
        if (varies(keys, &w)) {
            size_t skip =
                is_of_key(&w, "mode") && w.length > 5 ? 5 : 0; /* print "async", not "mode=async" */
            text_add(out, "%s%.*s", out->length > 0 ? ", " : "", (int)(w.length - skip),
                     w.at + skip);
        }
    }
    if (out->length == 0)
        text_add(out, "%s", c->mode);
}

static void place_in_series(struct report_data *d, size_t section, const struct placed_cell *p,
                            struct text *label)
{
    struct report_section *s = &d->sections[section];
    struct report_cell *c = &d->cells[p->cell];
    for (size_t i = s->first_series; i < d->series_count; i++) {
        if (strcmp(d->series[i].label, label->at) == 0 && strcmp(d->series[i].arm, p->arm) == 0) {
            c->series = i;
            return;
        }
    }
    unsigned index = (unsigned)s->series_count++;
    c->series = d->series_count;
    d->series[d->series_count++] =
        (struct report_series){.label = text_copy(label->at),
                               .arm = p->arm,
                               .mode = c->mode,
                               .style = {.index = index, .dash = dash_of(c->mode)},
                               .section = section};
}

/* Names the series of one arm by the settings that differ among the cells of one column. For runs
 * without arm: by those that differ among all cells. */
static void name_arm(struct report_data *d, size_t section, const char *arm,
                     const struct placed_cell *placed)
{
    struct seen_keys keys = {0};
    for (int pass = 0; pass <= 1; pass++) {
        for (size_t i = 0; i < d->cell_count; i++) {
            const struct placed_cell *p = &placed[i];
            const struct report_cell *c = &d->cells[p->cell];
            const char *text = c->words;
            struct word w;
            if (p->section != section || strcmp(p->arm, arm) != 0)
                continue;
            if (pass == 0)
                see(&keys, &(struct word){.at = ""}, arm[0] != '\0' ? c->column : 0, c->mode);
            while (pass == 0 && next_word(&text, &w))
                if (!is_of_key(&w, d->sections[section].axis + 1))
                    see(&keys, &w, arm[0] != '\0' ? c->column : 0, c->mode);
            if (pass == 1) {
                struct text label = {0};
                name_cell(&d->sections[section], p, c, &keys, &label);
                place_in_series(d, section, p, &label);
                text_free(&label);
            }
        }
    }
    free(keys.at);
}

static bool is_placed(const struct report_data *d, const struct report_section *s, const char *arm)
{
    for (size_t i = s->first_series; i < d->series_count; i++)
        if (strcmp(d->series[i].arm, arm) == 0)
            return true;
    return false;
}

/* Orders arms as in the experiment file, then by their first runs. */
static void name_section(struct report_data *d, size_t section, const struct placed_cell *placed)
{
    struct report_section *s = &d->sections[section];
    s->first_series = d->series_count;
    for (size_t i = 0; s->about != NULL && i < s->about->arm_count; i++) {
        for (size_t k = 0; k < d->cell_count;
             k++) { /* uses the string of the cell, which lives as long as the data */
            if (placed[k].section == section &&
                strcmp(placed[k].arm, s->about->arms[i].name) == 0) {
                name_arm(d, section, placed[k].arm, placed);
                break;
            }
        }
    }
    for (size_t k = 0; k < d->cell_count; k++)
        if (placed[k].section == section && !is_placed(d, s, placed[k].arm))
            name_arm(d, section, placed[k].arm, placed);
}

static int by_series_and_column(const void *a, const void *b, void *context)
{
    const struct report_cell *cells = context, *x = &cells[*(const size_t *)a],
                             *y = &cells[*(const size_t *)b];
    if (x->series != y->series)
        return x->series < y->series ? -1 : 1;
    return (x->column > y->column) - (x->column < y->column);
}

/* Sorts the cells and updates the cell index of each run. */
static status sort_cells(struct report_data *d)
{
    status result = OK;
    size_t *order = NULL, *place = NULL;
    struct report_cell *sorted = NULL;
    TRY(memory_new(&order, d->cell_count, sizeof *order, "the report's order"));
    TRY(memory_new(&place, d->cell_count, sizeof *place, "the report's places"));
    TRY(memory_new(&sorted, d->cell_count, sizeof *sorted, "the report's cells"));
    for (size_t i = 0; i < d->cell_count; i++)
        order[i] = i;
    qsort_r(order, d->cell_count, sizeof *order, by_series_and_column, d->cells);
    for (size_t i = 0; i < d->cell_count; i++) {
        sorted[i] = d->cells[order[i]];
        place[order[i]] = i;
    }
    for (size_t i = 0; i < d->run_count; i++)
        d->runs[i].cell = place[d->runs[i].cell];
    memory_free(d->cells);
    d->cells = sorted;
    sorted = NULL;
done:
    memory_free(order);
    memory_free(place);
    memory_free(sorted);
    return result;
}

static int by_first_run(const void *a, const void *b)
{
    const struct placed_cell *x = a, *y = b;
    return (x->first_run > y->first_run) - (x->first_run < y->first_run);
}

/* The panels of each cell: those of its first run that has any. */
static status find_panels(const struct report_data *d, const struct report_request *q,
                          struct run_panels **out)
{
    status result = OK;
    TRY(memory_new(out, d->cell_count, sizeof **out, "the report's cells"));
    for (size_t i = d->run_count; i-- > 0;) {
        const struct report_run *r = &d->runs[i];
        const struct run_panels its = panels_of(known_as(q, r->experiment), r->id);
        if ((*out)[r->cell].at == NULL || has_panel(&its))
            (*out)[r->cell] = its;
    }
done:
    return result;
}

/* Places each cell in its panels, in order of their first runs. The further panels get copies of
 * the cell. */
static status place_cells(struct report_data *d, const struct run_panels *panels,
                          struct placed_cell **out)
{
    status result = OK;
    struct placed_cell *own = NULL;
    struct report_cell *cells = NULL;
    size_t count = 0, placed = 0;
    TRY(memory_new(&own, d->cell_count, sizeof *own, "the report's cells"));
    for (size_t i = d->run_count; i-- > 0;) /* backwards: the first run remains */
        own[d->runs[i].cell] = (struct placed_cell){.cell = d->runs[i].cell, .first_run = i};
    for (size_t i = 0; i < d->cell_count; i++)
        count += panels[i].count;
    TRY(memory_new(&cells, count, sizeof *cells, "the report's cells"));
    TRY(memory_new(out, count, sizeof **out, "the report's cells"));
    size_t copies = d->cell_count;
    for (size_t i = 0; i < d->cell_count; i++) {
        const struct report_run *r = &d->runs[own[i].first_run];
        for (size_t k = 0; k < panels[i].count; k++) {
            const size_t cell = k == 0 ? i : copies++;
            cells[cell] = d->cells[i];
            cells[cell].copied = k > 0;
            (*out)[placed++] = (struct placed_cell){.cell = cell,
                                                    .first_run = own[i].first_run,
                                                    .arm = r->arm,
                                                    .panel = panels[i].at[k].name};
        }
    }
    qsort(*out, count, sizeof **out, by_first_run);
    memory_free(d->cells);
    d->cells = cells;
    cells = NULL;
    d->cell_count = count;
done:
    memory_free(own);
    memory_free(cells);
    return result;
}

/* The value of the key in the settings of a cell; false: it is not a whole number. */
static bool value_of(const struct report_cell *c, const char *key, int64_t *out)
{
    const char *text = c->words;
    char *end;
    struct word w;
    while (next_word(&text, &w)) {
        if (!is_of_key(&w, key))
            continue;
        *out = strtoll(w.at + w.key + 1, &end, 10);
        return w.length > w.key + 1 && end == w.at + w.length;
    }
    return false;
}

/* Replaces the numbers of workers by the values of the experiment's axis, if all cells have one. */
static void find_columns(struct report_data *d, size_t section, const struct placed_cell *placed)
{
    struct report_section *s = &d->sections[section];
    const char *key = s->about != NULL ? s->about->axis : NULL;
    int64_t column;
    if (key == NULL)
        return;
    for (size_t i = 0; i < d->cell_count; i++)
        if (placed[i].section == section && !value_of(&d->cells[placed[i].cell], key, &column))
            return;
    for (size_t i = 0; i < d->cell_count; i++)
        if (placed[i].section == section && value_of(&d->cells[placed[i].cell], key, &column))
            d->cells[placed[i].cell].column = column;
    snprintf(s->axis, sizeof s->axis, "#%s", key);
}

status report_series_find(struct report_data *d, const struct report_request *request)
{
    status result = OK;
    struct placed_cell *placed = NULL;
    struct run_panels *panels = NULL;
    TRY(find_panels(d, request, &panels));
    TRY(place_cells(d, panels, &placed));
    TRY(find_sections(d, request, panels));
    TRY(memory_new(&d->series, d->cell_count, sizeof *d->series, "the report's series"));
    for (size_t i = 0; i < d->cell_count; i++) {
        const char *experiment = d->runs[placed[i].first_run].experiment;
        placed[i].section = (size_t)(section_named(d, experiment, placed[i].panel) - d->sections);
    }
    for (size_t i = 0; i < d->section_count; i++) {
        find_columns(d, i, placed);
        name_section(d, i, placed);
    }
    TRY(sort_cells(d));
done:
    memory_free(panels);
    memory_free(placed);
    return result;
}

void report_series_free(struct report_data *d)
{
    for (size_t i = 0; i < d->series_count; i++)
        memory_free(d->series[i].label);
    memory_free(d->series);
    memory_free(d->sections);
}

/* ---- lookups ------------------------------------------------------------------------------------
 */

const struct report_cell *report_cell_of(const struct report_data *d, size_t series, size_t i)
{
    size_t low = 0, high = d->cell_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (d->cells[middle].series < series)
            low = middle + 1;
        else
            high = middle;
    }
    size_t at = low + i;
    return at < d->cell_count && d->cells[at].series == series ? &d->cells[at] : NULL;
}

bool report_is_of(const struct report_data *d, const struct report_section *s,
                  const struct report_cell *c)
{
    return &d->sections[d->series[c->series].section] == s;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

size_t report_columns(const struct report_data *d, const struct report_section *s, int64_t *out,
                      size_t room)
{
    size_t count = 0;
    for (size_t i = s->first_series; i < s->first_series + s->series_count; i++) {
        const struct report_cell *c;
        for (size_t k = 0; (c = report_cell_of(d, i, k)) != NULL; k++) {
            bool known = false;
            for (size_t j = 0; j < count; j++)
                known = known || out[j] == c->column;
            if (!known && count < room)
                out[count++] = c->column;
        }
    }
    qsort(out, count, sizeof *out, ascending);
    return count;
}

const struct sample *report_outcome_of(const struct report_section *s, const struct report_cell *c)
{
    return s->of_validation ? &c->validation_loss : s->by_loss ? &c->loss : &c->accuracy;
}

unsigned report_diverged(const struct report_section *s, const struct report_cell *c)
{
    return c->count[RUN_DIVERGED] + report_outcome_of(s, c)->infinite;
}
