/*
 * consistency_ringmaster.c — every gradient is applied when it comes, unless it is R or more
 * versions old: then it is dropped; nobody waits; R = consistency.limit.
 *
 * Maranjyan, Tyurin, Richtárik, "Ringmaster ASGD: the first asynchronous SGD with optimal time
 * complexity" (ICML 2025, arXiv:2501.16168), algorithm 4 (without calculation stops): with delay
 * δ = τ,
 *
 *   x^{k+1} = x^k − γ g  if δ < R;  else g is ignored; its worker goes on at the latest point
 *
 * R = 1 uses only gradients that are not stale. The paper's R = max(1, ⌈σ²/ε⌉) depends on the noise
 * of the problem; 8 is ours. Where we differ: algorithm 5 also stops computations that have become
 * too old, which a worker here does not notice before its push.
 *
 * Held against a poster of its first author (algorithm 5, R, and what R = 1 is) and against code of
 * the group (ringmaster-lmo, RingmasterASGD), which begins a computation anew once its delay has
 * come to R. Of the paper's text the abstract and the names of its algorithms were at hand.
 *
 * damping=cutoff with damping.after = R − 1 drops the same gradients; here damping is free for
 * another rule.
 */
#include "ps/rules/consistency/consistency.h"

static enum consistency_fate arrive(const double *parameters, const struct consistency_view *view)
{
    return view->staleness >= (uint64_t)parameters[0] ? CONSISTENCY_DROP : CONSISTENCY_HOLD;
}

static const struct option parameters_of[] = {
    {.key = "consistency.limit",
     .type = OPTION_INTEGER,
     .initial = "8",
     .minimum = 1,
     .maximum = 1e6,
     .help = "a gradient this stale, or more, is dropped"},
    {0},
};

const struct consistency_policy consistency_ringmaster = {
    .about = {"ringmaster", "applied at once, but dropped from a staleness on; nobody waits",
              "Maranjyan, Tyurin, Richtarik 2025, Ringmaster ASGD", parameters_of},
    .arrive = arrive,
};
