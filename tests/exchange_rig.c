/* exchange_rig.c — see exchange_rig.h. */
#include "tests/exchange_rig.h"

#include "sync/ranks.h"
#include "tests/sync_rig.h"
#include "worker/random.h"

#include <string.h>

status exchange_rig_open(communicator **c, const char *kind, const char *reduction)
{
    status result = OK;
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "communicator", kind));
    TRY(sync_rig_set(o, "reduction", reduction));
    TRY(sync_rig_set(o, "bucket_kib", "64"));
    TRY(communicator_open(c, o, EXCHANGE_LARGEST, NULL));
done:
    options_close(&o);
    return result;
}

/* Numbers whose sum depends on the order it is taken in. */
static void rough(unsigned rank, size_t count, uint64_t round, float *out)
{
    uint32_t bits = rank * 7919 + (uint32_t)round + 1;
    for (size_t i = 0; i < count; i++) {
        bits = bits * 1664525u + 1013904223u;
        out[i] = (float)(int32_t)bits * (i % 3 == 0 ? 1e-9f : 1e-6f);
    }
}

/* The vector is made in pieces of any size, from its end on, at this rank's own pace. */
status exchange_rig_in_pieces(communicator *c, float *data, size_t count, uint64_t round,
                              uint64_t *hidden_ns)
{
    struct random_stream stream;
    random_open(&stream, RANDOM_TEST, round, c->rank, 0);
    communicator_begin(c, data, count);
    for (size_t final_from = count; final_from > 0;) {
        size_t piece = random_below(&stream, 50000);
        communicator_advance(c, final_from);
        final_from = piece < final_from ? final_from - piece : 0;
        if (piece % 3 == 0)
            communicator_advance(c, final_from);
    }
    return communicator_finish(c, COMMUNICATOR_NOTES, hidden_ns);
}

/* The same bits as of the mean taken at once, where parts do not change the order of the sum;
 * always: near it, and the same on every rank. */
status exchange_rig_check(communicator *c, size_t count, uint64_t round)
{
    status result = OK;
    static float at_once[EXCHANGE_LARGEST + COMMUNICATOR_NOTES],
        first[EXCHANGE_LARGEST + COMMUNICATOR_NOTES];
    float *data = communicator_buffer(c);
    const size_t all = count + COMMUNICATOR_NOTES;
    uint64_t hidden_ns;
    rough(c->rank, all, round, data);
    TRY(communicator_allreduce_mean(c, data, all));
    memcpy(at_once, data, all * sizeof(float));
    rough(c->rank, all, round, data);
    TRY(exchange_rig_in_pieces(c, data, count, round, &hidden_ns));
    if (communicator_same_in_parts(c) && memcmp(data, at_once, all * sizeof(float)) != 0)
        FAIL(ERROR_OTHER, "%zu floats in pieces have other bits than at once", count);
    for (size_t i = 0; i < all; i++)
        if (!(data[i] - at_once[i] < 1e-3f && at_once[i] - data[i] < 1e-3f))
            FAIL(ERROR_OTHER, "element %zu of %zu is %g, not %g", i, count, (double)data[i],
                 (double)at_once[i]);
    memcpy(first, data, all * sizeof(float));
    TRY(communicator_broadcast(c, first, all * sizeof(float), 0));
    if (memcmp(first, data, all * sizeof(float)) != 0)
        FAIL(ERROR_OTHER, "rank %u has other bits than rank 0", c->rank);
done:
    return result;
}

static bool takes_part(const char *kind)
{
    const struct about *about = registry_find(&communicator_registry, kind);
    const struct communicator_kind *k = (const struct communicator_kind *)about;
    return !k->on_device && !k->exchanges_nothing;
}

const char *const exchange_rig_reductions[2] = {"fast", "ordered"};

status exchange_rig_every_kind(status (*check)(communicator *c))
{
    status result = OK;
    communicator *c = NULL;
    for (size_t i = 0; result == OK && i < communicator_registry.count * 2; i++) {
        const char *kind = communicator_registry.entries[i / 2]->name;
        if (!takes_part(kind))
            continue;
        TRY(exchange_rig_open(&c, kind, exchange_rig_reductions[i % 2]));
        result = check(c);
        communicator_close(&c);
        if (result != OK)
            (void)error_add_context(result, "communicator=%s reduction=%s", kind,
                                    exchange_rig_reductions[i % 2]);
    }
done:
    return result;
}

/* Every rank's number becomes the mean over the ranks. */
status exchange_rig_mean(communicator *c, double *number)
{
    status result = OK;
    communicator_buffer(c)[0] = (float)*number;
    TRY(communicator_allreduce_mean(c, communicator_buffer(c), 1));
    *number = (double)communicator_buffer(c)[0];
done:
    return result;
}

/* The mean over the ranks of what is hidden of a vector's exchange while they compute for so long
 * and lend it no moment. */
static status hidden_beside(communicator *c, uint64_t computing_ns, double *mean_ns)
{
    status result = OK;
    const size_t count = 8 * EXCHANGE_BUCKET;
    uint64_t hidden_ns;
    for (size_t i = 0; i < count; i++)
        communicator_buffer(c)[i] = (float)c->rank;
    TRY(communicator_barrier(c));
    communicator_begin(c, communicator_buffer(c), count);
    communicator_advance(c, 0);
    clock_sleep_until_ns(clock_ns() + computing_ns);
    TRY(communicator_finish(c, 0, &hidden_ns));
    if (communicator_buffer(c)[count / 2] != (float)(c->size - 1) / 2)
        FAIL(ERROR_OTHER, "the mean is %g", (double)communicator_buffer(c)[count / 2]);
    *mean_ns = (double)hidden_ns;
    TRY(exchange_rig_mean(c, mean_ns));
done:
    return result;
}

/* Parts come back by themselves, and what is computed after that hides nothing: ranks that compute
 * for long enough, on a busy machine for seconds, hide less than half of it. */
status exchange_rig_check_moved(communicator *c)
{
    status result = OK;
    double seconds = 0.05, mean_ns = 0;
    do {
        seconds *= 2;
        TRY(hidden_beside(c, (uint64_t)(seconds * 1e9), &mean_ns));
    } while (seconds < 10 && !(mean_ns > 0 && mean_ns < 0.5e9 * seconds));
    if (!(mean_ns > 0 && mean_ns < 0.5e9 * seconds))
        FAIL(ERROR_OTHER, "%g ns of %g s are said to be hidden on the mean of the ranks", mean_ns,
             seconds);
done:
    return result;
}

/* Rank 1 computes for longer than the others wait. */
status exchange_rig_late(const char *kind, const char *reduction, bool spare)
{
    status result = OK;
    communicator *c = NULL;
    uint64_t hidden_ns;
    TRY(exchange_rig_open(&c, kind, reduction));
    TRY(communicator_spare_processors(c, spare));
    c->timeout_s = 1;
    communicator_begin(c, communicator_buffer(c), EXCHANGE_LARGEST);
    if (c->rank == 1)
        clock_sleep_until_ns(clock_ns() + 2500000000u);
    communicator_advance(c, 0);
    communicator_advance(c, 0);
    TRY(communicator_finish(c, 0, &hidden_ns));
done:
    communicator_close(&c);
    return result;
}
