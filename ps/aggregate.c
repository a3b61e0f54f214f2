/* aggregate.c — see aggregate.h. */
#include "ps/aggregate.h"

#include "ps/arithmetic.h"
#include "worker/optimizer.h"

enum { BLOCK = 4096 }; /* elements: a block of the sum stays in cache while gradients are added */

status aggregate_open(struct aggregate *a, const options *o, unsigned capacity, size_t count,
                      bool sums)
{
    status result = OK;
    *a = (struct aggregate){.count = count, .capacity = capacity};
    TRY(correction_open(&a->correction, o));
    TRY(memory_new(&a->gradients, capacity, sizeof *a->gradients, "gradient list"));
    TRY(memory_new(&a->read_at, capacity, sizeof *a->read_at, "list of versions read"));
    TRY(memory_new(&a->scales, capacity, sizeof *a->scales, "scales"));
    if (sums || a->correction.rule->block != NULL) {
        TRY(memory_new(&a->mean, count, sizeof *a->mean, "mean gradient"));
    }
done:
    return result;
}

void aggregate_close(struct aggregate *a)
{
    memory_free(a->mean);
    memory_free(a->scales);
    memory_free(a->read_at);
    memory_free(a->gradients);
    *a = (struct aggregate){0};
}

void aggregate_clear(struct aggregate *a)
{
    a->n = 0;
}

void aggregate_add(struct aggregate *a, const float *gradient, const float *read_at, double scale)
{
    REQUIRE(a->n < a->capacity);
    a->gradients[a->n] = gradient;
    a->read_at[a->n] = read_at;
    a->scales[a->n] = scale;
    a->n++;
}

bool aggregate_is_direct(const struct aggregate *a)
{
    return a->n == 1 && a->correction.rule->block == NULL;
}

static void mean_by_blocks(struct aggregate *a, const float *now, bool scaled)
{
    float scratch[BLOCK];
    for (size_t at = 0; at < a->count; at += BLOCK) {
        size_t count = a->count - at < BLOCK ? a->count - at : BLOCK;
        for (unsigned i = 0; i < a->n; i++) {
            const float *gradient = correction_block(&a->correction, count, a->gradients[i] + at,
                                                     now + at, a->read_at[i] + at, scratch);
            float weight = scaled ? (float)a->scales[i] : 1.0f;
            vector_add_weighted(count, weight, gradient, i == 0, a->mean + at);
        }
        vector_multiply(count, 1.0f / (float)a->n, a->mean + at, a->mean + at);
    }
}

const float *aggregate_gradient(struct aggregate *a, const float *now, double *scale)
{
    REQUIRE(a->n >= 1);
    bool alike = true;
    for (unsigned i = 1; i < a->n; i++) {
        alike = alike && a->scales[i] == a->scales[0];
    }
    *scale = alike ? a->scales[0] : 1;
    if (aggregate_is_direct(a)) {
        return a->gradients[0];
    }
    REQUIRE(a->mean != NULL); /* or a policy holds pushes without saying so */
    if (alike && a->correction.rule->block == NULL) {
        reduce_mean_ordered(a->gradients, a->n, a->count, a->mean);
    } else {
        mean_by_blocks(a, now, !alike);
    }
    return a->mean;
}

void aggregate_take(struct aggregate *a, const float *gradient, const float *now,
                    const float *read_at, double scale)
{
    float scratch[BLOCK];
    REQUIRE(a->mean != NULL); /* or a policy takes gradients without saying so */
    for (size_t at = 0; at < a->count; at += BLOCK) {
        size_t count = a->count - at < BLOCK ? a->count - at : BLOCK;
        const float *corrected =
            correction_block(&a->correction, count, gradient + at, now + at, read_at + at, scratch);
        vector_add_weighted(count, (float)scale, corrected, a->taken == 0, a->mean + at);
    }
    a->taken++;
}

const float *aggregate_taken_mean(struct aggregate *a)
{
    REQUIRE(a->taken >= 1);
    vector_multiply(a->count, 1.0f / (float)a->taken, a->mean, a->mean);
    a->taken = 0;
    return a->mean;
}
