/* aggregate.c — see aggregate.h. */
#include "ps/core/aggregate.h"

#include "base/memory.h"
#include "ps/core/arithmetic.h"
#include "worker/optimizer/optimizer.h"

enum { BLOCK = 4096 }; /* elements: a block of the sum stays in cache while gradients are added */

status aggregate_open(struct aggregate *a, const options *o, unsigned capacity, size_t count,
                      bool sums)
{
    status result = OK;
    *a = (struct aggregate){.count = count, .capacity = capacity};
    TRY(correction_open(&a->correction, o));
    if (sums)
        TRY(correction_check_sums(a->correction.rule));
    TRY(correction_allocate(&a->correction, capacity, sums ? capacity : 1, count));
    TRY(memory_new(&a->gradients, capacity, sizeof *a->gradients, "gradient list"));
    TRY(memory_new(&a->read_at, capacity, sizeof *a->read_at, "list of versions read"));
    TRY(memory_new(&a->calls, capacity, sizeof *a->calls, "gradients in correction"));
    TRY(memory_new(&a->contexts, capacity, sizeof *a->contexts, "gradients' contexts"));
    if (sums || a->correction.rule->block != NULL)
        TRY(memory_new(&a->mean, count, sizeof *a->mean, "mean gradient"));
done:
    return result;
}

void aggregate_close(struct aggregate *a)
{
    memory_free(a->mean);
    memory_free(a->contexts);
    memory_free(a->calls);
    memory_free(a->read_at);
    memory_free(a->gradients);
    correction_close(&a->correction);
    *a = (struct aggregate){0};
}

void aggregate_clear(struct aggregate *a)
{
    REQUIRE(a->correction.pending == 0);
    a->n = 0;
}

void aggregate_add(struct aggregate *a, const float *gradient, const float *read_at,
                   const struct correction_context *context)
{
    REQUIRE(a->n < a->capacity);
    a->gradients[a->n] = gradient;
    a->read_at[a->n] = read_at;
    a->contexts[a->n] = *context;
    a->n++;
}

bool aggregate_is_direct(const struct aggregate *a)
{
    return a->n == 1 && a->correction.rule->block == NULL;
}

/* The scale that the correction has not applied. */
static double scale_left(const struct aggregate *a, unsigned i)
{
    return a->correction.scales ? 1 : a->contexts[i].scale;
}

static void mean_by_blocks(struct aggregate *a, const float *now, bool scaled)
{
    float scratch[BLOCK];
    for (unsigned i = 0; i < a->n; i++) {
        correction_begin(&a->correction, &a->contexts[i], a->gradients[i], now, a->read_at[i],
                         &a->calls[i]);
    }
    for (size_t at = 0; at < a->count; at += BLOCK) {
        size_t count = a->count - at < BLOCK ? a->count - at : BLOCK;
        for (unsigned i = 0; i < a->n; i++) {
            const float *gradient =
                correction_block(&a->correction, &a->calls[i], at, count, scratch);
            float weight = scaled ? (float)scale_left(a, i) : 1.0f;
            vector_add_weighted(count, weight, gradient, i == 0, a->mean + at);
        }
        vector_multiply(count, 1.0f / (float)a->n, a->mean + at, a->mean + at);
    }
}

const float *aggregate_gradient(struct aggregate *a, const float *now, double lr, double *scale)
{
    REQUIRE(a->n >= 1);
    bool equal_scales = true;
    double sum = 0;
    for (unsigned i = 0; i < a->n; i++) {
        sum += scale_left(a, i);
        equal_scales = equal_scales && scale_left(a, i) == scale_left(a, 0);
        a->contexts[i].lr = lr;
    }
    *scale = equal_scales ? scale_left(a, 0) : 1;
    a->mean_scale = equal_scales ? *scale : sum / a->n;
    if (aggregate_is_direct(a))
        return a->gradients[0];
    REQUIRE(a->mean != NULL); /* otherwise a policy lacks the flag .holds */
    if (equal_scales && a->correction.rule->block == NULL)
        reduce_mean_ordered(a->gradients, a->n, a->count, a->mean);
    else
        mean_by_blocks(a, now, !equal_scales);
    return a->mean;
}

void aggregate_take(struct aggregate *a, const float *gradient, const float *now,
                    const float *read_at, const struct correction_context *context)
{
    float scratch[BLOCK];
    struct correction_call call;
    float weight = a->correction.scales ? 1 : (float)context->scale;
    REQUIRE(a->mean != NULL); /* otherwise a policy lacks the flag .takes */
    correction_begin(&a->correction, context, gradient, now, read_at, &call);
    for (size_t at = 0; at < a->count; at += BLOCK) {
        size_t count = a->count - at < BLOCK ? a->count - at : BLOCK;
        const float *corrected = correction_block(&a->correction, &call, at, count, scratch);
        vector_add_weighted(count, weight, corrected, a->taken == 0, a->mean + at);
    }
    correction_commit(&a->correction);
    a->taken_scales += a->correction.scales ? 1 : context->scale;
    a->taken++;
}

const float *aggregate_taken_mean(struct aggregate *a)
{
    REQUIRE(a->taken >= 1);
    vector_multiply(a->count, 1.0f / (float)a->taken, a->mean, a->mean);
    a->mean_scale = a->taken_scales / a->taken;
    a->taken = 0;
    a->taken_scales = 0;
    return a->mean;
}

void aggregate_commit(struct aggregate *a, double lr)
{
    correction_commit(&a->correction);
    correction_updated(&a->correction, lr);
}
