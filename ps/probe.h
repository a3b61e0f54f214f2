/*
 * probe.h — how much a stale gradient still says: the cosine of the angle between it and a fresh
 * one, of the same batch at the parameters that it is about to be applied to.
 *
 * Every n-th gradient is probed, by its arrival, with key probe_every=n. The fresh gradient is not
 * used: it is computed besides, while the training clock stands still, and changes nothing.
 */
#ifndef GRADLAG_PS_PROBE_H
#define GRADLAG_PS_PROBE_H

#include "worker/options.h"

struct probe {
    uint64_t every; /* 0: none */
    size_t count;
    float *fresh; /* NULL: none */
};

/* Reads key probe_every. */
status probe_open(struct probe *out, const options *o, size_t count) MUST_CHECK;
void probe_close(struct probe *p);
/* Whether the gradient that arrives after `arrivals` others is one of those. */
bool probe_is_due(const struct probe *p, uint64_t arrivals);

#endif
