/*
 * total_momentum.h — how much momentum the parameters have in all: what the optimizer gives them
 * and what asynchrony adds.
 *
 * With momentum alone x_{r+1} − x_r = μ (x_r − x_{r−1}) − α ∇f(x_r). So a gradient g that was
 * computed at version r says what μ was there, parameter by parameter, whenever it comes back:
 *
 *   μ̂_T = median over parameters of (x_{r+1} − x_r + α g) / (x_r − x_{r−1})
 *
 * Zhang, Mitliagkas, "YellowFin and the art of momentum tuning" (arXiv:1706.03471), closed-loop
 * YellowFin, which measures it so with asynchronous workers. With one worker and a constant rate it
 * is the optimizer's μ.
 *
 * The equation is quoted from memory of the paper; of its text the abstract was at hand. Its
 * authors showed the algorithm before it was a paper (mitliagkas.github.io, async-tuner,
 * AsyncYellowFin): the median of (A + α C) / (A − B), with A, B and C the moving averages of
 * x_{t+1} − x_t, of x_{t+1} − 2 x_t + x_{t−1} and of the gradient. Of the latest alone that is the
 * ratio above. It is fed back as μ ← μ + μ* − μ̂_T, from μ = 0. The first commit of their repository
 * has this, commented out (YellowFin, tuner_utils/yellowfin.py, get_async_mu_tensor); later ones
 * have nothing of it.
 *
 * Where we differ: the median is over TOTAL_MOMENTUM_SAMPLE parameters, evenly spread, or all if
 * there are fewer; those that stood still from r − 1 to r are left out. α is the rate that g got,
 * damping included. Weight decay is not told from momentum.
 *
 * Memory: TOTAL_MOMENTUM_SAMPLE × (4 workers + 8) floats at most, 1 KiB for each version. A
 * gradient older than that is not measured.
 */
#ifndef GRADLAG_PS_CORE_TOTAL_MOMENTUM_H
#define GRADLAG_PS_CORE_TOTAL_MOMENTUM_H

#include "base/status.h"

enum { TOTAL_MOMENTUM_SAMPLE = 256 };

struct total_momentum {
    size_t count;     /* parameters */
    unsigned sample;  /* of them that are looked at */
    unsigned room;    /* versions that are remembered */
    uint64_t version; /* the latest */
    float *past;      /* [room][sample] */
    double *ratios;   /* [sample] */
};

status total_momentum_open(struct total_momentum *t, unsigned workers, size_t count) MUST_CHECK;
void total_momentum_close(struct total_momentum *t);
/* A version's parameters, from 0 up, each once. */
void total_momentum_note(struct total_momentum *t, uint64_t version, const float *parameters);
/* From a gradient computed at version `read`, which got learning rate `rate`; NaN if that cannot be
 * said: version 0, one that is forgotten, the latest one, or parameters that stood still. */
double total_momentum_measure(struct total_momentum *t, uint64_t read, const float *gradient,
                              double rate);

#endif
