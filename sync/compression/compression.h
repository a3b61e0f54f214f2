/*
 * compression.h — smaller gradients between ranks, with error feedback.
 *
 * What a code cannot represent stays in this rank's residual and is added to its next gradient
 * (Seide et al. 2014, section 3; Karimireddy et al. 2019, algorithm 2):
 *
 *     p ← gradient + residual;  code ← encode(p);  residual ← p − decode(code)
 *
 * So after any number of updates, the mean of what was applied plus the mean of the residuals is
 * the mean of all gradients: nothing is lost, it is applied later. The residual has the unit of the
 * gradient. Some papers include the learning rate (p = γ·g + e). Both forms are equal as long as
 * the rate is constant; when the rate falls, an old error counts here at the new, lower rate.
 *
 * sync/compression/compression_NAME.c implements a code, and one line in compression.def registers
 * it. compression_exchange.c sends codes between ranks. One thread.
 */
#ifndef GRADLAG_SYNC_COMPRESSION_COMPRESSION_H
#define GRADLAG_SYNC_COMPRESSION_COMPRESSION_H

#include "sync/communicator/communicator.h"

typedef struct compression compression;

struct compression_kind {
    struct about about;
    /* Bytes of one float's code, if each float is coded by itself and so any part of a vector can
     * be coded. 0: only whole vectors are coded, in code_bytes() bytes. */
    size_t float_bytes;
    size_t (*code_bytes)(const compression *z); /* of a whole vector; NULL: float_bytes × count */
    status (*open)(compression *z, const options *o); /* sets z->state; may be NULL */
    void (*close)(compression *z);
    /* code ← values[0..count); values[i] ← values[i] − its decoded value. A value that is not
     * finite must be not finite after decoding. If float_bytes is 0, count is z->count. */
    void (*encode)(compression *z, float *values, size_t count, void *code);
    /* sum[0..count) += the decoded values. */
    void (*add)(const compression *z, const void *code, size_t count, float *sum);
};
extern const struct registry compression_registry;

struct compression {
    const struct compression_kind *kind;
    size_t count;
    size_t *ends; /* [tensors] where each tensor of the vector ends, ascending; the last is count */
    size_t tensors;
    float *residual; /* [count] */
    void *state;
    struct compression_exchange *exchange; /* sync/compression/compression_exchange.c */
};

/* For vectors of `count` floats; a tensor ends at each of ends[0..tensors), copied (tensors = 0:
 * one tensor). Reads the kind's own keys. */
status compression_open(compression **out, const struct compression_kind *kind, const options *o,
                        size_t count, const size_t *ends, size_t tensors) MUST_CHECK;
void compression_close(compression **z);
size_t compression_code_bytes(const compression *z);
/* Adds the residual to gradient[from..from + count), writes the code and updates the residual. */
void compression_encode(compression *z, const float *gradient, size_t from, size_t count,
                        void *code);

/* ---- between ranks (compression_exchange.c) ----------------------------------------------------
 */

/* ERROR_USAGE: key communicator names a kind that does not send codes. */
status compression_check(const options *o) MUST_CHECK;
/* *out ← the kind that key `compression` chooses; NULL for none, or with one rank. ERROR_USAGE:
 * this communicator does not send codes. */
status compression_chosen(const struct compression_kind **out, const options *o,
                          const communicator *c) MUST_CHECK;
/* Allocates memory for the exchange. Call it on all ranks. */
status compression_join(compression *z, communicator *c) MUST_CHECK;
void compression_leave(compression *z); /* compression_close calls it */
/* gradient[0..count) ← the mean over ranks of the decoded gradients, in rank order: the same bits
 * on every rank and for any `reduction`. notes[0..COMMUNICATOR_NOTES) ← their mean, uncompressed.
 * If a gradient or note of any rank is not finite, gradient[0] becomes NaN on all ranks and
 * residuals stay unchanged. Collective; allocates nothing. */
status compression_mean(compression *z, communicator *c, float *gradient, float *notes) MUST_CHECK;

#endif
