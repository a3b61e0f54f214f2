/*
 * optimizer.c — opens optimizers and runs their loops (worker/optimizer/optimizer_loop.h) part by
 * part. Sums are added in the order of the parts, so they do not depend on the threads.
 */
#include "worker/optimizer/optimizer.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/vector.h"
#include "worker/optimizer/optimizer_way.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const struct optimizer_kind optimizer_sgd;

enum {
    BLOCK = 1024,
    PART = 1 << 15, /* elements that a helper thread takes at once */
    /* The caller waits for a helper that is preempted in the middle of a part, and must not compute
     * that part itself, because the helper would later write over newer parameters. A smaller
     * update is shorter than such a wait and gains little from a second thread. */
    SHARE_ABOVE = 16 * PART,
    TRY_FROM = 2 * PART,
    LARGE_ABOVE = 32 * PART, /* longer vectors are assumed not to fit into the caches */
};

/* The unit of work of a helper thread; with layer-wise rules, elements of one layer. */
struct optimizer_part {
    size_t at, count, layer;
    double squares, gaps, weights, state, product; /* sums of one pass */
};

struct layer_state {
    bool excluded;
    size_t at;                /* its first element */
    uint32_t rows, columns;   /* of a hidden matrix; 0: not updated as a whole */
    double weights, gradient; /* squared norms of θ and of the unscaled gradient */
    double state, product; /* squared norm of the first state; its dot product with that gradient */
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
    struct optimizer_trial trial;
    struct optimizer_part *parts;
    struct layer_state *layers;
    size_t part_count, layer_count;
    float *directions, *scratch; /* of hidden matrices; NULL: none */
};

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

static status try_ways(optimizer *p) MUST_CHECK;

status optimizer_open(optimizer **out, const options *o, size_t count)
{
    status result = OK;
    const struct optimizer_kind *kind;
    struct optimizer_rule rule;
    *out = NULL;
    TRY(optimizer_kind_of(o, &kind));
    TRY(optimizer_rule_of(o, &rule));
    TRY(open_kind(out, kind, count));
    (*out)->rule = rule;
    registry_parameters(&kind->about, o, (*out)->parameters, OPTIMIZER_PARAMETERS);
    TRY(try_ways(*out));
done:
    if (result != OK)
        optimizer_close(out);
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

static status reserve_matrices(optimizer *p)
{
    status result = OK;
    size_t most = 0;
    for (const struct layer_state *l = p->layers; l < p->layers + p->layer_count; l++) {
        const size_t own = l->rows > 0 ? p->kind->matrix_scratch(l->rows, l->columns) : 0;
        REQUIRE(l->rows == 0 || l->at + (size_t)l->rows * l->columns <= p->count);
        most = own > most ? own : most;
    }
    if (most > 0) {
        TRY(memory_new(&p->directions, p->count, sizeof(float), "directions of matrices"));
        TRY(memory_new(&p->scratch, most, sizeof(float), "products of matrices"));
    }
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
    if ((!measures_layers(p) && !p->rule.by_layer) || given->count == 0)
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
        layers[i].at = at;
        layers[i].rows = p->kind->matrix != NULL ? given->at[i].rows : 0;
        layers[i].columns = given->at[i].columns;
        first = cut(p, first, i, at, given->at[i].count);
        at += given->at[i].count;
    }
    REQUIRE(at == p->count);
    parts = NULL;
    layers = NULL;
    TRY(reserve_matrices(p));
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
        memory_free((*p)->directions);
        memory_free((*p)->scratch);
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
    const struct layer_state *layer = &u->p->layers[part->layer];
    const size_t at = part->at;
    call.count = part->count;
    call.rates = layer->rates;
    if (layer->rows > 0)
        call.out = u->p->directions;
    call.in += at;
    call.out += at;
    call.gradient += at;
    call.read_at = call.read_at != NULL ? call.read_at + at : NULL;
    if (u->p->kind->states > 0) {
        call.state_in += at;
        call.state_out += at;
    }
    (layer->rows > 0 ? u->p->kind->direction : u->p->kind->update)(&call);
    part->squares = vector_total(call.squares);
    part->gaps = vector_total(call.gaps);
}

