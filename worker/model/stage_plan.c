/* stage_plan.c — cuts a model into stages, by key stage_cuts or by measured cost. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "worker/model/stage_internal.h"

status blueprint_open(struct blueprint *b, const options *o, bool with_data)
{
    status result = OK;
    TRY(dataset_open(&b->data, o, with_data));
    TRY(model_open(&b->model, o, &b->data));
done:
    return result;
}

void blueprint_close(struct blueprint *b)
{
    dataset_close(&b->data);
}

static struct shape images_of(const struct blueprint *b)
{
    return (struct shape){b->data.channels, b->data.height, b->data.width};
}

/* Runs the model once without values. The caller keeps ownership of the table, also after an error.
 */
static status discover(const struct blueprint *b, size_t first, size_t last, parameter_table *table,
                       struct tape_cut *cuts, size_t *count)
{
    status result = OK;
    tape *t = NULL;
    TRY(tape_open(&t, NULL, table, TAPE_DISCOVER, images_of(b), 1));
    tape_set_range(t, first, last, images_of(b));
    tensor *x = tape_begin(t, NULL, NULL);
    b->model.kind->forward(t, x, &b->model);
    if (cuts != NULL)
        *count = tape_cuts(t, cuts, SEGMENTS_MOST - 1);
    if (b->model.kind->declare != NULL && first == 0 && last == SIZE_MAX)
        b->model.kind->declare(t, x, &b->model);
    TRY(tape_finish(t, NULL, 0, NULL));
done:
    tape_close(&t);
    return result;
}

status blueprint_part(const struct blueprint *b, size_t first, size_t last, parameter_table **out)
{
    status result = OK;
    TRY(parameter_table_open(out));
    TRY(discover(b, first, last, *out, NULL, NULL));
done:
    return result;
}

/* ---- the cuts of a model ---- */

struct cuts {
    struct blueprint b;
    parameter_table *table; /* the names in `at` point into it */
    struct tape_cut at[SEGMENTS_MOST];
    size_t count;
};

static status cuts_open(struct cuts *c, const options *o, bool with_data)
{
    status result = OK;
    TRY(blueprint_open(&c->b, o, with_data));
    TRY(parameter_table_open(&c->table));
    TRY(discover(&c->b, 0, SIZE_MAX, c->table, c->at, &c->count));
    if (c->b.model.kind->declare != NULL)
        c->count = 0; /* the model's path depends on values */
done:
    return result;
}

static void cuts_close(struct cuts *c)
{
    parameter_table_close(&c->table);
    blueprint_close(&c->b);
}

static void add_names(const struct cuts *c, struct text *out)
{
    for (size_t i = 0; i < c->count; i++)
        text_add(out, "%s%s", i == 0 ? "" : ", ", c->at[i].layer);
    if (c->count == 0)
        text_add(out, "(none)");
}

/* The stage between cut `from − 1` (from = 0: the images) and cut `to` (to = count: the logits). */
static status part_between(const struct cuts *c, size_t from, size_t to, struct stage_part *out)
{
    status result = OK;
    parameter_table *own = NULL;
    const struct tape_cut *before = from > 0 ? &c->at[from - 1] : NULL;
    const struct tape_cut *after = to < c->count ? &c->at[to] : NULL;
    *out = (struct stage_part){.first = before != NULL ? before->at : 0,
                               .last = after != NULL ? after->at : SIZE_MAX,
                               .input = before != NULL ? before->shape : images_of(&c->b)};
    out->output = after != NULL ? after->shape : (struct shape){c->b.model.classes, 1, 1};
    TRY(blueprint_part(&c->b, out->first, out->last, &own));
    out->count = parameter_table_count(own);
    size_t layers = parameter_table_layers(own), whole = parameter_table_layers(c->table);
    REQUIRE(layers > 0);
    struct layer *first = parameter_table_layer(own, 0);
    struct layer *last = parameter_table_layer(own, layers - 1);
    size_t at = parameter_table_find(c->table, first->name, 0);
    REQUIRE(at < whole);
    out->offset = parameter_table_layer(c->table, at)->weight_at;
    snprintf(out->from, sizeof out->from, "%s", first->name);
    snprintf(out->to, sizeof out->to, "%s", last->name);
done:
    parameter_table_close(&own);
    return result;
}

status stage_plan_make(struct stage_plan *out, const options *o, unsigned stages,
                       const unsigned *chosen)
{
    status result = OK;
    struct cuts c = {0};
    size_t offset = 0;
    REQUIRE(stages > 0 && stages <= STAGE_MOST);
    TRY(cuts_open(&c, o, false));
    out->stages = stages;
    for (unsigned k = 0; k < stages; k++) {
        size_t from = k == 0 ? 0 : chosen[k - 1] + 1, to = k + 1 == stages ? c.count : chosen[k];
        TRY(part_between(&c, from, to, &out->part[k]));
        if (out->part[k].offset != offset) {
            FAIL(ERROR_USAGE,
                 "model=%s cannot be cut: the order of its parameters differs from the order of "
                 "its stages; use mode=sync",
                 options_text(o, "model"));
        }
        offset += out->part[k].count;
    }
done:
    cuts_close(&c);
    return result;
}

/* ---- cuts by measured cost ---- */

enum { REPETITIONS = 5 };

