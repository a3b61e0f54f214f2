/*
 * backend.h — the operations that a tape calls, on buffers whose layout only the backend knows. The
 * tape (tape.c) handles graphs and gradients; a backend handles layouts and kernels.
 *
 * A buffer holds one batch of activations or gradients, batch × channels × height × width, in the
 * layout that its producing operation prefers. An operation is opened for fixed shapes and input
 * layouts, and runs many times with different buffers of these layouts. Parameters are one flat
 * float32 vector in host memory, passed at each step; an operation refers to them by offset. A
 * device backend copies this vector to the device in `begin` and the gradient to the host in
 * `finish`. The CPU backend works in place.
 *
 * One thread at a time may use a backend. Opening buffers and operations allocates memory; running
 * operations does not. Adding a backend: a folder worker/NAME/ and one line in backend.def.
 */
#ifndef GRADLAG_WORKER_BACKEND_H
#define GRADLAG_WORKER_BACKEND_H

#include "worker/data/dataset.h"
#include "worker/model/batch_norm_group.h"
#include "worker/device_placement.h"
#include "base/registry.h"
#include "worker/device_vectors.h"

/* Shape of one sample. Features without spatial positions are channels×1×1. */
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
    OP_MAX_POOL,      /* no padding; incomplete windows are dropped */
    OP_AVERAGE_POOL,  /* as OP_MAX_POOL */
    OP_ACTIVATION,    /* elementwise */
    OP_ADD,           /* input[0] + input[1] */
    OP_RESHAPE,       /* same number of elements, in C,H,W order */
    OP_BATCH_NORM,    /* per channel over batch and positions; weight = γ, bias = β */
    OP_CROSS_ENTROPY, /* softmax of the logits against labels; no output buffer */
    OP_SQUARED_ERROR, /* half the squared distance to the target; no output buffer */

    /* Sequences. A sample is T positions. Tokens are T×1×1 or 1×T×1, one whole number from 0 to
     * vocabulary − 1 for each position, as float. A hidden state is T×1×C: row-major
     * [batch][T][C]. All buffers of these operations are row-major. They fuse no activation. */
    OP_EMBEDDING, /* row of W for each token; W [vocabulary][C]; tokens → T×1×C; backward
                     has no input gradient */
    OP_POSITION_EMBEDDING, /* x + W for each sample; W [T][C]; T×1×C → T×1×C */
    OP_LAYER_NORM,         /* over the C features of each position, LAYER_NORM_EPSILON; weight = γ
                              [C], bias = β [C] with OP_BIASED; T×1×C → T×1×C */
    OP_ATTENTION,          /* causal self-attention; T×1×3C → T×1×C, see below */
};

/* OP_ATTENTION: the 3C features of a position are query, key and value, each C; head h of `heads`
 * has features h·D … (h + 1)·D − 1 of each, D = C / heads. For each sample, head and position i
 *   p[j] = softmax over j ≤ i of (q[i] · k[j] / √D),   y[i] = Σ_j p[j] v[j].
 * Backward computes p again from the input. No buffer holds p for the whole batch. */

/* "a linear layer", for messages. */
const char *op_name(enum op_kind kind);

enum activation { ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_TANH, ACTIVATION_GELU };

enum op_flag {
    OP_BIASED = 1,           /* linear, convolution: has a bias */
    OP_TRAINING = 2,         /* backward will follow */
    OP_INPUT_GRADIENT = 4,   /* backward must compute the gradient of at least one input */
    OP_RESIDUAL = 16,        /* batch norm: input[1] is added before the activation */
    OP_GIVEN_STATISTICS = 8, /* batch norm: uses call->mean and variance, not the batch's */
    /* Batch norm in training: SyncBatchNorm over the workers of call->joint, if it is set. CPU
     * only. */
    OP_JOINT_STATISTICS = 32,
    /* Linear, cross-entropy: over the last dimension of each position. Linear: T×1×C → T×1×outputs,
     * the same W [outputs][C] at each position. Cross-entropy: logits T×1×classes, T labels for
     * each sample. */
    OP_PER_POSITION = 64,
};

#define BATCH_NORM_EPSILON 1e-5f
#define LAYER_NORM_EPSILON 1e-5f

