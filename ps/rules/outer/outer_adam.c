/*
 * outer_adam.c — Adam with the difference as its gradient:
 *
 *   m ← β₁ m + (1 − β₁) s d;  v ← β₂ v + (1 − β₂) (s d)²
 *   θ ← θ − ε m̂ / (√v̂ + e),   m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ)
 *
 * ε = outer.lr, β₁ = outer.beta1, β₂ = outer.beta2, e = outer.epsilon, t counts updates from 1, s
 * is the damping's scale.
 *
 * Reddi, Charles, Zaheer et al., "Adaptive federated optimization" (ICLR 2021, arXiv:2003.00295),
 * FedAdam: an adaptive server for the results of local steps. β₁, β₂ and e are the defaults of
 * Flower's FedAdam, a second implementation. The default of ε is ours.
 *
 * s multiplies the difference before both moments, as in Shah, Sun, "Cosine-gated Adam-decay:
 * drop-in staleness-aware outer optimization for decoupled DiLoCo" (arXiv:2605.09126). With
 * damping=exponential this rule is their Adam-Decay, s = exp(−α τ), α = damping.rate. Without
 * staleness both equal plain Adam. Their CGAD also multiplies s by a cosine gate that is 0 from a
 * cutoff on. The gate is not implemented: we have the paper's abstract, which does not give its
 * formula, nor the values of α and ε.
 *
 * Where we differ: FedAdam has no bias correction; plain Adam has. An update whose s is 0 counts in
 * t. Note that with optimizer=adamw, without local steps, damping scales the rate instead.
 */
#include "ps/rules/outer/outer.h"
#include "ps/rules/outer/outer_options.h"

static const struct option parameters_of[] = {
    OUTER_STEPS,
    OUTER_RATE("0.01"),
    {.key = "outer.beta1",
     .type = OPTION_REAL,
     .initial = "0.9",
     .minimum = 0,
     .maximum = 0.999999,
     .help = "decay of the mean difference"},
    {.key = "outer.beta2",
     .type = OPTION_REAL,
     .initial = "0.99",
     .minimum = 0,
     .maximum = 0.999999,
     .help = "decay of the mean squared difference"},
    {.key = "outer.epsilon",
     .type = OPTION_REAL,
     .initial = "0.001",
     .minimum = 1e-30,
     .maximum = 1e3,
     .help = "added to the square root of the mean squared difference"},
    {0},
};

static void read(const double *parameters, unsigned workers UNUSED, struct outer *out)
{
    out->rate = parameters[1];
    out->update = &optimizer_outer_adam;
    for (unsigned i = 0; i < 3; i++)
        out->parameters[i] = parameters[2 + i];
}

const struct outer_rule outer_adam = {
    .about = {"adam", "local steps, with Adam on their sum",
              "Reddi et al. 2021, FedAdam; with damping=exponential Shah, Sun 2026, Adam-Decay",
              parameters_of},
    .read = read,
};
