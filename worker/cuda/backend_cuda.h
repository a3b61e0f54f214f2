/*
 * backend_cuda.h — what the files of the CUDA backend share. Only backend_cuda*.c include it.
 *
 *   backend_cuda.c                  opening, steps, dispatch
 *   backend_cuda_commands.c         the commands of a step, and CUDA graphs of them
 *   backend_cuda_gradient.c         copies of the gradient to the host, pinned memory
 *   backend_cuda_device_vectors.c   parameters that stay on the device, and their update
 *   backend_cuda_buffers.c          buffers, their layouts and roundings; weights
 *   backend_cuda_data.c             the dataset on the device, labels
 *   backend_cuda_linear.c           products of cublasLt
 *   backend_cuda_convolution.c      implicit products in gradlag's kernels, or spread and cublasLt
 *   backend_cuda_simple.c           pools, activations, add, reshape, the loss
 *   backend_cuda_norm.c             batch norm
 *   backend_cuda_sequence.c         embeddings, layer norm
 *   backend_cuda_attention.c        causal attention
 *
 * An operation does not run when it is called: it appends commands to a list. cuda_commands_finish
 * runs the whole step, as one CUDA graph if an earlier step had the same list. A pointer in a
 * command must therefore stay valid until then.
 *
 * Layouts: ROWS is [batch][features], LANES is [features][batch], features in C,H,W order. In LANES
 * the threads of a warp compute different samples at the same place.
 */
#ifndef GRADLAG_WORKER_CUDA_BACKEND_CUDA_H
#define GRADLAG_WORKER_CUDA_BACKEND_CUDA_H

#include "worker/backend.h"
#include "worker/cuda/kernels/cuda_calls.h"

extern const struct backend_kind backend_cuda;

struct cuda;

enum cuda_layout { ROWS, LANES, LAYOUTS };

struct backend_buffer {
    struct shape shape;
    uint32_t batch;
    size_t count;
    enum cuda_layout layout;    /* the layout in which operations write it */
    float *at[LAYOUTS];         /* the other layout is allocated and computed at its first read */
    uint16_t *rounded[LAYOUTS]; /* rounded to bf16; also computed at the first read */
    bool valid[LAYOUTS], rounded_valid[LAYOUTS];
    float *host;            /* pinned memory of a buffer from buffer_open; else NULL */
    bool gathered, cropped; /* holds the samples of the staged indices and crops */
    enum dataset_split split;
    bool borrowed; /* at[layout] belongs to another buffer */
    /* Of values: the operation with a fused ReLU that wrote them, and the mask that cublasLt wrote.
     */
    const backend_op *relu;
    void *mask;
    /* Of gradients: this operation's ReLU is already applied. */
    const backend_op *masked_by;
};

/* The struct of every operation begins with these members. */
struct backend_op {
    struct op_description d;
    status (*forward)(struct cuda *c, backend_op *op, const struct op_call *call);
    status (*backward)(struct cuda *c, backend_op *op, const struct op_call *call);
    void (*close)(struct cuda *c, backend_op *op);
};

/* Device memory that grows on demand. */
struct cuda_room {
    void *at;
    size_t bytes;
};

/* Small inputs that change in every step. One copy takes all of them to the device. */
struct cuda_staging {
    uint32_t capacity, labels; /* samples; labels, several per sample in sequences */
    uint8_t *blocks;           /* pinned; one for each step that may be queued */
    struct cuda_room device;   /* one block */
    bool queued;               /* the copy of this step's block is queued */
};

struct cuda_data {
    uint8_t *images[SPLIT_COUNT];
    struct dataset shape; /* its arrays are not read */
    float *values;        /* [channels][256] */
};

/* Vectors that stay on the device from update to update (worker_reside). */
struct cuda_resident {
    struct cuda_room parameters, gradient, state;
    struct cuda_room result, parts; /* result of the latest step; parts of its sum of squares */
    struct device_result *results;  /* pinned, [DEVICE_STEPS_MOST] */
    size_t count, extra;            /* 0: no resident vectors */
    unsigned queued;                /* steps whose results are not taken */
    bool updates;                   /* the current or the next step ends with `update` */
    struct device_update update;
    const struct cuda_loss *loss; /* of this step, on the device; NULL: none */
    double targets;
};

struct cuda_commands;
struct cuda_known_product;

struct cuda {
    struct backend base;
    const struct cuda_kind *kind;
    cuda_device *device;
    enum cuda_arithmetic arithmetic;
    struct cuda_room parameters, parameters16, gradient;
    struct cuda_resident resident;
    struct device_place place;
    size_t count;
    const float *kept; /* the host vector that does not change; NULL: none */
    bool kept_is_up;   /* `parameters` holds a copy of `kept` */
    /* of the current step: */
    const float *parameters_at; /* the copied parameters or the resident ones */
    float *gradient_at;         /* NULL: no backward */
    float *host_gradient;       /* NULL: no backward, or the gradient stays on the device */
    bool needs_host; /* `finish` must wait, because the step uses host memory that changes later */
    struct cuda_commands *commands;
    struct cuda_room scratch; /* of one operation at a time */
    size_t keep_left;         /* bytes that convolutions may still keep from forward to backward */
    struct cuda_staging staging;
    struct cuda_data data;
    struct cuda_known_product *products;
    char description[256];
};

