/* arithmetic.c — see arithmetic.h. A fixed number of lanes makes sums independent of the machine's
 * vector width. */
#include "ps/core/arithmetic.h"

#include "base/vector.h"

#include <math.h>

enum { LANES = VECTOR_LANES };

VECTOR_CLONES
double vector_rms_distance(size_t count, const float *a, const float *b)
{
    double lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (size_t k = 0; k < LANES; k++) {
            double d = (double)a[i + k] - (double)b[i + k];
            lanes[k] += d * d;
        }
    }
    for (; i < count; i++) {
        double d = (double)a[i] - (double)b[i];
        lanes[0] += d * d;
    }
    return sqrt(vector_total(lanes) / (double)count);
}

VECTOR_CLONES
static void products(size_t count, const float *a, const float *b, double lanes[3][LANES])
{
    for (size_t i = 0; i < count; i++) {
        double x = (double)a[i], y = (double)b[i];
        lanes[0][i % LANES] += x * y;
        lanes[1][i % LANES] += x * x;
        lanes[2][i % LANES] += y * y;
    }
}

double vector_cosine(size_t count, const float *a, const float *b)
{
    double lanes[3][LANES] = {{0}};
    products(count, a, b, lanes);
    return vector_total(lanes[0]) / sqrt(vector_total(lanes[1]) * vector_total(lanes[2]));
}

VECTOR_CLONES
void vector_add_weighted(size_t count, float weight, const float *a, bool first, float *sum)
{
    for (size_t i = 0; i < count; i++)
        sum[i] = first ? weight * a[i] : sum[i] + weight * a[i];
}
