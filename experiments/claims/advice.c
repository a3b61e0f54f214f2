#include "experiments/claims/advice.h"

#include "base/embedded.h"
#include "base/memory.h"
#include "experiments/print_columns.h"
#include "results/query/query.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *key, *column;
} axes[ADVICE_AXES] = {
    [ADVICE_WORKERS] = {"workers", "workers"},
    [ADVICE_SLOW_FACTOR] = {"pace.factor", "slow_factor"},
    [ADVICE_SLOW_WORKERS] = {"pace.slow_workers", "slow_workers"},
    [ADVICE_WORKER_CV] = {"pace.worker_cv", "worker_cv"},
    [ADVICE_GBPS] = {"network.gbps", "gbps"},
    [ADVICE_LATENCY] = {"network.latency_ms", "latency_ms"},
};

/* ---- reading ------------------------------------------------------------------------------------
 */

enum { COLUMNS = 32 };

/* Splits a line of CSV in place. A name may contain commas and quotes; then its field is quoted. */
static size_t split(char *line, char *fields[COLUMNS])
{
    size_t count = 0;
    while (count < COLUMNS && line != NULL) {
        char *to = line, *from = line;
        fields[count++] = line;
        bool quoted = false;
        for (; *from != '\0' && (quoted || *from != ','); from++)
            if (*from != '"' || (quoted && from[1] == '"' && from++))
                *to++ = *from;
            else
                quoted = !quoted;
        line = *from == ',' ? from + 1 : NULL;
        *to = '\0';
    }
    return count;
}

static const char *field_of(char *const *names, char *const *fields, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return fields[i];
    return "";
}

static double number_of(char *const *names, char *const *fields, size_t count, const char *name)
{
    const char *text = field_of(names, fields, count, name);
    return text[0] == '\0' ? NAN : strtod(text, NULL);
}

static void read_cell(struct advice *a, char *const *names, char *const *fields, size_t count)
{
    struct advice_cell *c = memory_append(&a->cells, &a->count, sizeof *a->cells);
    *c = (struct advice_cell){.mean_ms = number_of(names, fields, count, "mean_ms"),
                              .margin = number_of(names, fields, count, "margin"),
                              .interval = number_of(names, fields, count, "interval"),
                              .experiment = field_of(names, fields, count, "experiment"),
                              .model = field_of(names, fields, count, "model"),
                              .dataset = field_of(names, fields, count, "dataset"),
                              .ahead = field_of(names, fields, count, "ahead"),
                              .commit = field_of(names, fields, count, "commit"),
                              .sync_arm = field_of(names, fields, count, "sync_arm"),
                              .async_arm = field_of(names, fields, count, "async_arm"),
                              .seeds = field_of(names, fields, count, "n"),
                              .is_loss =
                                  strcmp(field_of(names, fields, count, "metric"), "loss") == 0,
                              .kept = true};
    for (size_t i = 0; i < ADVICE_AXES; i++)
        c->at[i] = number_of(names, fields, count, axes[i].column);
}

/* A map may lack other columns. */
static status check_columns(const struct advice *a, char *const *names, size_t count)
{
    static const char *const needed[] = {"experiment", "workers", "ahead"};
    status result = OK;
    for (size_t i = 0; i < COUNT_OF(needed); i++) {
        bool found = false;
        for (size_t k = 0; k < count; k++)
            found = found || strcmp(names[k], needed[i]) == 0;
        if (!found) {
            FAIL(ERROR_RESULTS,
                 "%s is not a map: it has no column '%s'; `gradlag query crossover --csv` writes a "
                 "map",
                 a->source != NULL ? a->source : "the program's table", needed[i]);
        }
    }
done:
    return result;
}

/* `experiment` NULL: the cells of all experiments. */
static status read_cells(struct advice *a, const char *experiment)
{
    status result = OK;
    char *names[COLUMNS], *fields[COLUMNS], *rest = NULL;
    char *line = strtok_r(a->csv, "\r\n", &rest);
    const size_t count = line != NULL ? split(line, names) : 0;
    TRY(check_columns(a, names, count));
    for (unsigned row = 1; (line = strtok_r(NULL, "\r\n", &rest)) != NULL; row++) {
        if (split(line, fields) != count)
            FAIL(ERROR_RESULTS, "%s: row %u of the map does not have the %zu fields of its header",
                 a->source != NULL ? a->source : "the program", row, count);
        if (experiment == NULL ||
            strcmp(field_of(names, fields, count, "experiment"), experiment) == 0)
            read_cell(a, names, fields, count);
    }
done:
    return result;
}