#define TRY_CUDA(c, function, ...) TRY((c)->kind->function((c)->device, __VA_ARGS__))

/* ---- memory ------------------------------------------------------------------------------------
 */

/* Makes r->at at least this large. Its contents are lost. The old memory is valid until the step
 * ends. */
status cuda_room_for(struct cuda *c, struct cuda_room *r, size_t bytes,
                     const char *what) MUST_CHECK;
void cuda_room_close(struct cuda *c, struct cuda_room *r);
/* Copies to device memory; complete on return. */
status cuda_upload(struct cuda *c, void *to, const void *from, size_t bytes) MUST_CHECK;

/* ---- commands (backend_cuda_commands.c) --------------------------------------------------------
 */

status cuda_commands_open(struct cuda *c) MUST_CHECK;
void cuda_commands_close(struct cuda *c);
void cuda_commands_begin(struct cuda *c);
/* Runs the commands queued so far and waits for them; the step continues. */
status cuda_commands_interrupt(struct cuda *c) MUST_CHECK;
/* Adds the copies or sums of the gradient and runs all commands. Waits for them unless `queued`. */
status cuda_commands_finish(struct cuda *c, bool queued) MUST_CHECK;
/* Waits for all steps; then their memory is free. */
status cuda_commands_wait(struct cuda *c) MUST_CHECK;
/* Drops queued commands and waits for running ones. */
void cuda_commands_abandon(struct cuda *c);
/* Frees memory that queued commands may still use, after the step has ended. */
void cuda_commands_retire(struct cuda *c, void *device_memory, void *pinned_memory);

enum { CUDA_CALL_BYTES = 128 };
status cuda_queue_launch(struct cuda *c, enum cuda_kernel k, struct cuda_grid g, const void *call,
                         size_t bytes) MUST_CHECK;
