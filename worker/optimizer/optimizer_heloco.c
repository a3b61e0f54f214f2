/*
 * optimizer_heloco.c — turns each tensor of a difference towards the momentum if the two disagree,
 * then takes a step with momentum look-ahead. With g = scale · gradient, m the state, and a, b of
 * the tensor:
 *
 *   G = ρ (a g + scale b m);   m' = μ m + (1 − μ) G;   θ ← θ + η μ m − η G − 2 η μ m'
 *
 * Let c be the cosine of the gradient and m, and r = ‖gradient‖ / ‖m‖ (both of the tensor):
 *
 *   conf = ‖gradient‖ / (‖gradient‖ + κ ‖m‖ + ε)
 *   c ≥ c_ok       a = 1, b = 0
 *   c < 0          a = 1, b = −c r min(k_s (−c) conf, β_max)
 *   otherwise      a = (1 − λ) / n, b = λ r / n, λ = min(k_d (1 − c) conf, 1),
 *                  n = √((1 − λ)² + λ² + 2 λ (1 − λ) c), so that ‖a gradient + b m‖ = ‖gradient‖
 *
 * If ‖gradient‖ or ‖m‖ is below ε = 1e-8, a = 1 and b = 0. The paper, its equations and the meaning
 * of θ are in ps/rules/outer/outer_heloco.c.
 */
#include "worker/optimizer/optimizer.h"

#include <math.h>

#define OPTIMIZER_STATES 1
#define OPTIMIZER_DECAY_APART
#define OPTIMIZER_STEP                                                                             \
    g = k[0] * g + k[1] * v;                                                                       \
    s = in + k[4] * v;                                                                             \
    v = k[2] * v + k[3] * g;                                                                       \
    out = s - (k[5] * g + k[6] * v)
#include "worker/optimizer/optimizer_loop.h"

#define EPSILON 1e-8

enum { MOMENTUM, KEEP, SHRINK, SHRINK_MOST, TURN, CAUTION, WEIGHT };

struct blend {
    double gradient, momentum; /* a, b */
};

static struct blend blend_of(const struct optimizer_moment *now)
{
    const double *p = now->parameters;
    const double gradient = sqrt(now->gradient), momentum = sqrt(now->state);
    if (gradient < EPSILON || momentum < EPSILON)
        return (struct blend){1, 0};
    const double ratio = gradient / momentum;
    const double cosine = fmax(-1, fmin(1, now->product / (gradient * momentum)));
    const double trust = gradient / (gradient + p[CAUTION] * momentum + EPSILON);
    if (cosine >= p[KEEP])
        return (struct blend){1, 0};
    if (cosine < 0)
        return (struct blend){1,
                              -cosine * ratio * fmin(p[SHRINK] * -cosine * trust, p[SHRINK_MOST])};
    const double turn = fmin(p[TURN] * (1 - cosine) * trust, 1), kept = 1 - turn;
    const double norm = sqrt(kept * kept + turn * turn + 2 * turn * kept * cosine);
    return (struct blend){kept / norm, turn * ratio / norm};
}

static void constants(const struct optimizer_moment *now, float own[OPTIMIZER_CONSTANTS])
{
    const double momentum = now->parameters[MOMENTUM], weight = now->parameters[WEIGHT];
    const struct blend blend = blend_of(now);
    own[0] = (float)(weight * blend.gradient);
    own[1] = (float)(weight * now->scale * blend.momentum);
    own[2] = (float)momentum;
    own[3] = (float)(1 - momentum);
    own[4] = (float)(now->lr * momentum);
    own[5] = (float)now->lr;
    own[6] = (float)(2 * now->lr * momentum);
}

const struct optimizer_kind optimizer_heloco = {
    .about = {"heloco", "momentum look-ahead with direction-aware correction",
              "Al Asif et al. 2026, HeLoCo", NULL},
    .states = OPTIMIZER_STATES,
    .decay_apart = true,
    .correlates = true,
    .update = optimizer_loop,
    .constants = constants,
};