/* The shortest time of forward and backward of one micro-batch. */
static status measure(const options *o, const struct stage_part *part, uint32_t samples,
                      double *seconds)
{
    status result = OK;
    stage *s = NULL;
    float *parameters = NULL, *gradient = NULL, *output = NULL, *input = NULL, loss;
    uint32_t batch = (uint32_t)options_integer(o, "batch");
    struct stage_options how = {
        .settings = o, .part = part, .replicas = 1, .micro_batches = batch / samples, .slots = 1};

    *seconds = INFINITY;
    TRY(stage_open(&s, &how));
    TRY(memory_new(&parameters, part->count, sizeof(float), "parameters"));
    TRY(memory_new(&gradient, part->count, sizeof(float), "a gradient"));
    TRY(memory_new(&output, stage_output_count(s) + 1, sizeof(float), "activations"));
    TRY(memory_new(&input, stage_input_count(s) + 1, sizeof(float), "activations"));
    for (unsigned i = 0; i < REPETITIONS; i++) {
        uint64_t begun = clock_ns();
        bool last = stage_output_count(s) == 0;
        TRY(stage_forward(s, 0, 0, 0, parameters, last ? NULL : output, &loss));
        TRY(stage_backward(s, 0, last ? NULL : output, gradient, true,
                           part->first == 0 ? NULL : input));
        *seconds = fmin(*seconds, (double)(clock_ns() - begun) * 1e-9);
    }
done:
    stage_close(&s);
    memory_free(parameters);
    memory_free(gradient);
    memory_free(output);
    memory_free(input);
    return result;
}

/* least[k][n]: the smallest possible largest sum of the first n segments in k stages. */
void stage_balance(const double *cost, size_t segments, unsigned stages, unsigned *chosen)
{
    static double least[STAGE_MOST + 1][SEGMENTS_MOST + 1]; /* 130 KiB each; one thread */
    static size_t begin[STAGE_MOST + 1][SEGMENTS_MOST + 1];
    REQUIRE(stages > 0 && stages <= STAGE_MOST && stages <= segments && segments <= SEGMENTS_MOST);
    memset(begin, 0, sizeof begin);
    for (size_t k = 0; k <= stages; k++) {
        for (size_t n = 0; n <= segments; n++) {
            least[k][n] = n == 0 && k == 0 ? 0 : INFINITY;
            double sum = 0;
            for (size_t from = n; k > 0 && from-- > 0;) {
                sum += cost[from];
                double worst = fmax(sum, least[k - 1][from]);
                if (worst < least[k][n]) {
                    least[k][n] = worst;
                    begin[k][n] = from;
                }
            }
        }
    }
    size_t end = segments;
    for (unsigned k = stages; k > 1; k--) {
        end = begin[k][end];
        chosen[k - 2] = (unsigned)end - 1;
    }
}

static status choose_balanced(const struct cuts *c, const options *o, unsigned stages,
                              uint32_t samples, unsigned *chosen)
{
    status result = OK;
    double cost[SEGMENTS_MOST];
    for (size_t i = 0; i <= c->count; i++) {
        struct stage_part part;
        TRY(part_between(c, i, i, &part));
        TRY(measure(o, &part, samples, &cost[i]));
    }
    stage_balance(cost, c->count + 1, stages, chosen);
done:
    return result;
}

/* ---- cuts by name ---- */

static status choose_named(const struct cuts *c, const options *o, unsigned stages,
                           const char *names, unsigned *chosen)
{
    status result = OK;
    struct text possible = {0};
    unsigned found = 0;
    size_t at = 0;
    add_names(c, &possible);
    for (const char *name = names; *name != '\0';) {
        size_t length = strcspn(name, ",");
        while (at < c->count &&
               (strlen(c->at[at].layer) != length || memcmp(c->at[at].layer, name, length) != 0))
            at++;
        if (at == c->count) {
            FAIL(ERROR_USAGE,
                 "%s: stage_cuts=%s: no stage can begin with layer '%.*s' at this position; "
                 "possible first "
                 "layers of model=%s, in order: %s",
                 options_origin(o, "stage_cuts"), names, (int)length, name,
                 options_text(o, "model"), possible.at);
        }
        if (found < STAGE_MOST)
            chosen[found] = (unsigned)at;
        found++;
        at++;
        name += length + (name[length] == ',');
    }
    if (found + 1 != stages) {
        FAIL(ERROR_USAGE,
             "%s: stage_cuts=%s makes %u stages, but each replica has %u; change stage_cuts or "
             "stages",
             options_origin(o, "stage_cuts"), names, found + 1, stages);
    }
done:
    text_free(&possible);
    return result;
}

status stage_cuts_choose(const options *o, unsigned stages, uint32_t samples,
                         unsigned chosen[STAGE_MOST])
{
    status result = OK;
    struct cuts c = {0};
    struct text possible = {0};
    const char *names = options_text(o, "stage_cuts");
    TRY(cuts_open(&c, o, false));
    add_names(&c, &possible);
    if (stages > 1 && c.count == 0) {
        FAIL(ERROR_USAGE,
             "model=%s cannot be cut into stages: at every position two tensors would cross the "
             "cut, or layers on both sides share weights; choose another model or mode=sync",
             options_text(o, "model"));
    }
    if (stages > c.count + 1) {
        FAIL(ERROR_USAGE,
             "model=%s can be cut into at most %zu stages (before layers %s), not into %u; use "
             "fewer "
             "stages or a deeper model",
             options_text(o, "model"), c.count + 1, possible.at, stages);
    }
    if (names[0] != '\0')
        TRY(choose_named(&c, o, stages, names, chosen));
    else if (stages == c.count + 1 || stages == 1)
        for (unsigned i = 0; i + 1 < stages; i++)
            chosen[i] = i;
    else
        TRY(choose_balanced(&c, o, stages, samples, chosen));
done:
    text_free(&possible);
    cuts_close(&c);
    return result;
}