/* All members are 4 bytes wide, so that memcmp compares two descriptions. */
struct op_description {
    enum op_kind kind;
    enum activation activation; /* OP_ACTIVATION itself, or fused after another operation */
    uint32_t flags;             /* bits of enum op_flag */
    uint32_t batch;
    uint32_t kernel_height, kernel_width, stride, padding;
    struct shape input, output;
    float smoothing;                  /* cross-entropy: ε of op_targets */
    float target_scale, target_shift; /* squared error: target = scale × label + shift */
    uint32_t vocabulary;              /* embedding: rows of W */
    uint32_t heads;                   /* attention: a divisor of the width C */
};

/* Number of rows that a linear layer or a loss reads in one sample; number of features of a row. */
static inline uint32_t op_rows(const struct op_description *d)
{
    return d->flags & OP_PER_POSITION ? d->input.channels * d->input.height : 1;
}
static inline uint32_t op_features(const struct op_description *d)
{
    return d->flags & OP_PER_POSITION ? d->input.width : (uint32_t)shape_count(d->input);
}

static inline bool op_is_loss(enum op_kind kind)
{
    return kind == OP_CROSS_ENTROPY || kind == OP_SQUARED_ERROR;
}

/* Targets of cross-entropy with label smoothing: (1 − ε) one-hot + ε / classes, ε = smoothing
 * (Szegedy et al. 2016, section 7). `right` is the target of the labelled class, `other` that of
 * each other class. With ε = 0 they are exactly 1 and 0. */
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

struct op_loss { /* of the first `valid` samples; readable after `finish` */
    double sum;  /* of cross-entropies in nats (over all positions), or of half squared errors */
    uint32_t correct; /* rows (positions) classified correctly; 0 if the data have no classes */
};

/* One execution. The gradient of the loss is that of the *mean* over the rows (op_rows) of the
 * first `valid` samples. */
struct op_call {
    backend_buffer *input[2], *output;
    /* backward only */
    /* Backward may use this buffer as scratch, unless it is also an input_gradient. In a sum one
     * input may share this buffer, because its gradient is equal (OP_ADD: the first input,
     * OP_RESIDUAL: the second, OP_POSITION_EMBEDDING: the only one). The buffer must then stay
     * unchanged. */
    backend_buffer *output_gradient;
    backend_buffer *input_gradient[2]; /* NULL: not wanted */
    bool accumulate[2];                /* add to input_gradient[i] instead of writing it */
    bool complete[2];                  /* no later operation adds to input_gradient[i] */
    bool accumulate_weight, accumulate_bias;

    size_t weight, bias;    /* offsets into the flat vectors */
    float *mean, *variance; /* batch norm, host, [channels]: input with OP_GIVEN_STATISTICS, else
                               output unless NULL */
    const struct batch_norm_group *joint; /* OP_JOINT_STATISTICS; NULL: this batch only */
    const uint32_t *labels;               /* losses, host, [batch][op_rows], each below classes */
    uint32_t valid;                       /* losses: the first `valid` samples count */
    struct op_loss *loss;
};

/* Type of the operands of convolutions and linear layers. Sums, gradients of parameters and
 * statistics of batch norm are float32. Activations and their gradients may be stored in this type.
 */
enum precision {
    PRECISION_FP32,
    PRECISION_TF32, /* rounded to 10 bits of mantissa; GPUs only */
    PRECISION_BF16, /* rounded to 7 bits of mantissa */
};

struct backend_options {
    uint32_t threads;
    enum precision precision;
    bool may_spin;          /* a waiting thread may keep a processor busy */
    struct placement place; /* for backends with several devices: placement_device */
};

/* One backend: an entry of backend_registry. Key `device` selects it. */
struct backend_kind {
    struct about about;
    /* ERROR_USAGE: this machine lacks the device or the precision. */
    status (*open)(backend **out, const struct backend_options *o);
    /* Returns the error that `open` would return. It may initialise the device's library:
     * backend_check() calls it in a copy of the process. NULL: `open` is cheap. */
    status (*check)(const struct backend_options *o);
    void (*close)(backend *b);
    /* "Intel Xeon …, oneDNN 2.6.3, 1 thread"; lives as long as the backend. */
    const char *(*describe)(const backend *b);

    /* Opens a row-major buffer that the host fills: write to buffer_host, then call buffer_upload.
     */
    status (*buffer_open)(backend *b, uint32_t batch, struct shape s, backend_buffer **out);
    /* Opens a buffer with the shape and layout of another, for example for its gradient. */
    status (*buffer_like)(backend *b, const backend_buffer *other, backend_buffer **out);
    void (*buffer_close)(backend *b, backend_buffer *buffer);
    float *(*buffer_host)(backend *b, backend_buffer *buffer);
    status (*buffer_upload)(backend *b, backend_buffer *buffer);
    /* Copies any buffer to the host, row-major. The first call for a buffer may allocate. */
    status (*buffer_read)(backend *b, backend_buffer *buffer, float *out);
    bool (*buffer_same_layout)(const backend_buffer *a, const backend_buffer *b);

