#include "worker/cpu/backend_cpu.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"
#include "worker/cpu/backend_cpu_batch16.h"
#include "base/vector.h"
#include "worker/cpu/onednn_instructions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status buffer_open(backend *b, uint32_t batch, struct shape s, backend_buffer **out)
{
    status result = OK;
    struct cpu *c = (struct cpu *)b;
    onednn_layout layout = NULL;
    TRY(cpu_plain_layout(&layout, batch, s));
    TRY(cpu_buffer_new(c, batch, s, layout, out));
done:
    onednn_layout_close(&layout);
    return result;
}

static status buffer_like(backend *b, const backend_buffer *other, backend_buffer **out)
{
    return cpu_buffer_new((struct cpu *)b, other->batch, other->shape, other->layout, out);
}

static void buffer_close(backend *b UNUSED, backend_buffer *buffer)
{
    cpu_buffer_free(buffer);
}

static float *buffer_host(backend *b UNUSED, backend_buffer *buffer)
{
    return buffer->data;
}

static status buffer_upload(backend *b UNUSED, backend_buffer *buffer UNUSED)
{
    return OK;
}

static status buffer_read(backend *b, backend_buffer *buffer, float *out)
{
    status result = OK;
    struct cpu *c = (struct cpu *)b;
    onednn_layout plain = NULL;
    if (buffer->plain) {
        memcpy(out, buffer->data, buffer->count * sizeof(float));
        goto done;
    }
    if (buffer->read == NULL) {
        TRY(memory_new(&buffer->read, 1, sizeof *buffer->read, "a change of layout"));
        TRY(cpu_plain_layout(&plain, buffer->batch, buffer->shape));
        TRY(cpu_reorder_open(c, buffer->layout, plain, buffer->read));
    }
    TRY(cpu_reorder_run(c, buffer->read, buffer->data, out));
done:
    onednn_layout_close(&plain);
    return result;
}

static bool buffer_same_layout(const backend_buffer *a, const backend_buffer *b)
{
    return a == b || dnnl_memory_desc_equal(a->layout, b->layout);
}

static bool fuses(const struct op_description *d, enum activation a)
{
    switch (d->kind) {
    case OP_LINEAR:
    case OP_CONVOLUTION:
        return a == ACTIVATION_RELU || a == ACTIVATION_TANH;
    case OP_BATCH_NORM: /* without AVX2, oneDNN fuses a ReLU only in its slow reference */
        return a == ACTIVATION_RELU && onednn_offers("AVX2");
    case OP_ADD:
        return a == ACTIVATION_RELU;
    default:
        return false;
    }
}

static bool fuses_residual(const backend *b, const backend_buffer *input,
                           const backend_buffer *other)
{
    return cpu_norm16_fits((const struct cpu *)b, input) && buffer_same_layout(input, other);
}

/* True: the operation can read an input in bf16. */
static bool reads_bf16(const struct cpu *c, const struct op_description *d,
                       const backend_buffer *input)
{
    switch (d->kind) {
    case OP_LINEAR:
    case OP_CONVOLUTION:
        return true;
    case OP_MAX_POOL:
        return cpu_pool16_fits(c, d, input);
    case OP_AVERAGE_POOL:
        return cpu_average16_fits(c, d, input);
    case OP_BATCH_NORM:
        return cpu_norm16_fits(c, input);
    default:
        return false;
    }
}

status cpu_op_open(struct cpu *c, const struct op_description *d, backend_buffer *const input[2],
                   backend_op **out, backend_buffer **output)
{
    bool narrow = input[0]->bf16 || (input[1] != NULL && input[1]->bf16);
    *output = NULL;
    if (narrow && !reads_bf16(c, d, input[0]))
        return cpu_widened_open(c, d, input, out, output);
    switch (d->kind) {
    case OP_LINEAR:
        return cpu_linear_open(c, d, input, out, output);
    case OP_CONVOLUTION:
        /* With precision=bf16 every convolution is in bf16, for any shape and batch. The batch16
         * kernels are faster where oneDNN pads, but they compute in float32. With them, a layer's
         * arithmetic would depend on its shape and batch. */
        if (!c->bf16 && cpu_lanes_convolution_fits(d))
            return cpu_lanes_convolution_open(c, d, input, out, output);
        return cpu_convolution_open(c, d, input, out, output);
    case OP_MAX_POOL:
    case OP_AVERAGE_POOL:
        if (cpu_lanes_pool_fits(d, input[0]))
            return cpu_lanes_pool_open(c, d, input, out, output);
        if (cpu_pool16_fits(c, d, input[0]))
            return cpu_pool16_open(c, d, input, out, output);
        if (cpu_average16_fits(c, d, input[0]))
            return cpu_average16_open(c, d, input, out, output);
        return cpu_pool_open(c, d, input, out, output);
    case OP_ACTIVATION:
        return cpu_activation_open(c, d, input, out, output);
    case OP_ADD:
        return cpu_add_open(c, d, input, out, output);
    case OP_RESHAPE:
        return cpu_reshape_open(c, d, input, out, output);
    case OP_BATCH_NORM:
        if (cpu_norm16_fits(c, input[0]))
            return cpu_norm16_open(c, d, input, out, output);
        return cpu_batch_norm_open(c, d, input, out, output);
    case OP_CROSS_ENTROPY:
        return cpu_cross_entropy_open(c, d, input, out, output);
    case OP_SQUARED_ERROR:
        return cpu_squared_error_open(c, d, input, out, output);
    case OP_EMBEDDING:
    case OP_POSITION_EMBEDDING:
        return cpu_embedding_open(c, d, input, out, output);
    case OP_LAYER_NORM:
        return cpu_layer_norm_open(c, d, input, out, output);
    case OP_ATTENTION:
        return cpu_attention_open(c, d, input, out, output);
    }
    contract_broken("the operation's kind is known", __FILE__, __LINE__, __func__);
}

