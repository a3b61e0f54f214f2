#include "worker/cpu/onednn_compat.h"

#include "base/status.h"
#include "worker/cpu/onednn_instructions.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void onednn_set_threads(int threads)
{
    /* oneDNN takes its thread count from the OpenMP runtime that it is linked with. This program
     * need not be linked with that runtime. */
    static void (*set)(int);
    static int looked;
    if (!looked) {
        *(void **)&set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
        looked = 1;
    }
    if (set != NULL)
        set(threads);
}

int onednn_computes_at_once(void)
{
    const unsigned runtime = dnnl_version()->cpu_runtime;
    return runtime == DNNL_RUNTIME_SEQ || runtime == DNNL_RUNTIME_OMP ||
           runtime == DNNL_RUNTIME_TBB;
}

int onednn_has_bf16(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
           dnnl_cpu_isa_avx512_core_bf16;
}

int onednn_has_amx(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) ==
           dnnl_cpu_isa_avx512_core_amx;
}

int onednn_emulates_bf16(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

static const struct instruction_set {
    unsigned bits;
    const char *name;
} instruction_sets[] = {{dnnl_cpu_isa_sse41, "SSE41"},
                        {dnnl_cpu_isa_avx, "AVX"},
                        {dnnl_cpu_isa_avx2, "AVX2"},
                        {dnnl_cpu_isa_avx2_vnni, "AVX2_VNNI"},
                        {dnnl_cpu_isa_avx512_core, "AVX512_CORE"},
                        {dnnl_cpu_isa_avx512_core_vnni, "AVX512_CORE_VNNI"},
                        {dnnl_cpu_isa_avx512_core_bf16, "AVX512_CORE_BF16"},
                        {dnnl_cpu_isa_avx512_core_amx, "AVX512_CORE_AMX"}};

static bool is_offered(const struct instruction_set *s)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & s->bits) == s->bits;
}

const char *onednn_instructions(void)
{
    const char *name = "";
    for (size_t i = 0; i < COUNT_OF(instruction_sets); i++)
        name = is_offered(&instruction_sets[i]) ? instruction_sets[i].name : name;
    return name;
}

bool onednn_offers(const char *instructions)
{
    bool offered = false;
    for (size_t i = 0; i < COUNT_OF(instruction_sets); i++)
        if (strcmp(instruction_sets[i].name, instructions) == 0)
            offered = is_offered(&instruction_sets[i]);
    return offered;
}

void onednn_limit(const char *instructions)
{
    const bool known = instructions[0] != '\0';
    if (known && getenv("DNNL_MAX_CPU_ISA") == NULL)
        (void)setenv("ONEDNN_MAX_CPU_ISA", instructions, 0);
}

void onednn_layout_close(onednn_layout *l)
{
    if (*l != NULL) {
#if DNNL_VERSION_MAJOR >= 3
        dnnl_memory_desc_destroy(*l);
#else
        free(*l);
#endif
        *l = NULL;
    }
}

dnnl_status_t onednn_attributes_open(dnnl_primitive_attr_t *out)
{
    dnnl_status_t made = dnnl_primitive_attr_create(out);
    return made != dnnl_success
               ? made
               : dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
}

static dnnl_primitive_attr_t plain_attributes; /* never freed */

static void open_plain_attributes(void)
{
    (void)onednn_attributes_open(&plain_attributes);
}

static const_dnnl_primitive_attr_t plain(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_plain_attributes);
    return plain_attributes;
}

int onednn_leaves_scratchpad(const_dnnl_primitive_desc_t p)
{
    const_dnnl_primitive_attr_t attributes;
    dnnl_scratchpad_mode_t mode;
    return dnnl_primitive_desc_get_attr(p, &attributes) == dnnl_success &&
           dnnl_primitive_attr_get_scratchpad_mode(attributes, &mode) == dnnl_success &&
           mode == dnnl_scratchpad_mode_user;
}

dnnl_status_t onednn_reorder(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                             onednn_const_layout from, onednn_const_layout to)
{
    return dnnl_reorder_primitive_desc_create(out, from, engine, to, engine, plain());
}

#if DNNL_VERSION_MAJOR >= 3

static const dnnl_dims_t no_dilation;

dnnl_status_t onednn_layout_open(onednn_layout *out, int rank, const dnnl_dims_t dimensions,
                                 dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_create_with_tag(out, rank, dimensions, type, tag);
}

