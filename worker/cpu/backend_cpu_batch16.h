/*
 * backend_cpu_batch16.h — small convolutions with the batch in the vector lanes.
 *
 * oneDNN's kernels put 16 channels into an AVX-512 register. A layer with fewer channels (lenet has
 * 1, 8 and 16) leaves most lanes idle. These kernels fill the lanes with 16 images: layout
 * [batch/16][channels][height][width][16] (oneDNN's tag Abcd16a). Any number of channels is then
 * equally fast, pools and weight gradients need no shuffles, and borders cost nothing.
 *
 * Invariant: lanes beyond the batch hold zeros in inputs and in gradients, so they add nothing to a
 * sum.
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
bool batch16_available(void);
bool batch16_kernel_size(uint32_t kernel); /* true: there are kernels for this size */
/* weight: [outputs][inputs][kernel][kernel]; bias may be NULL. */
void batch16_forward(const struct batch16_convolution *s, const float *in, const float *weight,
                     const float *bias, bool relu, float *out);
void batch16_backward_data(const struct batch16_convolution *s, const float *gradient,
                           const float *weight, bool accumulate, float *input_gradient);
/* `sums`: outputs × (inputs × kernel² + 1) × 16 floats of scratch. bias_gradient may be NULL. */
void batch16_backward_weights(const struct batch16_convolution *s, const float *in,
                              const float *gradient, float *sums, float *weight_gradient,
                              bool accumulate_weight, float *bias_gradient, bool accumulate_bias);

struct batch16_pool {
    uint32_t planes; /* blocks × channels */
    uint32_t input_height, input_width, output_height, output_width;
    uint32_t kernel_height, kernel_width, stride;
};
/* which: [planes][output positions][16], position of the largest value in the window */
void batch16_max_pool(const struct batch16_pool *s, const float *in, float *out, uint8_t *which);
void batch16_max_pool_backward(const struct batch16_pool *s, const float *gradient,
                               const uint8_t *which, bool accumulate, float *input_gradient);

#endif
