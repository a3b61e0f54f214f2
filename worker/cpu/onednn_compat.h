/*
 * onednn_compat.h — the differences between oneDNN 2.6 (Debian 12) and 3.x, in one place.
 *
 * In 2.6 a memory descriptor is a struct, and a primitive descriptor is created from an operation
 * descriptor. In 3.x both are opaque and created in one call. Here a memory descriptor is always a
 * pointer (`onednn_layout`, closed by onednn_layout_close), which the memory calls of both versions
 * accept, and a primitive descriptor is always created in one call. Functions return oneDNN's
 * status.
 */
#ifndef GRADLAG_WORKER_CPU_ONEDNN_COMPAT_H
#define GRADLAG_WORKER_CPU_ONEDNN_COMPAT_H

#include <stdbool.h>
#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t onednn_layout;
typedef const_dnnl_memory_desc_t onednn_const_layout;
enum { ONEDNN_NORM_BACKWARD_TAKES_SHIFT = 0 };
#else
typedef dnnl_memory_desc_t *onednn_layout;
typedef const dnnl_memory_desc_t *onednn_const_layout;
enum { ONEDNN_NORM_BACKWARD_TAKES_SHIFT = 1 };
#endif

dnnl_status_t onednn_layout_open(onednn_layout *out, int rank, const dnnl_dims_t dimensions,
                                 dnnl_data_type_t type, dnnl_format_tag_t tag);
dnnl_status_t onednn_layout_copy(onednn_layout *out, onednn_const_layout from);
/* The layout of the first `dimensions` elements of a tensor, with its strides. */
dnnl_status_t onednn_layout_part(onednn_layout *out, onednn_const_layout whole,
                                 const dnnl_dims_t dimensions);
dnnl_data_type_t onednn_layout_type(onednn_const_layout l);
void onednn_layout_close(onednn_layout *l);

/* True: oneDNN computes within the call, in host memory, as this room requires. A build for SYCL
 * does neither, so its results would be read too early. */
int onednn_computes_at_once(void);
/* Sets the threads of the calling thread's oneDNN calls; no effect if the runtime is unknown. */
void onednn_set_threads(int threads);
/* True: the processor has bf16 instructions. */
int onednn_has_bf16(void);
/* True: the processor has bf16 tiles (AMX); convolutions with AMX prefer nhwc. */
int onednn_has_amx(void);
/* True: oneDNN can emulate bf16 on this processor. */
int onednn_emulates_bf16(void);

/* Every primitive descriptor of this file leaves the scratchpad to the caller. The caller passes
 * memory of at least that size (dnnl_query_scratchpad_md) as DNNL_ARG_SCRATCHPAD. Reason: oneDNN's
 * own scratchpad belongs to the thread that created the primitive, and on another thread the
 * primitive would crash. */
/* Attributes for this mode. Functions that take attributes accept a modified copy of these, or
 * NULL. */
dnnl_status_t onednn_attributes_open(dnnl_primitive_attr_t *out);
int onednn_leaves_scratchpad(const_dnnl_primitive_desc_t p);

dnnl_status_t onednn_reorder(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                             onednn_const_layout from, onednn_const_layout to);

/* Window of a convolution or a pooling. */
struct onednn_window {
    dnnl_dims_t kernel, strides, padding, padding_end;
    /* Convolutions: request Winograd's algorithm for the weight gradient; for the other two
     * products. oneDNN uses the direct algorithm if it does not implement Winograd's for these
     * arguments. */
    bool winograd_weights, winograd;
};

dnnl_status_t onednn_convolution_forward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                         dnnl_prop_kind_t kind, onednn_const_layout source,
                                         onednn_const_layout weights, onednn_const_layout bias,
                                         onednn_const_layout destination,
                                         const struct onednn_window *window,
                                         const_dnnl_primitive_attr_t attributes);
dnnl_status_t onednn_convolution_backward_data(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                               onednn_const_layout source,
                                               onednn_const_layout weights,
                                               onednn_const_layout destination,
                                               const struct onednn_window *window,
                                               const_dnnl_primitive_desc_t forward);
dnnl_status_t onednn_convolution_backward_weights(
    dnnl_primitive_desc_t *out, dnnl_engine_t engine, onednn_const_layout source,
    onednn_const_layout weights, onednn_const_layout bias, onednn_const_layout destination,
    const struct onednn_window *window, const_dnnl_primitive_desc_t forward);

dnnl_status_t onednn_pooling_forward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                     dnnl_prop_kind_t kind, dnnl_alg_kind_t algorithm,
                                     onednn_const_layout source, onednn_const_layout destination,
                                     const struct onednn_window *window);
dnnl_status_t onednn_pooling_backward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                      dnnl_alg_kind_t algorithm, onednn_const_layout source,
                                      onednn_const_layout destination,
                                      const struct onednn_window *window,
                                      const_dnnl_primitive_desc_t forward);

dnnl_status_t onednn_batch_norm_forward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                        dnnl_prop_kind_t kind, onednn_const_layout data,
                                        float epsilon, unsigned flags);
dnnl_status_t onednn_batch_norm_backward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                         onednn_const_layout data, float epsilon, unsigned flags,
                                         const_dnnl_primitive_desc_t forward);

dnnl_status_t onednn_eltwise_forward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                     dnnl_prop_kind_t kind, dnnl_alg_kind_t algorithm,
                                     onednn_const_layout data);

dnnl_status_t onednn_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, onednn_const_layout a,
                            onednn_const_layout b, onednn_const_layout bias, onednn_const_layout c);

dnnl_status_t onednn_append_eltwise(dnnl_post_ops_t operations, dnnl_alg_kind_t algorithm);

#endif
