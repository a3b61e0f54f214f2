/*
 * consistency_softsync.c — n-softsync: an update is the mean of the next c = ⌊W / n⌋ gradients of
 * any workers. No worker waits. n = consistency.n.
 *
 * Gupta, Zhang, Wang, "Model accuracy and runtime tradeoff in distributed deep learning: a
 * systematic study" (ICDM 2016, arXiv:1509.04210), n-softsync: weights are updated after at least
 * ⌊λ / n⌋ gradients of λ learners. And Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for
 * distributed deep learning" (IJCAI 2016, arXiv:1511.05950):
 *
 *   θ ← θ − (1 / c) Σ α(τ) g      over the c gradients; ⟨τ⟩ ≈ n
 *
 * With n = 1, the default, an update has as many gradients as there are workers. n = W equals asp,
 * bit for bit. α(τ) = α₀ / τ is damping=inverse.
 *
 * A gradient that damping drops counts neither in c nor in the divisor.
 *
 * Where we differ: W stays the configured number when workers are lost, so the size of an update
 * does not change within a run. n > W acts as n = W.
 *
 * Checked against the text of Zhang et al. (sections 2.1 to 2.4; λ is our W): the gradients may be
 * of any learners, their average is multiplied by the rate, and with 30 learners c is 30, 2 and 1
 * for n = 1, 15 and 30. That copy lacks the equation, which is quoted from a reader. Of Gupta et
 * al. only the abstract was available.
 */
#include "ps/rules/consistency/consistency.h"

static unsigned per_update(const double *parameters, unsigned workers)
{
    unsigned n = (unsigned)parameters[0];
    return n >= workers ? 1 : workers / n;
}

static enum consistency_decision arrive(const double *parameters UNUSED,
                                        const struct consistency_view *view UNUSED)
{
    return CONSISTENCY_TAKE;
}

static bool apply_now(const double *parameters, const struct consistency_view *view)
{
    return view->taken >= per_update(parameters, view->workers);
}

static const struct option parameters_of[] = {
    {.key = "consistency.n",
     .type = OPTION_INTEGER,
     .initial = "1",
     .minimum = 1,
     .maximum = 16384,
     .help = "an update has workers / n gradients, rounded down"},
    {0},
};

const struct consistency_policy consistency_softsync = {
    .about = {"softsync", "the mean of the next workers / n gradients; no worker waits",
              "Gupta, Zhang, Wang 2016 and Zhang et al. 2016, n-softsync", parameters_of},
    .takes = true,
    .per_update = per_update,
    .arrive = arrive,
    .apply_now = apply_now,
};
