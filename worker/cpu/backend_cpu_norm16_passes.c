/*
 * backend_cpu_norm16_passes.c — the vector loops of batch norm; see backend_cpu_norm16.h. They
 * store into the caches and do not prefetch: the next operation reads what they wrote, and at
 * batches of 16 to 512 images streamed stores and prefetches made a step of resnet8 up to 9 %
 * slower.
 */
#include "worker/cpu/backend_cpu_norm16.h"

enum { WIDTH = VECTOR_LANES, STREAMS = 4 };

/* Four running pairs of sums, so that an addition need not wait for the previous one. */
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

VECTOR_INLINE void add_moments(struct sums *s, int k, const void *x, size_t at,
                               enum vector_type type, const vector_line *around)
{
    vector_line v;
    vector_load_from(&v, x, at, type);
    v -= *around;
    s->first[k] += v;
    s->second[k] += v * v;
}

VECTOR_INLINE void moments_loop(const void *restrict x, size_t count, size_t step,
                                enum vector_type type, const vector_line *around, struct sums *s)
{
    size_t p = 0;
    for (; p + STREAMS <= count; p += STREAMS)
        for (int k = 0; k < STREAMS; ++k)
            add_moments(s, k, x, (p + (size_t)k) * step, type, around);
    for (; p < count; ++p)
        add_moments(s, 0, x, p * step, type, around);
}

/* Adds Σ(x − around) and Σ(x − around)² per channel. */
VECTOR_CLONES
static void moments(const void *restrict x, const struct norm16_places *restrict places,
                    const float *restrict around, double *restrict sum, double *restrict square)
{
    struct sums s = {0};
    vector_line middle;
    vector_load(&middle, around);
    if (places->type == VECTOR_BF16)
        moments_loop(x, places->count, places->place, VECTOR_BF16, &middle, &s);
    else
        moments_loop(x, places->count, WIDTH, VECTOR_FLOAT32, &middle, &s);
    add_sums(&s, sum, square);
}

VECTOR_NATIVE
static void moments_natively(const void *restrict x, const struct norm16_places *restrict places,
                             const float *restrict around, double *restrict sum,
                             double *restrict square)
{
    struct sums s = {0};
    vector_line middle;
    vector_load(&middle, around);
    moments_loop(x, places->count, places->place, VECTOR_BF16_NATIVE, &middle, &s);
    add_sums(&s, sum, square);
}

VECTOR_INLINE void normalise_loop(const void *restrict x, const void *restrict other, size_t count,
                                  size_t step, enum vector_type type,
                                  const struct norm16_forward *restrict k, void *restrict y)
{
    vector_line scale, shift;
    const vector_mask relu = (vector_mask){0} - (int32_t)k->relu; /* all bits or none */
    vector_load(&scale, k->scale);
    vector_load(&shift, k->shift);
    for (size_t p = 0; p < count; ++p) {
        vector_line v, o;
        vector_load_from(&v, x, p * step, type);
        v = v * scale + shift;
        if (other != NULL) {
            vector_load_from(&o, other, p * step, type);
            v += o;
        }
        v = (vector_line)((vector_mask)v & ~(relu & (v < 0)));
        vector_store_to(y, p * step, &v, false, type);
    }
}

VECTOR_NATIVE
static void normalise_natively(const void *restrict x, const void *restrict other,
                               const struct norm16_places *restrict places,
                               const struct norm16_forward *restrict k, void *restrict y)
{
    const size_t count = places->count, step = places->place;
    if (other == NULL)
        normalise_loop(x, NULL, count, step, VECTOR_BF16_NATIVE, k, y);
    else
        normalise_loop(x, other, count, step, VECTOR_BF16_NATIVE, k, y);
}

VECTOR_CLONES
static void normalise(const void *restrict x, const void *restrict other,
                      const struct norm16_places *restrict places,
                      const struct norm16_forward *restrict k, void *restrict y)
{
    const size_t count = places->count;
    if (places->type == VECTOR_BF16)
        normalise_loop(x, other, count, places->place, VECTOR_BF16, k, y);
    else if (other == NULL)
        normalise_loop(x, NULL, count, WIDTH, VECTOR_FLOAT32, k, y);
    else
        normalise_loop(x, other, count, WIDTH, VECTOR_FLOAT32, k, y);
}

/* Arguments of the backward passes for one block, as vectors. */
struct backward_lines {
    vector_line mean, scale, shift, slope, constant, low;
};

VECTOR_INLINE void load_backward(struct backward_lines *l, const struct norm16_backward *restrict k)
{
    vector_load(&l->mean, k->mean);
    vector_load(&l->scale, k->scale);
    vector_load(&l->shift, k->shift);
    vector_load(&l->slope, k->slope);
    vector_load(&l->constant, k->constant);
    l->low = (vector_line){0} + k->low;
}

/* Sets g to 0 where the ReLU after this batch norm returned 0. */
VECTOR_INLINE void apply_relu_mask(vector_line *g, const vector_line *x,
                                   const struct backward_lines *l)
{
    *g = (vector_line)((vector_mask)*g & (*x * l->scale + l->shift > l->low));
}

/* Sets *value and g in memory to 0 where y ≤ 0. The bits of a bf16 number, read as int16, have the
 * same sign as the number. */
