/* tape_statistics.c — statistics of batch norm: collected by TAPE_CALIBRATE, used by TAPE_EVALUATE;
 * and in training the exchange of SyncBatchNorm. */
#include "base/clock.h"
#include "base/memory.h"
#include "worker/model/tape_internal.h"

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

void tape_collect_statistics(tape *t, const struct tape_node *n)
{
    struct statistics *s = &t->statistics[n->layer];
    uint32_t channels = n->d.input.channels;
    for (uint32_t k = 0; k < channels; ++k) {
        double mean = (double)n->statistics[k];
        s->sum[k] += mean;
        s->square[k] += (double)n->statistics[channels + k] + mean * mean;
    }
    s->batches++;
}

void tape_forget_statistics(tape *t)
{
    for (size_t i = 0; i < parameter_table_layers(t->parameters); ++i) {
        struct statistics *s = &t->statistics[i];
        uint32_t channels = parameter_table_layer(t->parameters, i)->weight_shape[0];
        for (uint32_t k = 0; s->sum != NULL && k < channels; ++k)
            s->sum[k] = s->square[k] = 0;
        s->batches = 0;
    }
}

void tape_settle_statistics(tape *t)
{
    for (size_t i = 0; i < parameter_table_layers(t->parameters); ++i) {
        struct statistics *s = &t->statistics[i];
        uint32_t channels = parameter_table_layer(t->parameters, i)->weight_shape[0];
        for (uint32_t k = 0; s->sum != NULL && k < channels; ++k) {
            double mean = s->batches == 0 ? 0 : s->sum[k] / s->batches;
            double square = s->batches == 0 ? 1 : s->square[k] / s->batches;
            s->mean[k] = (float)mean;
            s->variance[k] = (float)(square - mean * mean);
        }
    }
}

void tape_take_statistics(tape *t, const tape *from)
{
    for (size_t i = 0; t != from && i < parameter_table_layers(t->parameters); ++i) {
        const struct statistics *s = &from->statistics[i];
        uint32_t channels = parameter_table_layer(t->parameters, i)->weight_shape[0];
        for (uint32_t k = 0; s->mean != NULL && k < channels; ++k) {
            t->statistics[i].mean[k] = s->mean[k];
            t->statistics[i].variance[k] = s->variance[k];
        }
    }
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
            TRY(memory_new(&s->sum, channels, sizeof(double), "batch norm's statistics"));
            TRY(memory_new(&s->square, channels, sizeof(double), "batch norm's statistics"));
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
        memory_free(s->sum);
        memory_free(s->square);
    }
    memory_free(t->statistics);
    memory_free(t->written);
}