static status query_map(struct advice *a, const char *experiment)
{
    status result = OK;
    size_t length = 0;
    struct text setting = {0};
    text_add(&setting, "experiment=%s", experiment != NULL ? experiment : "all");
    const char *const settings[] = {setting.at};
    const struct query_request request = {.path = a->source,
                                          .question = "crossover",
                                          .settings = settings,
                                          .setting_count = 1,
                                          .format = QUERY_CSV};
    FILE *memory = open_memstream(&a->csv, &length);
    REQUIRE(memory != NULL);
    result = query_run(&request, memory, NULL);
    REQUIRE(fclose(memory) == 0);
    text_free(&setting);
    return result;
}

/* NULL: this program was built without experiments/questions/crossover.csv. */
static const char *published_map(void)
{
    const struct embedded_file *f = embedded_files;
    while (f->path != NULL && strcmp(f->path, "experiments/questions/crossover.csv") != 0)
        f++;
    return f->text;
}

static status read_file(const char *path, char **out)
{
    status result = OK;
    struct text text = {0};
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        FAIL(ERROR_RESULTS, "cannot read the map %s: %s", path, strerror(errno));
    if (text_add_file(&text, file) != OK) {
        const struct error why = error_save();
        FAIL(ERROR_RESULTS, "cannot read the map %s: %s", path, why.message);
    }
    *out = text_copy(text.at != NULL ? text.at : "");
done:
    text_free(&text);
    if (file != NULL)
        fclose(file);
    return result;
}

static bool is_csv(const char *path)
{
    const char *end = strrchr(path, '.');
    return end != NULL && strcmp(end, ".csv") == 0;
}

/* Fills out->csv. */
static status read_text(struct advice *out, const char *experiment)
{
    status result = OK;
    if (out->source == NULL) {
        const char *text = published_map();
        if (text == NULL)
            FAIL(ERROR_USAGE,
                 "advise: no map is built into this program. Name one with results=FILE; `gradlag "
                 "reproduce crossover --quick results=FILE` makes a small one in a few minutes");
        out->csv = text_copy(text);
    } else if (is_csv(out->source)) {
        TRY(read_file(out->source, &out->csv));
    } else {
        TRY(query_map(out, experiment));
    }
done:
    return result;
}

static double setting_number(const struct settings *s, const char *key, double otherwise)
{
    const char *text = settings_find(s, key);
    return text != NULL ? strtod(text, NULL) : otherwise;
}

static bool is_set_to(const struct settings *s, const char *key, const char *value)
{
    const char *text = settings_find(s, key);
    return text != NULL && strcmp(text, value) == 0;
}

static bool is_of_same_data(const struct advice_cell *a, const struct advice_cell *b)
{
    return strcmp(a->experiment, b->experiment) == 0 && strcmp(a->model, b->model) == 0 &&
           strcmp(a->dataset, b->dataset) == 0;
}

/* Whether cell `a` matches the settings better than cell `b`. The model decides, then the dataset.
 * The step time decides only between cells of the same experiment, model and dataset. */
static bool is_more_like(const struct advice_cell *a, const struct advice_cell *b,
                         const struct settings *s)
{
    const double step_ms = setting_number(s, "pace.mean_ms", NAN);
    const int models = is_set_to(s, "model", a->model) - is_set_to(s, "model", b->model);
    const int datasets = is_set_to(s, "dataset", a->dataset) - is_set_to(s, "dataset", b->dataset);
    if (models != 0 || datasets != 0)
        return models > 0 || (models == 0 && datasets > 0);
    return is_of_same_data(a, b) &&
           fabs(log(a->mean_ms / step_ms)) < fabs(log(b->mean_ms / step_ms)); /* NaN: false */
}

