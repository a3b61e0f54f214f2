/*
 * outer_fedasync.c — the server mixes a worker's parameters x into its own, with less weight if
 * they are stale:
 *
 *   θ ← (1 − α_t) θ + α_t x,   α_t = α s(τ)                α = outer.alpha, s = key damping
 *
 * x is the result of H = outer.steps local steps from θ_read on f(x) + ρ/2 ‖x − θ_read‖²,
 * ρ = outer.rho.
 *
 * Xie, Koyejo, Gupta, "Asynchronous federated optimization" (OPT 2020, arXiv:1903.03934),
 * algorithm 1. Its three functions s (section 5.2) are damping=none, polynomial (a = 0.5) and hinge
 * (a = 10, b = 4 on CIFAR-10); α is 0.6 or 0.9 there. Any other damping rule may be used.
 *
 * The worker pushes d = θ_read − x, and the server needs θ − x = d + (θ − θ_read): outer_from_now.
 * outer=sgd with outer.lr = α weights the difference, this rule weights the model: a stale x undoes
 * part of the other workers' updates. Without staleness the two are equal, bit for bit.
 *
 * Where we differ: α is constant; the authors' experiments halve it late in training. Any local
 * optimizer may be used, and the term of ρ is part of its gradient. The authors' code applies that
 * term beside the optimizer, which is the same with optimizer=sgd. If a consistency policy combines
 * several models in one update, θ moves by the mean of their α_t (x − θ).
 *
 * Sources: notes on the whole paper, the authors' code (async_fl), whose delay starts at 0 as our τ
 * does, and two other implementations.
 */
#include "ps/rules/outer/outer.h"
#include "ps/rules/outer/outer_options.h"

static const struct option parameters_of[] = {
    OUTER_STEPS,
    {.key = "outer.alpha",
     .type = OPTION_REAL,
     .initial = "0.6",
     .minimum = 0,
     .maximum = 1,
     .help = "mixing weight of a fresh model; damping scales it for stale models"},
    {.key = "outer.rho",
     .type = OPTION_REAL,
     .initial = "0.005",
     .minimum = 0,
     .maximum = 1e6,
     .help = "local steps minimise f(x) + rho/2 |x - x_read|^2"},
    {0},
};

static void read(const double *parameters, unsigned workers UNUSED, struct outer *out)
{
    out->rate = parameters[1];
    out->proximal = parameters[2];
}

const struct outer_rule outer_fedasync = {
    .about = {"fedasync", "the worker's model mixed in: x + alpha s(staleness) (x_worker - x)",
              "Xie, Koyejo, Gupta 2019, Asynchronous federated optimization, algorithm 1",
              parameters_of},
    .as_step = &outer_from_now,
    .read = read,
};
