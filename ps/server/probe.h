/*
 * probe.h — which gradients are probed. A probe measures the cosine of the angle between a stale
 * gradient and a fresh one, of the same batch at the parameters to which the stale one is applied.
 *
 * With key probe_every=n every n-th gradient is probed, in order of arrival. The training clock
 * stands still meanwhile. The fresh gradient is not applied: a probe changes no parameter.
 */
#ifndef GRADLAG_PS_SERVER_PROBE_H
#define GRADLAG_PS_SERVER_PROBE_H

#include "base/options.h"

struct probe {
    uint64_t every; /* 0: none */
    size_t count;
    float *fresh; /* NULL: none */
};

/* Reads key probe_every. */
status probe_open(struct probe *out, const options *o, size_t count) MUST_CHECK;
void probe_close(struct probe *p);
/* Whether to probe the gradient that arrives after `arrivals` others. */
bool probe_is_due(const struct probe *p, uint64_t arrivals);

#endif
