/*
 * backend.h — where the arithmetic happens: the operations a tape calls, on buffers only the
 * backend understands. The tape (tape.c) knows graphs and gradients; a backend knows layouts and
 * kernels.
 *
 * Buffers hold one batch of activations or gradients, batch × channels × height × width, in
 * whatever layout the operation that makes them prefers. Operations are made for fixed shapes and
 * input layouts, and run many times with different buffers of those layouts. Parameters live in one
 * flat float32 vector in host memory, given anew at each step, and are named by their offset in it;
 * a device backend copies that vector up in `begin` and the gradient down in `finish`, the CPU
 * backend works in place.
 *
 * One thread per backend at a time. Making buffers and operations allocates; running them does not.
 * Adding a backend: worker/backend_NAME.{c,cu} and one line in backend.def.
 */
#ifndef GRADLAG_WORKER_BACKEND_H
#define GRADLAG_WORKER_BACKEND_H

#include "worker/dataset.h"
#include "worker/joint.h"
#include "worker/placement.h"
#include "worker/registry.h"
#include "worker/resident.h"

/* Of one sample. Features without places are channels×1×1. */
struct shape {
    uint32_t channels, height, width;
};

static inline size_t shape_count(struct shape s)
{
    return (size_t)s.channels * s.height * s.width;
}

enum op_kind {
    OP_LINEAR,        /* y = x Wᵀ + b; W [outputs][inputs]; the input is read in C,H,W order */
    OP_CONVOLUTION,   /* cross-correlation; W [outputs][channels][kernel][kernel]; zero padding */
    OP_MAX_POOL,      /* no padding; incomplete windows are left out */
    OP_AVERAGE_POOL,  /* the same */
    OP_ACTIVATION,    /* elementwise */
    OP_ADD,           /* input[0] + input[1] */
    OP_RESHAPE,       /* another shape of as many elements, in C,H,W order */
    OP_BATCH_NORM,    /* per channel over batch and places; weight = γ, bias = β */
    OP_CROSS_ENTROPY, /* softmax of the logits against labels; no output buffer */
    OP_SQUARED_ERROR, /* half the squared distance from the labels' numbers; no output buffer */
};

enum activation { ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_TANH, ACTIVATION_GELU };

enum op_flag {
    OP_BIASED = 1,           /* linear, convolution: has a bias */
    OP_TRAINING = 2,         /* backward will follow */
    OP_INPUT_GRADIENT = 4,   /* backward must give the gradient of some input */
    OP_RESIDUAL = 16,        /* batch norm: input[1] is added before the activation */
    OP_GIVEN_STATISTICS = 8, /* batch norm: with call->mean and variance, not the batch's own */
    /* Batch norm in training: over the batches of all who share call->joint, where that is given.
     * On the CPU alone. */
    OP_JOINT_STATISTICS = 32,
};

#define BATCH_NORM_EPSILON 1e-5f

/* All members are 4 bytes wide, so that two descriptions compare with memcmp. */
struct op_description {
    enum op_kind kind;
    enum activation activation; /* OP_ACTIVATION itself, or fused after another operation */
    uint32_t flags;             /* of enum op_flag */
    uint32_t batch;
    uint32_t kernel_height, kernel_width, stride, padding;
    struct shape input, output;
    float smoothing;                  /* cross-entropy: see op_targets */
    float target_scale, target_shift; /* squared error: a label means scale × label + shift */
};

static inline bool op_is_loss(enum op_kind kind)
{
    return kind == OP_CROSS_ENTROPY || kind == OP_SQUARED_ERROR;
}

/* Cross-entropy against (1 − ε) one-hot + ε / classes, ε = smoothing (Szegedy et al. 2016, section
 * 7): of the right class and of each other one. Exactly 1 and 0 without smoothing. */
struct op_targets {
    float right, other;
};
static inline struct op_targets op_targets(float smoothing, uint32_t classes)
{
    double other = (double)smoothing / classes;
    return (struct op_targets){(float)(1 - (double)smoothing + other), (float)other};
}

typedef struct backend backend;
typedef struct backend_buffer backend_buffer;
typedef struct backend_op backend_op;

struct op_loss {      /* of the first `valid` samples; may be read after `finish` */
    double sum;       /* of their cross-entropies, nats, or half squared errors */
    uint32_t correct; /* 0 where there are no classes */
};

/* One execution. The gradient written for the loss is of the *mean* over `valid`. */
struct op_call {
    backend_buffer *input[2], *output;
    /* backward only */
    /* May be used as scratch by backward, unless it is also an input_gradient: a sum's gradient is
     * that of one of its inputs (OP_ADD: the first, OP_RESIDUAL: the second) and then stays there.
     */
    backend_buffer *output_gradient;
    backend_buffer *input_gradient[2]; /* NULL: not wanted */
    bool accumulate[2];                /* add to input_gradient[i] instead of writing it */
    bool complete[2];                  /* no other operation adds to input_gradient[i] after this */
    bool accumulate_weight, accumulate_bias;

    size_t weight, bias;             /* offsets into the flat vectors */
    float *mean, *variance;          /* batch norm, host, [channels]: read if given, else written */
    const struct joint_batch *joint; /* OP_JOINT_STATISTICS; NULL: this batch is all */
    const uint32_t *labels;          /* losses, host, [batch] */
    uint32_t valid;                  /* losses: samples that count, the first of the batch */
    struct op_loss *loss;
};

