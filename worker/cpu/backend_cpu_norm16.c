/*
 * backend_cpu_norm16.c — batch norm for one thread, 16 channels at a time (struct cpu_panels). One
 * pass computes the statistics. A second pass normalises, adds the other branch of a residual block
 * and applies the ReLU. The backward pass also has two passes. Compared with oneDNN's primitive
 * this saves a pass over the input for the variance, and separate passes for the residual sum. With
 * values in bf16 all arithmetic is float32.
 */
#include "worker/cpu/backend_cpu_norm16.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

enum { WIDTH = VECTOR_LANES };

struct norm16 {
    backend_op op;
    size_t images;
    struct cpu_panels panels;
    enum vector_type type; /* type of values and their gradients */
    const struct norm16_passes *pass;
    /* [channels]; y = scale·x + shift, dx = scale·g + slope·x + constant */
    float *mean, *inverse, *scale, *shift, *slope, *constant;
    /* [channels]: the two sums over the batch of the current pass. If convolutions run part by
     * part, each part is added while it is in the cache. */
    double *sum, *other;                  /* `other` follows `sum` in one array */
    const backend_buffer *watched;        /* the input whose writer calls see_values; NULL: none */
    size_t seen;                          /* images of it seen so far */
    const backend_buffer *input, *output; /* of the last forward pass */
    const void *gradient;                 /* the output gradient that see_gradient read */
    size_t gradient_seen;                 /* images of it seen so far */
};

bool cpu_norm16_fits(const struct cpu *c, const backend_buffer *input)
{
    return c->threads == 1 && cpu_panels_of(input).blocks > 0;
}

/* ---- the operation ---- */

static size_t place_of(const struct norm16 *k, size_t image, size_t block)
{
    return image * k->panels.image + block * k->panels.block;
}

static void *element(const struct norm16 *k, const void *data, size_t at)
{
    return cpu_element(data, at, k->type != VECTOR_FLOAT32);
}

static struct norm16_places places_of(const struct norm16 *k)
{
    return (struct norm16_places){k->panels.places, k->panels.place, k->type};
}

/* A reference value of each channel (its first element), so that a large mean does not cancel the
 * variance. */
static void middle_of(const struct norm16 *k, const void *x, size_t block, float middle[WIDTH])
{
    vector_line v;
    const size_t at = place_of(k, 0, block);
    if (k->type == VECTOR_FLOAT32)
        vector_load_from(&v, x, at, VECTOR_FLOAT32);
    else
        vector_load_from(&v, x, at, VECTOR_BF16);
    vector_store(middle, &v, false);
}

static void forget_sums(struct norm16 *k)
{
    memset(k->sum, 0, 2 * k->panels.blocks * WIDTH * sizeof *k->sum);
}

/* Adds the sums of images from `first` on; image 0 resets the sums. */
static void see_values(backend_op *op, void *x, size_t first, size_t images)
{
    struct norm16 *k = (struct norm16 *)op;
    const struct norm16_places places = places_of(k);
    float middle[WIDTH];
    if (first == 0)
        forget_sums(k);
    for (size_t n = first; n < first + images; ++n) {
        for (size_t b = 0; b < k->panels.blocks; ++b) {
            middle_of(k, x, b, middle);
            k->pass->moments(element(k, x, place_of(k, n, b)), &places, middle, k->sum + b * WIDTH,
                             k->other + b * WIDTH);
        }
    }
    k->seen = first + images;
}

/* Elements of one channel over the joint batch. */
static double count_of(const struct norm16 *k, const struct op_call *call)
{
    return (double)(k->images * k->panels.places) * (call->joint != NULL ? call->joint->shares : 1);
}

/* Converts sums around a reference value, which differs between workers, to sums of x and x², which
 * can be added. They are exact to double precision, and so is the variance, even with a large mean.
 */
static status join_values(struct norm16 *k, const struct op_call *call)
{
    double count = (double)(k->images * k->panels.places);
    float middle[WIDTH];
    for (size_t at = 0; at < k->panels.blocks * WIDTH; ++at) {
        middle_of(k, call->input[0]->data, at / WIDTH, middle);
        double around = (double)middle[at % WIDTH], sum = k->sum[at];
        k->sum[at] = sum + count * around;
        k->other[at] += 2 * around * sum + count * around * around;
    }
    return call->joint->add_up(call->joint->context, k->sum, 2 * k->panels.blocks * WIDTH);
}

static void batch_statistics(struct norm16 *k, const struct op_call *call, size_t block,
                             float *variance)
{
    double count = count_of(k, call);
    float around[WIDTH];
    middle_of(k, call->input[0]->data, block, around);
    for (size_t i = 0; i < WIDTH; ++i) {
        size_t at = block * WIDTH + i;
        double mean = k->sum[at] / count, spread_out = k->other[at] / count - mean * mean;
        k->mean[at] = (float)((call->joint != NULL ? 0 : (double)around[i]) + mean);
        variance[i] = spread_out > 0 ? (float)spread_out : 0;
    }
}

