/*
 * Batch norm for one thread, 16 channels at a time (struct cpu_panels): one pass for the statistics
 * and one to normalise, which also adds the other branch of a residual block and applies the ReLU;
 * the same two passes backwards. Against oneDNN's primitive this saves a pass over the input for
 * the variance, and the sum's passes. Between values in bf16 all arithmetic is float32.
 */
#include "worker/backend_cpu.h"
#include "worker/vector_line.h"

#include <math.h>
#include <string.h>

enum { WIDTH = VECTOR_LANES, STREAMS = 4 };

struct norm16 {
    backend_op op;
    size_t images;
    struct cpu_panels panels;
    bool bf16;
    bool streamed; /* results are too large to stay in the cache */
    /* [channels]; y = scale·x + shift, dx = scale·g + slope·x + constant */
    float *mean, *inverse, *scale, *shift, *slope, *constant;
    /* [channels]: sums over the batch, and of what else the pass sums. Where convolutions show
     * their results part by part, these are taken while a part is in the cache. */
    double *sum, *other;                  /* `other` follows `sum`: one array */
    const backend_buffer *watched;        /* the input whose values are shown, or NULL */
    size_t seen;                          /* images of it */
    const backend_buffer *input, *output; /* of the last forward */
    const void *gradient;                 /* the output's gradient as it is shown */
    size_t gradient_seen;                 /* images of it */
};

/* Places of one block: values that a pass reads or writes, each `place` elements from the last. */
struct places {
    size_t count, place;
    bool bf16, streamed;
};

/* What the pass forwards knows of one block. */
struct forward {
    const float *scale, *shift;
    bool relu;
};

/* What the passes backwards know of one block. Where a ReLU follows directly, whether it let a
 * value through is worked out again from x: that is cheaper than to read or write another array. */
struct backward {
    const float *mean, *scale, *shift, *slope, *constant;
    float low; /* the gradient counts where scale·x + shift is above this */
};

bool cpu_norm16_fits(const struct cpu *c, const backend_buffer *input)
{
    return c->threads == 1 && cpu_panels_of(input).blocks > 0;
}

/* ---- passes over one image's block of 16 channels
 * ------------------------------------------------- */

/* Lines are asked for ahead of use: the hardware alone keeps too few under way. */
VECTOR_INLINE void load(vector_line *value, const void *from, size_t at, size_t step, bool bf16)
{
    enum { AHEAD = 8 };
    vector_load_from(value, from, at, bf16);
    __builtin_prefetch(cpu_element(from, at + AHEAD * step, bf16));
}

/* Four running pairs of sums, so that one addition need not wait for the one before. */
struct sums {
    vector_line first[STREAMS], second[STREAMS];
};

static void add_sums(const struct sums *s, double *restrict first, double *restrict second)
{
    const vector_line a = (s->first[0] + s->first[1]) + (s->first[2] + s->first[3]);
    const vector_line b = (s->second[0] + s->second[1]) + (s->second[2] + s->second[3]);
    for (int i = 0; i < WIDTH; ++i) {
        first[i] += (double)a[i];
        second[i] += (double)b[i];
    }
}

VECTOR_INLINE void add_moments(struct sums *s, int k, const void *x, size_t at, size_t step,
                               bool bf16, const vector_line *around)
{
    vector_line v;
    load(&v, x, at, step, bf16);
    v -= *around;
    s->first[k] += v;
    s->second[k] += v * v;
}

VECTOR_INLINE void moments_loop(const void *restrict x, size_t count, size_t step, bool bf16,
                                const vector_line *around, struct sums *s)
{
    size_t p = 0;
    for (; p + STREAMS <= count; p += STREAMS) {
        for (int k = 0; k < STREAMS; ++k) {
            add_moments(s, k, x, (p + (size_t)k) * step, step, bf16, around);
        }
    }
    for (; p < count; ++p) {
        add_moments(s, 0, x, p * step, step, bf16, around);
    }
}

/* Adds Σ(x − around) and Σ(x − around)² per channel. */
VECTOR_CLONES
static void moments(const void *restrict x, const struct places *restrict places,
                    const float *restrict around, double *restrict sum, double *restrict square)
{
    struct sums s = {0};
    vector_line middle;
    vector_load(&middle, around);
    if (places->bf16) {
        moments_loop(x, places->count, places->place, true, &middle, &s);
    } else {
        moments_loop(x, places->count, WIDTH, false, &middle, &s);
    }
    add_sums(&s, sum, square);
}

