/*
 * tape.h — models as ordinary C: each call below does one operation and writes it on the tape,
 * which is then read backwards for the gradient (reverse-mode differentiation).
 *
 *   tensor *forward(tape *t, tensor *x)
 *   {
 *       x = relu(t, linear(t, x, "fc1", 256));
 *       if (tape_value(t, x)[0] > 1)          // control flow may depend on data
 *           x = relu(t, linear(t, x, "extra", 256));
 *       return linear(t, x, "fc2", 10);
 *   }
 *
 * What is kept from step to step: the tape matches each call to an operation it made before for the
 * same shapes and layouts and reuses its buffers, so once every path through a model has been taken
 * a step allocates nothing. Calls are lazy by one: an operation runs when its result is first
 * needed, so that an activation right after it can be fused into it. A result that is needed both
 * with and without the activation is computed twice, correctly.
 *
 * Layers are named. The same name twice means shared weights and added gradients. Layers must be
 * known before the first step: they are found by running the model once on a TAPE_DISCOVER tape,
 * which computes nothing (tape_value gives zeros there); layers in branches not taken then must be
 * declared by calling them in the model's `declare`.
 *
 * Errors stick to the tape: after one, calls do nothing and tape_finish returns it. Tensors belong
 * to the tape and live until its next tape_begin. Shapes are of one sample; every tensor holds a
 * batch.
 */
#ifndef GRADLAG_WORKER_TAPE_H
#define GRADLAG_WORKER_TAPE_H

#include "worker/dataset.h"
#include "worker/parameters.h"

typedef struct tape tape;
typedef struct tensor tensor;

/* ---- operations: what models call
 * ----------------------------------------------------------------
 */

/* y = x Wᵀ + b. x of any shape is read in C,H,W order. Result: outputs×1×1. */
tensor *linear(tape *t, tensor *x, const char *name, uint32_t outputs);
/* y = x Wᵀ. */
tensor *linear_unbiased(tape *t, tensor *x, const char *name, uint32_t outputs);
/* Square kernel, zero padding on each side. W: [channels][x's channels][kernel][kernel]. */
tensor *conv2d(tape *t, tensor *x, const char *name, uint32_t channels, uint32_t kernel,
               uint32_t stride, uint32_t padding);
/* As above without a bias, for use before batch_norm. */
tensor *conv2d_unbiased(tape *t, tensor *x, const char *name, uint32_t channels, uint32_t kernel,
                        uint32_t stride, uint32_t padding);
/* No padding; places that do not fill a window are left out. */
tensor *max_pool(tape *t, tensor *x, uint32_t kernel, uint32_t stride);
tensor *avg_pool(tape *t, tensor *x, uint32_t kernel, uint32_t stride);
/* Over all places. Result: channels×1×1. */
tensor *global_avg_pool(tape *t, tensor *x);
tensor *activate(tape *t, tensor *x, enum activation a);
tensor *relu(tape *t, tensor *x);
tensor *hyperbolic_tangent(tape *t, tensor *x);
tensor *gelu(tape *t, tensor *x); /* x·Φ(x), exact (Hendrycks & Gimpel 2016) */
tensor *add(tape *t, tensor *a, tensor *b);
tensor *reshape(tape *t, tensor *x, uint32_t channels, uint32_t height, uint32_t width);
/* Per channel over batch and places (Ioffe & Szegedy 2015), ε = 1e-5. */
tensor *batch_norm(tape *t, tensor *x, const char *name);
/* Mean over the batch, nats; logits: classes×1×1. The result can only be given to tape_finish. */
tensor *softmax_cross_entropy(tape *t, tensor *logits);
/* Mean over the batch of ½ Σ (y − (scale × label + shift))², the sum over y's channels; y:
 * channels×1×1. The result, as above, is for tape_finish alone. */
tensor *squared_error(tape *t, tensor *y, float scale, float shift);
/* From the next step on the loss is against labels smoothed so (op_targets). 0 at first. */
void tape_smooth_labels(tape *t, double smoothing);
/* Before the first step, of TAPE_TRAIN: batch norm is over the joint batch that `joint` describes;
 * borrowed, NULL: over this one, as if it were the only share. May be called again later. The time
 * in joint->add_up counts as a watch's. */
void tape_join(tape *t, const struct joint_batch *joint);

uint32_t tape_batch(const tape *t);
struct shape tensor_shape(const tensor *x);
/* The value, row-major [batch][channels][height][width]; valid until the next tape_begin. */
const float *tape_value(tape *t, tensor *x);

