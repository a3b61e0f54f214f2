/*
 * tape.h — models in ordinary C: each call below performs one operation and records it on the tape.
 * The tape is then read backwards for the gradient (reverse-mode differentiation).
 *
 *   tensor *forward(tape *t, tensor *x)
 *   {
 *       x = relu(t, linear(t, x, "fc1", 256));
 *       if (tape_value(t, x)[0] > 1)          // control flow may depend on data
 *           x = relu(t, linear(t, x, "extra", 256));
 *       return linear(t, x, "fc2", 10);
 *   }
 *
 * Reuse between steps: the tape matches each call to an earlier operation with the same shapes and
 * layouts and reuses its buffers. After every path through the model has run once, a step allocates
 * nothing.
 *
 * Lazy execution: an operation runs when its result is first needed, so that the next call, if it
 * is an activation, can be fused into it. A result that is needed with and without the activation
 * is computed twice.
 *
 * Layers have names. Two calls with the same name share weights, and their gradients are added. All
 * layers must be known before the first step. They are found by one run of the model on a
 * TAPE_DISCOVER tape, which computes nothing (tape_value returns zeros there). If this run does not
 * reach a layer, the model's `declare` must call it.
 *
 * Errors are sticky: after an error calls do nothing, and tape_finish returns the error. Tensors
 * belong to the tape and live until its next tape_begin. A shape is that of one sample; every
 * tensor holds a batch.
 */
#ifndef GRADLAG_WORKER_MODEL_TAPE_H
#define GRADLAG_WORKER_MODEL_TAPE_H

#include "worker/data/dataset.h"
#include "worker/model/parameters.h"

typedef struct tape tape;
typedef struct tensor tensor;

/* ---- operations: called by models ---- */

/* y = x Wᵀ + b. x of any shape is read in C,H,W order. Result: outputs×1×1. */
tensor *linear(tape *t, tensor *x, const char *name, uint32_t outputs);
/* y = x Wᵀ. */
tensor *linear_unbiased(tape *t, tensor *x, const char *name, uint32_t outputs);
/* Square kernel, zero padding on each side. W: [channels][x's channels][kernel][kernel]. */
tensor *conv2d(tape *t, tensor *x, const char *name, uint32_t channels, uint32_t kernel,
               uint32_t stride, uint32_t padding);
/* conv2d without a bias, for use before batch_norm. */
tensor *conv2d_unbiased(tape *t, tensor *x, const char *name, uint32_t channels, uint32_t kernel,
                        uint32_t stride, uint32_t padding);
/* No padding; positions that do not fill a window are dropped. */
tensor *max_pool(tape *t, tensor *x, uint32_t kernel, uint32_t stride);
tensor *avg_pool(tape *t, tensor *x, uint32_t kernel, uint32_t stride);
/* The mean over all positions. Result: channels×1×1. */
tensor *global_avg_pool(tape *t, tensor *x);
tensor *activate(tape *t, tensor *x, enum activation a);
tensor *relu(tape *t, tensor *x);
tensor *hyperbolic_tangent(tape *t, tensor *x);
tensor *gelu(tape *t, tensor *x); /* x·Φ(x), exact (Hendrycks & Gimpel 2016) */
tensor *add(tape *t, tensor *a, tensor *b);
tensor *reshape(tape *t, tensor *x, uint32_t channels, uint32_t height, uint32_t width);
/* Per channel over batch and positions (Ioffe & Szegedy 2015), ε = 1e-5. */
tensor *batch_norm(tape *t, tensor *x, const char *name);
/* ---- sequences: T positions with C features are T×1×C ---- */

/* One row of W [vocabulary][width] for each of the tokens, which are whole numbers below
 * `vocabulary` and have no gradient. Tokens: T×1×1 or 1×T×1. Result: T×1×width. `deviation` is the
 * standard deviation of the initial weights; 0: struct layer's default. */
tensor *embedding(tape *t, tensor *tokens, const char *name, uint32_t vocabulary, uint32_t width,
                  float deviation);
/* x + W; W: [T][C]. */
tensor *position_embedding(tape *t, tensor *x, const char *name, float deviation);
/* Over the C features of each position (Ba et al. 2016), with γ and β, ε = 1e-5. */
tensor *layer_norm(tape *t, tensor *x, const char *name);
/* y = x Wᵀ at each position; W: [outputs][C]. Result: T×1×outputs. */
tensor *linear_per_position(tape *t, tensor *x, const char *name, uint32_t outputs,
                            float deviation);
/* Causal self-attention with `heads` heads (Vaswani et al. 2017, section 3.2). x: T×1×3C, query,
 * key and value of each position (backend.h: OP_ATTENTION). Result: T×1×C. */
tensor *causal_attention(tape *t, tensor *x, uint32_t heads);

/* Mean over the batch, nats; logits: classes×1×1, or T×1×classes if a sample has T labels
 * (tape_set_targets): then the mean is also over positions. Only tape_finish accepts the result. */
tensor *softmax_cross_entropy(tape *t, tensor *logits);
/* Mean over the batch of ½ Σ (y − (scale × label + shift))², summed over the channels of y; y:
 * channels×1×1. Only tape_finish accepts the result. */
tensor *squared_error(tape *t, tensor *y, float scale, float shift);
/* Sets the label smoothing ε of the next steps (op_targets). Initially 0. */
void tape_smooth_labels(tape *t, double smoothing);
/* TAPE_TRAIN, before the first step: batch norm is over the joint batch of `joint` (borrowed).
 * NULL: over this tape's batch, as if there were one worker. It may be called again later. The time
 * in joint->add_up counts as watch time. */
