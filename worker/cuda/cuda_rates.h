/*
 * cuda_rates.h — rates of one GPU: matrix products, copies within its memory, copies from and to
 * the host, each measured alone. For `gradlag check` and `gradlag bench gemm`.
 *
 * Marks on the device before and after several repeats of the same work measure the time. The
 * result is the best of a few rounds; the first round is not counted.
 */
#ifndef GRADLAG_WORKER_CUDA_CUDA_RATES_H
#define GRADLAG_WORKER_CUDA_CUDA_RATES_H

#include "worker/cuda/cuda_device.h"

enum { CUDA_ARITHMETICS = CUDA_BF16 + 1 };
/* "fp32", "tf32", "bf16": the values of key precision. */
const char *cuda_arithmetic_name(enum cuda_arithmetic a);

struct cuda_rates_size {
    uint32_t product; /* rows, columns and inner of the product */
    size_t bytes;     /* of one copy */
    double seconds;   /* approximate duration of a round */
};
/* Large enough to fill a GPU. */
extern const struct cuda_rates_size cuda_rates_full;

struct cuda_rates {
    double product[CUDA_ARITHMETICS]; /* floating-point operations per second; 2 per product term */
    double memory;                    /* bytes per second within the device, read + written */
    double up, down;                  /* bytes per second from and to pinned host memory */
};

/* Measures all rates on visible device `index`. */
status cuda_rates_measure(const struct cuda_kind *kind, unsigned index,
                          const struct cuda_rates_size *size, struct cuda_rates *out) MUST_CHECK;

/* Operations per second of one product. `series[0..count)`: one rate per round. */
status cuda_rates_product(const struct cuda_kind *kind, cuda_device *d,
                          const struct cuda_product_shape *shape, double seconds, double *series,
                          unsigned count) MUST_CHECK;

/* True if rates[i] is more than a tenth below the median of all `count`. */
bool cuda_rates_slower(const double *rates, unsigned count, unsigned i);

#endif
