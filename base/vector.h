/*
 * vector.h — loops that are compiled once per vector width; the program selects the best at its
 * start. Also the loops that several rooms call.
 *
 * Numbers do not depend on the selection: contraction and fast math are off, so wider registers
 * only compute more of the same IEEE operations at once.
 */
#ifndef GRADLAG_BASE_VECTOR_H
#define GRADLAG_BASE_VECTOR_H

#include "base/status.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(GRADLAG_SANITIZE)
#define VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
/* Defines a function that calls `name_loop(…, avx512)`, an inline function whose source depends on
 * the vector width. The reason is gcc 12: for registers of 32 bytes it keeps vectors of 64 bytes in
 * memory and compares them element by element.
 * Example: VECTOR_FORMS(static, void, add, (float *x), x) */
#define VECTOR_FORMS(linkage, type, name, parameters, ...)                                         \
    __attribute__((target("avx512f"))) static type name##_512 parameters                           \
    {                                                                                              \
        return name##_loop(__VA_ARGS__, true);                                                     \
    }                                                                                              \
    __attribute__((target_clones("avx2", "default"))) static type name##_below_512 parameters      \
    {                                                                                              \
        return name##_loop(__VA_ARGS__, false);                                                    \
    }                                                                                              \
    linkage type name parameters                                                                   \
    {                                                                                              \
        return __builtin_cpu_supports("avx512f") ? name##_512(__VA_ARGS__)                         \
                                                 : name##_below_512(__VA_ARGS__);                  \
    }
#else
#define VECTOR_CLONES
#define VECTOR_FORMS(linkage, type, name, parameters, ...)                                         \
    linkage type name parameters                                                                   \
    {                                                                                              \
        return name##_loop(__VA_ARGS__, false);                                                    \
    }
#endif

/* x, or 0 if it is subnormal (|x| < 2⁻¹²⁶). For sums that decay, such as a momentum: rounding would
 * keep them subnormal for ever, and some processors compute with such numbers 100 times slower. */
static inline float flush_subnormal(float x)
{
    return fabsf(x) < FLT_MIN ? 0 : x;
}

enum { VECTOR_LANES = 16 };
/* lanes[i mod 16] ← Σ a[i]², in double, where the square of a float does not overflow. */
void vector_squares(size_t count, const float *a, double lanes[VECTOR_LANES]);
/* The sum of the lanes, in order. */
double vector_total(const double lanes[VECTOR_LANES]);
/* Σ a²: finite if and only if every element is. */
double vector_sum_of_squares(size_t count, const float *a);
/* Σ a b, in double. */
double vector_inner_product(size_t count, const float *a, const float *b);
/* out ← factor · a; out may be a. */
void vector_multiply(size_t count, float factor, const float *a, float *out);
/* sum ← sum + a; they do not overlap. */
void vector_add(size_t count, const float *a, float *sum);

#endif