    /* True: `a` can be fused after an operation of this kind. */
    bool (*fuses)(const struct op_description *d, enum activation a);
    /* True: a batch norm of `input` can add `other` (OP_RESIDUAL). */
    bool (*fuses_residual)(const backend *b, const backend_buffer *input,
                           const backend_buffer *other);
    /* Opens an operation for inputs of these layouts, and a new buffer for its output. */
    status (*op_open)(backend *b, const struct op_description *d, backend_buffer *const input[2],
                      backend_op **out, backend_buffer **output);
    void (*op_close)(backend *b, backend_op *op);

    /* A step: begin, forward …, backward … (in reverse), finish. `gradient` NULL: no backward. */
    status (*begin)(backend *b, const float *parameters, float *gradient, size_t count);
    status (*forward)(backend *b, backend_op *op, const struct op_call *call);
    status (*backward)(backend *b, backend_op *op, const struct op_call *call);
    status (*finish)(backend *b);

    /* Batches whose size is a multiple of this number are fastest; 0: no preference. */
    uint32_t samples_at_once;

    /* ---- NULL for a backend that computes in host memory ---- */

    /* Promises that the vector at `parameters` does not change until the next call with NULL.
     * `begin` without a gradient then copies it only once. */
    void (*keep)(backend *b, const float *parameters);

    /* Replaces `finish` after an error: the step's results are discarded. On return nothing reads
     * or writes the vectors passed to `begin`. */
    void (*abandon)(backend *b);
    /* Copies the images of all splits to the device, once; `gather` may be called afterwards.
     * ERROR_OTHER: the images do not fit. */
    status (*dataset_open)(backend *b, const struct dataset *d);
    /* Replaces writing to buffer_host: the next step finds in `images` (from buffer_open) the batch
     * that dataset_gather computes from these arguments, bit for bit. Samples from `n` on are
     * undefined. */
    status (*gather)(backend *b, backend_buffer *images, enum dataset_split split,
                     const uint32_t *indices, uint32_t first, uint32_t n, const struct crop *crops);
    /* Between `hold` and `forget` the vectors passed to `begin` with a gradient stay mapped. The
     * backend may register them with the device for faster copies. */
    void (*hold)(backend *b);
    void (*forget)(backend *b);
    /* Zeros part of the gradient passed to `begin`. Call it before `finish`. */
    status (*clear)(backend *b, float *gradient, size_t count);
    const struct device_place *(*place)(const backend *b);

    /* Opens vectors that stay on the device (device_vectors.h), all zero, until `close`. A second
     * call returns the same vectors, zeroed again. `begin` accepts them (parameters and gradient,
     * or parameters with gradient NULL) and does not copy them. */
    status (*device_vectors_open)(backend *b, size_t count, size_t extra, unsigned states,
                                  struct device_vectors *out);
    /* Copies part of a resident vector from the host or to it. The copy is complete on return. */
    status (*device_vectors_write)(backend *b, float *to_device, const float *from, size_t count);
    status (*device_vectors_read)(backend *b, float *to, const float *from_device, size_t count);
    /* The next step uses the resident parameters and gradient and ends with this update. That
     * step's `finish` does not wait; device_vectors_results returns its loss. Call this function
     * before the step's `gather`. */
    status (*device_vectors_update)(backend *b, const struct device_update *u);
    /* Waits for all steps queued since the last call: `count` of them, at most place->steps.
     * out[0..count) ← their results, in order. */
    status (*device_vectors_results)(backend *b, struct device_result *out, unsigned count);
};
extern const struct registry backend_registry;

struct backend { /* the first member of every backend's struct */
    const struct backend_kind *kind;
};

/* Reads keys device, device.index, threads and precision, for worker `index` of `count`. */
status backend_open(backend **out, const options *o, unsigned index, unsigned count) MUST_CHECK;
void backend_close(backend **b);
/* Checks device and precision for worker 0. Opens nothing on the device in this process, which
 * stays free to fork() processes that use the device. ERROR_PEER: the driver did not answer within
 * 20 × timeout_s. */
status backend_check(const options *o) MUST_CHECK;

#endif