VECTOR_INLINE void normalise_loop(const void *restrict x, const void *restrict other, size_t count,
                                  size_t step, bool bf16, bool streamed,
                                  const struct forward *restrict k, void *restrict y)
{
    vector_line scale, shift;
    const vector_mask relu = (vector_mask){0} - (int32_t)k->relu; /* all bits or none */
    vector_load(&scale, k->scale);
    vector_load(&shift, k->shift);
    for (size_t p = 0; p < count; ++p) {
        vector_line v, o;
        load(&v, x, p * step, step, bf16);
        v = v * scale + shift;
        if (other != NULL) {
            load(&o, other, p * step, step, bf16);
            v += o;
        }
        v = (vector_line)((vector_mask)v & ~(relu & (v < 0)));
        vector_store_to(y, p * step, &v, streamed, bf16);
    }
}

VECTOR_CLONES
static void normalise(const void *restrict x, const void *restrict other,
                      const struct places *restrict places, const struct forward *restrict k,
                      void *restrict y)
{
    const size_t count = places->count;
    if (places->bf16) {
        normalise_loop(x, other, count, places->place, true, places->streamed, k, y);
    } else if (other == NULL && places->streamed) {
        normalise_loop(x, NULL, count, WIDTH, false, true, k, y);
    } else if (other == NULL) {
        normalise_loop(x, NULL, count, WIDTH, false, false, k, y);
    } else {
        normalise_loop(x, other, count, WIDTH, false, places->streamed, k, y);
    }
}

/* What the passes backwards load of one block. */
struct backward_lines {
    vector_line mean, scale, shift, slope, constant, low;
};

VECTOR_INLINE void load_backward(struct backward_lines *l, const struct backward *restrict k)
{
    vector_load(&l->mean, k->mean);
    vector_load(&l->scale, k->scale);
    vector_load(&l->shift, k->shift);
    vector_load(&l->slope, k->slope);
    vector_load(&l->constant, k->constant);
    l->low = (vector_line){0} + k->low;
}

/* g where the ReLU right after this batch norm let its value through. */
VECTOR_INLINE void let_through(vector_line *g, const vector_line *x, const struct backward_lines *l)
{
    *g = (vector_line)((vector_mask)*g & (*x * l->scale + l->shift > l->low));
}

VECTOR_INLINE void add_gradient_moments(struct sums *s, int j, void *g, const void *x,
                                        const void *y, size_t at, size_t step, bool bf16,
                                        const struct backward_lines *l)
{
    vector_line h, v, result;
    load(&h, g, at, step, bf16);
    load(&v, x, at, step, bf16);
    if (y != NULL) {
        load(&result, y, at, step, bf16);
        h = (vector_line)((vector_mask)h & (result > 0));
        vector_store_to(g, at, &h, false, bf16);
    } else {
        let_through(&h, &v, l);
    }
    s->first[j] += h;
    s->second[j] += h * (v - l->mean);
}

VECTOR_INLINE void gradient_moments_loop(void *restrict g, const void *restrict x,
                                         const void *restrict y, size_t count, size_t step,
                                         bool bf16, const struct backward_lines *l, struct sums *s)
{
    size_t p = 0;
    for (; p + STREAMS <= count; p += STREAMS) {
        for (int j = 0; j < STREAMS; ++j) {
            add_gradient_moments(s, j, g, x, y, (p + (size_t)j) * step, step, bf16, l);
        }
    }
    for (; p < count; ++p) {
        add_gradient_moments(s, 0, g, x, y, p * step, step, bf16, l);
    }
}

/* Adds Σg and Σg(x − mean) per channel. With y, the result of a sum and its ReLU, g is first set to
 * zero where that let nothing through. */
VECTOR_CLONES
static void gradient_moments(void *restrict g, const void *restrict x, const void *restrict y,
                             const struct places *restrict places,
                             const struct backward *restrict k, double *restrict sum,
                             double *restrict product)
{
    const size_t count = places->count, step = places->place;
    struct sums s = {0};
    struct backward_lines l;
    load_backward(&l, k);
    if (places->bf16 && y != NULL) {
        gradient_moments_loop(g, x, y, count, step, true, &l, &s);
    } else if (places->bf16) {
        gradient_moments_loop(g, x, NULL, count, step, true, &l, &s);
    } else if (y != NULL) {
        gradient_moments_loop(g, x, y, count, WIDTH, false, &l, &s);
    } else {
        gradient_moments_loop(g, x, NULL, count, WIDTH, false, &l, &s);
    }
    add_sums(&s, sum, product);
}

