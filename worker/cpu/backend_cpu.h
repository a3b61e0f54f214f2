/*
 * backend_cpu.h — internals of the CPU backend, shared by its files. Only files of worker/cpu
 * include it.
 *
 *   backend_cpu.c                 buffers, opening, dispatch
 *   backend_cpu_objects.c         layouts, memories, primitives, scratchpad, errors of oneDNN
 *   backend_cpu_linear.c          GEMMs in place on the flat vectors
 *   backend_cpu_products.c        the same GEMMs in bf16
 *   backend_cpu_convolution.c     oneDNN convolution, blocked layouts
 *   backend_cpu_parts.c           the same convolutions, part by part of the batch
 *   backend_cpu_batch16*.c        small convolutions and pools, with the batch in vector lanes
 *   backend_cpu_simple.c          pools, activations, add, reshape, losses
 *   backend_cpu_pool16.c          max pooling over 2×2 positions, for one thread
 *   backend_cpu_average16.c       the mean over all positions, in bf16, for one thread
 *   backend_cpu_norm.c            batch norm through oneDNN
 *   backend_cpu_norm16*.c         batch norm for one thread, fused with the residual sum
 *   backend_cpu_gelu.c            GELU
 *   backend_cpu_embedding.c       embeddings of tokens and positions
 *   backend_cpu_layer_norm.c      layer norm
 *   backend_cpu_attention*.c      causal attention, block by block of each head
 *   backend_cpu_kernels.c         elementwise loops and the loss, too small for a primitive
 *   backend_cpu_bf16_fallback.c   float32 operations between activations in bf16
 *
 * The operation that writes an activation selects its type, which is part of the layout. With
 * precision=bf16 and one thread, convolutions write whole blocks of 16 channels in bf16. The pools
 * and batch norms of this room keep the type of their input. All other operations write float32.
 * The gradient of a value has the value's type.
 */
#ifndef GRADLAG_WORKER_CPU_BACKEND_CPU_H
#define GRADLAG_WORKER_CPU_BACKEND_CPU_H

#include "worker/backend.h"
#include "worker/cpu/onednn_compat.h"

extern const struct backend_kind backend_cpu;

struct cpu {
    struct backend base;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int threads;
    bool bf16; /* convolutions and GEMMs read bf16 */
    const float *parameters;
    float *gradient;
    /* For a gradient that must be added to an existing one. Grows on demand. */
    float *scratch;
    size_t scratch_count;
    /* Scratchpad of oneDNN's primitives, shared because they run one after the other. It grows when
     * a primitive that needs more is created. */
    dnnl_memory_t scratchpad;
    void *scratchpad_data;
    size_t scratchpad_bytes;
    char description[160];
};

/* An operation that reads a buffer's new values while they are in the cache. `see` gets the whole
 * batch in `data` and reads images first … first + images − 1. It is called for all images of a
 * batch in order, from image 0, or not at all. */
struct cpu_watch {
    void (*see)(backend_op *reader, void *data, size_t first, size_t images); /* NULL: no reader */
    backend_op *reader;
};

struct backend_buffer {
    struct shape shape;
    uint32_t batch;
    onednn_layout layout;
    dnnl_format_tag_t tag; /* nChw16c, nhwc or Abcd16a; undef: another layout */
    dnnl_memory_t memory;  /* over `data` */
    union {
        float *data;
        uint16_t *halves; /* the same memory if `bf16` */
    };
    size_t count; /* elements including the layout's padding, see README.md */
    bool bf16;    /* element type bf16; else float32 */
    bool plain;   /* row-major float32 in memory */
    struct cpu_reorder *read;
    bool rectified;               /* the values are results of a ReLU */
    bool gradient_rectified;      /* this step's gradient already includes that ReLU's derivative */
    struct cpu_watch value_watch; /* reads `data` */
    struct cpu_watch gradient_watch; /* reads the complete gradient of this buffer, in any memory */
};

/* The first member of every operation's struct. */
struct backend_op {
    struct op_description d;
    status (*forward)(struct cpu *c, backend_op *op, const struct op_call *call);
    status (*backward)(struct cpu *c, backend_op *op, const struct op_call *call);
    void (*close)(backend_op *op);
};

