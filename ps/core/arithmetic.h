/*
 * arithmetic.h — the passes over vectors that only the server makes: how far parameters have moved
 * under a gradient that is held or dropped, and the mean of held ones of different scales.
 */
#ifndef GRADLAG_PS_CORE_ARITHMETIC_H
#define GRADLAG_PS_CORE_ARITHMETIC_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* ‖a − b‖₂ / √count */
double vector_rms_distance(size_t count, const float *a, const float *b);
/* a·b / (‖a‖ ‖b‖); NaN if one of them is 0 or not finite. Of a vector and itself exactly 1. */
double vector_cosine(size_t count, const float *a, const float *b);
/* sum ← weight · a if `first`, else sum + weight · a */
void vector_add_weighted(size_t count, float weight, const float *a, bool first, float *sum);

#endif
