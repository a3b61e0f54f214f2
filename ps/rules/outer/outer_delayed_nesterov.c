/*
 * outer_delayed_nesterov.c — each difference moves θ at once; the momentum is applied at every N-th
 * update:
 *
 *   Δ ← Δ + d_t
 *   every N-th:  m ← β m + Δ/N;  θ ← θ − ε (d_t/N + β m);  Δ ← 0
 *   otherwise:   θ ← θ − ε d_t/N
 *
 * Liu, Chhaparia, Douillard et al., "Asynchronous local-SGD training for language modeling"
 * (arXiv:2401.09135), delayed Nesterov update (section 5, algorithm 3), with their default c = 0:
 * no momentum in between. ε = outer.lr, β = outer.momentum, N = outer.every. Over N updates θ moves
 * by −ε (Δ/N + β m), which equals one Nesterov update with the mean of N differences.
 *
 * m and Δ are one vector here, s = m + Δ/N, because β m is needed only at the N-th update, when Δ
 * is complete. The first of N updates sets s ← β s + d/N, the others s ← s + d/N, and the last uses
 * β s. N = 1 equals outer=nesterov, bit for bit.
 *
 * Where we differ: t counts updates. If a consistency policy combines several differences in one
 * update, N counts such updates. N defaults to the number of workers. c > 0 is not implemented. The
 * velocity of the local optimizer starts at 0 at every pull. DyLU, which gives slow workers fewer
 * steps, is not implemented.
 *
 * Checked against the paper's text; two other implementations agree.
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
     .help = "updates per momentum update (0: number of workers)"},
    {0},
};

static void read(const double *parameters, unsigned workers, struct outer *out)
{
    out->rate = parameters[1];
    out->update = &optimizer_delayed_nesterov;
    out->parameters[0] = parameters[2];
    out->parameters[1] = parameters[3] == 0 ? workers : parameters[3];
}

const struct outer_rule outer_delayed_nesterov = {
    .about = {"delayed-nesterov",
              "local steps, applied on arrival, with momentum at every N-th update",
              "Liu et al. 2024, Asynchronous local-SGD, delayed Nesterov update, c = 0",
              parameters_of},
    .read = read,
};