VECTOR_INLINE void keep_positive(vector_line *value, void *g, const void *y, size_t at,
                                 enum vector_type type)
{
    vector_line result;
    vector_signed_halves sign;
    vector_halves masked;
    if (type == VECTOR_FLOAT32) {
        vector_load_from(&result, y, at, type);
        *value = (vector_line)((vector_mask)*value & (result > 0));
        vector_store_to(g, at, value, false, type);
        return;
    }
    memcpy(&sign, (const uint16_t *)y + at, sizeof sign);
    memcpy(&masked, (const uint16_t *)g + at, sizeof masked);
    masked &= (vector_halves)(sign > 0);
    vector_widen(value, &masked, type);
    memcpy((uint16_t *)g + at, &masked, sizeof masked);
}

VECTOR_INLINE void add_gradient_moments(struct sums *s, int j, void *g, const void *x,
                                        const void *y, size_t at, enum vector_type type,
                                        const struct backward_lines *l)
{
    vector_line h, v;
    vector_load_from(&h, g, at, type);
    vector_load_from(&v, x, at, type);
    if (y != NULL)
        keep_positive(&h, g, y, at, type);
    else
        apply_relu_mask(&h, &v, l);
    s->first[j] += h;
    s->second[j] += h * (v - l->mean);
}

VECTOR_INLINE void gradient_moments_loop(void *restrict g, const void *restrict x,
                                         const void *restrict y, size_t count, size_t step,
                                         enum vector_type type, const struct backward_lines *l,
                                         struct sums *s)
{
    size_t p = 0;
    for (; p + STREAMS <= count; p += STREAMS)
        for (int j = 0; j < STREAMS; ++j)
            add_gradient_moments(s, j, g, x, y, (p + (size_t)j) * step, type, l);
    for (; p < count; ++p)
        add_gradient_moments(s, 0, g, x, y, p * step, type, l);
}

/* Adds Σg and Σg(x − mean) per channel. With y, the result of a residual sum and its ReLU, g is
 * first set to zero where y is not positive. */
VECTOR_CLONES
static void gradient_moments(void *restrict g, const void *restrict x, const void *restrict y,
                             const struct norm16_places *restrict places,
                             const struct norm16_backward *restrict k, double *restrict sum,
                             double *restrict product)
{
    const size_t count = places->count, step = places->place;
    struct sums s = {0};
    struct backward_lines l;
    load_backward(&l, k);
    if (places->type == VECTOR_BF16)
        gradient_moments_loop(g, x, y, count, step, VECTOR_BF16, &l, &s);
    else if (y != NULL)
        gradient_moments_loop(g, x, y, count, WIDTH, VECTOR_FLOAT32, &l, &s);
    else
        gradient_moments_loop(g, x, NULL, count, WIDTH, VECTOR_FLOAT32, &l, &s);
    add_sums(&s, sum, product);
}

VECTOR_NATIVE
static void gradient_moments_natively(void *restrict g, const void *restrict x,
                                      const void *restrict y,
                                      const struct norm16_places *restrict places,
                                      const struct norm16_backward *restrict k,
                                      double *restrict sum, double *restrict product)
{
    const size_t count = places->count, step = places->place;
    struct sums s = {0};
    struct backward_lines l;
    load_backward(&l, k);
    if (y != NULL)
        gradient_moments_loop(g, x, y, count, step, VECTOR_BF16_NATIVE, &l, &s);
    else
        gradient_moments_loop(g, x, NULL, count, step, VECTOR_BF16_NATIVE, &l, &s);
    add_sums(&s, sum, product);
}

VECTOR_INLINE void spread_loop(const void *restrict g, const void *restrict x, size_t count,
                               size_t step, enum vector_type type, const struct backward_lines *l,
                               bool accumulate, void *restrict to)
{
    for (size_t p = 0; p < count; ++p) {
        vector_line h, v, before;
        size_t at = p * step;
        vector_load_from(&h, g, at, type);
        vector_load_from(&v, x, at, type);
        apply_relu_mask(&h, &v, l);
        v = (h * l->scale + v * l->slope) + l->constant;
        if (accumulate) {
            vector_load_from(&before, to, at, type);
            v = before + v;
        }
        vector_store_to(to, at, &v, false, type);
    }
}

VECTOR_NATIVE
static void spread_natively(const void *restrict g, const void *restrict x,
                            const struct norm16_places *restrict places,
                            const struct norm16_backward *restrict k, bool accumulate,
                            void *restrict to)
{
    const size_t count = places->count, step = places->place;
    struct backward_lines l;
    load_backward(&l, k);
    if (accumulate)
        spread_loop(g, x, count, step, VECTOR_BF16_NATIVE, &l, true, to);
    else
        spread_loop(g, x, count, step, VECTOR_BF16_NATIVE, &l, false, to);
}

/* to ← (or +=) scale·g + slope·x + constant */
VECTOR_CLONES
static void spread(const void *restrict g, const void *restrict x,
                   const struct norm16_places *restrict places,
                   const struct norm16_backward *restrict k, bool accumulate, void *restrict to)
{
    const size_t count = places->count;
    struct backward_lines l;
    load_backward(&l, k);
    if (places->type == VECTOR_BF16)
        spread_loop(g, x, count, places->place, VECTOR_BF16, &l, accumulate, to);
    else if (accumulate)
        spread_loop(g, x, count, WIDTH, VECTOR_FLOAT32, &l, true, to);
    else
        spread_loop(g, x, count, WIDTH, VECTOR_FLOAT32, &l, false, to);
}

const struct norm16_passes *norm16_passes_of(enum vector_type type)
{
    static const struct norm16_passes compiled = {moments, normalise, gradient_moments, spread};
    static const struct norm16_passes native = {moments_natively, normalise_natively,
                                                gradient_moments_natively, spread_natively};
    return type == VECTOR_BF16_NATIVE ? &native : &compiled;
}