/* Computes mean, variance and the derived factors of one block. */
static void settle_block(struct cpu *c, struct norm16 *k, const struct op_call *call, size_t b)
{
    float variance[WIDTH];
    size_t first = b * WIDTH;
    bool given = k->op.d.flags & OP_GIVEN_STATISTICS;
    if (given) {
        memcpy(k->mean + first, call->mean + first, sizeof variance);
        memcpy(variance, call->variance + first, sizeof variance);
    } else {
        batch_statistics(k, call, b, variance);
    }
    if (!given && call->mean != NULL) {
        memcpy(call->mean + first, k->mean + first, sizeof variance);
        memcpy(call->variance + first, variance, sizeof variance);
    }
    for (size_t i = 0; i < WIDTH; ++i) {
        size_t at = first + i;
        k->inverse[at] = 1 / sqrtf(variance[i] + BATCH_NORM_EPSILON);
        k->scale[at] = c->parameters[call->weight + at] * k->inverse[at];
        k->shift[at] = c->parameters[call->bias + at] - k->mean[at] * k->scale[at];
    }
}

/* Calibrations and evaluations read the same input, but evaluations need no sums. The first
 * evaluation stops the input's writer from computing them. The next run of the operation that needs
 * the sums starts them again. */
static void switch_watch(const struct norm16 *k, backend_buffer *input, bool on)
{
    struct cpu_watch *watch = &input->value_watch;
    if (on && k->watched == input) {
        watch->see = see_values;
    } else if (!on && watch->see == see_values) {
        watch->see = NULL;
        ((struct norm16 *)watch->reader)->seen = 0; /* sums of another input */
    }
}

static status forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct norm16 *k = (struct norm16 *)op;
    void *x = call->input[0]->data;
    const void *other = op->d.flags & OP_RESIDUAL ? call->input[1]->data : NULL;
    const struct norm16_places places = places_of(k);
    const bool given = op->d.flags & OP_GIVEN_STATISTICS;
    bool seen = k->watched == call->input[0] && k->seen == k->images;
    if (!seen && !given)
        see_values(op, x, 0, k->images);
    switch_watch(k, call->input[0], !given);
    if (call->joint != NULL)
        TRY(join_values(k, call));
    for (size_t b = 0; b < k->panels.blocks; ++b)
        settle_block(c, k, call, b);
    for (size_t n = k->images;
         n-- > 0;) { /* reverse order: the last images are still in the cache */
        for (size_t b = 0; b < k->panels.blocks; ++b) {
            size_t at = place_of(k, n, b), first = b * WIDTH;
            const struct norm16_forward p = {k->scale + first, k->shift + first,
                                             op->d.activation == ACTIVATION_RELU};
            k->pass->normalise(element(k, x, at), other != NULL ? element(k, other, at) : NULL,
                               &places, &p, element(k, call->output->data, at));
        }
    }
    k->input = call->input[0];
    k->output = call->output;
    k->seen = k->gradient_seen = 0;
done:
    return result;
}

static void store(float *to, double value, bool accumulate)
{
    *to = accumulate ? *to + (float)value : (float)value;
}

static struct norm16_backward backward_of(const struct norm16 *k, size_t block)
{
    size_t first = block * WIDTH;
    bool masked = k->op.d.activation == ACTIVATION_RELU && !(k->op.d.flags & OP_RESIDUAL);
    return (struct norm16_backward){.mean = k->mean + first,
                                    .scale = k->scale + first,
                                    .shift = k->shift + first,
                                    .slope = k->slope + first,
                                    .constant = k->constant + first,
                                    .low = masked ? 0 : -INFINITY};
}

/* Adds the sums of the gradients of images from `first` on; image 0 resets the sums. Applies the
 * ReLU's derivative to the gradient of a residual sum. */
static void see_gradient(backend_op *op, void *g, size_t first, size_t images)
{
    struct norm16 *k = (struct norm16 *)op;
    const struct norm16_places places = places_of(k);
    bool masked = op->d.activation == ACTIVATION_RELU && op->d.flags & OP_RESIDUAL;
    if (first == 0)
        forget_sums(k);
    for (size_t n = first; n < first + images; ++n) {
        for (size_t b = 0; b < k->panels.blocks; ++b) {
            const struct norm16_backward p = backward_of(k, b);
            size_t at = place_of(k, n, b);
            k->pass->gradient_moments(element(k, g, at), element(k, k->input->data, at),
                                      masked ? element(k, k->output->data, at) : NULL, &places, &p,
                                      k->sum + b * WIDTH, k->other + b * WIDTH);
        }
    }
    k->gradient = g;
    k->gradient_seen = first + images;
}

