/*
 * sparse.h — codes of the k largest floats of a vector by absolute value: k indices (u32),
 * ascending, then their k values. Among equal floats the first are sent.
 */
#ifndef GRADLAG_WORKER_COMPRESSION_SPARSE_H
#define GRADLAG_WORKER_COMPRESSION_SPARSE_H

#include "worker/compression/compression.h"

/* Scratch memory for selecting the k largest floats. */
struct sparse;
/* ERROR_USAGE: `count` exceeds the range of indices; the message names the kind. */
status sparse_open(struct sparse **out, const struct compression_kind *kind,
                   size_t count) MUST_CHECK;
/* ratio × count, rounded, 1 … count. */
size_t sparse_k(double ratio, size_t count);
size_t sparse_bytes(size_t k);
/* Writes the code and sets the values that it contains to 0. Values that are not finite count as
 * the largest. */
void sparse_encode(struct sparse *s, size_t k, float *values, size_t count, void *code);
void sparse_add(size_t k, const void *code, size_t count, float *sum);
bool sparse_is_valid(size_t k, const void *code, size_t count);

#endif
