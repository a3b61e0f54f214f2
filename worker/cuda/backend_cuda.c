/* backend_cuda.c — opens a device, runs steps, dispatches calls of the tape. backend_cuda.h lists
 * the other files. */
#include "worker/cuda/backend_cuda.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- buffers ------------------------------------------------------------------------------------
 */

static status buffer_open(backend *b, uint32_t batch, struct shape s, backend_buffer **out)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    backend_buffer *made = NULL;
    TRY(cuda_buffer_new(c, batch, s, ROWS, &made));
    TRY_CUDA(c, host_new, &made->host, made->count * sizeof(float), "a batch of images");
    memset(made->host, 0, made->count * sizeof(float));
    *out = made;
    made = NULL;
done:
    cuda_buffer_free(c, made);
    return result;
}

static status buffer_like(backend *b, const backend_buffer *other, backend_buffer **out)
{
    return cuda_buffer_new((struct cuda *)b, other->batch, other->shape, other->layout, out);
}

static void buffer_close(backend *b, backend_buffer *buffer)
{
    cuda_buffer_free((struct cuda *)b, buffer);
}

static float *buffer_host(backend *b UNUSED, backend_buffer *buffer)
{
    return buffer->host;
}

static status buffer_upload(backend *b, backend_buffer *buffer)
{
    struct cuda *c = (struct cuda *)b;
    c->needs_host = true;
    return cuda_queue_up(c, cuda_write(buffer), buffer->host, buffer->count * sizeof(float));
}

static status buffer_read(backend *b, backend_buffer *buffer, float *out)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    const float *rows;
    TRY(cuda_read(c, buffer, ROWS, &rows));
    TRY(cuda_commands_interrupt(c));
    TRY_CUDA(c, copy_down, CUDA_COMPUTE, out, rows, buffer->count * sizeof(float));
    TRY(c->kind->synchronize(c->device));
done:
    return result;
}

static bool buffer_same_layout(const backend_buffer *a, const backend_buffer *b)
{
    return a == b || (a->layout == b->layout && a->batch == b->batch &&
                      memcmp(&a->shape, &b->shape, sizeof a->shape) == 0);
}

/* ---- operations ---------------------------------------------------------------------------------
 */

static bool fuses(const struct op_description *d, enum activation a)
{
    switch (d->kind) {
    case OP_LINEAR:
    case OP_CONVOLUTION:
    case OP_MAX_POOL:
    case OP_AVERAGE_POOL:
        return a == ACTIVATION_RELU || a == ACTIVATION_TANH;
    case OP_BATCH_NORM:
    case OP_ADD:
        return a == ACTIVATION_RELU;
    default:
        return false;
    }
}

static bool fuses_residual(const backend *b UNUSED, const backend_buffer *input UNUSED,
                           const backend_buffer *other)
{
    return other->layout == LANES;
}

static status op_open(backend *b, const struct op_description *d, backend_buffer *const input[2],
                      backend_op **out, backend_buffer **output)
{
    status result = OK;
    static cuda_op_open *const open[] = {
        [OP_LINEAR] = cuda_linear_open,
        [OP_CONVOLUTION] = cuda_convolution_open,
        [OP_MAX_POOL] = cuda_pool_open,
        [OP_AVERAGE_POOL] = cuda_pool_open,
        [OP_ACTIVATION] = cuda_activation_open,
        [OP_ADD] = cuda_add_open,
        [OP_RESHAPE] = cuda_reshape_open,
        [OP_BATCH_NORM] = cuda_batch_norm_open,
        [OP_CROSS_ENTROPY] = cuda_cross_entropy_open,
        [OP_EMBEDDING] = cuda_embedding_open,
        [OP_POSITION_EMBEDDING] = cuda_position_embedding_open,
        [OP_LAYER_NORM] = cuda_layer_norm_open,
        [OP_ATTENTION] = cuda_attention_open,
    };
    *output = NULL;
    if (d->kind >= COUNT_OF(open) || open[d->kind] == NULL) {
        FAIL(ERROR_USAGE,
             "device=cuda has no kernels for %s, which this model or its loss needs; set "
             "device=cpu",
             op_name(d->kind));
    }
    TRY(open[d->kind]((struct cuda *)b, d, input, out, output));
done:
    return result;
}