dnnl_status_t onednn_layout_copy(onednn_layout *out, onednn_const_layout from)
{
    return dnnl_memory_desc_clone(out, from);
}

dnnl_status_t onednn_layout_part(onednn_layout *out, onednn_const_layout whole,
                                 const dnnl_dims_t dimensions)
{
    const dnnl_dims_t start = {0};
    return dnnl_memory_desc_create_submemory(out, whole, dimensions, start);
}

dnnl_data_type_t onednn_layout_type(onednn_const_layout l)
{
    dnnl_data_type_t type = dnnl_data_type_undef;
    (void)dnnl_memory_desc_query(l, dnnl_query_data_type, &type);
    return type;
}

static dnnl_status_t convolution_forward(dnnl_alg_kind_t algorithm, dnnl_primitive_desc_t *out,
                                         dnnl_engine_t engine, dnnl_prop_kind_t kind,
                                         onednn_const_layout source, onednn_const_layout weights,
                                         onednn_const_layout bias, onednn_const_layout destination,
                                         const struct onednn_window *window,
                                         const_dnnl_primitive_attr_t attributes)
{
    return dnnl_convolution_forward_primitive_desc_create(
        out, engine, kind, algorithm, source, weights, bias, destination, window->strides,
        no_dilation, window->padding, window->padding_end,
        attributes != NULL ? attributes : plain());
}

static dnnl_status_t
convolution_backward_data(dnnl_alg_kind_t algorithm, dnnl_primitive_desc_t *out,
                          dnnl_engine_t engine, onednn_const_layout source,
                          onednn_const_layout weights, onednn_const_layout destination,
                          const struct onednn_window *window, const_dnnl_primitive_desc_t forward)
{
    return dnnl_convolution_backward_data_primitive_desc_create(
        out, engine, algorithm, source, weights, destination, window->strides, no_dilation,
        window->padding, window->padding_end, forward, plain());
}

static dnnl_status_t
convolution_backward_weights(dnnl_alg_kind_t algorithm, dnnl_primitive_desc_t *out,
                             dnnl_engine_t engine, onednn_const_layout source,
                             onednn_const_layout weights, onednn_const_layout bias,
                             onednn_const_layout destination, const struct onednn_window *window,
                             const_dnnl_primitive_desc_t forward)
{
    return dnnl_convolution_backward_weights_primitive_desc_create(
        out, engine, algorithm, source, weights, bias, destination, window->strides, no_dilation,
        window->padding, window->padding_end, forward, plain());
}

dnnl_status_t onednn_pooling_forward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                     dnnl_prop_kind_t kind, dnnl_alg_kind_t algorithm,
                                     onednn_const_layout source, onednn_const_layout destination,
                                     const struct onednn_window *window)
{
    return dnnl_pooling_forward_primitive_desc_create(
        out, engine, kind, algorithm, source, destination, window->strides, window->kernel,
        no_dilation, window->padding, window->padding_end, plain());
}

dnnl_status_t onednn_pooling_backward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                      dnnl_alg_kind_t algorithm, onednn_const_layout source,
                                      onednn_const_layout destination,
                                      const struct onednn_window *window,
                                      const_dnnl_primitive_desc_t forward)
{
    return dnnl_pooling_backward_primitive_desc_create(
        out, engine, algorithm, source, destination, window->strides, window->kernel, no_dilation,
        window->padding, window->padding_end, forward, plain());
}

dnnl_status_t onednn_batch_norm_forward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                        dnnl_prop_kind_t kind, onednn_const_layout data,
                                        float epsilon, unsigned flags)
{
    return dnnl_batch_normalization_forward_primitive_desc_create(out, engine, kind, data, data,
                                                                  epsilon, flags, plain());
}

dnnl_status_t onednn_batch_norm_backward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                         onednn_const_layout data, float epsilon, unsigned flags,
                                         const_dnnl_primitive_desc_t forward)
{
    return dnnl_batch_normalization_backward_primitive_desc_create(
        out, engine, dnnl_backward, data, data, data, epsilon, flags, forward, plain());
}

dnnl_status_t onednn_eltwise_forward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                     dnnl_prop_kind_t kind, dnnl_alg_kind_t algorithm,
                                     onednn_const_layout data)
{
    return dnnl_eltwise_forward_primitive_desc_create(out, engine, kind, algorithm, data, data, 0,
                                                      0, plain());
}

dnnl_status_t onednn_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, onednn_const_layout a,
                            onednn_const_layout b, onednn_const_layout bias, onednn_const_layout c)
{
    return dnnl_matmul_primitive_desc_create(out, engine, a, b, bias, c, plain());
}

