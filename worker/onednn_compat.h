/*
 * onednn_compat.h — the one place that differs between oneDNN 2.6 (Debian 12) and 3.x.
 *
 * In 2.6 a memory descriptor is a struct and a primitive descriptor is made from an operation
 * descriptor; in 3.x both are opaque and made in one call. Here a descriptor is always a pointer
 * (`onednn_layout`, closed by onednn_layout_close), which both versions' memory calls accept, and a
 * primitive descriptor is always made in one call. Functions return oneDNN's own status.
 */
#ifndef GRADLAG_WORKER_ONEDNN_COMPAT_H
#define GRADLAG_WORKER_ONEDNN_COMPAT_H

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
/* Of the first `dimensions` elements of a tensor, with its strides. */
dnnl_status_t onednn_layout_part(onednn_layout *out, onednn_const_layout whole,
                                 const dnnl_dims_t dimensions);
dnnl_data_type_t onednn_layout_type(onednn_const_layout l);
void onednn_layout_close(onednn_layout *l);

/* Whether it computes within the call and in memory of the host, as all of this expects. One that
 * was built for SYCL does neither, and what is read then is no result. */
int onednn_computes_at_once(void);
/* Threads of the calling thread's oneDNN calls; no effect where its runtime cannot be told. */
void onednn_set_threads(int threads);
/* Whether this processor computes in bf16 natively. */
int onednn_has_bf16(void);
/* Whether it does so in tiles (AMX), whose convolutions want channels side by side. */
int onednn_has_amx(void);
/* Whether oneDNN gives bf16's results on it all the same. */
int onednn_emulates_bf16(void);

/* Every primitive descriptor made here leaves the primitive's scratchpad to the caller, who gives
 * it memory of at least that size (dnnl_query_scratchpad_md) as DNNL_ARG_SCRATCHPAD. oneDNN's own
 * one belongs to the thread that made the primitive: on another thread the primitive would crash.
 */
/* Attributes that say so; functions that take attributes take a changed copy of these, or NULL. */
dnnl_status_t onednn_attributes_open(dnnl_primitive_attr_t *out);
int onednn_leaves_scratchpad(const_dnnl_primitive_desc_t p);

dnnl_status_t onednn_reorder(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                             onednn_const_layout from, onednn_const_layout to);

/* What a convolution or a pooling slides over. */
struct onednn_window {
    dnnl_dims_t kernel, strides, padding, padding_end;
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
dnnl_status_t onednn_eltwise_backward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                      dnnl_alg_kind_t algorithm, onednn_const_layout data,
                                      const_dnnl_primitive_desc_t forward);

dnnl_status_t onednn_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, onednn_const_layout a,
                            onednn_const_layout b, onednn_const_layout bias, onednn_const_layout c);

dnnl_status_t onednn_append_eltwise(dnnl_post_ops_t operations, dnnl_alg_kind_t algorithm);

#endif
