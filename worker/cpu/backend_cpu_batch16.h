/*
 * backend_cpu_batch16.h — small convolutions with the batch in the vector lanes.
 *
 * oneDNN's kernels put 16 channels into an AVX-512 register, and 8 into one of AVX2. A layer with
 * fewer channels (lenet has 1, 8 and 16) leaves most lanes idle. These kernels fill the lanes with
 * 16 images: layout [batch/16][channels][height][width][16] (oneDNN's tag Abcd16a). Any number of
 * channels is then equally fast, pools and weight gradients need no shuffles, and borders cost
 * nothing.
 *
 * Invariant: lanes beyond the batch hold zeros in gradients, and finite numbers elsewhere, so they
 * add nothing to the gradient of a weight.
 */
#ifndef GRADLAG_WORKER_CPU_BACKEND_CPU_BATCH16_H
#define GRADLAG_WORKER_CPU_BACKEND_CPU_BATCH16_H

#include "worker/cpu/backend_cpu.h"

enum { LANES = 16 };

/* True: this processor supports the kernels, and they are faster for this operation. */
bool cpu_lanes_convolution_fits(const struct op_description *d);
bool cpu_lanes_pool_fits(const struct op_description *d, const backend_buffer *input);
status cpu_lanes_convolution_open(struct cpu *c, const struct op_description *d,
                                  backend_buffer *const in[2], backend_op **out,
                                  backend_buffer **output) MUST_CHECK;
status cpu_lanes_pool_open(struct cpu *c, const struct op_description *d,
                           backend_buffer *const in[2], backend_op **out,
                           backend_buffer **output) MUST_CHECK;

/* ---- kernels ---- */

/* No padding, stride 1; `blocks` blocks of 16 images. */
struct batch16_convolution {
    uint32_t blocks, inputs, input_height, input_width;
    uint32_t outputs, output_height, output_width, kernel;
};

struct batch16_pool {
    uint32_t planes; /* blocks × channels */
    uint32_t input_height, input_width, output_height, output_width;
    uint32_t kernel_height, kernel_width, stride;
};

/* One form of the kernels; all forms give equal bits. */
struct batch16_kernels {
    const char *name;
    uint32_t width; /* lanes of a vector */
    /* The kernel is 3×3 or 5×5. weight: [outputs][inputs][kernel][kernel]; bias may be NULL. */
    void (*forward)(const struct batch16_convolution *s, const float *in, const float *weight,
                    const float *bias, bool relu, float *out);
    void (*backward_data)(const struct batch16_convolution *s, const float *gradient,
                          const float *weight, bool accumulate, float *input_gradient);
    /* `sums`: outputs × (inputs × kernel² + 1) × 16 floats of scratch. bias_gradient may be NULL.
     */
    void (*backward_weights)(const struct batch16_convolution *s, const float *in,
                             const float *gradient, float *sums, float *weight_gradient,
                             bool accumulate_weight, float *bias_gradient, bool accumulate_bias);
    /* which: [planes][output positions][16], position of the largest value in the window */
    void (*max_pool)(const struct batch16_pool *s, const float *in, float *out, uint8_t *which);
    void (*max_pool_backward)(const struct batch16_pool *s, const float *gradient,
                              const uint8_t *which, bool accumulate, float *input_gradient);
};
extern const struct batch16_kernels batch16_avx512, batch16_avx2; /* only on x86-64 */
/* Form i of those that this processor supports, the fastest first; NULL after the last. */
const struct batch16_kernels *batch16_form(size_t i);

#endif
