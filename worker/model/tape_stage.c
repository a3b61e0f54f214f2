/* tape_stage.c — part of a model on a tape: possible cuts, and a step in two halves. */
#include "worker/model/tape_internal.h"

#include <string.h>

static const tensor *call_of(const tape *t, size_t number)
{
    const struct chunk *c = t->chunks;
    for (; number >= TENSORS_PER_CHUNK; number -= TENSORS_PER_CHUNK)
        c = c->next;
    return &c->tensors[number];
}

static bool crosses(const tape *t, size_t at)
{
    for (size_t n = at + 1; n < t->tensor_count; ++n) {
        const tensor *x = call_of(t, n);
        for (int i = 0; i < 2; ++i)
            if (x->input[i] != NULL && x->input[i]->number < at)
                return true;
        for (size_t m = 1; x->layer != NO_SLICE && m <= at; ++m)
            if (call_of(t, m)->layer == x->layer)
                return true;
    }
    return false;
}

/* Stages begin with a linear layer, a convolution or, on the residual stream of a transformer, a
 * layer norm, so that operations that may be fused stay in one stage. */
static bool may_begin(enum op_kind kind)
{
    return kind == OP_LINEAR || kind == OP_CONVOLUTION || kind == OP_LAYER_NORM;
}

size_t tape_cuts(const tape *t, struct tape_cut *out, size_t capacity)
{
    size_t count = 0;
    bool has_layer = false; /* of the calls up to `at`: a stage needs parameters */
    REQUIRE(t->mode == TAPE_DISCOVER);
    for (size_t at = 1; at + 1 < t->tensor_count && count < capacity; ++at) {
        const tensor *next = call_of(t, at + 1);
        has_layer |= call_of(t, at)->layer != NO_SLICE;
        if (has_layer && may_begin(next->d.kind) && !crosses(t, at)) {
            out[count++] =
                (struct tape_cut){.at = at,
                                  .layer = parameter_table_layer(t->parameters, next->layer)->name,
                                  .shape = call_of(t, at)->d.output};
        }
    }
    return count;
}

void tape_set_range(tape *t, size_t first, size_t last, struct shape images)
{
    REQUIRE(t->step == 0 && first < last);
    t->first = first;
    t->last = last;
    t->images = images;
    if (t->input != NULL)
        t->input->wants_gradient = first > 0;
}

/* The output of a stage is row-major, and so is its gradient. */
static status run_output(tape *t, float *value)
{
    status result = OK;
    const size_t last = t->last;
    if (last >= t->tensor_count)
        FAIL(ERROR_USAGE, "model: its control flow depends on values, so it cannot be cut into "
                          "stages; train it with stages=1 or mode=sync");
    tensor *x = (tensor *)call_of(t, last);
    t->last = SIZE_MAX;
    tensor *y = reshape(t, x, x->d.output.channels, x->d.output.height, x->d.output.width);
    t->last = last;
    TRY(t->failed);
    TRY(tape_run(t, y));
    t->result = y->node;
    TRY(t->b->kind->buffer_read(t->b, y->node->value, value));
done:
    return result;
}

status tape_forward(tape *t, tensor *loss, uint32_t valid, float *value, struct op_loss *out)
{
    status result = OK;
    REQUIRE(t->mode == TAPE_TRAIN);
    TRY(t->failed);
    if (loss != NULL) {
        REQUIRE(op_is_loss(loss->d.kind) && valid > 0 && valid <= t->batch);
        t->valid = valid;
        TRY(tape_run(t, loss));
        t->result = loss->node;
    } else {
        TRY(run_output(t, value));
    }
    TRY(t->b->kind->finish(t->b));
    if (loss != NULL)
        *out = t->loss;
done:
    return result;
}

status tape_backward(tape *t, const float *parameters, const float *output_gradient,
                     float *input_gradient)
{
    status result = OK;
    struct tape_node *from = t->result;
    REQUIRE(t->mode == TAPE_TRAIN && (input_gradient == NULL || t->first > 0));
    TRY(t->b->kind->begin(t->b, parameters, t->gradient, parameter_table_count(t->parameters)));
    if (output_gradient != NULL) {
        TRY(tape_take_gradient(t, from));
        memcpy(t->b->kind->buffer_host(t->b, from->gradient), output_gradient,
               t->batch * shape_count(from->d.output) * sizeof(float));
    }
    TRY(tape_run_back(t, from));
    if (input_gradient != NULL) {
        REQUIRE(t->input->gradient != NULL);
        TRY(t->b->kind->buffer_read(t->b, t->input->gradient, input_gradient));
        tape_give_gradient_back(t, t->input);
    }
    TRY(tape_settle(t));
    TRY(t->b->kind->finish(t->b));
done:
    return result;
}

size_t tape_bytes(const tape *t)
{
    return t->bytes;
}