void tape_join(tape *t, const struct batch_norm_group *joint);

uint32_t tape_batch(const tape *t);
struct shape tensor_shape(const tensor *x);
/* The value, row-major [batch][channels][height][width]; valid until the next tape_begin. */
const float *tape_value(tape *t, tensor *x);

/* ---- the tape: called by workers and tests ---- */

enum tape_mode {
    TAPE_DISCOVER,  /* adds layers to the table; needs no backend */
    TAPE_TRAIN,     /* forward and backward; batch norm by the batch's statistics */
    TAPE_CALIBRATE, /* forward; collects statistics of batch norm */
    TAPE_EVALUATE,  /* forward; batch norm by the collected statistics */
};

/* `parameters` and `b` are borrowed. */
status tape_open(tape **out, backend *b, parameter_table *parameters, enum tape_mode mode,
                 struct shape input, uint32_t batch) MUST_CHECK;
void tape_close(tape **t);
/* Switches between TAPE_CALIBRATE (which discards earlier statistics) and TAPE_EVALUATE. */
void tape_set_mode(tape *t, enum tape_mode mode);
/* The sums that a tape collected in TAPE_CALIBRATE, so that several tapes of one model share the
 * batches: [tape_sum_count]. A tape in TAPE_CALIBRATE adds them to its own. The same sums added in
 * the same order give the same bits. */
size_t tape_sum_count(const tape *t);
void tape_copy_sums(const tape *t, double *to);
void tape_add_sums(tape *t, const double *from);
/* The statistics of batch norm in layer `layer`, as TAPE_EVALUATE uses them: one mean and one
 * variance for each channel. Borrowed from the tape, which changes them at the next calibration. */
void tape_statistics(const tape *t, size_t layer, const float **mean, const float **variance);

/* Sets the number of labels of one sample; initially 1. Allocates the labels anew: tape_labels
 * returns another address, and all labels are 0. */
status tape_set_targets(tape *t, uint32_t targets) MUST_CHECK;
/* The caller fills these before tape_begin: [batch][channels][height][width], [batch][targets]. */
float *tape_images(tape *t);
uint32_t *tape_labels(tape *t);
/* Alternative to filling: gathers the batch of these samples, as dataset_gather does. If the
 * backend has the dataset, it gathers on the device (backend.h: gather). An error is reported by
 * the next step. */
void tape_gather(tape *t, const struct dataset *d, enum dataset_split split,
                 const uint32_t *indices, uint32_t first, uint32_t n, const struct crop *crops);
/* Starts a step and returns the images as a tensor. `gradient` is NULL unless the mode is
 * TAPE_TRAIN. Both vectors have the table's count and must stay valid until tape_finish. */
tensor *tape_begin(tape *t, const float *parameters, float *gradient);
/* Ends the step: computes the loss of the first `valid` samples, a sum over all their labels, and,
 * in TAPE_TRAIN, the whole gradient of their mean loss (0 for unused layers). Returns the first
 * error of the step. `loss` may be NULL (discovery, calibration). */
status tape_finish(tape *t, tensor *loss, uint32_t valid, struct op_loss *out) MUST_CHECK;

/* Sets the watch that is called between operators; borrowed; NULL: no watch. */
void tape_watch(tape *t, const struct gradient_watch *watch);

/* Times of the last step. forward_ns and backward_ns exclude the watch's time. */
struct tape_times {
    uint64_t forward_ns, backward_ns, watch_ns;
};
struct tape_times tape_last_times(const tape *t);
/* Marks the layer that computes the logits (discovery). */
void tape_mark_last(tape *t, tensor *logits);
/* ---- part of a model: called by stages (stage.h) ----
 *
 * The calls of a model are numbered from 1 in their order; number 0 is the images. Every stage's
 * tape runs the whole model function and skips calls outside the stage's range: a skipped tensor
 * has a shape and no value. Models therefore need no code for stages. */

/* A possible cut: call `at` is the only result that later calls read. */
struct tape_cut {
    size_t at;
    const char
        *layer; /* layer of call at + 1 (linear, conv2d, layer_norm); text of the parameter table */
    struct shape shape; /* shape of the tensor that crosses the cut */
};
/* The cuts of the model that has just run on a TAPE_DISCOVER tape, in order, at most `capacity`. No
 * layer has weights on both sides of a cut. */
size_t tape_cuts(const tape *t, struct tape_cut *out, size_t capacity);

/* Runs only calls with first < number <= last. The tape's images are then the result of call
 * `first`. `images` is the shape of the model's images. The table need not contain layers outside
 * the range. */
void tape_set_range(tape *t, size_t first, size_t last, struct shape images);
/* Forward half of a step; with tape_backward it replaces tape_finish. It computes the loss of
 * `valid` samples or, if `loss` is NULL, the result of call `last` into value[], row-major. */
status tape_forward(tape *t, tensor *loss, uint32_t valid, float *value,
                    struct op_loss *out) MUST_CHECK;
/* Backward half, with the vectors of tape_begin; other tapes may have run steps in between.
 * output_gradient: gradient of value[]; NULL after a loss. input_gradient[]: gradient of the
 * images; NULL: not computed; only if first > 0. */
status tape_backward(tape *t, const float *parameters, const float *output_gradient,
                     float *input_gradient) MUST_CHECK;
/* Bytes of all values and gradients of the tape, by their shapes, as float32. Padding and internal
 * memory of operations are not counted. */
size_t tape_bytes(const tape *t);

/* Number of operations; constant after every path has run once. */
size_t tape_operation_count(const tape *t);
const struct op_description *tape_operation(const tape *t, size_t index);

#endif