/* ---- the tape: what workers and tests call
 * --------------------------------------------------------
 */

enum tape_mode {
    TAPE_DISCOVER,  /* adds layers to the table; needs no backend */
    TAPE_TRAIN,     /* forward and backward; batch norm by the batch's statistics */
    TAPE_CALIBRATE, /* forward; batch norm's statistics are collected */
    TAPE_EVALUATE,  /* forward; batch norm by the collected statistics */
};

/* `parameters` and `b` are borrowed. */
status tape_open(tape **out, backend *b, parameter_table *parameters, enum tape_mode mode,
                 struct shape input, uint32_t batch) MUST_CHECK;
void tape_close(tape **t);
/* Between TAPE_CALIBRATE (which forgets earlier statistics) and TAPE_EVALUATE. */
void tape_set_mode(tape *t, enum tape_mode mode);
/* Those that another tape of the same model collected, both of TAPE_EVALUATE. */
void tape_take_statistics(tape *t, const tape *from);

/* To be filled before tape_begin: [batch][channels][height][width], [batch]. */
float *tape_images(tape *t);
uint32_t *tape_labels(tape *t);
/* Or instead: the batch of these samples, as dataset_gather; on the device, where the backend was
 * given the dataset (backend.h: gather). Sticks to the tape's next step. */
void tape_gather(tape *t, const struct dataset *d, enum dataset_split split,
                 const uint32_t *indices, uint32_t first, uint32_t n, const struct crop *crops);
/* Starts a step and gives the images as a tensor. `gradient` is NULL unless mode is TAPE_TRAIN.
 * Both vectors are the table's count long and are used until tape_finish. */
tensor *tape_begin(tape *t, const float *parameters, float *gradient);
/* Ends it: computes the loss of the first `valid` samples and, when training, the whole gradient
 * (of their mean loss; 0 for layers not used). Returns the first error of the step. `loss` may be
 * NULL (discovery, calibration). */
status tape_finish(tape *t, tensor *loss, uint32_t valid, struct op_loss *out) MUST_CHECK;

/* Who is called between operators, from then on; borrowed, NULL: nobody. */
void tape_watch(tape *t, const struct gradient_watch *watch);

/* Of the last step. What the watch took is in none of the others. */
struct tape_times {
    uint64_t forward_ns, backward_ns, watch_ns;
};
struct tape_times tape_last_times(const tape *t);
/* Remembers that this layer makes the logits (discovery). */
void tape_mark_last(tape *t, tensor *logits);
/* ---- part of a model: what stages call (stage.h) -----------------------------------------------
 *
 * A model's calls are numbered from 1 in the order it makes them; 0 are its images. The whole
 * model function runs on every stage's tape, and calls outside the stage's range are skipped: they
 * have a shape and no value. So models know nothing of stages.
 */

/* A place to cut: all that later calls need of earlier ones is what call `at` gives. */
struct tape_cut {
    size_t at;
    const char *layer;  /* of call at + 1: linear or conv2d; the parameter table's text */
    struct shape shape; /* of what crosses */
};
/* Of the model that has just run on a TAPE_DISCOVER tape, in order; at most `capacity`. No layer
 * has weights on both sides of one. */
size_t tape_cuts(const tape *t, struct tape_cut *out, size_t capacity);

/* Only calls with first < number <= last are run; the tape's images are what call `first` gives,
 * and `images` is the shape of the model's own. Layers outside need not be in its table. */
void tape_set_range(tape *t, size_t first, size_t last, struct shape images);
/* In place of tape_finish, in two halves. The first computes the loss of `valid` samples, or, where
 * `loss` is NULL, what call `last` gives: to value[], row-major. */
status tape_forward(tape *t, tensor *loss, uint32_t valid, float *value,
                    struct op_loss *out) MUST_CHECK;
/* The second, at the vectors given to tape_begin, perhaps after steps of other tapes.
 * output_gradient: of value[], NULL behind a loss. input_gradient[]: of the images, NULL: not
 * wanted, only where first > 0. */
status tape_backward(tape *t, const float *parameters, const float *output_gradient,
                     float *input_gradient) MUST_CHECK;
/* Of all values and gradients that the tape holds, by their shapes, as float32; padding and what
 * operations keep for themselves not counted. */
size_t tape_bytes(const tape *t);

/* Operations made so far; constant once every path has been seen. */
size_t tape_operation_count(const tape *t);
const struct op_description *tape_operation(const tape *t, size_t index);

#endif
