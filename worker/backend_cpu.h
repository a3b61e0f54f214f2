/*
 * backend_cpu.h — inside the CPU backend: what its files share. Only backend_cpu*.c include it.
 *
 *   backend_cpu.c              buffers, opening, dispatch, errors of oneDNN
 *   backend_cpu_linear.c       GEMMs in place on the flat vectors
 *   backend_cpu_products.c     the same GEMMs in bf16
 *   backend_cpu_convolution.c  oneDNN convolution, direct algorithm, blocked layouts
 *   backend_cpu_parts.c        the same convolutions part by part of the batch
 *   backend_cpu_lanes*.c       small convolutions and their pools, the batch in the vector lanes
 *   backend_cpu_simple.c       pools, activations, add, reshape
 *   backend_cpu_pool16.c       max pooling over 2×2 places, for one thread
 *   backend_cpu_average16.c    the mean over all places, in bf16, for one thread
 *   backend_cpu_norm*.c        batch norm: oneDNN's; our own for one thread, with the residual sum
 *   backend_cpu_kernels.c      elementwise loops and the loss, which are not worth a primitive
 *   backend_cpu_widened.c      operations that know float32 alone, between activations in bf16
 *
 * Which type activations have is the operation's choice that makes them, and part of their layout:
 * with precision=bf16 and one thread, convolutions leave whole blocks of 16 channels in bf16, pools
 * and batch norms of our own keep the type of what they read, and everything else is float32. The
 * gradient of a value has the value's type.
 */
#ifndef GRADLAG_WORKER_BACKEND_CPU_H
#define GRADLAG_WORKER_BACKEND_CPU_H

#include "worker/backend.h"
#include "worker/onednn_compat.h"

extern const struct backend_kind backend_cpu;

struct cpu {
    struct backend base;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads;
    bool bf16; /* convolutions and GEMMs read bf16 */
    const float *parameters;
    float *gradient;
    /* For a gradient that must be added to what is there. Grows when first needed. */
    float *scratch;
    size_t scratch_count;
    /* What oneDNN's primitives compute in; they run one after the other and share it. Grows when a
     * primitive is made that needs more. */
    dnnl_memory_t scratchpad;
    void *scratchpad_data;
    size_t scratchpad_bytes;
    char description[160];
};

/* Who wants to see what is written to a buffer while it is in the cache: images first to
 * first + images − 1 of `data`, the whole batch's. A batch is shown from image 0 on, in order, or
 * not at all. */
struct cpu_watch {
    void (*see)(backend_op *who, void *data, size_t first, size_t images); /* NULL: nobody */
    backend_op *who;
};

struct backend_buffer {
    struct shape shape;
    uint32_t batch;
    onednn_layout layout;
    dnnl_format_tag_t tag; /* nChw16c, nhwc or Abcd16a if it is that, else undef */
    dnnl_memory_t memory;  /* over `data` */
    union {
        float *data;
        uint16_t *halves; /* the same, if `bf16` */
    };
    size_t count; /* elements including the layout's padding, which is always zero */
    bool bf16;    /* its elements' type; else float32 */
    bool plain;   /* row-major float32 in memory */
    struct cpu_reorder *read;
    bool rectified;                  /* the values are a ReLU's results */
    bool gradient_rectified;         /* this step's gradient is behind that ReLU already */
    struct cpu_watch value_watch;    /* on `data` */
    struct cpu_watch gradient_watch; /* on its gradient, wherever that lies, once complete */
};

/* Every operation's own struct begins with this. */
struct backend_op {
    struct op_description d;
    status (*forward)(struct cpu *c, backend_op *op, const struct op_call *call);
    status (*backward)(struct cpu *c, backend_op *op, const struct op_call *call);
    void (*close)(backend_op *op);
};

/* ---- oneDNN's errors ------------------------------------------------------------------------- */
status cpu_check(dnnl_status_t s, const char *what) MUST_CHECK;
#define TRY_DNNL(call, what) TRY(cpu_check((call), (what)))

/* ---- layouts, memories, primitives ------------------------------------------------------------
 */
/* Row-major N×C×H×W. */
status cpu_plain_layout(onednn_layout *out, uint32_t batch, struct shape s) MUST_CHECK;
status cpu_any_layout(onednn_layout *out, uint32_t batch, struct shape s) MUST_CHECK;
/* Row-major vector of `count`. */
status cpu_vector_layout(onednn_layout *out, uint32_t count) MUST_CHECK;
status cpu_tagged_layout(onednn_layout *out, uint32_t batch, struct shape s, dnnl_data_type_t type,
                         dnnl_format_tag_t tag) MUST_CHECK;
/* Bytes of a result that no longer stays in the cache until it is read: it is better written past
 * it. */
enum { CPU_STREAM_ABOVE = 1 << 20 };
/* A buffer of its own memory in a copy of this layout. */
status cpu_buffer_new(struct cpu *c, uint32_t batch, struct shape s, onednn_const_layout layout,
                      backend_buffer **out) MUST_CHECK;
