/*
 * virtual.h — the virtual cluster: server_core and its rules with true gradients, on a simulated
 * clock.
 *
 * A worker released at virtual time t has its gradient at the server at
 *
 *   t + transfer(parameters) + latency + step + transfer(gradient) + latency
 *
 * where the step's length (with an outer rule: that of all steps until the push) comes from the
 * pace, the latency from network.* (worker/pace/cluster.h), and a transfer's time from the links
 * that it shares with others (shared_links.h). The server takes gradients in the order they arrive,
 * of those that arrive at one time the lowest worker's first, and is busy for server.apply_ms with
 * each. Of several servers each has its part of the gradient when it arrives there (the parts share
 * the worker's link), and a worker goes on when the last has answered; with read=torn they take
 * gradients as they come, with read=snapshot once they are at all servers and server 0 was told
 * (one message without content: the latency), the others in its order (one more). Evaluation takes
 * no time. A worker that dies loses what it computes or has on the wire; the server notices at
 * once, and starts it anew when it is back.
 *
 * Deterministic: the same settings give the same bits and the same times, whatever the number of
 * threads. With one worker, and with consistency=bsp, the parameters are those of a real run.
 * Gradients that are on their way when the run ends are not computed.
 */
#ifndef GRADLAG_PS_VIRTUAL_VIRTUAL_H
#define GRADLAG_PS_VIRTUAL_VIRTUAL_H

#include "ps/virtual/simulation.h"
#include "worker/pace/cluster.h"

struct virtual_options {
    const options *settings;
    gradient_pool *pool; /* borrowed; opened for as many workers */
    const pace *pace;    /* borrowed */
    unsigned workers;
    struct training_length length;
    struct training_hooks hooks;
    recorder *recorder; /* may be NULL */
};

/* ERROR_USAGE: the pace has no times of its own. ERROR_DIVERGED, ERROR_PEER (all workers wait for
 * each other, or die before they get to an update), STOPPED, or what a hook returned. `out` is
 * filled in as far as training got. */
status virtual_run(const struct virtual_options *o, struct training_outcome *out) MUST_CHECK;

#endif