void advice_choose(struct advice *a, const struct settings *s)
{
    struct advice_cell chosen = a->cells[0];
    size_t count = 0;
    for (size_t i = 1; i < a->count; i++)
        if (is_more_like(&a->cells[i], &chosen, s))
            chosen = a->cells[i];
    for (size_t i = 0; i < a->count; i++)
        if (is_of_same_data(&a->cells[i], &chosen) &&
            (a->cells[i].mean_ms == chosen.mean_ms ||
             (isnan(a->cells[i].mean_ms) && isnan(chosen.mean_ms))))
            a->cells[count++] = a->cells[i];
    a->count = count;
}

status advice_open(struct advice *out, const char *results, const char *experiment)
{
    status result = OK;
    *out = (struct advice){.source = results};
    TRY(read_text(out, experiment));
    TRY(read_cells(out, experiment));
    if (out->count == 0) {
        char why[256];
        FAIL(ERROR_USAGE, "%s has no map%s%s: %s. Make one with `gradlag reproduce crossover`",
             results != NULL ? results : "the program", experiment != NULL ? " of experiment " : "",
             experiment != NULL ? experiment : "", query_no_rows_reason("crossover", why));
    }
done:
    if (result != OK)
        advice_close(out);
    return result;
}

void advice_close(struct advice *a)
{
    free(a->csv);
    memory_free(a->cells);
    text_free(&a->unknown);
    *a = (struct advice){0};
}

/* ---- the nearest cells --------------------------------------------------------------------------
 */

/* Bandwidth 0 is the fastest network. */
static double rank_of(enum advice_axis axis, double value)
{
    return axis == ADVICE_GBPS && value == 0 ? INFINITY : value;
}

/* Whether both cells have the same values on the axes before `axis` that the settings name. */
static bool same_group(const struct advice_cell *a, const struct advice_cell *b,
                       enum advice_axis axis, const double wanted[ADVICE_AXES])
{
    for (size_t i = 0; i < axis; i++)
        if (!isnan(wanted[i]) && !isnan(a->at[i]) && a->at[i] != b->at[i])
            return false;
    return true;
}

/* Finds the nearest values of the kept cells below and above the wanted value. Both are equal if a
 * cell has the wanted value, or if the wanted value is outside the map. `of`: only cells of its
 * group count; NULL: all cells. */
static void find_neighbours(const struct advice *a, enum advice_axis axis,
                            const double wanted[ADVICE_AXES], const struct advice_cell *of,
                            double *below, double *above)
{
    const double rank = rank_of(axis, wanted[axis]);
    *below = *above = NAN;
    for (const struct advice_cell *c = a->cells; c < a->cells + a->count; c++) {
        const double r = rank_of(axis, c->at[axis]);
        if (!c->kept || isnan(r) || (of != NULL && !same_group(of, c, axis, wanted)))
            continue;
        if (r <= rank && !(rank_of(axis, *below) >= r))
            *below = c->at[axis];
        if (r >= rank && !(rank_of(axis, *above) <= r))
            *above = c->at[axis];
    }
    if (isnan(*below))
        *below = *above;
    if (isnan(*above))
        *above = *below;
}

/* Keeps in each group the cells nearest to the wanted value. Groups may have different values on
 * this axis, as numbers of slow workers among 8 and among 16 workers. */
static void keep_nearest(struct advice *a, enum advice_axis axis, const double wanted[ADVICE_AXES])
{
    double below, above;
    for (size_t i = 0; i < a->count; i++) {
        struct advice_cell *c = &a->cells[i];
        find_neighbours(a, axis, wanted, c, &below, &above);
        c->near = isnan(below) || c->at[axis] == below || c->at[axis] == above;
    }
    for (size_t i = 0; i < a->count; i++)
        a->cells[i].kept = a->cells[i].kept && a->cells[i].near;
}

/* Says what the kept cells have in place of the wanted value. */
static void note_neighbours(struct advice *a, enum advice_axis axis,
                            const double wanted[ADVICE_AXES])
{
    double below, above;
    find_neighbours(a, axis, wanted, NULL, &below, &above);
    if (isnan(below) || below == wanted[axis] || above == wanted[axis])
        return; /* the map does not record this value, or a cell has it */
    text_add(&a->unknown, "%s=%.4g is not in the map: ", axes[axis].key, wanted[axis]);
    if (below == above)
        text_add(&a->unknown, "nearest is %g%s\n", below,
                 axis == ADVICE_GBPS && below == 0 ? " (no limit)" : "");
    else if (axis == ADVICE_GBPS && above == 0)
        text_add(&a->unknown, "between %g and no limit\n", below);
    else
        text_add(&a->unknown, "between %g and %g\n", below, above);
}