VECTOR_INLINE void spread_loop(const void *restrict g, const void *restrict x, size_t count,
                               size_t step, bool bf16, const struct backward_lines *l,
                               bool accumulate, bool streamed, void *restrict to)
{
    for (size_t p = 0; p < count; ++p) {
        vector_line h, v, before;
        size_t at = p * step;
        load(&h, g, at, step, bf16);
        load(&v, x, at, step, bf16);
        let_through(&h, &v, l);
        v = (h * l->scale + v * l->slope) + l->constant;
        if (accumulate) {
            vector_load_from(&before, to, at, bf16);
            v = before + v;
        }
        vector_store_to(to, at, &v, streamed, bf16);
    }
}

/* to ← (or +=) scale·g + slope·x + constant */
VECTOR_CLONES
static void spread(const void *restrict g, const void *restrict x,
                   const struct places *restrict places, const struct backward *restrict k,
                   bool accumulate, void *restrict to)
{
    const size_t count = places->count;
    struct backward_lines l;
    load_backward(&l, k);
    if (places->bf16) {
        spread_loop(g, x, count, places->place, true, &l, accumulate,
                    places->streamed && !accumulate, to);
    } else if (accumulate) {
        spread_loop(g, x, count, WIDTH, false, &l, true, false, to);
    } else if (places->streamed) {
        spread_loop(g, x, count, WIDTH, false, &l, false, true, to);
    } else {
        spread_loop(g, x, count, WIDTH, false, &l, false, false, to);
    }
}

/* ---- the operation
 * -------------------------------------------------------------------------------- */

static size_t place_of(const struct norm16 *k, size_t image, size_t block)
{
    return image * k->panels.image + block * k->panels.block;
}

static struct places places_of(const struct norm16 *k)
{
    return (struct places){k->panels.places, k->panels.place, k->bf16, k->streamed};
}

/* A value of each channel itself, so that a large mean does not swamp the variance. */
static void middle_of(const struct norm16 *k, const void *x, size_t block, float middle[WIDTH])
{
    vector_line v;
    vector_load_from(&v, x, place_of(k, 0, block), k->bf16);
    vector_store(middle, &v, false);
}

static void forget_sums(struct norm16 *k)
{
    memset(k->sum, 0, 2 * k->panels.blocks * WIDTH * sizeof *k->sum);
}

/* Takes the sums of images `first` on, the first ones anew. */
static void see_values(backend_op *op, void *x, size_t first, size_t images)
{
    struct norm16 *k = (struct norm16 *)op;
    const struct places places = places_of(k);
    float middle[WIDTH];
    if (first == 0) {
        forget_sums(k);
    }
    for (size_t n = first; n < first + images; ++n) {
        for (size_t b = 0; b < k->panels.blocks; ++b) {
            middle_of(k, x, b, middle);
            moments(cpu_element(x, place_of(k, n, b), k->bf16), &places, middle, k->sum + b * WIDTH,
                    k->other + b * WIDTH);
        }
    }
    k->seen = first + images;
}

/* Elements of one channel, over all shares of a joint batch. */
static double count_of(const struct norm16 *k, const struct op_call *call)
{
    return (double)(k->images * k->panels.places) * (call->joint != NULL ? call->joint->shares : 1);
}

/* Of sums around a value that is each share's own, sums that can be added up: of x and of x². As
 * they are exact to double precision, so is the variance, even with a large mean. */
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

/* Mean, variance and what follows from them, of one block. */
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

