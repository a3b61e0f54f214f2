/*
 * optimizer.c — opens optimizers and drives their loops (worker/optimizer_loop.h).
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

enum { BLOCK = 1024 };
/* Vectors of more elements than this are written past the caches: they would not stay there. */
#define STREAM_ABOVE ((size_t)1 << 20)

struct optimizer {
    const struct optimizer_kind *kind;
    size_t count;
    float momentum, weight_decay;
    float *state[2]; /* the current copy, and the one that the next update writes */
    unsigned current;
};

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
        memory_free(*p);
        *p = NULL;
    }
}

static bool line_aligned(const float *p)
{
    return ((uintptr_t)p & 63) == 0;
}

void optimizer_apply(optimizer *p, const float *in, const float *gradient, double scale, double lr,
                     const float *read_at, float *out, struct optimizer_pass *pass)
{
    bool in_place = out == in;
    unsigned next = in_place ? p->current : !p->current;
    struct optimizer_call call = {
        .rates = {(float)scale, (float)lr, p->momentum, p->weight_decay},
        .count = p->count,
        .in = in,
        .gradient = gradient,
        .state_in = p->state[p->current],
        .read_at = read_at != in ? read_at : NULL,
        .state_out = p->state[next],
        .out = out,
        .streamed = !in_place && p->count > STREAM_ABOVE && line_aligned(out),
    };

    /* In place nothing can be taken back, so the gradient is looked at first. */
    if (in_place) {
        vector_squares(p->count, gradient, call.squares); /* the same sums as the loop's */
    }
    double squares = vector_total(call.squares);
    if (isfinite(squares)) {
        p->kind->update(&call);
        squares = vector_total(call.squares);
    }
    pass->finite = isfinite(squares);
    pass->gradient_norm = sqrt(squares);
    pass->gap = p->count > 0 ? sqrt(vector_total(call.gaps) / (double)p->count) : 0;
    if (pass->finite) {
        p->current = next;
    }
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
