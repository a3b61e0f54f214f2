/*
 * damping_koloskova.c — s(τ) = 1 if τ ≤ C; else C / τ, or the gradient is dropped (damping.drop=1).
 *
 * Koloskova, Stich, Jaggi, "Sharper convergence guarantees for asynchronous SGD for distributed and
 * federated learning" (NeurIPS 2022, arXiv:2206.08307), the delay-adaptive step size: η_t = η if
 * τ_t ≤ τ_C, else below min{η, 1 / (4 L τ_t)}, which a step of 0 fulfils too; τ_C is the
 * concurrency, the number of workers that compute at once.
 *
 * C = damping.concurrency, or with 0, the default, the number of workers that are here, which falls
 * when one is lost.
 *
 * Where we differ: L is not known; η is taken to be the largest that the paper allows for delays up
 * to τ_C, 1 / (4 L τ_C), so that min{η, 1 / (4 L τ)} = η τ_C / τ. The paper has no momentum.
 *
 * Of the paper the abstract was at hand; the step size's letter is from memory.
 */
#include "ps/damping.h"

static double scale(const double *parameters, const struct damping_input *input, bool *drop)
{
    double concurrency = parameters[0] > 0 ? parameters[0] : (double)input->concurrency;
    double staleness = (double)input->staleness;
    if (staleness <= concurrency) {
        return 1;
    }
    *drop = parameters[1] != 0;
    return *drop ? 0 : concurrency / staleness;
}

static const struct option parameters_of[] = {
    {.key = "damping.concurrency",
     .type = OPTION_INTEGER,
     .initial = "0",
     .minimum = 0,
     .maximum = 1e6,
     .help = "in full up to this staleness; 0: the workers that are here"},
    {.key = "damping.drop",
     .type = OPTION_INTEGER,
     .initial = "0",
     .minimum = 0,
     .maximum = 1,
     .help = "1: older gradients are dropped, 0: scaled"},
    {0},
};

const struct damping_rule damping_koloskova = {
    .about = {"koloskova", "1 up to the concurrency, then concurrency / staleness or dropped",
              "Koloskova, Stich, Jaggi 2022, Sharper convergence guarantees for asynchronous SGD",
              parameters_of},
    .scale = scale,
};