/* ---- oneDNN's errors ------------------------------------------------------------------------- */
status cpu_check(dnnl_status_t s, const char *what) MUST_CHECK;
#define TRY_DNNL(call, what) TRY(cpu_check((call), (what)))

/* ---- layouts, memories, primitives ---- */
/* Row-major N×C×H×W. */
status cpu_plain_layout(onednn_layout *out, uint32_t batch, struct shape s) MUST_CHECK;
status cpu_any_layout(onednn_layout *out, uint32_t batch, struct shape s) MUST_CHECK;
/* Row-major vector of `count`. */
status cpu_vector_layout(onednn_layout *out, uint32_t count) MUST_CHECK;
status cpu_tagged_layout(onednn_layout *out, uint32_t batch, struct shape s, dnnl_data_type_t type,
                         dnnl_format_tag_t tag) MUST_CHECK;
/* Allocates a buffer in a copy of this layout. */
status cpu_buffer_new(struct cpu *c, uint32_t batch, struct shape s, onednn_const_layout layout,
                      backend_buffer **out) MUST_CHECK;
void cpu_buffer_free(backend_buffer *b);
/* A row-major buffer for the operation's output. */
status cpu_plain_buffer_new(struct cpu *c, const struct op_description *d,
                            backend_buffer **out) MUST_CHECK;
/* ERROR_USAGE if the operation's input is not row-major. */
status cpu_requires_plain(const struct op_description *d, const backend_buffer *input) MUST_CHECK;
static inline size_t cpu_element_bytes(bool bf16)
{
    return bf16 ? sizeof(uint16_t) : sizeof(float);
}
static inline size_t cpu_buffer_bytes(const backend_buffer *b)
{
    return b->count * cpu_element_bytes(b->bf16);
}
/* The layout that a primitive chose for one of its arguments; borrowed. */
onednn_const_layout cpu_chosen(const_dnnl_primitive_desc_t p, dnnl_query_t what);
/* A memory object; its data pointer is set before each use. */
status cpu_memory_new(struct cpu *c, onednn_const_layout layout, dnnl_memory_t *out) MUST_CHECK;
void cpu_memory_free(dnnl_memory_t *m);
void cpu_scratchpad_close(struct cpu *c);
/* Creates the primitive, enlarges the scratchpad if necessary, and frees the descriptor. */
status cpu_primitive_new(struct cpu *c, dnnl_primitive_desc_t *description, dnnl_primitive_t *out,
                         const char *what) MUST_CHECK;
void cpu_primitive_free(dnnl_primitive_t *p);
/* Any thread may call it, one at a time for each backend. */
status cpu_execute(struct cpu *c, dnnl_primitive_t p, int count, const dnnl_exec_arg_t *arguments,
                   const char *what) MUST_CHECK;

/* Memory in the layout of a weight, a workspace, …; not a batch of activations. */
struct cpu_block {
    dnnl_memory_t memory;
    float *data;
    size_t count;
};
status cpu_block_open(struct cpu *c, onednn_const_layout layout, struct cpu_block *out) MUST_CHECK;
void cpu_block_close(struct cpu_block *b);

/* Copies from one layout to another. The data pointers are set at each run. */
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

/* For a primitive's result that may be added: cpu_target gives the address to write to, and
 * cpu_target_done performs the addition. */
status cpu_target(struct cpu *c, float *at, size_t count, bool accumulate,
                  float **write) MUST_CHECK;
void cpu_target_done(float *at, const float *written, size_t count);
/* The same for a buffer, in the buffer's type. */
status cpu_buffer_target(struct cpu *c, backend_buffer *b, bool accumulate,
                         void **write) MUST_CHECK;
void cpu_buffer_done(backend_buffer *b, const void *written);
/* to[] += from[], both bf16 or both float32 */
void cpu_add_elements(void *to, const void *from, size_t count, bool bf16);
/* b ← (or +=) another buffer of the same layout */
void cpu_buffer_take(backend_buffer *b, const backend_buffer *from, bool accumulate);

