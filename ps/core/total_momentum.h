/*
 * total_momentum.h — the total momentum of the parameters: that of the optimizer plus that of
 * asynchrony.
 *
 * With momentum alone x_{r+1} − x_r = μ (x_r − x_{r−1}) − α ∇f(x_r). So a gradient g computed at
 * version r gives μ at version r for each parameter:
 *
 *   μ̂_T = median over parameters of (x_{r+1} − x_r + α g) / (x_r − x_{r−1})
 *
 * Zhang, Mitliagkas, "YellowFin and the art of momentum tuning" (arXiv:1706.03471), closed-loop
 * YellowFin, which measures it in this way with asynchronous workers. With one worker and a
 * constant rate it equals the μ of optimizer=momentum.
 *
 * Source: the equation is quoted from memory of the paper; only its abstract was available. The
 * authors published the algorithm before the paper (mitliagkas.github.io, async-tuner,
 * AsyncYellowFin): the median of (A + α C) / (A − B). A, B and C are the moving averages of
 * x_{t+1} − x_t, of x_{t+1} − 2 x_t + x_{t−1} and of the gradient. With the latest values alone
 * this is the ratio above. They feed it back as μ ← μ + μ* − μ̂_T, from μ = 0. The first commit of
 * their repository has this in a comment (YellowFin, tuner_utils/yellowfin.py,
 * get_async_mu_tensor); later commits do not.
 *
 * Where we differ: the median is over TOTAL_MOMENTUM_SAMPLE evenly spaced parameters, or over all
 * if there are fewer. Parameters that did not change from r − 1 to r are left out. α is the
 * learning rate of g with damping. Weight decay is counted as momentum.
 *
 * Memory: at most TOTAL_MOMENTUM_SAMPLE × (4 workers + 8) floats, 1 KiB per version. An older
 * gradient is not measured.
 */
#ifndef GRADLAG_PS_CORE_TOTAL_MOMENTUM_H
#define GRADLAG_PS_CORE_TOTAL_MOMENTUM_H

#include "base/status.h"

enum { TOTAL_MOMENTUM_SAMPLE = 256 };

struct total_momentum {
    size_t count;      /* parameters */
    unsigned sample;   /* parameters in the sample */
    unsigned capacity; /* versions in memory */
    uint64_t version;  /* the latest */
    float *past;       /* [capacity][sample] */
    double *ratios;    /* [sample] */
};

status total_momentum_open(struct total_momentum *t, unsigned workers, size_t count) MUST_CHECK;
void total_momentum_close(struct total_momentum *t);
/* Stores a version's parameters. Call once for each version: 0, 1, 2, … */
void total_momentum_add_version(struct total_momentum *t, uint64_t version,
                                const float *parameters);
/* The total momentum at version `read`, from a gradient computed there and applied with learning
 * rate `rate`. NaN if it is unknown: `read` is 0, the latest version or no longer in memory, or no
 * parameter changed. */
double total_momentum_measure(struct total_momentum *t, uint64_t read, const float *gradient,
                              double rate);

#endif
