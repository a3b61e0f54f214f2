/*
 * resident.h — training on a device with memory of its own: parameters, gradient and optimizer
 * state stay there from update to update, and only what is asked for is copied down.
 *
 * The addresses in `struct resident` are the device's. The host must not follow them; they are good
 * for worker_gradient, worker_evaluate, the worker_resident_… functions of worker.h, and libraries
 * that work on that device themselves (NCCL).
 */
#ifndef GRADLAG_WORKER_RESIDENT_H
#define GRADLAG_WORKER_RESIDENT_H

#include "worker/optimizer.h"

struct resident {
    float *parameters; /* [count] */
    float *gradient;   /* [count], and behind it what was asked for as `extra` */
    float *state;      /* [states × count]; NULL: none */
};

/* One update on the device: element by element the IEEE operations of optimizer_apply, so the same
 * bits. θ, and the state, are written in place, and only if the whole gradient is finite. The
 * squares of the gradient are summed in double in a fixed order, which is not the host's: the norm
 * may differ in its last bits. */
struct resident_update {
    struct optimizer_rule rule;
    double scale, lr;
    /* Nobody has changed the gradient since the step that computed it. From the second such update
     * on, that step sums the squares, too: the update is then only queued, and what goes wrong in
     * it shows at a later call. */
    bool as_computed;
};

/* Where a worker computes, for a library that queues work there itself. */
struct device_place {
    char pci[32];   /* "0000:1b:00.0": one GPU of a host */
    unsigned index; /* among the visible devices */
    void *stream;   /* cudaStream_t that steps and updates run on, in order; NULL: no real GPU */
};

#endif
