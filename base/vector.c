/* vector.c — see vector.h. Sums run in a fixed number of lanes, so that they do not depend on the
 * vector width. */
#include "base/vector.h"

#include <string.h>

enum { LANES = VECTOR_LANES };

VECTOR_CLONES
void vector_squares(size_t count, const float *restrict a, double lanes[VECTOR_LANES])
{
    double sum[LANES] = {0};
    size_t whole = count / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            sum[l] += (double)a[i + l] * (double)a[i + l];
    for (size_t i = whole; i < count; i++)
        sum[i - whole] += (double)a[i] * (double)a[i];
    memcpy(lanes, sum, sizeof sum);
}

double vector_total(const double lanes[VECTOR_LANES])
{
    double sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += lanes[l];
    return sum;
}

double vector_sum_of_squares(size_t count, const float *a)
{
    double lanes[LANES];
    vector_squares(count, a, lanes);
    return vector_total(lanes);
}

VECTOR_CLONES
static void products(size_t count, const float *a, const float *b, double lanes[VECTOR_LANES])
{
    for (size_t i = 0; i < count; i++)
        lanes[i % LANES] += (double)a[i] * (double)b[i];
}

double vector_inner_product(size_t count, const float *a, const float *b)
{
    double lanes[LANES] = {0};
    products(count, a, b, lanes);
    return vector_total(lanes);
}

VECTOR_CLONES
void vector_multiply(size_t count, float factor, const float *a, float *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = factor * a[i];
}

VECTOR_CLONES
void vector_add(size_t count, const float *restrict a, float *restrict sum)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += a[i];
}
