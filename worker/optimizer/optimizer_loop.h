/*
 * optimizer_loop.h — the loop of all optimizers; each optimizer_NAME.c includes it once.
 *
 * Before the include, define:
 *   - OPTIMIZER_STEP: statements that set `v`, `s` and `out` from `in` (θ), `g` (scaled, decayed
 *     gradient), `v` and `s` (states), the rates `lr` and `momentum`, and the kind's constants k[].
 *   - OPTIMIZER_STATES: 0, 1 or 2.
 *   - OPTIMIZER_DECAY_APART (optional): `g` is the scaled gradient without decay.
 *   - OPTIMIZER_SIGNS (optional): the statements use OPTIMIZER_SIGN.
 *
 * States that are subnormal after the step are stored as 0 (flush_subnormal).
 *
 * OPTIMIZER_ROOT(x, root) sets `root` to the square root of x, OPTIMIZER_SIGN(x, root) to −1, 0
 * or 1. The statements are compiled for vectors of 16 floats and for single floats (the rest at the
 * end). Both compute every element by the same IEEE operations.
 *
 * One pass does the step and sums the squares of the gradient and of the gap, because memory
 * bandwidth limits an update. Squares are summed in double precision in 16 lanes, element i in lane
 * i mod 16, so that every bit is the same for any vector width. Lines are prefetched, because up to
 * four input streams exceed what the hardware prefetcher follows across pages. Streamed outputs
 * bypass the caches, so that lines which are overwritten completely are not read first. Exception:
 * θ that overwrites `read_at`, whose lines are already in the cache. optimizer_way.c selects the
 * distance and the kind of store.
 */
#ifndef GRADLAG_WORKER_OPTIMIZER_OPTIMIZER_LOOP_H
#define GRADLAG_WORKER_OPTIMIZER_OPTIMIZER_LOOP_H

#include "worker/optimizer/optimizer.h"
#include "base/vector_line.h"

#include <math.h>
#include <string.h>

#define LANES OPTIMIZER_LANES

/* The squares of 16 lanes in double precision: in `half` with AVX-512, else in `a` to `d`
 * (see VECTOR_FORMS; gcc keeps arrays of vectors in memory, too). */
typedef double half_squares __attribute__((vector_size(4 * LANES)));
typedef double quarter_squares __attribute__((vector_size(2 * LANES)));
struct squares {
    half_squares half[2];
    quarter_squares a, b, c, d;
};

VECTOR_INLINE void add_half(half_squares *sum, const float *x, const float *y)
{
    vector_half a, b;
    memcpy(&a, x, sizeof a);
    if (y != NULL) {
        memcpy(&b, y, sizeof b);
        a -= b;
    }
    const half_squares wide = __builtin_convertvector(a, half_squares);
    *sum += wide * wide;
}

/* The first four squares go to `low`. */
VECTOR_INLINE void add_quarters(quarter_squares *low, quarter_squares *high, const float *x,
                                const float *y)
{
    vector_half a, b;
    memcpy(&a, x, sizeof a);
    if (y != NULL) {
        memcpy(&b, y, sizeof b);
        a -= b;
    }
    const union {
        half_squares half;
        quarter_squares quarter[2];
    } wide = {__builtin_convertvector(a, half_squares)};
    *low += wide.quarter[0] * wide.quarter[0];
    *high += wide.quarter[1] * wide.quarter[1];
}

/* Adds (x − y)² of the line at `at`; y NULL: x². */
VECTOR_INLINE void add_squares(struct squares *sum, const float *x, const float *y, size_t at,
                               bool avx512)
{
    x += at;
    y = y != NULL ? y + at : NULL;
    if (avx512) {
        add_half(&sum->half[0], x, y);
        add_half(&sum->half[1], x + LANES / 2, y != NULL ? y + LANES / 2 : NULL);
        return;
    }
    add_quarters(&sum->a, &sum->b, x, y);
    add_quarters(&sum->c, &sum->d, x + LANES / 2, y != NULL ? y + LANES / 2 : NULL);
}

VECTOR_INLINE void store_squares(double to[LANES], const struct squares *sum, bool avx512)
{
    if (avx512) {
        memcpy(to, sum->half, sizeof sum->half);
        return;
    }
    memcpy(to, &sum->a, sizeof sum->a);
    memcpy(to + LANES / 4, &sum->b, sizeof sum->b);
    memcpy(to + LANES / 2, &sum->c, sizeof sum->c);
    memcpy(to + 3 * LANES / 4, &sum->d, sizeof sum->d);
}

/* A line in the forms that gcc 12 keeps in registers: a vector of 64 bytes with AVX-512, else
 * halves. */
union line_parts {
    vector_line line;
    vector_mask bits;
    vector_half half[2];
    vector_half_mask half_bits[2];
};

/* `flushed`: stores subnormal numbers as 0, like flush_subnormal. Only they and 0 have no exponent
 * bit set. */
VECTOR_INLINE void store_line(float *to, const vector_line *value, bool flushed, bool streamed,
                              bool avx512)
{
    const int32_t exponent = 0x7f800000;
    union line_parts parts = {*value};
    if (flushed && avx512)
        parts.bits &= (parts.bits & exponent) != 0;
    for (int h = 0; flushed && !avx512 && h < 2; h++)
        parts.half_bits[h] &= (parts.half_bits[h] & exponent) != 0;
    if (streamed || avx512) {
        vector_store(to, &parts.line, streamed);
        return;
    }
    memcpy(to, &parts.half[0], sizeof parts.half[0]);
    memcpy(to + LANES / 2, &parts.half[1], sizeof parts.half[1]);
}

