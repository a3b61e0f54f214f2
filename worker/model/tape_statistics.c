/* tape_statistics.c — statistics of batch norm: collected by TAPE_CALIBRATE, used by TAPE_EVALUATE;
 * and in training the exchange of SyncBatchNorm. */
#include "base/clock.h"
#include "base/memory.h"
#include "worker/model/tape_internal.h"

#include <math.h>

static status add_up(void *context, double *sums, size_t count)
{
    tape *t = context;
    uint64_t began = clock_ns();
    status result = t->joint->add_up(t->joint->context, sums, count);
    t->watched_ns += clock_ns() - began;
    return result;
}

void tape_join(tape *t, const struct batch_norm_group *joint)
{
    REQUIRE(t->mode == TAPE_TRAIN);
    t->joins = true;
    t->joint = joint;
    if (joint != NULL)
        t->timed = (struct batch_norm_group){t, joint->shares, add_up};
}

static uint32_t channels_of(const tape *t, size_t layer)
{
    return parameter_table_layer(t->parameters, layer)->weight_shape[0];
}

/* Numbers in `sums` of a layer; 0: no batch norm. */
static size_t sums_of(const tape *t, size_t layer)
{
    return t->statistics[layer].sums == NULL ? 0 : 2 * (size_t)channels_of(t, layer) + 1;
}

void tape_collect_statistics(tape *t, const struct tape_node *n)
{
    double *sums = t->statistics[n->layer].sums;
    uint32_t channels = n->d.input.channels;
    for (uint32_t k = 0; k < channels; ++k) {
        double mean = (double)n->statistics[k];
        sums[k] += mean;
        sums[channels + k] += (double)n->statistics[channels + k] + mean * mean;
    }
    sums[2 * channels]++;
}

void tape_forget_statistics(tape *t)
{
    for (size_t i = 0; i < parameter_table_layers(t->parameters); ++i)
        for (size_t k = 0; k < sums_of(t, i); ++k)
            t->statistics[i].sums[k] = 0;
}

void tape_settle_statistics(tape *t)
{
    for (size_t i = 0; i < parameter_table_layers(t->parameters); ++i) {
        struct statistics *s = &t->statistics[i];
        const uint32_t channels = channels_of(t, i);
        for (uint32_t k = 0; s->sums != NULL && k < channels; ++k) {
            const double batches = s->sums[2 * channels];
            double mean = batches > 0 ? s->sums[k] / batches : 0;
            double square = batches > 0 ? s->sums[channels + k] / batches : 1;
            s->mean[k] = (float)mean;
            s->variance[k] =
                (float)fmax(square - mean * mean, 0); /* 0: a constant channel, rounded */
        }
    }
}

size_t tape_sum_count(const tape *t)
{
    size_t count = 0;
    for (size_t i = 0; i < parameter_table_layers(t->parameters); ++i)
        count += sums_of(t, i);
    return count;
}

void tape_copy_sums(const tape *t, double *to)
{
    for (size_t i = 0; i < parameter_table_layers(t->parameters); ++i)
        for (size_t k = 0; k < sums_of(t, i); ++k)
            *to++ = t->statistics[i].sums[k];
}

void tape_add_sums(tape *t, const double *from)
{
    REQUIRE(t->mode == TAPE_CALIBRATE);
    for (size_t i = 0; i < parameter_table_layers(t->parameters); ++i)
        for (size_t k = 0; k < sums_of(t, i); ++k)
            t->statistics[i].sums[k] += *from++;
}

void tape_statistics(const tape *t, size_t layer, const float **mean, const float **variance)
{
    REQUIRE(t->statistics[layer].mean != NULL);
    *mean = t->statistics[layer].mean;
    *variance = t->statistics[layer].variance;
}

status tape_open_statistics(tape *t)
{
    status result = OK;
    size_t layers = parameter_table_layers(t->parameters);
    TRY(memory_new(&t->statistics, layers, sizeof *t->statistics, "batch norm's statistics"));
    TRY(memory_new(&t->written, layers, sizeof *t->written, "the tape"));
    for (size_t i = 0; i < layers; ++i) {
        const struct layer *l = parameter_table_layer(t->parameters, i);
        struct statistics *s = &t->statistics[i];
        uint32_t channels = l->weight_shape[0];
        if (l->kind == OP_BATCH_NORM && t->mode != TAPE_TRAIN) {
            TRY(memory_new(&s->mean, channels, sizeof(float), "batch norm's statistics"));
            TRY(memory_new(&s->variance, channels, sizeof(float), "batch norm's statistics"));
            TRY(memory_new(&s->sums, 2 * (size_t)channels + 1, sizeof(double),
                           "batch norm's statistics"));
        }
    }
    tape_settle_statistics(t);
done:
    return result;
}

void tape_close_statistics(tape *t)
{
    for (size_t i = 0; t->statistics != NULL && i < parameter_table_layers(t->parameters); ++i) {
        struct statistics *s = &t->statistics[i];
        memory_free(s->mean);
        memory_free(s->variance);
        memory_free(s->sums);
    }
    memory_free(t->statistics);
    memory_free(t->written);
}
