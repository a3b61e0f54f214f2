/*
 * sampler.c — keeps two permutations, those of the two passes that a batch may span. A permutation
 * is a pure function of (seed, worker, pass). A batch requested out of order therefore costs at
 * most two new permutations.
 */
#include "worker/data/sampler.h"
#include "base/memory.h"
#include "base/random.h"

#include <string.h>

struct sampler {
    uint64_t seed;
    uint32_t first, stride, size; /* item i of the shard is sample first + i·stride */
    uint32_t ordered;             /* length of an order: the shard, or the whole split */
    bool reshuffled;              /* item i of a pass is order[first + i·stride] */
    unsigned worker;              /* worker of the random stream */
    uint64_t
        pass[2]; /* pass of each slot's permutation, UINT64_MAX: none; pass p uses slot p & 1 */
    uint32_t *order[2];
};

status sampler_open(sampler **out, const options *o, uint32_t samples, unsigned worker,
                    unsigned workers)
{
    status result = OK;
    sampler *s = NULL;

    REQUIRE(worker < workers);
    *out = NULL;
    TRY(memory_new(&s, 1, sizeof *s, "sampler"));
    s->seed = (uint64_t)options_integer(o, "seed");
    s->worker = worker;
    s->reshuffled = strcmp(options_text(o, "sampler"), "reshuffled") == 0;
    s->pass[0] = s->pass[1] = UINT64_MAX;
    if (strcmp(options_text(o, "sampler"), "whole") == 0) {
        s->stride = 1;
        s->size = samples;
    } else {
        s->first = worker;
        s->stride = workers;
        s->size = worker < samples ? (samples - worker - 1) / workers + 1 : 0;
    }
    if (s->size == 0) {
        FAIL(ERROR_USAGE,
             "worker %u of %u has no training samples, because the split has only %u; use fewer "
             "workers, "
             "a larger dataset or sampler=whole",
             worker, workers, samples);
    }
    s->ordered = s->size;
    if (s->reshuffled) {
        s->ordered = samples;
        s->worker = 0;
    }
    for (int slot = 0; slot < 2; slot++)
        TRY(memory_new(&s->order[slot], s->ordered, sizeof *s->order[slot], "sampling order"));
    *out = s;
    s = NULL;
done:
    sampler_close(&s);
    return result;
}

void sampler_close(sampler **s)
{
    if (*s != NULL) {
        memory_free((*s)->order[0]);
        memory_free((*s)->order[1]);
        memory_free(*s);
        *s = NULL;
    }
}

static const uint32_t *order_of_pass(sampler *s, uint64_t pass)
{
    unsigned slot = pass & 1;
    if (s->pass[slot] != pass) {
        struct random_stream r;
        random_open(&r, RANDOM_SHUFFLE, s->seed, s->worker, pass);
        random_permutation(&r, s->order[slot], s->ordered);
        s->pass[slot] = pass;
    }
    return s->order[slot];
}

void sampler_batch(sampler *s, uint64_t batch, uint32_t batch_size, uint32_t *indices)
{
    REQUIRE(batch_size > 0 && batch <= UINT64_MAX / batch_size - 1);
    uint64_t position = batch * batch_size, pass = position / s->size;
    uint32_t at = (uint32_t)(position % s->size);
    const uint32_t *order = order_of_pass(s, pass);

    for (uint32_t i = 0; i < batch_size; i++) {
        if (at == s->size) {
            order = order_of_pass(s, ++pass);
            at = 0;
        }
        const uint32_t item = at++;
        indices[i] =
            s->reshuffled ? order[s->first + item * s->stride] : s->first + order[item] * s->stride;
    }
}

uint32_t sampler_shard_size(const sampler *s)
{
    return s->size;
}