static void op_close(backend *b, backend_op *op)
{
    if (op != NULL)
        op->close((struct cuda *)b, op);
}

static status forward(backend *b, backend_op *op, const struct op_call *call)
{
    return op->forward((struct cuda *)b, op, call);
}

static status backward(backend *b, backend_op *op, const struct op_call *call)
{
    return op->backward((struct cuda *)b, op, call);
}

/* ---- steps --------------------------------------------------------------------------------------
 */

static void keep(backend *b, const float *parameters)
{
    struct cuda *c = (struct cuda *)b;
    c->kept = parameters;
    c->kept_is_up = false;
}

/* Queues the copy of the parameters first, so that it runs while the tape records the step. */
static status bring_up(struct cuda *c, const float *parameters, float *gradient, size_t bytes)
{
    status result = OK;
    TRY(cuda_room_for(c, &c->parameters, bytes, "the parameters"));
    if (gradient != NULL) {
        TRY(cuda_room_for(c, &c->gradient, bytes, "the gradient"));
        (void)cuda_is_pinned(c, parameters, bytes, true);
    }
    c->parameters_at = c->parameters.at;
    c->gradient_at = gradient != NULL ? c->gradient.at : NULL;
    c->host_gradient = gradient;
    const bool kept = gradient == NULL && parameters == c->kept;
    if (!kept || !c->kept_is_up) {
        c->kept_is_up = false;
        TRY_CUDA(c, copy_up, CUDA_COMPUTE, c->parameters.at, parameters, bytes);
        c->kept_is_up = kept;
    }
done:
    return result;
}

static status begin(backend *b, const float *parameters, float *gradient, size_t count)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    cuda_commands_begin(c);
    c->count = count;
    if (c->resident.count > 0 && parameters == c->resident.parameters.at) {
        REQUIRE(gradient == NULL || gradient == c->resident.gradient.at);
        c->parameters_at = parameters;
        c->gradient_at = gradient;
        c->host_gradient = NULL;
    } else {
        REQUIRE(!c->resident.updates);
        TRY(bring_up(c, parameters, gradient, count * sizeof(float)));
    }
    REQUIRE(c->resident.updates || c->resident.queued == 0);
    c->resident.loss = NULL;
    c->needs_host = false;
    if (c->arithmetic == CUDA_BF16) {
        TRY(cuda_room_for(c, &c->parameters16, count * sizeof(uint16_t), "rounded parameters"));
        TRY(CUDA_LAUNCH(c, round, cuda_grid_over(count, 256), .to = c->parameters16.at,
                        .from = c->parameters_at, .count = count));
    }
done:
    return result;
}

static status finish(backend *b)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    const bool updates = c->resident.updates;
    if (updates)
        TRY(cuda_resident_finish(c));
    TRY(cuda_commands_finish(c, updates && !c->needs_host));
    c->resident.queued += updates;
    c->resident.updates = false;
done:
    return result;
}

static void abandon(backend *b)
{
    struct cuda *c = (struct cuda *)b;
    c->kept_is_up = c->resident.updates = false;
    cuda_commands_abandon(c);
}

static status clear(backend *b, float *gradient, size_t count)
{
    struct cuda *c = (struct cuda *)b;
    const float *from = c->host_gradient != NULL ? c->host_gradient : c->gradient_at;
    return cuda_queue_clear(c, (size_t)(gradient - from), count);
}

static void hold(backend *b)
{
    cuda_hold((struct cuda *)b);
}

static void forget(backend *b)
{
    cuda_forget((struct cuda *)b);
}

/* ---- opening ------------------------------------------------------------------------------------
 */

/* Convolutions keep spread images in one part of KEPT_SHARE of the device's memory, because several
 * workers may share a GPU. */
enum { KEPT_SHARE = 16 };

static void close_cuda(backend *b)
{
    struct cuda *c = (struct cuda *)b;
    if (c->device != NULL) {
        cuda_commands_close(c);
        cuda_data_close(c);
        cuda_room_close(c, &c->parameters);
        cuda_room_close(c, &c->parameters16);
        cuda_room_close(c, &c->gradient);
        cuda_resident_close(c);
        cuda_room_close(c, &c->scratch);
        cuda_room_close(c, &c->staging.device);
        c->kind->host_free(c->device, c->staging.blocks);
        c->kind->close(&c->device);
    }
    memory_free(c);
}