static status forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct norm16 *k = (struct norm16 *)op;
    void *x = call->input[0]->data;
    const void *other = op->d.flags & OP_RESIDUAL ? call->input[1]->data : NULL;
    const struct places places = places_of(k);
    bool seen = k->watched == call->input[0] && k->seen == k->images;
    if (!seen && !(op->d.flags & OP_GIVEN_STATISTICS)) {
        see_values(op, x, 0, k->images);
    }
    if (call->joint != NULL) {
        TRY(join_values(k, call));
    }
    for (size_t b = 0; b < k->panels.blocks; ++b) {
        settle_block(c, k, call, b);
    }
    for (size_t n = k->images; n-- > 0;) { /* the last images are still in the cache */
        for (size_t b = 0; b < k->panels.blocks; ++b) {
            size_t at = place_of(k, n, b), first = b * WIDTH;
            const struct forward p = {k->scale + first, k->shift + first,
                                      op->d.activation == ACTIVATION_RELU};
            normalise(cpu_element(x, at, k->bf16),
                      other != NULL ? cpu_element(other, at, k->bf16) : NULL, &places, &p,
                      cpu_element(call->output->data, at, k->bf16));
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

static struct backward backward_of(const struct norm16 *k, size_t block)
{
    size_t first = block * WIDTH;
    bool masked = k->op.d.activation == ACTIVATION_RELU && !(k->op.d.flags & OP_RESIDUAL);
    return (struct backward){.mean = k->mean + first,
                             .scale = k->scale + first,
                             .shift = k->shift + first,
                             .slope = k->slope + first,
                             .constant = k->constant + first,
                             .low = masked ? 0 : -INFINITY};
}

/* Takes the sums of the gradients of images `first` on, the first ones anew, and brings those of a
 * residual sum behind its ReLU. */
static void see_gradient(backend_op *op, void *g, size_t first, size_t images)
{
    struct norm16 *k = (struct norm16 *)op;
    const struct places places = places_of(k);
    bool masked = op->d.activation == ACTIVATION_RELU && op->d.flags & OP_RESIDUAL;
    if (first == 0) {
        forget_sums(k);
    }
    for (size_t n = first; n < first + images; ++n) {
        for (size_t b = 0; b < k->panels.blocks; ++b) {
            const struct backward p = backward_of(k, b);
            size_t at = place_of(k, n, b);
            gradient_moments(cpu_element(g, at, k->bf16), cpu_element(k->input->data, at, k->bf16),
                             masked ? cpu_element(k->output->data, at, k->bf16) : NULL, &places, &p,
                             k->sum + b * WIDTH, k->other + b * WIDTH);
        }
    }
    k->gradient = g;
    k->gradient_seen = first + images;
}

/* With m = images·places: dx = s(g − Σg/m − (x − mean)·inverse²·Σg(x − mean)/m), s = γ·inverse.
 * Over a joint batch m and both sums are of all shares (g is each share's own loss's: their
 * gradients are averaged later, and with them this one's x); γ and β are averaged as they are. */
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
    if (call->input_gradient[0] == NULL) {
        return OK;
    }
    if (call->joint != NULL) {
        TRY(call->joint->add_up(call->joint->context, k->sum, 2 * channels));
    }
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
    const struct places places = places_of(k);
    if (k->gradient_seen != k->images || k->gradient != g->data) {
        see_gradient(op, g->data, 0, k->images);
    }
    k->gradient_seen = 0;
    TRY(settle_gradient(c, k, call));
    /* Backwards: the last images are still in the cache. */
    for (size_t n = k->images; call->input_gradient[0] != NULL && n-- > 0;) {
        for (size_t b = 0; b < k->panels.blocks; ++b) {
            const struct backward p = backward_of(k, b);
            size_t at = place_of(k, n, b);
            spread(cpu_element(g->data, at, k->bf16), cpu_element(x, at, k->bf16), &places, &p,
                   call->accumulate[0], cpu_element(call->input_gradient[0]->data, at, k->bf16));
        }
    }
    if (other != NULL && other != g) {
        cpu_buffer_take(other, g, call->accumulate[1]);
    }
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

/* A buffer shows itself to one operation; others take their sums in a pass of their own. */
static void watch(struct norm16 *k, backend_buffer *input, backend_buffer *output)
{
    if (!(k->op.d.flags & OP_GIVEN_STATISTICS) && input->value_watch.see == NULL) {
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
    k->bf16 = in[0]->bf16;
    /* A place's 16 channels in bf16 are half a line: past the cache only if the rest follows. */
    k->streamed = cpu_buffer_bytes(in[0]) > CPU_STREAM_ABOVE && k->panels.place == WIDTH;
    float **vectors[] = {&k->mean, &k->inverse, &k->scale, &k->shift, &k->slope, &k->constant};
    for (size_t i = 0; i < COUNT_OF(vectors); ++i) {
        TRY(memory_new(vectors[i], d->input.channels, sizeof(float), "a layer"));
    }
    TRY(memory_new(&k->sum, 2 * d->input.channels, sizeof(double), "a layer"));
    k->other = k->sum + d->input.channels;
    TRY(cpu_buffer_new(c, d->batch, d->output, in[0]->layout, output));
    watch(k, in[0], *output);
    *out = &k->op;
    k = NULL;
done:
    if (k != NULL) {
        close_norm(&k->op);
    }
    return result;
}