/* Converts the user's network to the map's model and step time: the time of a message relative to a
 * step stays the same. */
static void scale_network(struct advice *a, const struct settings *s,
                          const struct advice_sizes *sizes, double wanted[ADVICE_AXES])
{
    const struct advice_cell *map = &a->cells[0];
    const double step_ms = setting_number(s, "pace.mean_ms", map->mean_ms);
    const double smaller = sizes->of_map / sizes->own;
    const double longer = isnan(map->mean_ms) ? 1 : step_ms / map->mean_ms;
    if (isnan(map->mean_ms) && !isnan(step_ms))
        text_add(&a->unknown, "pace.mean_ms=%g: the map does not tell the time of its steps\n",
                 step_ms);
    if (smaller != 1) {
        text_add(&a->unknown,
                 "model=%s has %.0f parameters; the map was made with %s on %s, which has %.0f, so "
                 "its margins may not hold\n",
                 settings_find(s, "model"), sizes->own, map->model, map->dataset, sizes->of_map);
    }
    if (longer * smaller != 1 && wanted[ADVICE_GBPS] > 0) {
        text_add(&a->unknown,
                 "network.gbps=%g: relative to a step of %g ms this is %.3g in the map (steps of "
                 "%g ms)\n",
                 wanted[ADVICE_GBPS], step_ms, wanted[ADVICE_GBPS] * longer * smaller,
                 map->mean_ms);
    }
    if (longer != 1 && wanted[ADVICE_LATENCY] > 0) {
        text_add(&a->unknown,
                 "network.latency_ms=%g: relative to a step of %g ms this is %.3g in the map\n",
                 wanted[ADVICE_LATENCY], step_ms, wanted[ADVICE_LATENCY] / longer);
    }
    wanted[ADVICE_GBPS] *= longer * smaller;
    wanted[ADVICE_LATENCY] /= longer;
}

/* Whether the map knows the setting. The model is dealt with in scale_network(). Which worker is
 * slow (pace.worker) does not matter. */
static bool is_known(const struct advice *a, const struct setting *s)
{
    const bool fixed = strcmp(s->key, "dataset") == 0 || strcmp(s->key, "pace") == 0;
    bool axis = strcmp(s->key, "model") == 0 || strcmp(s->key, "pace.mean_ms") == 0 ||
                strcmp(s->key, "pace.worker") == 0;
    for (size_t i = 0; i < ADVICE_AXES; i++)
        axis = axis || strcmp(s->key, axes[i].key) == 0;
    return axis || (fixed &&
                    (strcmp(s->value, a->cells[0].dataset) == 0 || strcmp(s->value, "gamma") == 0));
}

void advice_ask(struct advice *a, const struct settings *s, const struct advice_sizes *sizes)
{
    double wanted[ADVICE_AXES];
    for (size_t i = 0; i < ADVICE_AXES; i++)
        wanted[i] = setting_number(s, axes[i].key, NAN);
    scale_network(a, s, sizes, wanted);
    for (size_t i = 0; i < ADVICE_AXES; i++)
        if (!isnan(wanted[i]))
            keep_nearest(a, i, wanted);
    for (size_t i = 0; i < ADVICE_AXES; i++)
        if (!isnan(wanted[i]))
            note_neighbours(a, i, wanted);
    for (size_t i = 0; i < s->count; i++) {
        if (!is_known(a, &s->at[i]))
            text_add(&a->unknown, "%s=%s: the map has no axis %s\n", s->at[i].key, s->at[i].value,
                     s->at[i].key);
    }
}

/* ---- output -------------------------------------------------------------------------------------
 */

enum {
    WORKERS_WIDTH = 8,
    NODES_WIDTH = 22,
    NETWORK_WIDTH = 20,
    SIDE_WIDTH = 14,
    MARGIN_WIDTH = 19,
    ARM_WIDTH = 11
};