/* Of the operands of convolutions and linear layers. Sums, gradients of parameters and batch norm's
 * statistics are float32; activations and their gradients may be kept in it. */
enum precision {
    PRECISION_FP32,
    PRECISION_TF32, /* rounded to 10 bits of mantissa: GPUs alone */
    PRECISION_BF16, /* to 7 bits */
};

struct backend_options {
    uint32_t threads;
    enum precision precision;
    bool deterministic;     /* the same bits in every run on the same device */
    bool may_spin;          /* waiting may burn a processor */
    struct placement place; /* for backends with several devices: see placement_device */
};

/* One backend: an entry of backend_registry. Key `device` names it. */
struct backend_kind {
    struct about about;
    /* ERROR_USAGE where this machine lacks the device or the precision. */
    status (*open)(backend **out, const struct backend_options *o);
    /* Only whether it would be that error; opens nothing. NULL: `open` costs little. */
    status (*check)(const struct backend_options *o);
    void (*close)(backend *b);
    /* "Intel Xeon …, oneDNN 2.6.3, 1 thread"; lives as long as the backend. */
    const char *(*describe)(const backend *b);

    /* A row-major buffer to be filled by the host: write to buffer_host, then buffer_upload. */
    status (*buffer_open)(backend *b, uint32_t batch, struct shape s, backend_buffer **out);
    /* A buffer of the same shape and layout as another (its gradient). */
    status (*buffer_like)(backend *b, const backend_buffer *other, backend_buffer **out);
    void (*buffer_close)(backend *b, backend_buffer *buffer);
    float *(*buffer_host)(backend *b, backend_buffer *buffer);
    status (*buffer_upload)(backend *b, backend_buffer *buffer);
    /* Copies any buffer to the host, row-major. May allocate the first time it sees a buffer. */
    status (*buffer_read)(backend *b, backend_buffer *buffer, float *out);
    bool (*buffer_same_layout)(const backend_buffer *a, const backend_buffer *b);

    /* Whether `a` can be fused after an operation of this kind. */
    bool (*fuses)(const struct op_description *d, enum activation a);
    /* Whether `other` can be added inside a batch norm of `input` (OP_RESIDUAL). */
    bool (*fuses_residual)(const backend *b, const backend_buffer *input,
                           const backend_buffer *other);
    /* An operation for inputs of these layouts, and a new buffer for what it makes. */
    status (*op_open)(backend *b, const struct op_description *d, backend_buffer *const input[2],
                      backend_op **out, backend_buffer **output);
    void (*op_close)(backend *b, backend_op *op);

    /* A step: begin, forward …, backward … (in reverse), finish. `gradient` NULL: no backward. */
    status (*begin)(backend *b, const float *parameters, float *gradient, size_t count);
    status (*forward)(backend *b, backend_op *op, const struct op_call *call);
    status (*backward)(backend *b, backend_op *op, const struct op_call *call);
    status (*finish)(backend *b);

    /* Batches of a multiple of this many samples are the fastest; 0: all alike. */
    uint32_t samples_at_once;

    /* ---- NULL where the host's memory is the device's -----------------------------------------
     */

    /* The vector at `parameters` stays as it is until this is called with NULL: given to `begin`
     * without a gradient it is copied once. */
    void (*keep)(backend *b, const float *parameters);

    /* Instead of `finish`, after an error: nothing of the step is used any more, and on return
     * nothing reads or writes the vectors given to `begin`. */
    void (*abandon)(backend *b);
    /* Copies the images of all splits to the device, once; `gather` is then possible. ERROR_OTHER:
     * they do not fit. */
    status (*dataset_open)(backend *b, const struct dataset *d);
    /* Instead of filling buffer_host: the next step finds in `images`, of buffer_open, what
     * dataset_gather would have made of these arguments, to the bit. Samples from `n` on are
     * anything. */
    status (*gather)(backend *b, backend_buffer *images, enum dataset_split split,
                     const uint32_t *indices, uint32_t first, uint32_t n, const struct crop *crops);
    /* From `hold` to `forget`, vectors given to `begin` with a gradient stay mapped, so that they
     * may be registered with the device for faster copies. */
    void (*hold)(backend *b);
    void (*forget)(backend *b);
    /* Zeros part of a gradient given to `begin`, wherever it lies; after `finish`. */
    status (*clear)(backend *b, float *gradient, size_t count);
    const struct device_place *(*place)(const backend *b);

    /* Vectors that stay on the device (resident.h), all zero, until `close`; a second time the same
     * ones again, zeroed. `begin` may be given them: parameters and gradient, or, with gradient
     * NULL, the parameters alone; then they are not copied. */
    status (*resident_open)(backend *b, size_t count, size_t extra, unsigned states,
                            struct resident *out);
    /* Part of a resident vector from the host, and to it; done on return. */
    status (*resident_write)(backend *b, float *to_device, const float *from, size_t count);
    status (*resident_read)(backend *b, float *to, const float *from_device, size_t count);
    status (*resident_update)(backend *b, const struct resident_update *u,
                              struct optimizer_pass *pass);
};
extern const struct registry backend_registry;

struct backend { /* every backend's own struct begins with this */
    const struct backend_kind *kind;
};

/* Reads keys device, device.index, threads, precision and deterministic; for worker `index` of
 * `count`. */
status backend_open(backend **out, const options *o, unsigned index, unsigned count) MUST_CHECK;
void backend_close(backend **b);
/* Whether worker 0's would open, as far as device and precision go. */
status backend_check(const options *o) MUST_CHECK;

#endif