static status check_precision(const struct backend_options *o, const struct cuda_properties *p)
{
    status result = OK;
    if (o->precision != PRECISION_FP32 && p->capability < 80) {
        FAIL(ERROR_USAGE,
             "precision=%s: this GPU (%s, compute capability %u.%u) has no such arithmetic; it "
             "needs 8.0 (Ampere) or later: use precision=fp32",
             o->precision == PRECISION_TF32 ? "tf32" : "bf16", p->name, p->capability / 10,
             p->capability % 10);
    }
done:
    return result;
}

/* Selects and describes the device for `o`. This creates the CUDA context of this process on it. */
static status choose(const struct backend_options *o, const struct cuda_kind **kind,
                     unsigned *visible, unsigned *index, struct cuda_properties *p)
{
    status result = OK;
    TRY(cuda_kind_get(kind));
    TRY((*kind)->count(visible));
    TRY(placement_device(&o->place, *visible, index));
    TRY((*kind)->describe(*index, p));
    TRY(check_precision(o, p));
done:
    return result;
}

static status check_cuda(const struct backend_options *o)
{
    const struct cuda_kind *kind;
    struct cuda_properties p;
    unsigned visible, index;
    return choose(o, &kind, &visible, &index, &p);
}

/* Number of steps that may be queued. GRADLAG_CUDA_STEPS=NUMBER in the environment lowers it. */
static unsigned cuda_steps_ahead(void)
{
    const char *wanted = getenv("GRADLAG_CUDA_STEPS");
    const long most = wanted != NULL ? strtol(wanted, NULL, 10) : 0;
    return most > 0 && most < DEVICE_STEPS_MOST ? (unsigned)most : DEVICE_STEPS_MOST;
}

static status open_cuda(backend **out, const struct backend_options *o)
{
    static const struct {
        enum cuda_arithmetic arithmetic;
        const char *said;
    } precisions[] = {[PRECISION_FP32] = {CUDA_FP32, ""},
                      [PRECISION_TF32] = {CUDA_TF32, ", tf32"},
                      [PRECISION_BF16] = {CUDA_BF16, ", bf16"}};
    status result = OK;
    struct cuda *c = NULL;
    struct cuda_properties p;
    unsigned visible, index;
    TRY(memory_new(&c, 1, sizeof *c, "the cuda backend"));
    c->base.kind = &backend_cuda;
    TRY(choose(o, &c->kind, &visible, &index, &p));
    const struct cuda_options wanted = {.index = index, .may_spin = o->may_spin};
    TRY(c->kind->open(&c->device, &wanted));
    TRY(cuda_commands_open(c));
    c->place.index = index;
    c->place.stream = c->kind->native_stream(c->device, CUDA_COMPUTE);
    c->place.steps = cuda_steps_ahead();
    memcpy(c->place.pci, p.pci, sizeof c->place.pci);
    c->arithmetic = precisions[o->precision].arithmetic;
    c->keep_left = p.memory_bytes / KEPT_SHARE;
    snprintf(c->description, sizeof c->description, "%s at %s (%u of %u visible), %s%s", p.name,
             p.pci, index, visible, p.libraries, precisions[o->precision].said);
    *out = &c->base;
    c = NULL;
done:
    if (c != NULL)
        close_cuda(&c->base);
    return result;
}

static const char *describe(const backend *b)
{
    return ((const struct cuda *)b)->description;
}

const struct backend_kind backend_cuda = {
    .about = {"cuda", "an NVIDIA GPU, through CUDA and cublasLt", NULL, placement_options},
    .open = open_cuda,
    .check = check_cuda,
    .close = close_cuda,
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
    .samples_at_once = 8, /* convolutions read 4 elements at once, bf16 products read 8 */
    .keep = keep,
    .abandon = abandon,
    .dataset_open = cuda_data_open,
    .gather = cuda_gather,
    .hold = hold,
    .forget = forget,
    .clear = clear,
    .place = cuda_place_of,
    .device_vectors_open = cuda_resident_open,
    .device_vectors_write = cuda_resident_write,
    .device_vectors_read = cuda_resident_read,
    .device_vectors_update = cuda_resident_update,
    .device_vectors_results = cuda_resident_results,
};
