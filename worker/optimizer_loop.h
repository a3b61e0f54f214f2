/*
 * optimizer_loop.h — the one loop of every optimizer, included once by each optimizer_NAME.c.
 *
 * Before including it define OPTIMIZER_STEP as statements that, from the values `in` (θ), `g`
 * (scaled, decayed gradient), `v` and `s` (states), the rates `lr` and `momentum` and the kind's
 * constants k[], set `v`, `s` and `out`; and OPTIMIZER_STATES as 0, 1 or 2. OPTIMIZER_ROOT(x) is
 * the square root. With OPTIMIZER_DECAY_APART `g` is the scaled gradient alone. The statements are
 * compiled for vectors of 16 floats and for single floats (the rest at the end); every element goes
 * through the same IEEE operations either way.
 *
 * One pass does it all, because memory is what an update waits for: the step, the squares of the
 * gradient and those of the gap. Squares are summed in double precision in 16 lanes, element i in
 * lane i mod 16, so that every bit is the same for any vector width. Lines are asked for ahead of
 * use, as up to four input streams are more than the hardware follows across pages. Where the
 * outputs are large they are written past the caches, so that lines to be overwritten whole are not
 * read first; but not θ over `read_at`, whose lines are there already.
 */
#ifndef GRADLAG_WORKER_OPTIMIZER_LOOP_H
#define GRADLAG_WORKER_OPTIMIZER_LOOP_H

#include "worker/optimizer.h"
#include "worker/vector_line.h"

#include <math.h>
#include <string.h>

#define LANES OPTIMIZER_LANES

typedef float halves __attribute__((vector_size(2 * LANES)));
typedef double doubles __attribute__((vector_size(4 * LANES))); /* of one half */

/* sum[h] += (x − y)² of half h, with the squares in double precision; y NULL: x². */
VECTOR_INLINE void add_squares(doubles sum[2], const float *x, const float *y)
{
    for (int h = 0; h < 2; h++) {
        halves a, b;
        memcpy(&a, x + h * (LANES / 2), sizeof a);
        if (y != NULL) {
            memcpy(&b, y + h * (LANES / 2), sizeof b);
            a -= b;
        }
        doubles wide = __builtin_convertvector(a, doubles);
        sum[h] += wide * wide;
    }
}

#if OPTIMIZER_STATES > 1
VECTOR_INLINE void root_of_line(const vector_line *x, vector_line *root)
{
    float each[LANES];
    memcpy(each, x, sizeof each);
    for (int i = 0; i < LANES; i++) {
        each[i] = sqrtf(each[i]);
    }
    memcpy(root, each, sizeof each);
}

VECTOR_INLINE void root_of_one(const float *x, float *root)
{
    *root = sqrtf(*x);
}

/* Both are correctly rounded, so that an element's bits do not depend on its place. */
#define OPTIMIZER_ROOT(x, root)                                                                    \
    _Generic((x), vector_line : root_of_line, float : root_of_one)(&(x), &(root))
#endif

#ifdef OPTIMIZER_DECAY_APART
#define DECAYED(in) (scale * g)
#else
#define DECAYED(in) (scale * g + decay * (in))
#endif

VECTOR_INLINE void loop(struct optimizer_call *c, bool with_gap, bool streamed, bool over_read_at)
{
    enum { AHEAD = 32 * LANES };
    const float scale = c->rates.scale, lr = c->rates.lr, momentum = c->rates.momentum;
    const float decay = c->rates.weight_decay;
    float k[OPTIMIZER_CONSTANTS];
    memcpy(k, c->rates.own, sizeof k);
    const float *from = c->in, *gradients = c->gradient, *read_at = c->read_at;
    const float *states = c->state_in, *more = OPTIMIZER_STATES > 1 ? states + c->stride : NULL;
    float *to = c->out, *states_to = c->state_out;
    float *more_to = OPTIMIZER_STATES > 1 ? states_to + c->stride : NULL;
    const size_t count = c->count, whole = count / LANES * LANES;
    doubles squares[2] = {{0}}, gaps[2] = {{0}};

    for (size_t i = 0; i < whole; i += LANES) {
        vector_line in, g, v = {0}, s = {0}, root = {0}, out;
        vector_load(&in, from + i);
        vector_load(&g, gradients + i);
        __builtin_prefetch(from + i + AHEAD);
        __builtin_prefetch(gradients + i + AHEAD);
        add_squares(squares, gradients + i, NULL);
        if (with_gap) {
            __builtin_prefetch(read_at + i + AHEAD);
            add_squares(gaps, from + i, read_at + i);
        }
        if (OPTIMIZER_STATES) {
            vector_load(&v, states + i);
            __builtin_prefetch(states + i + AHEAD);
        }
        if (OPTIMIZER_STATES > 1) {
            vector_load(&s, more + i);
            __builtin_prefetch(more + i + AHEAD);
        }
        g = DECAYED(in);
        OPTIMIZER_STEP;
        if (OPTIMIZER_STATES) {
            vector_store(states_to + i, &v, streamed);
        }
        if (OPTIMIZER_STATES > 1) {
            vector_store(more_to + i, &s, streamed);
        }
        (void)root;
        vector_store(to + i, &out, streamed && !over_read_at);
    }
    memcpy(c->squares, squares, sizeof squares);
    memcpy(c->gaps, gaps, sizeof gaps);
    for (size_t i = whole; i < count; i++) {
        float in = from[i], g = gradients[i], v = 0, s = 0, root = 0, out;
        c->squares[i - whole] += (double)g * (double)g;
        if (with_gap) {
            double d = (double)(in - read_at[i]);
            c->gaps[i - whole] += d * d;
        }
        if (OPTIMIZER_STATES) {
            v = states[i];
        }
        if (OPTIMIZER_STATES > 1) {
            s = more[i];
        }
        g = DECAYED(in);
        OPTIMIZER_STEP;
        if (OPTIMIZER_STATES) {
            states_to[i] = v;
        }
        if (OPTIMIZER_STATES > 1) {
            more_to[i] = s;
        }
        (void)root;
        to[i] = out;
    }
    (void)momentum;
    (void)lr;
    (void)decay;
    (void)k;
}

VECTOR_CLONES
static void optimizer_loop(struct optimizer_call *c)
{
    if (c->read_at != NULL && c->streamed && c->out == c->read_at) {
        loop(c, true, true, true);
    } else if (c->read_at != NULL && c->streamed) {
        loop(c, true, true, false);
    } else if (c->read_at != NULL) {
        loop(c, true, false, false);
    } else if (c->streamed) {
        loop(c, false, true, false);
    } else {
        loop(c, false, false, false);
    }
    if (c->streamed) {
        vector_streamed();
    }
}

#undef LANES
#undef DECAYED

#endif