static void nodes_text(const struct advice_cell *c, char out[64])
{
    if (c->at[ADVICE_SLOW_WORKERS] > 0)
        snprintf(out, 64, "%g slow, factor %g", c->at[ADVICE_SLOW_WORKERS],
                 c->at[ADVICE_SLOW_FACTOR]);
    else if (c->at[ADVICE_WORKER_CV] > 0)
        snprintf(out, 64, "varied, cv %g", c->at[ADVICE_WORKER_CV]);
    else
        snprintf(out, 64, "alike");
}

static void network_text(const struct advice_cell *c, char out[64])
{
    if (c->at[ADVICE_GBPS] == 0 && c->at[ADVICE_LATENCY] == 0)
        snprintf(out, 64, "free");
    else if (isnan(c->at[ADVICE_GBPS]))
        snprintf(out, 64, "–");
    else
        snprintf(out, 64, "%g Gbit/s, %g ms", c->at[ADVICE_GBPS], c->at[ADVICE_LATENCY]);
}

static void margin_text(const struct advice_cell *c, char out[64])
{
    const double unit = c->is_loss ? 1 : 100;
    if (isnan(c->interval))
        snprintf(out, 64, "%.2f (%s)", unit * c->margin, c->seeds);
    else
        snprintf(out, 64, "%.2f ± %.2f (%s)", unit * c->margin, unit * c->interval, c->seeds);
}

static void print_cell_line(const struct advice_cell *c, FILE *to)
{
    char text[64];
    snprintf(text, sizeof text, "%g", c->at[ADVICE_WORKERS]);
    print_padded(to, text, WORKERS_WIDTH);
    nodes_text(c, text);
    print_padded(to, text, NODES_WIDTH);
    network_text(c, text);
    print_padded(to, text, NETWORK_WIDTH);
    print_padded(to, c->ahead, SIDE_WIDTH);
    margin_text(c, text);
    print_padded(to, text, MARGIN_WIDTH);
    print_padded(to, c->sync_arm, ARM_WIDTH);
    fprintf(to, "%s\n", c->async_arm);
}

static void print_sum(const struct advice *a, FILE *to)
{
    static const char *const outcomes[] = {"synchronous", "asynchronous", "undecided"};
    size_t counts[COUNT_OF(outcomes)] = {0}, all = 0;
    for (const struct advice_cell *c = a->cells; c < a->cells + a->count; c++) {
        for (size_t i = 0; i < COUNT_OF(outcomes); i++)
            counts[i] += c->kept && strcmp(c->ahead, outcomes[i]) == 0;
        all += c->kept;
    }
    fprintf(to, "\nOf %zu cell%s: ", all, plural(all));
    for (size_t i = 0; i < COUNT_OF(outcomes); i++)
        fprintf(to, "%s%s %zu", i > 0 ? ", " : "", outcomes[i], counts[i]);
    fputc('\n', to);
}

void advice_print(const struct advice *a, FILE *to)
{
    const struct advice_cell *first = &a->cells[0];
    const struct {
        const char *title;
        int width;
    } titles[] = {{"workers", WORKERS_WIDTH},
                  {"nodes", NODES_WIDTH},
                  {"network", NETWORK_WIDTH},
                  {"ahead", SIDE_WIDTH},
                  {first->is_loss ? "loss (seeds)" : "points (seeds)", MARGIN_WIDTH},
                  {"sync arm", ARM_WIDTH}};
    fprintf(to, "Ahead: %s on %s, ", first->model, first->dataset);
    if (isfinite(first->mean_ms))
        fprintf(to, "steps of %g ms, ", first->mean_ms);
    fprintf(to, "experiment %s; from %s\n\n", first->experiment,
            a->source != NULL ? a->source : "the published map");
    for (size_t i = 0; i < COUNT_OF(titles); i++)
        print_padded(to, titles[i].title, titles[i].width);
    fputs("async arm\n", to);
    for (size_t i = 0; i < a->count; i++)
        if (a->cells[i].kept)
            print_cell_line(&a->cells[i], to);
    print_sum(a, to);
    if (a->unknown.length > 0)
        fprintf(to, "\nNot in the map:\n%s", a->unknown.at);
}