/* With m = images·places: dx = s(g − Σg/m − (x − mean)·inverse²·Σg(x − mean)/m), s = γ·inverse. In
 * a joint batch, m and both sums are over all W workers, and g is the gradient of each worker's own
 * loss. dx is then W times the gradient of the mean loss; the later mean of the workers' parameter
 * gradients divides by W. The gradients of γ and β need no exchange here, because that mean also
 * adds the other workers' sums. */
static status settle_gradient(struct cpu *c, struct norm16 *k, const struct op_call *call)
{
    status result = OK;
    const size_t channels = k->panels.blocks * WIDTH;
    const double count = count_of(k, call);
    for (size_t i = 0; i < channels; ++i) {
        store(&c->gradient[call->weight + i], k->other[i] * (double)k->inverse[i],
              call->accumulate_weight);
        store(&c->gradient[call->bias + i], k->sum[i], call->accumulate_bias);
    }
    if (call->input_gradient[0] == NULL)
        return OK;
    if (call->joint != NULL)
        TRY(call->joint->add_up(call->joint->context, k->sum, 2 * channels));
    for (size_t i = 0; i < channels; ++i) {
        double inverse = (double)k->inverse[i], scale = (double)k->scale[i];
        double slope = -scale * inverse * inverse * k->other[i] / count;
        k->slope[i] = (float)slope;
        k->constant[i] = (float)(-scale * k->sum[i] / count - slope * (double)k->mean[i]);
    }
done:
    return result;
}

static status backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct norm16 *k = (struct norm16 *)op;
    backend_buffer *g = call->output_gradient, *other = call->input_gradient[1];
    const void *x = call->input[0]->data;
    const struct norm16_places places = places_of(k);
    if (k->gradient_seen != k->images || k->gradient != g->data)
        see_gradient(op, g->data, 0, k->images);
    k->gradient_seen = 0;
    TRY(settle_gradient(c, k, call));
    /* Reverse order: the last images are still in the cache. */
    for (size_t n = k->images; call->input_gradient[0] != NULL && n-- > 0;) {
        for (size_t b = 0; b < k->panels.blocks; ++b) {
            const struct norm16_backward p = backward_of(k, b);
            size_t at = place_of(k, n, b);
            k->pass->spread(element(k, g->data, at), element(k, x, at), &places, &p,
                            call->accumulate[0], element(k, call->input_gradient[0]->data, at));
        }
    }
    if (other != NULL && other != g)
        cpu_buffer_take(other, g, call->accumulate[1]);
done:
    return result;
}

static void close_norm(backend_op *op)
{
    struct norm16 *k = (struct norm16 *)op;
    memory_free(k->mean);
    memory_free(k->inverse);
    memory_free(k->scale);
    memory_free(k->shift);
    memory_free(k->slope);
    memory_free(k->constant);
    memory_free(k->sum);
    memory_free(k);
}

/* The first operation that opens on a buffer watches it. Others compute their sums in a separate
 * pass. */
static void watch(struct norm16 *k, backend_buffer *input, backend_buffer *output)
{
    if (!(k->op.d.flags & OP_GIVEN_STATISTICS) && input->value_watch.reader == NULL) {
        input->value_watch = (struct cpu_watch){see_values, &k->op};
        k->watched = input;
    }
    output->gradient_watch = (struct cpu_watch){see_gradient, &k->op};
}

status cpu_norm16_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                       backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct norm16 *k = NULL;
    TRY(memory_new(&k, 1, sizeof *k, "a layer"));
    k->op = (backend_op){*d, forward, backward, close_norm};
    k->images = d->batch;
    k->panels = cpu_panels_of(in[0]);
    k->type = !in[0]->bf16 ? VECTOR_FLOAT32 : vector_native() ? VECTOR_BF16_NATIVE : VECTOR_BF16;
    k->pass = norm16_passes_of(k->type);
    float **vectors[] = {&k->mean, &k->inverse, &k->scale, &k->shift, &k->slope, &k->constant};
    for (size_t i = 0; i < COUNT_OF(vectors); ++i)
        TRY(memory_new(vectors[i], d->input.channels, sizeof(float), "a layer"));
    TRY(memory_new(&k->sum, 2 * d->input.channels, sizeof(double), "a layer"));
    k->other = k->sum + d->input.channels;
    TRY(cpu_buffer_new(c, d->batch, d->output, in[0]->layout, output));
    watch(k, in[0], *output);
    *out = &k->op;
    k = NULL;
done:
    if (k != NULL)
        close_norm(&k->op);
    return result;
}
