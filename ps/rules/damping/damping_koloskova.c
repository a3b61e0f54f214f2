/*
 * damping_koloskova.c — s(τ) = 1 if τ ≤ C; otherwise 1 / τ, or the gradient is dropped
 * (damping.drop=1).
 *
 * Koloskova, Stich, Jaggi, "Sharper convergence guarantees for asynchronous SGD for distributed and
 * federated learning" (NeurIPS 2022, arXiv:2206.08307), theorem 8, the delay-adaptive step size
 * (11): with some η ≤ 1 / (4 L)
 *
 *   η_t = η if τ_t ≤ τ_C;  otherwise less than min{η, 1 / (4 L τ_t)}
 *
 * τ_C is the concurrency: the number of workers that compute at the same time. L is unknown, so
 * section 4.4 uses η_t ≤ η / τ_t beyond τ_C, which satisfies the bound for any η. 1 / τ is the
 * largest such scale. A step of 0 also satisfies it and means dropping the gradient, as the paper
 * says.
 *
 * C = damping.concurrency. With the default of 0, C is the number of workers that have joined and
 * are not lost. It falls when a worker is lost; the paper's τ_C is the maximum over the run. s
 * jumps from 1 to 1 / (C + 1) at τ = C + 1; mishchenko has no such jump.
 *
 * Where we differ: the paper has no momentum. Checked against its text and second sources; its
 * delay is our τ.
 */
#include "ps/rules/damping/damping.h"

static bool drops(const double *parameters)
{
    return parameters[1] != 0;
}

static double scale(const double *parameters, const struct damping_input *input, bool *drop)
{
    double concurrency = parameters[0] > 0 ? parameters[0] : (double)input->concurrency;
    double staleness = (double)input->staleness;
    if (staleness <= concurrency)
        return 1;
    *drop = drops(parameters);
    return *drop ? 0 : 1 / staleness;
}

static const struct option parameters_of[] = {
    {.key = "damping.concurrency",
     .type = OPTION_INTEGER,
     .initial = "0",
     .minimum = 0,
     .maximum = 1e6,
     .help = "scale 1 up to this staleness; 0: the number of workers joined"},
    {.key = "damping.drop",
     .type = OPTION_INTEGER,
     .initial = "0",
     .minimum = 0,
     .maximum = 1,
     .help = "1: staler gradients are dropped, 0: scaled"},
    {0},
};

const struct damping_rule damping_koloskova = {
    .about = {"koloskova", "1 up to the concurrency, then 1 / staleness or dropped",
              "Koloskova, Stich, Jaggi 2022, Sharper convergence guarantees for asynchronous SGD",
              parameters_of},
    .drops = drops,
    .scale = scale,
};
