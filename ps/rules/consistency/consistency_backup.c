/*
 * consistency_backup.c — synchronous with backup workers: an update is the mean of the first W − b
 * gradients, summed in worker order. Later gradients are dropped. b = consistency.backups.
 *
 * Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting distributed synchronous SGD" (ICLR 2016
 * workshop, arXiv:1604.00981), section 3 and algorithms 3 and 4. Of N + b workers the parameter
 * server waits for the first N gradients of an iteration. It ignores the stragglers' gradients, and
 * stragglers start the next iteration with the new parameters:
 *
 *   θ ← θ − γ (1 / N) Σ g      over the first N = W − b gradients at θ
 *
 * b = 0 equals bsp, bit for bit. The default of 1 is ours. A straggler's gradient is recognised by
 * its staleness, which is at least 1.
 *
 * Where we differ: a lost worker is no longer expected, so with l lost workers an update has
 * max(1, W − l − b) gradients. A straggler continues with the latest parameters; in algorithm 3,
 * taken literally, a worker passes through every iteration. The paper also averages the parameters
 * over time; we do not.
 *
 * Checked against the text submitted to ICLR 2017. The shorter workshop version has no algorithms.
 */
#include "ps/rules/consistency/consistency.h"

static unsigned needed(const double *parameters, unsigned workers)
{
    unsigned backups = (unsigned)parameters[0];
    return backups >= workers ? 0 : workers - backups;
}

static enum consistency_decision arrive(const double *parameters UNUSED,
                                        const struct consistency_view *view)
{
    return view->staleness > 0 ? CONSISTENCY_DROP : CONSISTENCY_HOLD;
}

/* held is at least 1 */
static bool apply_now(const double *parameters, const struct consistency_view *view)
{
    return view->held >= needed(parameters, view->expected);
}

static const struct option parameters_of[] = {
    {.key = "consistency.backups",
     .type = OPTION_INTEGER,
     .initial = "1",
     .minimum = 0,
     .maximum = 16383,
     .help = "workers that an update does not wait for"},
    {0},
};

const struct consistency_policy consistency_backup = {
    .about = {"backup", "the mean of the first workers - backups gradients; later ones are dropped",
              "Chen et al. 2016, Revisiting distributed synchronous SGD", parameters_of},
    .holds = true,
    .never_stale = true,
    .drops = true,
    .per_update = needed,
    .arrive = arrive,
    .apply_now = apply_now,
};
