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

enum { DEVICE_STEPS_MOST = 8, DEVICE_NOTES = 6 };

/* The sum of a gradient over ranks, by a library that queues its work on a stream (NCCL). */
struct device_sum {
    /* data[0..count) ← Σ over ranks, on `stream`, a cudaStream_t */
    status (*queue)(void *context, float *data, size_t count, void *stream);
    void *context;
    size_t bucket; /* elements of a bucket; its sum overlaps the rest of the backward pass */
};

/* The update that follows a step on the device, without the host. It applies the IEEE operations of
 * optimizer_apply element by element, so the bits equal the host's. θ and the state are written in
 * place, and only if the loss and the whole gradient are finite. The squares of the gradient are
 * summed in double in a fixed order that differs from the host's: the norm may differ in its last
 * bits. */
struct device_update {
    struct optimizer_rule rule;
    double scale, lr;
    /* Borrowed until the vectors are closed; NULL: one rank. If it is set, the notes are summed
     * with the gradient, as elements after its end. The device computes the first note, the mean
     * loss. */
    const struct device_sum *sum;
    float notes[DEVICE_NOTES];
};

/* The result of such a step. */
struct device_result {
    double loss;      /* of this rank, a sum as in struct op_loss */
    double squares;   /* Σ gradient², before `scale` */
    uint32_t correct; /* of this rank */
    uint32_t updated; /* 0: no update, because the loss or gradient is not finite or too large, or
                         because an earlier queued step made none */
    float notes[DEVICE_NOTES]; /* sums over ranks; the first is the sum of their mean losses */
};

/* Where a worker computes, for a library that queues its own work there. */
struct device_place {
    char pci[32];   /* "0000:1b:00.0": identifies a GPU of a host */
    unsigned index; /* among the visible devices */
    void *stream;   /* cudaStream_t that steps and updates run on, in order */
    unsigned steps; /* steps that may be queued before the host waits, at most DEVICE_STEPS_MOST */
};

#endif
