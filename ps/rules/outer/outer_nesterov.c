/*
 * outer_nesterov.c — m ← β m + d;  θ ← θ − ε (d + β m), d = θ_read − x after H local steps;
 * ε = outer.lr, β = outer.momentum, H = outer.steps.
 *
 * Douillard, Feng, Rusu et al., "DiLoCo: distributed low-communication training of language models"
 * (arXiv:2311.08105), algorithm 1 with outer Nesterov momentum; its ε 0.7 and β 0.9 are the
 * defaults. With consistency=bsp the mean of all workers' d is one update. With asynchronous
 * updates of single d it is the method whose weakness Liu et al. (arXiv:2401.09135) describe: the
 * momentum of stale pseudo-gradients. See delayed-nesterov.
 *
 * Where we differ: the local optimizer is any of key optimizer, not AdamW. Its velocity starts at 0
 * at every pull; DiLoCo keeps its state with the worker. ε is constant, as in the paper.
 *
 * Sources: sections 2 and 4 of Liu et al., which restate the algorithm (algorithm 1, equation 4:
 * θ ← θ − ε (β² m_t + (1 + β) d), the same). The constants are those that a later paper of the
 * group reports for DiLoCo.
 */
#include "ps/rules/outer/outer.h"
#include "ps/rules/outer/outer_options.h"

static const struct option parameters_of[] = {OUTER_STEPS, OUTER_RATE("0.7"), OUTER_MOMENTUM, {0}};

static void read(const double *parameters, unsigned workers UNUSED, struct outer *out)
{
    out->rate = parameters[1];
    out->update = &optimizer_delayed_nesterov;
    out->parameters[0] = parameters[2];
    out->parameters[1] = 1;
}

const struct outer_rule outer_nesterov = {
    .about = {"nesterov", "local steps, with Nesterov momentum on their sum",
              "Douillard et al. 2023, DiLoCo, algorithm 1; Liu et al. 2024", parameters_of},
    .read = read,
};