#define CUDA_LAUNCH(c, name, grid, ...)                                                            \
    cuda_queue_launch((c), CUDA_##name, (grid), &(struct name##_call){__VA_ARGS__},                \
                      sizeof(struct name##_call))
status cuda_queue_product(struct cuda *c, const struct cuda_product_shape *shape,
                          const struct cuda_product_call *call) MUST_CHECK;
status cuda_queue_up(struct cuda *c, void *to, const void *from, size_t bytes) MUST_CHECK;
/* Copies to pinned memory, after the commands queued so far and beside the following ones. */
status cuda_queue_down(struct cuda *c, void *to, const void *from, size_t bytes) MUST_CHECK;
/* Copies from host memory to host memory after the step has run. */
status cuda_deliver(struct cuda *c, void *to, const void *from, size_t bytes) MUST_CHECK;
/* Converts the loss after the step. */
status cuda_deliver_loss(struct cuda *c, struct op_loss *to,
                         const struct cuda_loss *from) MUST_CHECK;
/* Zeros part of the gradient. */
status cuda_queue_clear(struct cuda *c, size_t offset, size_t count) MUST_CHECK;
/* CUDA_COMPUTE waits for the commands on CUDA_COPY. */
status cuda_queue_wait(struct cuda *c) MUST_CHECK;
/* The last queued command wrote this part of the gradient. A later command may add to it. */
status cuda_gradient_written(struct cuda *c, size_t offset, size_t count) MUST_CHECK;

struct cuda_command_statistics {
    uint64_t launched, captured,
        direct; /* steps that ran as a known graph, as a new graph, without a graph */
    uint32_t commands, kernels; /* of the last step: all commands; kernels and products only */
};
void cuda_command_statistics(const struct cuda *c, struct cuda_command_statistics *out);

/* Between cuda_hold and cuda_forget, host memory that `begin` gets is pinned; it must stay valid.
 */
void cuda_hold(struct cuda *c);
void cuda_forget(struct cuda *c);
/* True: the device can copy from this memory directly and, unless `read_only`, to it. */
bool cuda_is_pinned(struct cuda *c, const void *at, size_t bytes, bool read_only);

/* ---- buffers (backend_cuda_buffers.c) ----------------------------------------------------------
 */

status cuda_buffer_new(struct cuda *c, uint32_t batch, struct shape s, enum cuda_layout layout,
                       backend_buffer **out) MUST_CHECK;
void cuda_buffer_free(struct cuda *c, backend_buffer *b);
/* Its contents in this layout. */
status cuda_read(struct cuda *c, backend_buffer *b, enum cuda_layout layout,
                 const float **out) MUST_CHECK;
/* Its contents in this layout as products read them: rounded if the precision requires it. */
status cuda_operand(struct cuda *c, backend_buffer *b, enum cuda_layout layout,
                    const void **out) MUST_CHECK;
/* The memory to write to, in the layout of the buffer. Invalidates copies in the other layout. */
float *cuda_write(backend_buffer *b);
/* The memory to write or add (*add) to in `layout`. If the buffer has the other layout,
 * cuda_target_done transposes the result into it. */
status cuda_target(struct cuda *c, backend_buffer *b, enum cuda_layout layout, bool accumulate,
                   float **to, bool *add) MUST_CHECK;
status cuda_target_done(struct cuda *c, backend_buffer *b, enum cuda_layout layout,
                        bool accumulate) MUST_CHECK;
/* to (+)= from, in any layouts. */
status cuda_pass(struct cuda *c, backend_buffer *from, backend_buffer *to,
                 bool accumulate) MUST_CHECK;
/* g ← g·a'(x) in place, computed from the output y, unless g is masked already. */
status cuda_unactivate(struct cuda *c, const backend_op *op, backend_buffer *g,
                       backend_buffer *y) MUST_CHECK;

/* The parameters at `offset` as products read them. `own` gets a copy if they are not aligned. */
status cuda_weight(struct cuda *c, struct cuda_room *own, size_t offset, size_t count,
                   const void **out) MUST_CHECK;
static inline bool cuda_aligned(size_t offset)
{
    return offset % 4 == 0; /* floats */
}
static inline const float *cuda_parameter(const struct cuda *c, size_t offset)
{
    return c->parameters_at + offset;
}
static inline float *cuda_gradient(const struct cuda *c, size_t offset)
{
    return c->gradient_at + offset;
}
/* The gradient of a weight [rows][columns] = op(g)·op(x), and with `biased` that of a bias [rows],
 * the sums of op(g) over `inner`. */
struct cuda_weight_product {
    struct cuda_product_shape shape; /* without epilogue, arithmetic and accumulate */
    const void *g, *x;               /* as products read them */
    backend_buffer *gradient;        /* the buffer of g */
    struct cuda_room *own;           /* used if the place of the weight is not aligned */
    bool biased;
};
status cuda_weight_gradient(struct cuda *c, struct cuda_weight_product *p,
                            const struct op_call *call) MUST_CHECK;

/* ---- inputs of each step (backend_cuda_data.c) -------------------------------------------------
 */

/* `count` labels, and the number of valid samples. */
status cuda_stage_labels(struct cuda *c, const uint32_t *labels, uint32_t count, uint32_t valid,
                         const uint32_t **device_labels, const uint32_t **device_valid) MUST_CHECK;
/* Queues the copy of the staged block, unless it is queued already. */
status cuda_stage(struct cuda *c) MUST_CHECK;
enum { CUDA_STAGED_INDICES = 64 }; /* offset of the indices in the staged block, bytes */
/* The first part of this step's block, in host memory. */
struct cuda_step *cuda_staged_step(struct cuda *c);
size_t cuda_staged_crops(uint32_t capacity); /* offset of the crops, bytes */
status cuda_data_open(backend *b, const struct dataset *d) MUST_CHECK;
void cuda_data_close(struct cuda *c);
status cuda_gather(backend *b, backend_buffer *images, enum dataset_split split,
                   const uint32_t *indices, uint32_t first, uint32_t n,
                   const struct crop *crops) MUST_CHECK;

/* ---- resident vectors (backend_cuda_device_vectors.c); contracts in backend.h -------------------
 */

/* Call it when the loss of a step with an update is queued. `targets`: number of targets that the
 * mean loss is over. */
status cuda_resident_loss(struct cuda *c, const struct cuda_loss *loss, double targets) MUST_CHECK;
/* Queues the update. Call it at the end of such a step, before the step runs. */
status cuda_resident_finish(struct cuda *c) MUST_CHECK;
const struct device_place *cuda_place_of(const backend *b);
status cuda_resident_open(backend *b, size_t count, size_t extra, unsigned states,
                          struct device_vectors *out) MUST_CHECK;
void cuda_resident_close(struct cuda *c);
status cuda_resident_write(backend *b, float *to_device, const float *from,
                           size_t count) MUST_CHECK;
status cuda_resident_read(backend *b, float *to, const float *from_device, size_t count) MUST_CHECK;
status cuda_resident_update(backend *b, const struct device_update *u) MUST_CHECK;
status cuda_resident_results(backend *b, struct device_result *out, unsigned count) MUST_CHECK;

/* ---- operations ---------------------------------------------------------------------------------
 * Contract: op_open of backend.h. */
typedef status cuda_op_open(struct cuda *c, const struct op_description *d,
                            backend_buffer *const in[2], backend_op **out, backend_buffer **output);
cuda_op_open cuda_linear_open, cuda_convolution_open, cuda_pool_open, cuda_activation_open,
    cuda_add_open, cuda_reshape_open, cuda_batch_norm_open, cuda_cross_entropy_open,
    cuda_embedding_open, cuda_position_embedding_open, cuda_layer_norm_open, cuda_attention_open;

/* Blocks of the kernels of pools and of `collect`, which compute images of the shape `over`. */
struct cuda_grid cuda_pool_grid(const struct op_description *d, struct shape over);

#endif
