/*
 * optimizer.c — opens optimizers and drives their loops (worker/optimizer_loop.h), part by part.
 * Sums are those of the parts in their order, whoever did them.
 */
#include "worker/optimizer.h"
#include "worker/vector.h"

#include <math.h>
#include <string.h>

#define OPTIMIZER(name) extern const struct optimizer_kind optimizer_##name;
#include "worker/optimizer.def"
#undef OPTIMIZER

static const struct about *const entries[] = {
#define OPTIMIZER(name) &optimizer_##name.about,
#include "worker/optimizer.def"
#undef OPTIMIZER
};
const struct registry optimizer_registry = {"optimizer", entries, COUNT_OF(entries)};

enum {
    BLOCK = 1024,
    PART = 1 << 15,         /* elements that one thread of a crew takes at a time */
    SHARE_ABOVE = 4 * PART, /* a smaller update is over before a helper is awake */
};
/* Vectors of more elements than this are written past the caches: they would not stay there. */
#define STREAM_ABOVE ((size_t)1 << 20)

struct part_sums { /* of one part */
    double squares, gaps;
};

struct optimizer {
    const struct optimizer_kind *kind;
    size_t count;
    float momentum, weight_decay;
    float *state[2]; /* the current copy, and the one that the next update writes */
    unsigned current;
    crew *crew;
    struct part_sums *sums;
};

static size_t parts_of(const optimizer *p)
{
    return (p->count + PART - 1) / PART;
}

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
    TRY(kind_of(o, &kind));
    *out = (struct optimizer_rule){.form = kind->form,
                                   .states = kind->states,
                                   .momentum = (float)options_real(o, "momentum"),
                                   .weight_decay = (float)options_real(o, "weight_decay")};
done:
    return result;
}

status optimizer_open(optimizer **out, const options *o, size_t count)
{
    status result = OK;
    optimizer *p = NULL;
    struct optimizer_rule rule;

    *out = NULL;
    TRY(optimizer_rule_of(o, &rule));
    TRY(memory_new(&p, 1, sizeof *p, "optimizer"));
    TRY(kind_of(o, &p->kind));
    p->count = count;
    p->momentum = rule.momentum;
    p->weight_decay = rule.weight_decay;
    REQUIRE(p->kind->states <= 1);
    for (int copy = 0; copy < 2 && p->kind->states > 0; copy++) {
        TRY(memory_new(&p->state[copy], count, sizeof(float), "optimizer state"));
    }
    TRY(memory_new(&p->sums, parts_of(p), sizeof *p->sums, "an optimizer's sums"));
    *out = p;
    p = NULL;
done:
    optimizer_close(&p);
    return result;
}

void optimizer_close(optimizer **p)
{
    if (*p != NULL) {
        memory_free((*p)->state[0]);
        memory_free((*p)->state[1]);
        memory_free((*p)->sums);
        memory_free(*p);
        *p = NULL;
    }
}

static bool line_aligned(const float *p)
{
    return ((uintptr_t)p & 63) == 0;
}

struct update {
    const optimizer *p;
    struct optimizer_call call; /* of the whole vectors */
};

static void update_part(void *context, size_t part)
{
    const struct update *u = context;
    struct optimizer_call call = u->call;
    size_t at = part * PART;
    call.count = u->call.count - at < PART ? u->call.count - at : PART;
    call.in += at;
    call.out += at;
    call.gradient += at;
    call.read_at = call.read_at != NULL ? call.read_at + at : NULL;
    if (u->p->kind->states > 0) {
        call.state_in += at;
        call.state_out += at;
    }
    u->p->kind->update(&call);
    u->p->sums[part] = (struct part_sums){vector_total(call.squares), vector_total(call.gaps)};
}

void optimizer_apply(optimizer *p, const float *in, const float *gradient, double scale, double lr,
                     const float *read_at, float *out, struct optimizer_pass *pass)
{
    bool in_place = out == in;
    unsigned next = in_place ? p->current : !p->current;
    struct update u = {.p = p,
                       .call = {
                           .rates = {(float)scale, (float)lr, p->momentum, p->weight_decay},
                           .count = p->count,
                           .in = in,
                           .gradient = gradient,
                           .state_in = p->state[p->current],
                           .read_at = read_at != in ? read_at : NULL,
                           .state_out = p->state[next],
                           .out = out,
                           .streamed = !in_place && p->count > STREAM_ABOVE && line_aligned(out),
                       }};
    struct part_sums sum = {0};

    /* In place nothing can be taken back, so the gradient is looked at first. */
    if (in_place) {
        sum.squares = vector_sum_of_squares(p->count, gradient);
    }
    if (isfinite(sum.squares)) {
        sum.squares = 0;
        crew_run(p->count >= SHARE_ABOVE ? p->crew : NULL, parts_of(p), update_part, &u);
        for (size_t part = 0; part < parts_of(p); part++) {
            sum.squares += p->sums[part].squares;
            sum.gaps += p->sums[part].gaps;
        }
    }
    pass->finite = isfinite(sum.squares);
    pass->gradient_norm = sqrt(sum.squares);
    pass->gap = p->count > 0 ? sqrt(sum.gaps / (double)p->count) : 0;
    if (pass->finite) {
        p->current = next;
    }
}

void optimizer_set_momentum(optimizer *p, double momentum)
{
    p->momentum = (float)momentum;
}

void optimizer_share(optimizer *p, crew *helpers)
{
    p->crew = helpers;
}

size_t optimizer_state_count(const optimizer *p)
{
    return p->kind->states * p->count;
}

const float *optimizer_state(const optimizer *p)
{
    return p->state[p->current];
}

void optimizer_set_state(optimizer *p, const float *state)
{
    if (p->kind->states > 0) {
        memcpy(p->state[p->current], state, optimizer_state_count(p) * sizeof *state);
    }
}

VECTOR_CLONES
static void add_to(float *restrict sum, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] += x[i];
    }
}

void reduce_mean_ordered(const float *const *gradients, size_t n, size_t count, float *out)
{
    REQUIRE(n > 0);
    const float factor = 1.0f / (float)n;
    _Alignas(64) float sum[BLOCK];

    for (size_t at = 0; at < count; at += BLOCK) {
        size_t length = count - at < BLOCK ? count - at : BLOCK;
        memcpy(sum, gradients[0] + at, length * sizeof *sum);
        for (size_t k = 1; k < n; k++) {
            add_to(sum, gradients[k] + at, length);
        }
        vector_multiply(length, factor, sum, out + at);
    }
}