dnnl_status_t onednn_append_eltwise(dnnl_post_ops_t operations, dnnl_alg_kind_t algorithm)
{
    return dnnl_post_ops_append_eltwise(operations, algorithm, 0, 0);
}

#else

dnnl_status_t onednn_layout_open(onednn_layout *out, int rank, const dnnl_dims_t dimensions,
                                 dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t *l = malloc(sizeof *l);
    if (l == NULL)
        return dnnl_out_of_memory;
    dnnl_status_t made = dnnl_memory_desc_init_by_tag(l, rank, dimensions, type, tag);
    if (made != dnnl_success) {
        free(l);
        return made;
    }
    *out = l;
    return dnnl_success;
}

dnnl_status_t onednn_layout_copy(onednn_layout *out, onednn_const_layout from)
{
    dnnl_memory_desc_t *l = malloc(sizeof *l);
    if (l == NULL)
        return dnnl_out_of_memory;
    *l = *from;
    *out = l;
    return dnnl_success;
}

dnnl_status_t onednn_layout_part(onednn_layout *out, onednn_const_layout whole,
                                 const dnnl_dims_t dimensions)
{
    const dnnl_dims_t start = {0};
    dnnl_status_t s = onednn_layout_copy(out, whole);
    return s != dnnl_success ? s : dnnl_memory_desc_init_submemory(*out, whole, dimensions, start);
}

dnnl_data_type_t onednn_layout_type(onednn_const_layout l)
{
    return l->data_type;
}

/* Creates the primitive descriptor from the operation descriptor. */
static dnnl_status_t finish(dnnl_primitive_desc_t *out, dnnl_engine_t engine, dnnl_status_t made,
                            const_dnnl_op_desc_t operation, const_dnnl_primitive_attr_t attributes,
                            const_dnnl_primitive_desc_t forward)
{
    if (made != dnnl_success)
        return made;
    return dnnl_primitive_desc_create(out, operation, attributes != NULL ? attributes : plain(),
                                      engine, forward);
}

static dnnl_status_t convolution_forward(dnnl_alg_kind_t algorithm, dnnl_primitive_desc_t *out,
                                         dnnl_engine_t engine, dnnl_prop_kind_t kind,
                                         onednn_const_layout source, onednn_const_layout weights,
                                         onednn_const_layout bias, onednn_const_layout destination,
                                         const struct onednn_window *window,
                                         const_dnnl_primitive_attr_t attributes)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t made =
        dnnl_convolution_forward_desc_init(&d, kind, algorithm, source, weights, bias, destination,
                                           window->strides, window->padding, window->padding_end);
    return finish(out, engine, made, &d, attributes, NULL);
}

static dnnl_status_t
convolution_backward_data(dnnl_alg_kind_t algorithm, dnnl_primitive_desc_t *out,
                          dnnl_engine_t engine, onednn_const_layout source,
                          onednn_const_layout weights, onednn_const_layout destination,
                          const struct onednn_window *window, const_dnnl_primitive_desc_t forward)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t made = dnnl_convolution_backward_data_desc_init(
        &d, algorithm, source, weights, destination, window->strides, window->padding,
        window->padding_end);
    return finish(out, engine, made, &d, NULL, forward);
}

static dnnl_status_t
convolution_backward_weights(dnnl_alg_kind_t algorithm, dnnl_primitive_desc_t *out,
                             dnnl_engine_t engine, onednn_const_layout source,
                             onednn_const_layout weights, onednn_const_layout bias,
                             onednn_const_layout destination, const struct onednn_window *window,
                             const_dnnl_primitive_desc_t forward)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t made = dnnl_convolution_backward_weights_desc_init(
        &d, algorithm, source, weights, bias, destination, window->strides, window->padding,
        window->padding_end);
    return finish(out, engine, made, &d, NULL, forward);
}

static const dnnl_dims_t no_dilation;

dnnl_status_t onednn_pooling_forward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                     dnnl_prop_kind_t kind, dnnl_alg_kind_t algorithm,
                                     onednn_const_layout source, onednn_const_layout destination,
                                     const struct onednn_window *window)
{
    dnnl_pooling_v2_desc_t d;
    dnnl_status_t made = dnnl_pooling_v2_forward_desc_init(
        &d, kind, algorithm, source, destination, window->strides, window->kernel, no_dilation,
        window->padding, window->padding_end);
    return finish(out, engine, made, &d, NULL, NULL);
}