/* ---- panels: layouts that this room's kernels read 16 channels at a time ---- */
struct cpu_panels {
    size_t blocks; /* blocks of 16 channels; 0: another layout */
    size_t places;
    size_t place, block, image; /* distances in elements */
};
static inline void *cpu_element(const void *data, size_t at, bool bf16)
{
    return (char *)(uintptr_t)data + at * cpu_element_bytes(bf16);
}
/* The panels of a buffer without padding, in nChw16c (most convolutions with AVX-512) or, in bf16,
 * nhwc (convolutions with AMX). */
struct cpu_panels cpu_panels_of(const backend_buffer *b);

/* ---- operations ---- */
status cpu_linear_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                       backend_op **out, backend_buffer **output) MUST_CHECK;
/* The three products of a linear layer in bf16, accumulated and written in float32. Each operand is
 * rounded once per step: `forward` keeps the input and the weight, and `weight` (the weight's
 * gradient) keeps the result's gradient. Call order: forward, weight, input. */
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
/* Sets window->winograd and window->winograd_weights. */
void cpu_choose_winograd(const struct cpu *c, const struct op_description *d,
                         struct onednn_window *window);
/* A float32 convolution that runs part by part. *out is NULL if this is not faster. `whole` is the
 * primitive for the whole batch; the parts use its layouts. */
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
/* True: it was also opened for the input gradient. */
bool cpu_parts_backward(const struct cpu_parts *p);
void cpu_parts_close(struct cpu_parts **p);
status cpu_parts_forward(struct cpu *c, const struct cpu_parts *p, const struct op_call *call,
                         dnnl_memory_t weights, dnnl_memory_t bias) MUST_CHECK;
status cpu_parts_backward_data(struct cpu *c, const struct cpu_parts *p, const struct op_call *call,
                               dnnl_memory_t weights) MUST_CHECK;
status cpu_pool_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                     backend_op **out, backend_buffer **output) MUST_CHECK;
/* A float32 operation; its bf16 inputs are converted to float32 copies. */
status cpu_widened_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                        backend_op **out, backend_buffer **output) MUST_CHECK;
/* Opens the operation for these inputs. */
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
status cpu_gelu_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                     backend_op **out, backend_buffer **output) MUST_CHECK;
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
status cpu_embedding_open(struct cpu *c, const struct op_description *d,
                          backend_buffer *const in[2], backend_op **out,
                          backend_buffer **output) MUST_CHECK;
status cpu_layer_norm_open(struct cpu *c, const struct op_description *d,
                           backend_buffer *const in[2], backend_op **out,
                           backend_buffer **output) MUST_CHECK;
status cpu_attention_open(struct cpu *c, const struct op_description *d,
                          backend_buffer *const in[2], backend_op **out,
                          backend_buffer **output) MUST_CHECK;

/* ---- kernels ---- */
void cpu_add_into(float *restrict to, const float *restrict from, size_t count);
/* to[] += from[] in bf16; each sum is rounded once. `count` is a multiple of 16. */
void cpu_add_into_bf16(uint16_t *restrict to, const uint16_t *restrict from, size_t count);
/* y ← activation(y + bias) over rows × columns; bias may be NULL; ACTIVATION_NONE or RELU. */
void cpu_bias_activate(float *restrict y, const float *restrict bias, size_t rows, size_t columns,
                       enum activation a);
/* g ← g · a'(x), computed from the result y = a(x); RELU or TANH. */
void cpu_activation_backward(float *restrict g, const float *restrict y, size_t count,
                             enum activation a);
/* RELU in bf16. */
void cpu_relu_backward_bf16(uint16_t *restrict g, const uint16_t *restrict y, size_t count);
/* out ← (or +=) the sums of the columns. */
void cpu_column_sums(const float *restrict g, size_t rows, size_t columns, float *restrict out,
                     bool accumulate);
void cpu_add_two(float *restrict out, const float *restrict a, const float *restrict b,
                 size_t count, enum activation act);
struct cpu_answers {     /* of `valid` rows */
    const float *logits; /* [valid][classes] */
    const uint32_t *labels;
    uint32_t valid, classes;
    struct op_targets targets;
};
void cpu_cross_entropy(const struct cpu_answers *a, struct op_loss *loss);
/* (softmax − targets) / valid; rows from `valid` to `rows` are zero. */
void cpu_cross_entropy_backward(const struct cpu_answers *a, uint32_t rows, float *gradient,
                                bool accumulate);

#endif
