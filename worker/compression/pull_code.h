/*
 * pull_code.h — parameters that workers pull in 16 bits (key pull_precision).
 *
 * The server keeps θ in float32. A worker computes its gradient at θ̂, which is θ rounded to fp16
 * or bf16: float32 master weights, as in Micikevicius et al. 2018 (Mixed precision training),
 * section 3.1. A frame carries the codes, which have half the bytes. Shared memory carries the
 * floats. In both cases the worker rounds the values that it receives. Rounding a rounded value
 * again does not change it, so neither the payload nor the engine changes the bits.
 *
 * The codes are those of compression=fp16 and bf16: nearest, ties to even; a value beyond the
 * largest finite code becomes that code. There is no error feedback, because each pull replaces the
 * one before. The server's rules (corrections, gaps) use θ, not θ̂.
 */
#ifndef GRADLAG_WORKER_COMPRESSION_PULL_CODE_H
#define GRADLAG_WORKER_COMPRESSION_PULL_CODE_H

#include "worker/compression/compression.h"

struct pull_code {
    const struct compression_kind *kind; /* NULL: float32, no code */
};

struct pull_code pull_code_of(const options *settings);
/* Bytes of `count` parameters in frames. */
size_t pull_code_bytes(const struct pull_code *p, size_t count);
/* code[0..count) ← in. Contract of this function and the next two: p->kind is not NULL. */
void pull_code_encode(const struct pull_code *p, const float *in, size_t count, uint16_t *code);
/* `code` has `count` codes, at any alignment. */
void pull_code_decode(const struct pull_code *p, const void *code, size_t count, float *out);
/* out ← decode(encode(in)); no overlap. */
void pull_code_round(const struct pull_code *p, const float *in, size_t count, float *out);

#endif
