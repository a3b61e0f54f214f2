/*
 * optimizer.c — opens optimizers and runs their loops (worker/optimizer/optimizer_loop.h) part by
 * part. Sums are added in the order of the parts, so they do not depend on the threads.
 */
#include "worker/optimizer/optimizer.h"
#include "base/memory.h"
#include "base/vector.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OPTIMIZER(name) extern const struct optimizer_kind optimizer_##name;
#include "worker/optimizer/optimizer.def"
#undef OPTIMIZER

static const struct about *const entries[] = {
#define OPTIMIZER(name) &optimizer_##name.about,
#include "worker/optimizer/optimizer.def"
#undef OPTIMIZER
};
const struct registry optimizer_registry = {"optimizer", entries, COUNT_OF(entries)};

enum {
    BLOCK = 1024,
    PART = 1 << 15,         /* elements that a helper thread takes at once */
    SHARE_ABOVE = 4 * PART, /* a smaller update ends before a helper thread wakes up */
};
/* Larger vectors are written past the caches, because they would not fit into them. */
#define STREAM_ABOVE ((size_t)1 << 20)

const struct option optimizer_momentum_options[] = {
    {"optimizer.momentum_correction", OPTION_FLAG, "true", 0, 0, NULL, NULL,
     "false: the learning rate is inside the velocity, so each part keeps the rate of its update"},
    {0},
};

/* The unit of work of a helper thread; with layer-wise rules, elements of one layer. */
struct optimizer_part {
    size_t at, count, layer;
    double squares, gaps, weights, state, product; /* sums of one pass */
};

struct layer_state {
    bool excluded;
    double weights, gradient; /* squared norms of θ and of the unscaled gradient */
    double state, product;    /* of the first state, and its product with that gradient */
    struct optimizer_rates rates;
};

struct optimizer {
    const struct optimizer_kind *kind;
    struct optimizer_rule rule;
    double parameters[OPTIMIZER_PARAMETERS];
    size_t count;
    float *state[2]; /* the current copy, and the copy that the next update writes */
    unsigned current;
    uint64_t updates;
    double epoch;
    helpers *helpers;
    struct optimizer_part *parts;
    struct layer_state *layers;
    size_t part_count, layer_count;
};

/* ---- settings ------------------------------------------------------------------------------ */

static status kind_of(const options *o, const struct optimizer_kind **out)
{
    status result = OK;
    const struct about *about = NULL;
    TRY(registry_require(&optimizer_registry, options_text(o, "optimizer"), &about));
    *out = (const struct optimizer_kind *)about;
done:
    return result;
}

status optimizer_rule_of(const options *o, struct optimizer_rule *out)
{
    status result = OK;
    const struct optimizer_kind *kind;
    double parameters[OPTIMIZER_PARAMETERS];
    TRY(kind_of(o, &kind));
    const bool matrices = strcmp(options_text(o, "weight_decay_of"), "matrices") == 0 &&
                          options_real(o, "weight_decay") > 0;
    const float clip = (float)options_real(o, "clip_norm");
    const bool by_layer = kind->layer_factor != NULL || matrices || clip > 0;
    registry_parameters(&kind->about, o, parameters, OPTIMIZER_PARAMETERS);
    *out = (struct optimizer_rule){
        .form = matrices || clip > 0 ? OPTIMIZER_HOST_ONLY : kind->form,
        .states = kind->states,
        .momentum = (float)options_real(o, "momentum"),
        .weight_decay = (float)options_real(o, "weight_decay"),
        .rate_inside =
            kind->layer_factor != NULL || (kind->momentum_correction && parameters[0] == 0),
        .decay_matrices = matrices,
        .clip_norm = clip,
        .by_layer = by_layer,
        .local_steps = !by_layer && (kind->form != OPTIMIZER_HOST_ONLY || kind->local_steps)};
done:
    return result;
}

const char *optimizer_rule_key(const struct optimizer_rule *rule)
{
    return rule->clip_norm > 0    ? "clip_norm"
           : rule->decay_matrices ? "weight_decay_of"
                                  : "optimizer";
}

status optimizer_has_momentum(const options *o, bool *out)
{
    status result = OK;
    const struct optimizer_kind *kind;
    TRY(kind_of(o, &kind));
    *out = kind->has_momentum;
done:
    return result;
}

