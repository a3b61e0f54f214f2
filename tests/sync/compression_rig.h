/*
 * compression_rig.h — compressions opened by name, and numbers to compress.
 */
#ifndef GRADLAG_TESTS_SYNC_COMPRESSION_RIG_H
#define GRADLAG_TESTS_SYNC_COMPRESSION_RIG_H

#include "sync/compression/compression.h"

/* With the kind's keys at their defaults, but for `ratio` where it is not NULL. */
status compression_rig_open(compression **out, const char *name, const char *ratio, size_t count,
                            const size_t *ends, size_t tensors) MUST_CHECK;
/* The next of a sequence that `bits` determines, in [-1, 1). */
float compression_rig_noise(uint32_t *bits);

#endif