dnnl_status_t onednn_pooling_backward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                      dnnl_alg_kind_t algorithm, onednn_const_layout source,
                                      onednn_const_layout destination,
                                      const struct onednn_window *window,
                                      const_dnnl_primitive_desc_t forward)
{
    dnnl_pooling_v2_desc_t d;
    dnnl_status_t made = dnnl_pooling_v2_backward_desc_init(
        &d, algorithm, source, destination, window->strides, window->kernel, no_dilation,
        window->padding, window->padding_end);
    return finish(out, engine, made, &d, NULL, forward);
}

dnnl_status_t onednn_batch_norm_forward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                        dnnl_prop_kind_t kind, onednn_const_layout data,
                                        float epsilon, unsigned flags)
{
    dnnl_batch_normalization_desc_t d;
    dnnl_status_t made = dnnl_batch_normalization_forward_desc_init(&d, kind, data, epsilon, flags);
    return finish(out, engine, made, &d, NULL, NULL);
}

dnnl_status_t onednn_batch_norm_backward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                         onednn_const_layout data, float epsilon, unsigned flags,
                                         const_dnnl_primitive_desc_t forward)
{
    dnnl_batch_normalization_desc_t d;
    dnnl_status_t made =
        dnnl_batch_normalization_backward_desc_init(&d, dnnl_backward, data, data, epsilon, flags);
    return finish(out, engine, made, &d, NULL, forward);
}

dnnl_status_t onednn_eltwise_forward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                     dnnl_prop_kind_t kind, dnnl_alg_kind_t algorithm,
                                     onednn_const_layout data)
{
    dnnl_eltwise_desc_t d;
    dnnl_status_t made = dnnl_eltwise_forward_desc_init(&d, kind, algorithm, data, 0, 0);
    return finish(out, engine, made, &d, NULL, NULL);
}

dnnl_status_t onednn_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, onednn_const_layout a,
                            onednn_const_layout b, onednn_const_layout bias, onednn_const_layout c)
{
    dnnl_matmul_desc_t d;
    dnnl_status_t made = dnnl_matmul_desc_init(&d, a, b, bias, c);
    return finish(out, engine, made, &d, NULL, NULL);
}

dnnl_status_t onednn_append_eltwise(dnnl_post_ops_t operations, dnnl_alg_kind_t algorithm)
{
    return dnnl_post_ops_append_eltwise(operations, 1, algorithm, 0, 0);
}

#endif

/* Uses the direct algorithm if oneDNN does not implement Winograd's for these arguments. */
#define BY_WINOGRAD_OR_DIRECT(wanted, convolution, ...)                                            \
    do {                                                                                           \
        if (wanted) {                                                                              \
            dnnl_status_t made = convolution(dnnl_convolution_winograd, __VA_ARGS__);              \
            if (made != dnnl_unimplemented)                                                        \
                return made;                                                                       \
        }                                                                                          \
        return convolution(dnnl_convolution_direct, __VA_ARGS__);                                  \
    } while (0)

dnnl_status_t onednn_convolution_forward(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                         dnnl_prop_kind_t kind, onednn_const_layout source,
                                         onednn_const_layout weights, onednn_const_layout bias,
                                         onednn_const_layout destination,
                                         const struct onednn_window *window,
                                         const_dnnl_primitive_attr_t attributes)
{
    BY_WINOGRAD_OR_DIRECT(window->winograd, convolution_forward, out, engine, kind, source, weights,
                          bias, destination, window, attributes);
}

dnnl_status_t onednn_convolution_backward_data(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                               onednn_const_layout source,
                                               onednn_const_layout weights,
                                               onednn_const_layout destination,
                                               const struct onednn_window *window,
                                               const_dnnl_primitive_desc_t forward)
{
    BY_WINOGRAD_OR_DIRECT(window->winograd, convolution_backward_data, out, engine, source, weights,
                          destination, window, forward);
}

dnnl_status_t onednn_convolution_backward_weights(
    dnnl_primitive_desc_t *out, dnnl_engine_t engine, onednn_const_layout source,
    onednn_const_layout weights, onednn_const_layout bias, onednn_const_layout destination,
    const struct onednn_window *window, const_dnnl_primitive_desc_t forward)
{
    BY_WINOGRAD_OR_DIRECT(window->winograd_weights, convolution_backward_weights, out, engine,
                          source, weights, bias, destination, window, forward);
}