#ifdef OPTIMIZER_SIGNS
VECTOR_INLINE void sign_of_line(const vector_line *x, vector_line *sign, bool avx512)
{
    const vector_line zero = {0};
    vector_mask negative, positive;
    vector_below(&negative, x, &zero, avx512);
    vector_below(&positive, &zero, x, avx512);
    *sign = __builtin_convertvector(negative - positive, vector_line);
}

VECTOR_INLINE void sign_of_one(const float *x, float *sign, bool avx512 UNUSED)
{
    *sign = (float)((*x > 0) - (*x < 0));
}

#define OPTIMIZER_SIGN(x, sign)                                                                    \
    _Generic((x), vector_line : sign_of_line, float : sign_of_one)(&(x), &(sign), avx512)
#endif

#if OPTIMIZER_STATES > 1
VECTOR_INLINE void root_of_line(const vector_line *x, vector_line *root)
{
    float each[LANES];
    memcpy(each, x, sizeof each);
    for (int i = 0; i < LANES; i++)
        each[i] = sqrtf(each[i]);
    memcpy(root, each, sizeof each);
}

VECTOR_INLINE void root_of_one(const float *x, float *root)
{
    *root = sqrtf(*x);
}

/* Both functions round correctly, so an element's bits do not depend on its position. */
#define OPTIMIZER_ROOT(x, root)                                                                    \
    _Generic((x), vector_line : root_of_line, float : root_of_one)(&(x), &(root))
#endif

#ifdef OPTIMIZER_DECAY_APART
#define DECAYED(in) (scale * g)
#else
#define DECAYED(in) (scale * g + decay * (in))
#endif

VECTOR_INLINE void loop(struct optimizer_call *c, bool with_gap, bool streamed, bool over_read_at,
                        bool avx512)
{
    const size_t ahead = c->ahead;
    const float scale = c->rates.scale, lr = c->rates.lr, momentum = c->rates.momentum;
    const float decay = c->rates.weight_decay;
    float k[OPTIMIZER_CONSTANTS];
    memcpy(k, c->rates.own, sizeof k);
    const float *from = c->in, *gradients = c->gradient, *read_at = c->read_at;
    const float *states = c->state_in, *more = OPTIMIZER_STATES > 1 ? states + c->stride : NULL;
    float *to = c->out, *states_to = c->state_out;
    float *more_to = OPTIMIZER_STATES > 1 ? states_to + c->stride : NULL;
    const size_t count = c->count, whole = count / LANES * LANES;
    struct squares squares = {0}, gaps = {0};

    for (size_t i = 0; i < whole; i += LANES) {
        vector_line in, g, v = {0}, s = {0}, root = {0}, out;
        vector_load(&in, from + i);
        vector_load(&g, gradients + i);
        __builtin_prefetch(from + i + ahead);
        __builtin_prefetch(gradients + i + ahead);
        if (!streamed) {
            __builtin_prefetch(to + i + ahead, 1);
            if (OPTIMIZER_STATES)
                __builtin_prefetch(states_to + i + ahead, 1);
        }
        add_squares(&squares, gradients, NULL, i, avx512);
        if (with_gap) {
            __builtin_prefetch(read_at + i + ahead);
            add_squares(&gaps, from, read_at, i, avx512);
        }
        if (OPTIMIZER_STATES) {
            vector_load(&v, states + i);
            __builtin_prefetch(states + i + ahead);
        }
        if (OPTIMIZER_STATES > 1) {
            vector_load(&s, more + i);
            __builtin_prefetch(more + i + ahead);
        }
        g = DECAYED(in);
        OPTIMIZER_STEP;
        if (OPTIMIZER_STATES)
            store_line(states_to + i, &v, true, streamed, avx512);
        if (OPTIMIZER_STATES > 1)
            store_line(more_to + i, &s, true, streamed, avx512);
        (void)root;
        store_line(to + i, &out, false, streamed && !over_read_at, avx512);
    }
    store_squares(c->squares, &squares, avx512);
    store_squares(c->gaps, &gaps, avx512);
    for (size_t i = whole; i < count; i++) {
        float in = from[i], g = gradients[i], v = 0, s = 0, root = 0, out;
        c->squares[i - whole] += (double)g * (double)g;
        if (with_gap) {
            double d = (double)(in - read_at[i]);
            c->gaps[i - whole] += d * d;
        }
        if (OPTIMIZER_STATES)
            v = states[i];
        if (OPTIMIZER_STATES > 1)
            s = more[i];
        g = DECAYED(in);
        OPTIMIZER_STEP;
        if (OPTIMIZER_STATES)
            states_to[i] = flush_subnormal(v);
        if (OPTIMIZER_STATES > 1)
            more_to[i] = flush_subnormal(s);
        (void)root;
        to[i] = out;
    }
    (void)momentum;
    (void)lr;
    (void)decay;
    (void)k;
}

VECTOR_INLINE void optimizer_loop_loop(struct optimizer_call *c, bool avx512)
{
    if (c->read_at != NULL && c->streamed && c->out == c->read_at)
        loop(c, true, true, true, avx512);
    else if (c->read_at != NULL && c->streamed)
        loop(c, true, true, false, avx512);
    else if (c->read_at != NULL)
        loop(c, true, false, false, avx512);
    else if (c->streamed)
        loop(c, false, true, false, avx512);
    else
        loop(c, false, false, false, avx512);
    if (c->streamed)
        vector_streamed();
}

VECTOR_FORMS(static, void, optimizer_loop, (struct optimizer_call * c), c)

#undef LANES
#undef DECAYED

#endif
