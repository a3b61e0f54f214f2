/*
 * virtual.h — the virtual cluster: server_core and its rules with true gradients, on a simulated
 * clock.
 *
 * A worker released at virtual time t has its gradient at the server at
 *
 *   t + transfer(parameters) + latency + step + transfer(gradient) + latency
 *
 * The pace gives the length of a step; with an outer rule, the sum of the steps until the push.
 * network.* gives the latency (worker/pace/cluster.h). The links that a transfer shares with others
 * determine its time (shared_links.h). The server takes gradients in order of arrival. If several
 * arrive at the same time, it takes the lowest worker's first. It is busy for server.apply_ms with
 * each.
 *
 * With several servers, the parts of a gradient share the worker's link and arrive separately. A
 * worker continues when the last server has answered. With read=torn each server takes its parts in
 * order of arrival. With read=snapshot a gradient is taken after all parts have arrived and server
 * 0 knows it (one latency, for a message without content); the other servers take it in server 0's
 * order (one more latency).
 *
 * Evaluation takes no virtual time. A worker that dies loses the gradient that it computes or
 * sends. The server notices the death at once; the worker joins again after its down time.
 *
 * Deterministic: the same settings give the same bits and the same times for any number of threads.
 * With one worker, and with consistency=bsp, the parameters equal those of a real run. Gradients
 * that have not arrived when the run ends are not computed.
 */
#ifndef GRADLAG_PS_VIRTUAL_VIRTUAL_H
#define GRADLAG_PS_VIRTUAL_VIRTUAL_H

#include "ps/virtual/simulation.h"
#include "worker/pace/cluster.h"

struct virtual_options {
    const options *settings;
    gradient_pool *pool; /* borrowed; opened for as many workers, with late ones */
    const pace *pace;    /* borrowed */
    unsigned workers;
    struct training_length length;
    struct training_hooks hooks;
    recorder *recorder; /* may be NULL */
};

/* ERROR_USAGE: the pace has no times of its own. ERROR_PEER: all workers wait for each other, or
 * die before an update. ERROR_DIVERGED, STOPPED, or the error of a hook. After an error `out`
 * describes the training until then. */
status virtual_run(const struct virtual_options *o, struct training_outcome *out) MUST_CHECK;

#endif
