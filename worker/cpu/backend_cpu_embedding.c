/*
 * backend_cpu_embedding.c — rows of a table for tokens, and a table added at each position. The
 * gradient of a table is summed in the order of samples and positions.
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"

#include <string.h>

static status embedding_forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    const struct op_description *d = &op->d;
    const size_t width = d->output.width, positions = d->output.channels;
    const float *tokens = call->input[0]->data, *table = c->parameters + call->weight;
    for (size_t i = 0; i < d->batch * positions; ++i) {
        if (!(tokens[i] >= 0 && tokens[i] < (float)d->vocabulary)) {
            FAIL(ERROR_DATA,
                 "sample %zu of the batch has token %g at position %zu, and the embedding has %u "
                 "rows; tokens must be whole numbers below dataset.vocabulary",
                 i / positions, (double)tokens[i], i % positions, d->vocabulary);
        }
        memcpy(call->output->data + i * width, table + (size_t)tokens[i] * width,
               width * sizeof(float));
    }
done:
    return result;
}

static status embedding_backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    const struct op_description *d = &op->d;
    const size_t width = d->output.width;
    const float *tokens = call->input[0]->data, *g = call->output_gradient->data;
    float *table = c->gradient + call->weight;
    if (!call->accumulate_weight)
        memset(table, 0, d->vocabulary * width * sizeof(float));
    for (size_t i = 0; i < (size_t)d->batch * d->output.channels; ++i)
        cpu_add_into(table + (size_t)tokens[i] * width, g + i * width, width);
    return OK;
}

static status position_forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    const size_t count = shape_count(op->d.output);
    for (size_t n = 0; n < op->d.batch; ++n) {
        cpu_add_two(call->output->data + n * count, call->input[0]->data + n * count,
                    c->parameters + call->weight, count, ACTIVATION_NONE);
    }
    return OK;
}

static status position_backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    backend_buffer *g = call->output_gradient, *to = call->input_gradient[0];
    cpu_column_sums(g->data, op->d.batch, shape_count(op->d.output), c->gradient + call->weight,
                    call->accumulate_weight);
    if (to != NULL && to != g)
        cpu_buffer_take(to, g, call->accumulate[0]);
    return OK;
}

static void close_table(backend_op *op)
{
    memory_free(op);
}

status cpu_embedding_open(struct cpu *c, const struct op_description *d,
                          backend_buffer *const in[2], backend_op **out, backend_buffer **output)
{
    status result = OK;
    const bool tokens = d->kind == OP_EMBEDDING;
    backend_op *op = NULL;
    TRY(cpu_requires_plain(d, in[0]));
    TRY(memory_new(&op, 1, sizeof *op, "an embedding"));
    *op = (backend_op){*d, tokens ? embedding_forward : position_forward,
                       tokens ? embedding_backward : position_backward, close_table};
    TRY(cpu_plain_buffer_new(c, d, output));
    *out = op;
    op = NULL;
done:
    memory_free(op);
    return result;
}