status optimizer_added_decay(const options *o, double *out)
{
    status result = OK;
    struct optimizer_rule rule;
    const struct optimizer_kind *kind;
    TRY(kind_of(o, &kind));
    TRY(optimizer_rule_of(o, &rule));
    bool added = !kind->decay_apart && kind->layer_factor == NULL && !rule.decay_matrices;
    *out = added ? options_real(o, "weight_decay") : 0;
done:
    return result;
}

struct optimizer_rates optimizer_rule_rates(const struct optimizer_rule *rule, double scale,
                                            double lr)
{
    if (!rule->rate_inside) {
        return (struct optimizer_rates){
            (float)scale, (float)lr, rule->momentum, rule->weight_decay, {0}};
    }
    return (struct optimizer_rates){
        (float)(scale * lr), 1, rule->momentum, (float)((double)rule->weight_decay * lr), {0}};
}

/* ---- open and close ------------------------------------------------------------------------ */

static size_t parts_in(size_t count)
{
    return (count + PART - 1) / PART;
}

/* Cuts a layer into parts from number `first` on; returns the first number of the next layer. */
static size_t cut(optimizer *p, size_t first, size_t layer, size_t at, size_t count)
{
    for (size_t end = at + count; at < end; at += PART) {
        p->parts[first++] = (struct optimizer_part){
            .at = at, .count = end - at < PART ? end - at : PART, .layer = layer};
    }
    return first;
}

static status open_kind(optimizer **out, const struct optimizer_kind *kind, size_t count)
{
    status result = OK;
    optimizer *p = NULL;

    *out = NULL;
    TRY(memory_new(&p, 1, sizeof *p, "optimizer"));
    p->kind = kind;
    p->count = count;
    for (int copy = 0; copy < 2 && p->kind->states > 0; copy++)
        TRY(memory_new(&p->state[copy], p->kind->states * count, sizeof(float), "optimizer state"));
    p->part_count = parts_in(count);
    p->layer_count = 1;
    TRY(memory_new(&p->parts, p->part_count, sizeof *p->parts, "an optimizer's parts"));
    TRY(memory_new(&p->layers, 1, sizeof *p->layers, "an optimizer's layers"));
    cut(p, 0, 0, 0, count);
    *out = p;
    p = NULL;
done:
    optimizer_close(&p);
    return result;
}

status optimizer_open(optimizer **out, const options *o, size_t count)
{
    status result = OK;
    const struct optimizer_kind *kind;
    struct optimizer_rule rule;
    TRY(kind_of(o, &kind));
    TRY(optimizer_rule_of(o, &rule));
    TRY(open_kind(out, kind, count));
    (*out)->rule = rule;
    registry_parameters(&kind->about, o, (*out)->parameters, OPTIMIZER_PARAMETERS);
done:
    return result;
}

status optimizer_open_outer(optimizer **out, const struct optimizer_kind *kind,
                            const double parameters[OPTIMIZER_PARAMETERS], size_t count)
{
    status result = OK;
    TRY(open_kind(out, kind != NULL ? kind : &optimizer_sgd, count));
    memcpy((*out)->parameters, parameters, sizeof(*out)->parameters);
done:
    return result;
}

static bool measures_layers(const optimizer *p)
{
    return p->kind->layer_factor != NULL || p->kind->correlates;
}

status optimizer_set_layers(optimizer *p, const struct optimizer_layers *given)
{
    status result = OK;
    struct optimizer_part *parts = NULL;
    struct layer_state *layers = NULL;
    size_t part_count = 0, at = 0, first = 0;
    if ((!measures_layers(p) && !p->rule.decay_matrices) || given->count == 0)
        return OK;
    for (size_t i = 0; i < given->count; i++)
        part_count += parts_in(given->at[i].count);
    TRY(memory_new(&parts, part_count, sizeof *parts, "an optimizer's parts"));
    TRY(memory_new(&layers, given->count, sizeof *layers, "an optimizer's layers"));
    memory_free(p->parts);
    memory_free(p->layers);
    p->parts = parts;
    p->layers = layers;
    p->part_count = part_count;
    p->layer_count = given->count;
    for (size_t i = 0; i < given->count; i++) {
        layers[i].excluded = given->at[i].excluded;
        first = cut(p, first, i, at, given->at[i].count);
        at += given->at[i].count;
    }
    REQUIRE(at == p->count);
    parts = NULL;
    layers = NULL;
done:
    memory_free(parts);
    memory_free(layers);
    return result;
}

