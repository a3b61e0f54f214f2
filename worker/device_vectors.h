/*
 * device_vectors.h — training on a device with its own memory: parameters, gradient and optimizer
 * state stay on the device between updates. Only requested values are copied to the host.
 *
 * The addresses in `struct device_vectors` are device addresses. The host must not dereference
 * them. They are valid for worker_gradient, worker_evaluate, the worker_resident_… functions of
 * worker.h, and libraries that work on the same device (NCCL).
 */
#ifndef GRADLAG_WORKER_DEVICE_VECTORS_H
#define GRADLAG_WORKER_DEVICE_VECTORS_H

#include "worker/optimizer/optimizer.h"

struct device_vectors {
    float *parameters; /* [count] */
    float *gradient;   /* [count + extra]; the first `count` are the gradient */
    float *state;      /* [states × count]; NULL: none */
};

/* One update on the device. It applies the IEEE operations of optimizer_apply element by element,
 * so the bits equal the host's. θ and the state are written in place, and only if the whole
 * gradient is finite. The squares of the gradient are summed in double in a fixed order that
 * differs from the host's: the norm may differ in its last bits. */
struct device_update {
    struct optimizer_rule rule;
    double scale, lr;
    /* True: the gradient is unchanged since the step that computed it. From the second such update
     * on, that step also sums the squares; the update is then only queued, and a later call reports
     * its errors. */
    bool as_computed;
};

/* Where a worker computes, for a library that queues its own work there. */
struct device_place {
    char pci[32];   /* "0000:1b:00.0": identifies a GPU of a host */
    unsigned index; /* among the visible devices */
    void *stream;   /* cudaStream_t that steps and updates run on, in order */
};

#endif
