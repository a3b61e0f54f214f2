/*
 * backend_cpu_average16.c — the mean over all positions of bf16 values, for one thread, 16 channels
 * at a time (struct cpu_panels). The sum and the result are float32. In the backward pass every
 * position gets the same value, rounded once.
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"
#include "base/vector_line.h"

enum { WIDTH = VECTOR_LANES };

struct average16 {
    backend_op op;
    struct cpu_panels panels;
};

bool cpu_average16_fits(const struct cpu *c, const struct op_description *d,
                        const backend_buffer *input)
{
    return d->kind == OP_AVERAGE_POOL && d->output.height == 1 && d->output.width == 1 &&
           d->kernel_height == d->input.height && d->kernel_width == d->input.width &&
           c->threads == 1 && input->bf16 && cpu_panels_of(input).blocks > 0;
}

/* One block of channels; neighbouring positions are `place` elements apart. */
VECTOR_CLONES
static void mean(const uint16_t *restrict x, size_t places, size_t place, float *restrict out)
{
    vector_line sum = {0};
    for (size_t p = 0; p < places; ++p) {
        vector_line v;
        vector_load_from(&v, x, p * place, VECTOR_BF16);
        sum += v;
    }
    sum /= (float)places;
    vector_store(out, &sum, false);
}

VECTOR_CLONES
static void spread(const float *restrict g, size_t places, size_t place, uint16_t *restrict to)
{
    vector_line v;
    vector_halves rounded;
    vector_load(&v, g);
    v /= (float)places;
    vector_narrow(&rounded, &v, VECTOR_BF16);
    for (size_t p = 0; p < places; ++p)
        vector_store_halves(to + p * place, &rounded, false);
}

static status forward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    const struct cpu_panels *k = &((struct average16 *)op)->panels;
    for (size_t n = 0; n < op->d.batch; ++n) {
        for (size_t b = 0; b < k->blocks; ++b) {
            mean(call->input[0]->halves + n * k->image + b * k->block, k->places, k->place,
                 call->output->data + (n * k->blocks + b) * WIDTH);
        }
    }
    return OK;
}

static status backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    const struct cpu_panels *k = &((struct average16 *)op)->panels;
    backend_buffer *to = call->input_gradient[0];
    void *write;
    if (to == NULL)
        goto done;
    TRY(cpu_buffer_target(c, to, call->accumulate[0], &write));
    for (size_t n = 0; n < op->d.batch; ++n) {
        for (size_t b = 0; b < k->blocks; ++b) {
            spread(call->output_gradient->data + (n * k->blocks + b) * WIDTH, k->places, k->place,
                   (uint16_t *)write + n * k->image + b * k->block);
        }
    }
    cpu_buffer_done(to, write);
done:
    return result;
}

static void close_average(backend_op *op)
{
    memory_free(op);
}

status cpu_average16_open(struct cpu *c, const struct op_description *d,
                          backend_buffer *const in[2], backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct average16 *k = NULL;
    onednn_layout layout = NULL;
    TRY(memory_new(&k, 1, sizeof *k, "a layer"));
    k->op = (backend_op){*d, forward, backward, close_average};
    k->panels = cpu_panels_of(in[0]);
    TRY(cpu_plain_layout(&layout, d->batch, d->output));
    TRY(cpu_buffer_new(c, d->batch, d->output, layout, output));
    *out = &k->op;
    k = NULL;
done:
    onednn_layout_close(&layout);
    memory_free(k);
    return result;
}
