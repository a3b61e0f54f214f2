/*
 * outer_delayed_nesterov.c — each difference moves θ by itself at once; the momentum waits for N:
 *
 *   Δ ← Δ + d_t
 *   every N-th:  m ← β m + Δ/N;  θ ← θ − ε (d_t/N + β m);  Δ ← 0
 *   otherwise:   θ ← θ − ε d_t/N
 *
 * Liu, Chhaparia, Douillard et al., "Asynchronous local-SGD training for language modeling"
 * (arXiv:2401.09135), delayed Nesterov update (section 5, algorithm 3), with their c = 0, the
 * default: no part of the momentum is used in between. ε = outer.lr, β = outer.momentum,
 * N = outer.every. Over N updates θ moves by −ε (Δ/N + β m): what one Nesterov update makes of the
 * mean of N.
 *
 * m and Δ are one vector here: s = m + Δ/N, for β m is wanted at the N-th update alone, when Δ is
 * whole. So s ← β s + d/N at the first of N, s ← s + d/N at the others, and the last one uses β s.
 * N = 1 is outer=nesterov, bit for bit.
 *
 * Where we differ: t counts updates, so that where a consistency makes one update of several
 * differences, N counts those. N is the number of workers unless it is set. c > 0 is not here. The
 * local optimizer's velocity starts at 0 at every pull. DyLU, which gives slow workers fewer steps,
 * is not here.
 *
 * Held against the paper's text; two implementations by others agree.
 */
#include "ps/rules/outer/outer.h"
#include "ps/rules/outer/outer_options.h"

static const struct option parameters_of[] = {
    OUTER_STEPS,
    OUTER_RATE("0.7"),
    OUTER_MOMENTUM,
    {.key = "outer.every",
     .type = OPTION_INTEGER,
     .initial = "0",
     .minimum = 0,
     .maximum = 65536,
     .help = "updates from one of the momentum to the next (0: as many as workers)"},
    {0},
};

static void read(const double *parameters, unsigned workers, struct outer *out)
{
    out->rate = parameters[1];
    out->momentum = parameters[2];
    out->momentum_every = parameters[3] == 0 ? workers : (unsigned)parameters[3];
}

const struct outer_rule outer_delayed_nesterov = {
    .about = {"delayed-nesterov", "local steps, applied as they come, with momentum at every N-th",
              "Liu et al. 2024, Asynchronous local-SGD, delayed Nesterov update, c = 0",
              parameters_of},
    .read = read,
};
