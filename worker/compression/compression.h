/*
 * compression.h — smaller gradients in messages, with error feedback.
 *
 * The sender is a rank (sync/compression/compression_exchange.h) or an asynchronous worker
 * (ps/push_codes.h). What a code cannot represent stays in the sender's residual and is added to
 * its next gradient (Seide et al. 2014, section 3; Karimireddy et al. 2019, algorithm 2):
 *
 *     p ← gradient + residual;  code ← encode(p);  residual ← p − decode(code)
 *
 * So after any number of updates, the mean of what was applied plus the mean of the residuals is
 * the mean of all gradients: nothing is lost, it is applied later. The residual has the unit of the
 * gradient. Some papers include the learning rate (p = γ·g + e). Both forms are equal as long as
 * the rate is constant; when the rate falls, an old error counts here at the new, lower rate.
 *
 * worker/compression/compression_NAME.c implements a code, and one line in compression.def
 * registers it. One thread uses a compression.
 */
#ifndef GRADLAG_WORKER_COMPRESSION_COMPRESSION_H
#define GRADLAG_WORKER_COMPRESSION_COMPRESSION_H

#include "base/options.h"
#include "base/registry.h"

typedef struct compression compression;

struct compression_kind {
    struct about about;
    /* Bytes of one float's code, if each float is coded by itself and so any part of a vector can
     * be coded. 0: only whole vectors are coded, in code_bytes() bytes. */
    size_t float_bytes;
    size_t (*code_bytes)(const compression *z); /* of a whole vector; NULL: float_bytes × count */
    /* The sender has a velocity: the optimizer must have no momentum, and the code depends on
     * z->epoch. */
    bool has_momentum;
    status (*open)(compression *z, const options *o); /* sets z->state; may be NULL */
    void (*close)(compression *z);
    /* code ← values[0..count); values[i] ← values[i] − its decoded value. A value that is not
     * finite must be not finite after decoding. If float_bytes is 0, count is z->count. */
    void (*encode)(compression *z, float *values, size_t count, void *code);
    /* sum[0..count) += the decoded values. Contract: the code is valid. */
    void (*add)(const compression *z, const void *code, size_t count, float *sum);
    /* Whether encode() can have written this code of a whole vector; NULL: it can write any bytes.
     * The values may be any numbers, also not finite. */
    bool (*is_valid)(const compression *z, const void *code);
};
extern const struct registry compression_registry;

struct compression {
    const struct compression_kind *kind;
    size_t count;
    size_t *ends; /* [tensors] where each tensor of the vector ends, ascending; the last is count */
    size_t tensors;
    float *residual; /* [count]; NULL: only decodes */
    float *velocity; /* [count] of a kind with momentum; else NULL */
    float momentum;  /* coefficient of the velocity */
    double epoch;    /* position of training, for the warm-up of a kind with momentum */
    void *state;
    struct compression_exchange *exchange; /* of sync/compression/, which opens and frees it */
};

/* For vectors of `count` floats; a tensor ends at each of ends[0..tensors), copied (tensors = 0:
 * one tensor). Reads the kind's own keys. */
status compression_open(compression **out, const struct compression_kind *kind, const options *o,
                        size_t count, const size_t *ends, size_t tensors) MUST_CHECK;
/* The same without a residual: for a receiver, which only decodes. */
status compression_open_decoder(compression **out, const struct compression_kind *kind,
                                const options *o, size_t count, const size_t *ends,
                                size_t tensors) MUST_CHECK;
void compression_close(compression **z);
/* ERROR_USAGE: the optimizer, the outer rule, local steps or a single rank do not fit the chosen
 * kind. */
status compression_check_momentum(const options *o) MUST_CHECK;
/* Sets the position of training, in epochs, for the next codes. Sender and receiver must set the
 * same position. Initially 0. */
void compression_set_epoch(compression *z, double epoch);
/* Bytes of a code at this epoch. A code is longest at epoch 0. */
size_t compression_bytes_at(const compression *z, double epoch);
/* The sender's state: residual, then velocity. Reset sets it to 0. */
size_t compression_state_count(const compression *z);
void compression_state_read(const compression *z, float *out);
void compression_state_write(compression *z, const float *in);
void compression_reset(compression *z);
/* The kind that key `compression` names; NULL: none. */
const struct compression_kind *compression_of(const options *o);
size_t compression_code_bytes(const compression *z);
/* Adds gradient[from..from + count) to the residual (a kind with momentum: adds it to the velocity,
 * and the velocity to the residual), writes the code and subtracts the decoded values. */
void compression_encode(compression *z, const float *gradient, size_t from, size_t count,
                        void *code);
/* Checks a code that another process sent; `code` is aligned for floats. False: no sender with the
 * same settings can have written it. */
bool compression_is_valid(const compression *z, const void *code);
/* out[0..z->count) ← the decoded values of a whole vector's code. */
void compression_decode(const compression *z, const void *code, float *out);

#endif