void optimizer_close(optimizer **p)
{
    if (*p != NULL) {
        memory_free((*p)->state[0]);
        memory_free((*p)->state[1]);
        memory_free((*p)->parts);
        memory_free((*p)->layers);
        memory_free(*p);
        *p = NULL;
    }
}

/* ---- the update ---------------------------------------------------------------------------- */

static bool line_aligned(const float *p)
{
    return ((uintptr_t)p & 63) == 0;
}

struct update_pass {
    optimizer *p;
    struct optimizer_call call; /* over the whole vectors */
};

static void run_parts(struct update_pass *u, helpers_work *work)
{
    helpers_run(u->p->count >= SHARE_ABOVE ? u->p->helpers : NULL, u->p->part_count, work, u);
}

static void measure_part(void *context, size_t index)
{
    const struct update_pass *u = context;
    struct optimizer_part *part = &u->p->parts[index];
    const float *gradient = u->call.gradient + part->at;
    part->squares = vector_sum_of_squares(part->count, gradient);
    if (u->p->kind->correlates) {
        const float *state = u->call.state_in + part->at;
        part->state = vector_sum_of_squares(part->count, state);
        part->product = vector_inner_product(part->count, gradient, state);
    } else {
        part->weights = vector_sum_of_squares(part->count, u->call.in + part->at);
    }
}

static void update_part(void *context, size_t index)
{
    const struct update_pass *u = context;
    struct optimizer_part *part = &u->p->parts[index];
    struct optimizer_call call = u->call;
    const size_t at = part->at;
    call.count = part->count;
    call.rates = u->p->layers[part->layer].rates;
    call.in += at;
    call.out += at;
    call.gradient += at;
    call.read_at = call.read_at != NULL ? call.read_at + at : NULL;
    if (u->p->kind->states > 0) {
        call.state_in += at;
        call.state_out += at;
    }
    u->p->kind->update(&call);
    part->squares = vector_total(call.squares);
    part->gaps = vector_total(call.gaps);
}

/* Computes the sums of all layers; returns the squared norm of the gradient. */
static double measure_layers(struct update_pass *u)
{
    optimizer *p = u->p;
    double sum = 0;
    run_parts(u, measure_part);
    for (struct layer_state *l = p->layers; l < p->layers + p->layer_count; l++)
        l->weights = l->gradient = l->state = l->product = 0;
    for (const struct optimizer_part *part = p->parts; part < p->parts + p->part_count; part++) {
        struct layer_state *layer = &p->layers[part->layer];
        layer->weights += part->weights;
        layer->gradient += part->squares;
        layer->state += part->state;
        layer->product += part->product;
        sum += part->squares;
    }
    return sum;
}

static void set_rates(optimizer *p, double scale, double lr)
{
    struct optimizer_rule plain = p->rule;
    plain.weight_decay = 0;
    for (struct layer_state *l = p->layers; l < p->layers + p->layer_count; l++) {
        const double decay = l->excluded ? 0 : (double)p->rule.weight_decay;
        if (l->excluded) {
            l->rates = optimizer_rule_rates(&plain, scale, lr);
        } else if (p->kind->layer_factor == NULL) {
            l->rates = optimizer_rule_rates(&p->rule, scale, lr);
        } else {
            double factor = p->kind->layer_factor(p->parameters, sqrt(l->weights),
                                                  fabs(scale) * sqrt(l->gradient), decay);
            l->rates = optimizer_rule_rates(&p->rule, scale, lr * factor);
        }
        if (p->kind->constants != NULL) {
            struct optimizer_moment now = {.parameters = p->parameters,
                                           .number = p->updates + 1,
                                           .lr = lr,
                                           .decay = decay,
                                           .epoch = p->epoch,
                                           .scale = scale,
                                           .gradient = l->gradient,
                                           .state = l->state,
                                           .product = l->product};
            p->kind->constants(&now, l->rates.own);
        }
    }
}

