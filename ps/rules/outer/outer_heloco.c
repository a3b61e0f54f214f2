/*
 * outer_heloco.c — momentum look-ahead, with a correction of differences that point away from the
 * momentum. Workers start at θ̄ = θ − ε μ m. With the result d̂ of the correction:
 *
 *   G = ρ s d̂;   m ← μ m + (1 − μ) G;   θ ← θ − ε (G + μ m)
 *
 * Each tensor of d is corrected by itself. u and v are the directions of its parts of d and m, and
 * c = u·v. conf = ‖d‖ / (‖d‖ + κ ‖m‖ + 1e-8):
 *
 *   c ≥ c_ok      d̂ = d
 *   c < 0         d̂ = d − β c ‖d‖ v,   β = min(k_s (−c) conf, β_max)
 *   otherwise     d̂ = ‖d‖ w / ‖w‖,     w = (1 − λ) u + λ v,  λ = min(k_d (1 − c) conf, 1)
 *
 * ε = outer.lr, μ = outer.momentum, c_ok = outer.keep, k_s = outer.shrink, β_max =
 * outer.shrink_most, k_d = outer.turn, κ = outer.caution, ρ = outer.weight, s the damping's scale.
 * While ‖d‖ or ‖m‖ is below 1e-8, d̂ = d. With outer.keep=-1 nothing is corrected: this is momentum
 * look-ahead alone (MLA).
 *
 * Al Asif, Diem, Muñoz, Wolf, Jannesari, Mazaheri, "HeLoCo: efficient asynchronous
 * low-communication training under data and device heterogeneity" (arXiv:2606.00271), algorithms 1
 * and 2, equations 5 (start), 7–15 (correction), 18 and 19 (update).
 *
 * The server stores θ̄, because workers read nothing else (optimizer_heloco.c has the equations in
 * θ̄). So θ̄ is evaluated and saved, not θ = θ̄ + ε μ m.
 *
 * Where we differ: as described above. The local optimizer's state starts at 0 at every pull. If
 * a consistency policy combines several differences in one update, their mean is corrected as one
 * difference; scales that are not equal are in the mean.
 *
 * Sources: the abstract; three implementations and notes that agree on the equations and give their
 * numbers (a torchft fork of PanocularAI, a company of the last author; zij's canon; a Rust
 * program). The paper's text was not available. The defaults are those of the fork; for ρ it has 1
 * in the code, and its settings have 1/√workers, which its comment calls the paper's advice.
 */
#include "ps/rules/outer/outer.h"
#include "ps/rules/outer/outer_options.h"

#include <math.h>

#define REAL(name, usual, least, most, what)                                                       \
    {                                                                                              \
        .key = "outer." name, .type = OPTION_REAL, .initial = usual, .minimum = least,             \
        .maximum = most, .help = what                                                              \
    }

static const struct option parameters_of[] = {
    OUTER_STEPS,
    OUTER_RATE("0.7"),
    OUTER_MOMENTUM,
    REAL("keep", "0.2", -1, 1,
         "a tensor whose cosine with the momentum is at least this stays unchanged"),
    REAL("shrink", "0.5", 0, 1000, "strength of the correction if the cosine is negative"),
    REAL("shrink_most", "0.5", 0, 1, "largest share of the opposing part that is removed"),
    REAL("turn", "1", 0, 1000, "strength of the correction if the cosine is 0 or more"),
    REAL("caution", "3", 0, 1e6,
         "weight of the momentum's norm; a larger weight makes corrections weaker"),
    REAL("weight", "0", 0, 100, "weight of a difference (0: 1 / sqrt(workers))"),
    {0},
};

enum { RATE = 1, OF_UPDATE, WEIGHT = 8 };

static void read(const double *parameters, unsigned workers, struct outer *out)
{
    const double weight = parameters[WEIGHT];
    out->rate = parameters[RATE];
    out->update = &optimizer_heloco;
    for (unsigned i = OF_UPDATE; i < WEIGHT; i++)
        out->parameters[i - OF_UPDATE] = parameters[i];
    out->parameters[WEIGHT - OF_UPDATE] = weight == 0 ? 1 / sqrt(workers) : weight;
}

const struct outer_rule outer_heloco = {
    .about = {"heloco", "momentum look-ahead; differences against the momentum are corrected",
              "Al Asif et al. 2026, HeLoCo, algorithms 1 and 2", parameters_of},
    .by_tensor = true,
    .read = read,
};