void cpu_buffer_free(backend_buffer *b);
static inline size_t cpu_element_bytes(bool bf16)
{
    return bf16 ? sizeof(uint16_t) : sizeof(float);
}
static inline size_t cpu_buffer_bytes(const backend_buffer *b)
{
    return b->count * cpu_element_bytes(b->bf16);
}
/* The layout a primitive chose for one of its arguments; borrowed. */
onednn_const_layout cpu_chosen(const_dnnl_primitive_desc_t p, dnnl_query_t what);
/* A memory whose data is set before each use. */
status cpu_memory_new(struct cpu *c, onednn_const_layout layout, dnnl_memory_t *out) MUST_CHECK;
void cpu_memory_free(dnnl_memory_t *m);
void cpu_scratchpad_close(struct cpu *c);
/* Makes the primitive, sees to it that the scratchpad is large enough for it, and frees the
 * descriptor. */
status cpu_primitive_new(struct cpu *c, dnnl_primitive_desc_t *description, dnnl_primitive_t *out,
                         const char *what) MUST_CHECK;
void cpu_primitive_free(dnnl_primitive_t *p);
/* On any thread, one at a time for each backend. */
status cpu_execute(struct cpu *c, dnnl_primitive_t p, int count, const dnnl_exec_arg_t *arguments,
                   const char *what) MUST_CHECK;

/* Memory of its own in the layout of a weight, a workspace, …: not a batch of activations. */
struct cpu_block {
    dnnl_memory_t memory;
    float *data;
    size_t count;
};
status cpu_block_open(struct cpu *c, onednn_const_layout layout, struct cpu_block *out) MUST_CHECK;
void cpu_block_close(struct cpu_block *b);

/* Copies from one layout to another; the data pointers are set at each run. */
struct cpu_reorder {
    dnnl_primitive_t primitive;
    dnnl_memory_t from, to;
};
status cpu_reorder_open(struct cpu *c, onednn_const_layout from, onednn_const_layout to,
                        struct cpu_reorder *out) MUST_CHECK;
void cpu_reorder_close(struct cpu_reorder *r);
status cpu_reorder_run(struct cpu *c, const struct cpu_reorder *r, const void *from,
                       void *to) MUST_CHECK;

status cpu_scratch(struct cpu *c, size_t count, float **out) MUST_CHECK;

/* Wraps a primitive's result that may have to be added: where to write, then the addition. */
status cpu_target(struct cpu *c, float *at, size_t count, bool accumulate,
                  float **write) MUST_CHECK;
void cpu_target_done(float *at, const float *written, size_t count);
/* The same for a buffer, of its type. */
status cpu_buffer_target(struct cpu *c, backend_buffer *b, bool accumulate,
                         void **write) MUST_CHECK;
void cpu_buffer_done(backend_buffer *b, const void *written);
/* to[] += from[], of either type */
void cpu_add_elements(void *to, const void *from, size_t count, bool bf16);
/* b ← (or +=) another buffer of its layout */
void cpu_buffer_take(backend_buffer *b, const backend_buffer *from, bool accumulate);

/* ---- panels: layouts that kernels of our own read 16 channels at a time -------------------------
 */
struct cpu_panels {
    size_t blocks; /* of 16 channels; 0: in another layout */
    size_t places;
    size_t place, block, image; /* elements from one to the next */
};
static inline void *cpu_element(const void *data, size_t at, bool bf16)
{
    return (char *)(uintptr_t)data + at * cpu_element_bytes(bf16);
}
/* Of nChw16c, that most convolutions leave with AVX-512, and in bf16 of nhwc, that they leave with
 * AMX; without padding. */
struct cpu_panels cpu_panels_of(const backend_buffer *b);

/* ---- operations ---------------------------------------------------------------------------------
 */
status cpu_linear_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                       backend_op **out, backend_buffer **output) MUST_CHECK;
/* A linear layer's three products in bf16, accumulated in and written as float32. The operands are
 * rounded once per step: forward keeps the input and the weight for the other two, `weight` (the
 * weight's gradient) the result's gradient for `input`, so they come in this order. */
struct cpu_products;
status cpu_products_open(struct cpu *c, const struct op_description *d, const backend_buffer *input,
                         struct cpu_products **out) MUST_CHECK;
void cpu_products_close(struct cpu_products **p);
status cpu_products_forward(struct cpu *c, struct cpu_products *p, const float *input,
                            const float *weight, float *output) MUST_CHECK;
status cpu_products_weight(struct cpu *c, struct cpu_products *p, const float *output_gradient,
                           float *weight_gradient, bool accumulate) MUST_CHECK;
/* Row-major, rows × inputs. */
status cpu_products_input(struct cpu *c, struct cpu_products *p, float *input_gradient,
                          bool accumulate) MUST_CHECK;
status cpu_convolution_open(struct cpu *c, const struct op_description *d,
                            backend_buffer *const in[2], backend_op **out,
                            backend_buffer **output) MUST_CHECK;