/* True: writes bypass the caches. Requires aligned outputs that are too large for the caches. */
static bool streams(const optimizer *p, const float *in, const float *out)
{
    bool aligned = line_aligned(out) && (p->kind->states < 2 || p->count % VECTOR_LANES == 0);
    return out != in && p->count > STREAM_ABOVE && p->layer_count == 1 && aligned;
}

/* The factor of clip_norm on the scaled gradient. */
static double clip_factor(const optimizer *p, double squares, double scale)
{
    const double norm = fabs(scale) * sqrt(squares), limit = (double)p->rule.clip_norm;
    return limit > 0 && norm > limit ? limit / norm : 1;
}

bool optimizer_takes(double squares, double scale)
{
    return isfinite(squares) && fabs(scale) * sqrt(squares) <= sqrt((double)FLT_MAX);
}

void optimizer_apply(optimizer *p, const float *in, const float *gradient, double scale, double lr,
                     const float *read_at, float *out, struct optimizer_pass *pass)
{
    bool in_place = out == in;
    unsigned next = in_place ? p->current : !p->current;
    struct update_pass u = {.p = p,
                            .call = {
                                .in = in,
                                .gradient = gradient,
                                .state_in = p->state[p->current],
                                .stride = p->count,
                                .read_at = read_at != in ? read_at : NULL,
                                .state_out = p->state[next],
                                .out = out,
                                .streamed = streams(p, in, out),
                            }};
    double squares = 0, gaps = 0;

    /* An update in place cannot be reverted, so the gradient is checked first. */
    if (measures_layers(p))
        squares = measure_layers(&u);
    else if (in_place || p->rule.clip_norm > 0)
        squares = vector_sum_of_squares(p->count, gradient);
    if (optimizer_takes(squares, scale)) {
        set_rates(p, scale * clip_factor(p, squares, scale), lr);
        squares = 0;
        run_parts(&u, update_part);
        for (size_t i = 0; i < p->part_count; i++) {
            squares += p->parts[i].squares;
            gaps += p->parts[i].gaps;
        }
    }
    pass->finite = optimizer_takes(squares, scale);
    pass->gradient_norm = sqrt(squares);
    pass->gap = p->count > 0 ? sqrt(gaps / (double)p->count) : 0;
    if (pass->finite) {
        p->current = next;
        p->updates++;
    }
}

void optimizer_take_back(optimizer *p)
{
    REQUIRE(p->updates > 0);
    p->current = !p->current;
    p->updates--;
}

/* ---- the rest ------------------------------------------------------------------------------ */

bool optimizer_is_scale_free(const optimizer *p)
{
    return p->kind->scale_free;
}

void optimizer_set_momentum(optimizer *p, double momentum)
{
    p->rule.momentum = (float)momentum;
}

void optimizer_set_epoch(optimizer *p, double epoch)
{
    p->epoch = epoch;
}

uint64_t optimizer_updates(const optimizer *p)
{
    return p->updates;
}

void optimizer_set_updates(optimizer *p, uint64_t updates)
{
    p->updates = updates;
}

void optimizer_share(optimizer *p, helpers *threads)
{
    p->helpers = threads;
}

size_t optimizer_state_count(const optimizer *p)
{
    return p->kind->states * p->count;
}

const float *optimizer_state(const optimizer *p)
{
    return p->state[p->current];
}

float *optimizer_state_in_place(optimizer *p)
{
    return p->state[p->current];
}

void optimizer_set_state(optimizer *p, const float *state)
{
    if (p->kind->states > 0)
        memcpy(p->state[p->current], state, optimizer_state_count(p) * sizeof *state);
}

VECTOR_CLONES
static void add_to(float *restrict sum, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += x[i];
}

void reduce_mean_ordered(const float *const *gradients, size_t n, size_t count, float *out)
{
    REQUIRE(n > 0);
    const float factor = 1.0f / (float)n;
    _Alignas(64) float sum[BLOCK];

    for (size_t at = 0; at < count; at += BLOCK) {
        size_t length = count - at < BLOCK ? count - at : BLOCK;
        memcpy(sum, gradients[0] + at, length * sizeof *sum);
        for (size_t k = 1; k < n; k++)
            add_to(sum, gradients[k] + at, length);
        vector_multiply(length, factor, sum, out + at);
    }
}