static status op_open(backend *b, const struct op_description *d, backend_buffer *const input[2],
                      backend_op **out, backend_buffer **output)
{
    return cpu_op_open((struct cpu *)b, d, input, out, output);
}

static void op_close(backend *b UNUSED, backend_op *op)
{
    if (op != NULL)
        op->close(op);
}

static status begin(backend *b, const float *parameters, float *gradient, size_t count UNUSED)
{
    struct cpu *c = (struct cpu *)b;
    c->parameters = parameters;
    c->gradient = gradient;
    onednn_set_threads(c->threads); /* the runtime stores this per thread */
    return OK;
}

static status forward(backend *b, backend_op *op, const struct op_call *call)
{
    return op->forward((struct cpu *)b, op, call);
}

static status backward(backend *b, backend_op *op, const struct op_call *call)
{
    return op->backward((struct cpu *)b, op, call);
}

static status finish(backend *b UNUSED)
{
    return OK;
}

/* Accepts bf16 if the processor has it. oneDNN can emulate bf16 on any AVX-512 processor, several
 * times slower than float32. GRADLAG_BF16_EMULATED=1 allows this, to test the arithmetic on other
 * machines. */
static status check_bf16(const char *processor, bool *emulated)
{
    status result = OK;
    const char *wish = getenv("GRADLAG_BF16_EMULATED");
    *emulated = false;
    if (onednn_has_bf16())
        goto done;
    *emulated = wish != NULL && strcmp(wish, "1") == 0;
    if (!*emulated) {
        FAIL(ERROR_USAGE,
             "precision=bf16 is not available: processor %s has no bf16 instructions (AVX512_BF16 "
             "or AMX), "
             "or ONEDNN_MAX_CPU_ISA hides them; use precision=fp32",
             processor);
    }
    if (!onednn_emulates_bf16()) {
        FAIL(ERROR_USAGE,
             "precision=bf16 is not available: processor %s has no bf16 instructions and no "
             "AVX-512, which "
             "GRADLAG_BF16_EMULATED=1 requires; use precision=fp32",
             processor);
    }
done:
    return result;
}

static void close_cpu(backend *b)
{
    struct cpu *c = (struct cpu *)b;
    cpu_scratchpad_close(c);
    if (c->stream != NULL)
        dnnl_stream_destroy(c->stream);
    if (c->engine != NULL)
        dnnl_engine_destroy(c->engine);
    memory_free(c->scratch);
    memory_free(c);
}

static status open_cpu(backend **out, const struct backend_options *o)
{
    status result = OK;
    struct cpu *c = NULL;
    char processor[96];
    bool emulated = false;
    const dnnl_version_t *v = dnnl_version();
    processor_name(processor, sizeof processor);
    if (!onednn_computes_at_once()) {
        FAIL(
            ERROR_USAGE,
            "oneDNN %d.%d.%d was built for SYCL or an external thread pool, but gradlag requires a "
            "build for OpenMP or TBB; install Debian's libdnnl-dev",
            v->major, v->minor, v->patch);
    }
    if (o->precision == PRECISION_TF32) {
        FAIL(ERROR_USAGE, "precision=tf32 is not available with device=cpu; use precision=fp32, or "
                          "precision=bf16 if the processor supports it");
    }
    if (o->precision == PRECISION_BF16)
        TRY(check_bf16(processor, &emulated));
    TRY(memory_new(&c, 1, sizeof *c, "the cpu backend"));
    c->base.kind = &backend_cpu;
    c->threads = (int)o->threads;
    if (v->cpu_runtime == DNNL_RUNTIME_TBB) {
        log_warning("oneDNN %d.%d.%d was built for TBB, which does not obey threads=: each worker "
                    "may compute on all cores; for timings install a build for OpenMP",
                    v->major, v->minor, v->patch);
    }
    c->bf16 = o->precision == PRECISION_BF16;
    onednn_set_threads(c->threads);
    TRY_DNNL(dnnl_engine_create(&c->engine, dnnl_cpu, 0), "opening the cpu");
    TRY_DNNL(dnnl_stream_create(&c->stream, c->engine, dnnl_stream_default_flags),
             "opening the cpu");
    snprintf(c->description, sizeof c->description, "%s, oneDNN %d.%d.%d, %u thread%s%s%s",
             processor, v->major, v->minor, v->patch, o->threads, o->threads == 1 ? "" : "s",
             c->bf16 ? ", bf16" : "", emulated ? " emulated" : "");
    *out = &c->base;
    c = NULL;
done:
    if (c != NULL)
        close_cpu(&c->base);
    return result;
}

static const char *describe(const backend *b)
{
    return ((const struct cpu *)b)->description;
}

const struct backend_kind backend_cpu = {
    .about = {"cpu", "the host's processors, through oneDNN", NULL, NULL},
    .open = open_cpu,
    .close = close_cpu,
    .describe = describe,
    .buffer_open = buffer_open,
    .buffer_like = buffer_like,
    .buffer_close = buffer_close,
    .buffer_host = buffer_host,
    .buffer_upload = buffer_upload,
    .buffer_read = buffer_read,
    .buffer_same_layout = buffer_same_layout,
    .fuses = fuses,
    .fuses_residual = fuses_residual,
    .op_open = op_open,
    .op_close = op_close,
    .begin = begin,
    .forward = forward,
    .backward = backward,
    .finish = finish,
};