/* A convolution in float32, run part by part. *out is NULL where that is of no use; `whole` is the
 * same for the whole batch, whose layouts the parts share. */
struct cpu_parts;
struct cpu_parts_wish {
    onednn_const_layout bias; /* or NULL */
    const struct onednn_window *window;
    const_dnnl_primitive_attr_t attributes;
};
status cpu_parts_open(struct cpu *c, const struct op_description *d,
                      const struct cpu_parts_wish *wish, const_dnnl_primitive_desc_t whole,
                      struct cpu_parts **out) MUST_CHECK;
status cpu_parts_open_backward(struct cpu *c, const struct op_description *d, struct cpu_parts *p,
                               const struct cpu_parts_wish *wish,
                               const_dnnl_primitive_desc_t whole) MUST_CHECK;
/* Whether it was opened for the input gradient too. */
bool cpu_parts_backward(const struct cpu_parts *p);
void cpu_parts_close(struct cpu_parts **p);
status cpu_parts_forward(struct cpu *c, const struct cpu_parts *p, const struct op_call *call,
                         dnnl_memory_t weights, dnnl_memory_t bias) MUST_CHECK;
status cpu_parts_backward_data(struct cpu *c, const struct cpu_parts *p, const struct op_call *call,
                               dnnl_memory_t weights) MUST_CHECK;
status cpu_pool_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                     backend_op **out, backend_buffer **output) MUST_CHECK;
/* An operation between float32 copies of the inputs that are bf16. */
status cpu_widened_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                        backend_op **out, backend_buffer **output) MUST_CHECK;
/* The operation that fits these inputs. */
status cpu_op_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                   backend_op **out, backend_buffer **output) MUST_CHECK;
bool cpu_pool16_fits(const struct cpu *c, const struct op_description *d,
                     const backend_buffer *input);
status cpu_pool16_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                       backend_op **out, backend_buffer **output) MUST_CHECK;
bool cpu_average16_fits(const struct cpu *c, const struct op_description *d,
                        const backend_buffer *input);
status cpu_average16_open(struct cpu *c, const struct op_description *d,
                          backend_buffer *const in[2], backend_op **out,
                          backend_buffer **output) MUST_CHECK;
status cpu_activation_open(struct cpu *c, const struct op_description *d,
                           backend_buffer *const in[2], backend_op **out,
                           backend_buffer **output) MUST_CHECK;
status cpu_add_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                    backend_op **out, backend_buffer **output) MUST_CHECK;
status cpu_reshape_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                        backend_op **out, backend_buffer **output) MUST_CHECK;
status cpu_batch_norm_open(struct cpu *c, const struct op_description *d,
                           backend_buffer *const in[2], backend_op **out,
                           backend_buffer **output) MUST_CHECK;
bool cpu_norm16_fits(const struct cpu *c, const backend_buffer *input);
status cpu_norm16_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                       backend_op **out, backend_buffer **output) MUST_CHECK;
status cpu_cross_entropy_open(struct cpu *c, const struct op_description *d,
                              backend_buffer *const in[2], backend_op **out,
                              backend_buffer **output) MUST_CHECK;
status cpu_squared_error_open(struct cpu *c, const struct op_description *d,
                              backend_buffer *const in[2], backend_op **out,
                              backend_buffer **output) MUST_CHECK;

/* ---- kernels ------------------------------------------------------------------------------------
 */
void cpu_add_into(float *restrict to, const float *restrict from, size_t count);
/* In bf16, each sum rounded once; `count` a multiple of 16. */
void cpu_add_into_bf16(uint16_t *restrict to, const uint16_t *restrict from, size_t count);
/* y ← activation(y + bias) over rows × columns; bias may be NULL; ACTIVATION_NONE or RELU */
void cpu_bias_activate(float *restrict y, const float *restrict bias, size_t rows, size_t columns,
                       enum activation a);
/* g ← g · activation'(…) given the activation's result y; RELU or TANH */
void cpu_activation_backward(float *restrict g, const float *restrict y, size_t count,
                             enum activation a);
/* RELU in bf16 */
void cpu_relu_backward_bf16(uint16_t *restrict g, const uint16_t *restrict y, size_t count);
/* out ← (or +=) the sums of the columns */
void cpu_column_sums(const float *restrict g, size_t rows, size_t columns, float *restrict out,
                     bool accumulate);
void cpu_add_two(float *restrict out, const float *restrict a, const float *restrict b,
                 size_t count, enum activation act);
struct cpu_answers {     /* of `valid` samples */
    const float *logits; /* [valid][classes] */
    const uint32_t *labels;
    uint32_t valid, classes;
    struct op_targets targets;
};
void cpu_cross_entropy(const struct cpu_answers *a, struct op_loss *loss);
/* (softmax − targets) / valid; rows from `valid` to `batch` are zero */
void cpu_cross_entropy_backward(const struct cpu_answers *a, uint32_t batch, float *gradient,
                                bool accumulate);

#endif