/* Call it after all parts. Computes the new θ of each hidden matrix from its direction. */
static void update_matrices(const struct update_pass *u)
{
    optimizer *p = u->p;
    for (const struct layer_state *l = p->layers; l < p->layers + p->layer_count; l++) {
        if (l->rows == 0)
            continue;
        p->kind->matrix(&(struct optimizer_matrix){.rows = l->rows,
                                                   .columns = l->columns,
                                                   .rates = l->rates,
                                                   .in = u->call.in + l->at,
                                                   .direction = p->directions + l->at,
                                                   .out = u->call.out + l->at,
                                                   .scratch = p->scratch,
                                                   .threads = p->helpers});
    }
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
        const bool apart = l->excluded && (p->kind->layer_factor != NULL || p->rule.decay_matrices);
        const double decay = apart ? 0 : (double)p->rule.weight_decay;
        if (apart) {
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
                                           .matrix = l->rows > 0,
                                           .scale = scale,
                                           .gradient = l->gradient,
                                           .state = l->state,
                                           .product = l->product};
            p->kind->constants(&now, l->rates.own);
        }
    }
}

/* True: the stores may bypass the caches. */
static bool can_stream(const optimizer *p, const float *out)
{
    bool aligned = line_aligned(out) && (p->kind->states < 2 || p->count % VECTOR_LANES == 0);
    return p->layer_count == 1 && aligned;
}

/* Runs all parts. An update in place reads each line that it writes, so its stores never bypass the
 * caches. */
static void run_update(struct update_pass *u)
{
    optimizer *p = u->p;
    const bool in_place = u->call.out == u->call.in, large = p->count > LARGE_ABOVE;
    const struct optimizer_way way =
        in_place ? optimizer_way_usual(large) : optimizer_way_next(&p->trial, large);
    u->call.ahead = way.ahead;
    u->call.streamed = way.streamed && !in_place && can_stream(p, u->call.out);
    run_parts(u, update_part);
}

/* Selects the way by a trial on vectors of this length. The trial is part of opening, because
 * updates read no clock. Large vectors use the usual way without a trial. So do small vectors,
 * because their ways differ too little. */
static status try_ways(optimizer *p)
{
    status result = OK;
    float *vectors = NULL;
    const size_t stride = (p->count + VECTOR_LANES - 1) / VECTOR_LANES * VECTOR_LANES;
    if (p->count < TRY_FROM || p->count > LARGE_ABOVE)
        return OK;
    TRY(memory_new(&vectors, 3 * stride, sizeof(float), "vectors for a trial of the update"));
    set_rates(p, 1, 0);
    for (size_t i = 0; i < OPTIMIZER_TRIALS; i++) {
        struct update_pass u = {.p = p,
                                .call = {.in = vectors + i % 2 * stride,
                                         .out = vectors + (i + 1) % 2 * stride,
                                         .gradient = vectors + 2 * stride,
                                         .state_in = p->state[i % 2],
                                         .state_out = p->state[(i + 1) % 2],
                                         .stride = p->count}};
        const double began = clock_seconds();
        run_update(&u);
        optimizer_way_took(&p->trial, false, clock_seconds() - began);
    }
    for (int copy = 0; copy < 2 && p->kind->states > 0; copy++)
        memset(p->state[copy], 0, optimizer_state_count(p) * sizeof(float));
done:
    memory_free(vectors);
    return result;
}

void optimizer_force_way(optimizer *p, unsigned way)
{
    p->trial.updates = OPTIMIZER_TRIALS;
    p->trial.chosen = way;
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
        run_update(&u);
        for (size_t i = 0; i < p->part_count; i++) {
            squares += p->parts[i].squares;
            gaps += p->parts[i].gaps;
        }
    }
    pass->finite = optimizer_takes(squares, scale);
    pass->gradient_norm = sqrt(squares);
    pass->gap = p->count > 0 ? sqrt(gaps / (double)p->count) : 0;
    if (pass->finite) {
        update_matrices(&u);
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

void reduce_mean_ordered(const float *const *gradients, size_t n, size_t count, float *out)
{
    REQUIRE(n > 0);
    const float factor = 1.0f / (float)n;
    _Alignas(64) float sum[BLOCK];

    for (size_t at = 0; at < count; at += BLOCK) {
        size_t length = count - at < BLOCK ? count - at : BLOCK;
        memcpy(sum, gradients[0] + at, length * sizeof *sum);
        for (size_t k = 1; k < n; k++)
            vector_add(length, gradients[k] + at, sum);
        vector_multiply(length, factor, sum, out + at);
    }
}
