/*
 * consistency_ringmaster.c — every gradient is applied when it arrives, but a gradient with
 * staleness R or more is dropped. No worker waits. R = consistency.limit.
 *
 * Maranjyan, Tyurin, Richtárik, "Ringmaster ASGD: the first asynchronous SGD with optimal time
 * complexity" (ICML 2025, arXiv:2501.16168), algorithm 4 (without calculation stops). With delay
 * δ = τ:
 *
 *   x^{k+1} = x^k − γ g  if δ < R;  otherwise g is ignored and its worker continues at the latest
 *   point
 *
 * R = 1 uses only gradients that are not stale. The paper's R = max(1, ⌈σ²/ε⌉) depends on the noise
 * of the problem; the default of 8 is ours.
 *
 * Where we differ: algorithm 5 also stops computations that have become too old. Here a worker
 * learns this only at its push.
 *
 * Sources: the abstract and the names of the paper's algorithms; a poster of its first author
 * (algorithm 5, R, and the meaning of R = 1); code of the group (ringmaster-lmo, RingmasterASGD),
 * which restarts a computation once its delay reaches R.
 *
 * damping=cutoff with damping.after = R − 1 drops the same gradients; with this policy another
 * damping rule can be used as well.
 */
#include "ps/rules/consistency/consistency.h"

static enum consistency_decision arrive(const double *parameters,
                                        const struct consistency_view *view)
{
    return view->staleness >= (uint64_t)parameters[0] ? CONSISTENCY_DROP : CONSISTENCY_HOLD;
}

static const struct option parameters_of[] = {
    {.key = "consistency.limit",
     .type = OPTION_INTEGER,
     .initial = "8",
     .minimum = 1,
     .maximum = 1e6,
     .help = "gradients of this staleness or more are dropped"},
    {0},
};

const struct consistency_policy consistency_ringmaster = {
    .about = {"ringmaster", "applied on arrival, or dropped if too stale; no worker waits",
              "Maranjyan, Tyurin, Richtarik 2025, Ringmaster ASGD", parameters_of},
    .drops = true,
    .arrive = arrive,
};
