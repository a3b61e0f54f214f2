/*
 * sampler.c — keeps two permutations, those of the two passes that a batch may span. A permutation
 * is a pure function of (seed, worker, pass). A batch requested out of order therefore costs at
 * most two new permutations. For a text it keeps no permutation, because each batch draws its
 * window starts.
 */
#include "worker/data/sampler.h"
#include "base/memory.h"
#include "base/random.h"

#include <string.h>

struct sampler {
    uint64_t seed;
    uint32_t first, stride, size; /* item i of the shard is sample first + i·stride */
    uint32_t block;   /* text: starts per block; item i is in the shard's block i / block; else 0 */
    uint32_t ordered; /* length of an order: the shard, or the whole split */
    bool reshuffled;  /* sampler=reshuffled: item i of a pass is order[first + i·stride] */
    unsigned worker;  /* worker of the random stream */
    uint64_t
        pass[2]; /* pass of each slot's permutation, UINT64_MAX: none; pass p uses slot p & 1 */
    uint32_t *order[2];
};

/* The number of items that worker `worker` has if items are dealt out in turn. */
static uint32_t dealt(uint32_t items, unsigned worker, unsigned workers)
{
    return worker < items ? (items - worker - 1) / workers + 1 : 0;
}

/* Every W-th sample, or every W-th block of a text, whose last block may be incomplete. */
static void own_part(sampler *s, uint32_t samples, unsigned worker, unsigned workers)
{
    s->first = worker;
    s->stride = workers;
    if (s->block == 0) {
        s->size = dealt(samples, worker, workers);
        return;
    }
    const uint32_t whole = samples / s->block, rest = samples % s->block;
    s->size = dealt(whole, worker, workers) * s->block + (whole % workers == worker ? rest : 0);
}

static status choose_shard(sampler *s, const char *kind, uint32_t samples, unsigned worker,
                           unsigned workers)
{
    status result = OK;
    s->reshuffled = strcmp(kind, "reshuffled") == 0;
    if (strcmp(kind, "whole") == 0 || worker >= workers) {
        s->stride = 1;
        s->size = samples;
    } else {
        own_part(s, samples, worker, workers);
    }
    if (s->size == 0 && s->block > 0) {
        FAIL(ERROR_USAGE,
             "worker %u of %u has no training samples, because the text has only %u blocks of "
             "dataset.context=%u starts; use fewer workers, a smaller dataset.context, a longer "
             "text or sampler=whole",
             worker, workers, (samples + s->block - 1) / s->block, s->block);
    }
    if (s->size == 0) {
        FAIL(ERROR_USAGE,
             "worker %u of %u has no training samples, because the split has only %u; use fewer "
             "workers, a larger dataset or sampler=whole",
             worker, workers, samples);
    }
done:
    return result;
}

static status open_orders(sampler *s, uint32_t samples)
{
    status result = OK;
    s->pass[0] = s->pass[1] = UINT64_MAX;
    s->ordered = s->reshuffled ? samples : s->size;
    for (int slot = 0; slot < 2; slot++)
        TRY(memory_new(&s->order[slot], s->ordered, sizeof *s->order[slot], "sampling order"));
done:
    return result;
}

status sampler_check(const options *o, bool tokens)
{
    status result = OK;
    if (tokens && strcmp(options_text(o, "sampler"), "reshuffled") == 0) {
        FAIL(ERROR_USAGE,
             "%s: sampler=reshuffled permutes samples, but the windows of dataset=%s overlap and "
             "are drawn at random; set sampler=partition or sampler=whole",
             options_origin(o, "sampler"), options_text(o, "dataset"));
    }
done:
    return result;
}

status sampler_open(sampler **out, const options *o, const struct dataset *d, unsigned worker,
                    unsigned workers)
{
    status result = OK;
    const uint32_t samples = dataset_training_indices(d);
    sampler *s = NULL;

    REQUIRE(worker < workers || strcmp(options_text(o, "sampler"), "reshuffled") != 0);
    *out = NULL;
    TRY(sampler_check(o, d->tokens));
    TRY(memory_new(&s, 1, sizeof *s, "sampler"));
    s->seed = (uint64_t)options_integer(o, "seed");
    s->block = d->tokens ? d->height : 0;
    TRY(choose_shard(s, options_text(o, "sampler"), samples, worker, workers));
    s->worker = s->reshuffled ? 0 : worker;
    if (s->block == 0)
        TRY(open_orders(s, samples));
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

static void draw_windows(const sampler *s, uint64_t batch, uint32_t n, uint32_t *starts)
{
    struct random_stream r;
    random_open(&r, RANDOM_WINDOWS, s->seed, s->worker, batch);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t item = random_below(&r, s->size);
        starts[i] = (s->first + item / s->block * s->stride) * s->block + item % s->block;
    }
}

void sampler_batch(sampler *s, uint64_t batch, uint32_t batch_size, uint32_t *indices)
{
    if (s->block > 0) {
        draw_windows(s, batch, batch_size, indices);
        return;
    }
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
