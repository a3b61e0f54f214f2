/*
 * compression_rig.h — opens compressions by name; numbers to compress.
 */
#ifndef GRADLAG_TESTS_WORKER_COMPRESSION_COMPRESSION_RIG_H
#define GRADLAG_TESTS_WORKER_COMPRESSION_COMPRESSION_RIG_H

#include "worker/compression/compression.h"

/* The kind's keys have their defaults, except compression.ratio if `ratio` is not NULL, and no
 * momentum. */
status compression_rig_open(compression **out, const char *name, const char *ratio, size_t count,
                            const size_t *ends, size_t tensors) MUST_CHECK;
/* The next number of a pseudo-random sequence, in [-1, 1). `bits`: its state. */
float compression_rig_noise(uint32_t *bits);

#endif
