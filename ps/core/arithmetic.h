/*
 * arithmetic.h — norms, distances and weighted sums of float32 vectors of `count` elements.
 * Results do not depend on the vector width of the machine.
 */
#ifndef GRADLAG_PS_CORE_ARITHMETIC_H
#define GRADLAG_PS_CORE_ARITHMETIC_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* ‖a − b‖₂ / √count */
double vector_rms_distance(size_t count, const float *a, const float *b);
/* a·b / (‖a‖ ‖b‖); NaN if a vector is 0 or not finite. The cosine of a vector and itself is exactly
 * 1. */
double vector_cosine(size_t count, const float *a, const float *b);
/* sum ← weight · a if `first`, otherwise sum + weight · a */
void vector_add_weighted(size_t count, float weight, const float *a, bool first, float *sum);

#endif
