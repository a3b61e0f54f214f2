/*
 * push_codes.h — compresses the pushes of one worker, with error feedback (key compression).
 *
 * The worker encodes and decodes: it replaces its gradient by the decoded values. So the server
 * gets the same bits through shared memory, which carries the decoded floats, and in frames, which
 * carry the code. Replay and simulation compute the same bits, because they run this function, too.
 *
 * Each server's slice has a code and a residual (ps/core/slice_code.h). What a code loses is added
 * to the worker's next gradient, also if the server drops the push. A new incarnation of a worker
 * and a resumed run begin with residual 0.
 *
 * Memory: a residual as long as the gradient, and the code, for each worker.
 */
#ifndef GRADLAG_PS_PUSH_CODES_H
#define GRADLAG_PS_PUSH_CODES_H

#include "ps/core/slice_code.h"

struct push_code {
    compression *compression;
    void *bytes; /* the last code */
    size_t size; /* bytes of the last code */
};

struct push_codes {
    struct slices slices;
    struct push_code *servers; /* [slices.servers]; NULL: compression=none */
    uint64_t epoch_samples;
};

/* Reads compression, its dotted keys, and the keys of slices_open. `layers`: worker_layers.
 * Errors: those of slices_open and compression_open. */
status push_codes_open(struct push_codes *p, const options *settings,
                       const struct optimizer_layers *layers, size_t count,
                       uint64_t epoch_samples) MUST_CHECK;
void push_codes_close(struct push_codes *p);
bool push_codes_enabled(const struct push_codes *p);
/* Bytes of a push to that server. `samples`: samples that training had used up to the version that
 * the worker has read. */
size_t push_codes_bytes(const struct push_codes *p, unsigned server, uint64_t samples);
/* Sets the residual to 0, and with compression=dgc the velocity. */
void push_codes_reset(struct push_codes *p);
/* `samples`: as in push_codes_bytes. gradient ← the decoded values of gradient + residual; writes
 * the codes and the new residual. The codes stay until the next call. False: loss or gradient is
 * not finite, or no optimizer takes a gradient of this norm; the gradient, the codes and the
 * residual are unchanged. The caller then pushes the floats, and the server sees them. */
bool push_codes_apply(struct push_codes *p, uint64_t samples, float *gradient, float loss);

#endif
