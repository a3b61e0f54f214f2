#include "worker/model/tape_internal.h"

#include <stdio.h>
#include <string.h>

static status wrong_layer(const struct layer *had, const struct layer *wanted)
{
    status result = OK;
    const uint32_t *h = had->weight_shape, *w = wanted->weight_shape;
    FAIL(
        ERROR_USAGE,
        "model: layer '%s' has weights %u×%u×%u×%u in this call and %u×%u×%u×%u in an earlier one; "
        "calls with one name share weights, so use another name",
        wanted->name, w[0], w[1], w[2], w[3], h[0], h[1], h[2], h[3]);
done:
    return result;
}

static status name_layer(struct layer *l, const char *name)
{
    status result = OK;
    int length = snprintf(l->name, sizeof l->name, "%s", name);
    if (length <= 0 || (size_t)length >= sizeof l->name) {
        FAIL(ERROR_USAGE, "model: layer name '%s' must have 1 to %zu characters", name,
             sizeof l->name - 1);
    }
done:
    return result;
}

/* An embedding and a linear layer may share weights: both are [vocabulary][features]. */
static bool share_weights(const struct layer *a, const struct layer *b)
{
    bool matrices = (a->kind == OP_EMBEDDING || a->kind == OP_LINEAR) &&
                    (b->kind == OP_EMBEDDING || b->kind == OP_LINEAR);
    return (a->kind == b->kind || matrices) &&
           memcmp(a->weight_shape, b->weight_shape, sizeof a->weight_shape) == 0;
}

status tape_find_layer(tape *t, struct layer *wanted, const char *name, bool biased, size_t *out)
{
    status result = OK;
    parameter_table *p = t->parameters;
    *out = NO_SLICE;
    TRY(name_layer(wanted, name));
    if (tape_skips(t))
        goto done;
    size_t at = parameter_table_find(p, wanted->name, t->layer_guess);
    if (at == parameter_table_layers(p)) {
        if (t->mode != TAPE_DISCOVER) {
            FAIL(ERROR_USAGE,
                 "model: the discovery pass did not reach layer '%s'; call it in the model's "
                 "declare "
                 "function",
                 wanted->name);
        }
        TRY(parameter_table_add(p, wanted, biased));
    }
    const struct layer *l = parameter_table_layer(p, at);
    if (!share_weights(l, wanted))
        TRY(wrong_layer(l, wanted));
    if (biased && l->bias == NO_SLICE) {
        REQUIRE(t->mode == TAPE_DISCOVER);
        TRY(parameter_table_add_bias(p, at));
    }
    t->layer_guess = at + 1;
    *out = at;
done:
    return result;
}

static tensor *dense(tape *t, tensor *x, const char *name, uint32_t outputs, bool biased)
{
    size_t at = 0;
    uint32_t inputs = (uint32_t)shape_count(x->d.output);
    struct layer l = {
        .kind = OP_LINEAR, .weight_rank = 2, .weight_shape = {outputs, inputs}, .fan_in = inputs};
    if (t->failed != OK)
        return &t->dead;
    STICK(t, tape_find_layer(t, &l, name, biased, &at));
    return tape_record(t,
                       (struct op_description){.kind = OP_LINEAR,
                                               .flags = biased ? OP_BIASED : 0,
                                               .output = {outputs, 1, 1}},
                       at, x, NULL);
}

tensor *linear(tape *t, tensor *x, const char *name, uint32_t outputs)
{
    return dense(t, x, name, outputs, true);
}

tensor *linear_unbiased(tape *t, tensor *x, const char *name, uint32_t outputs)
{
    return dense(t, x, name, outputs, false);
}

static status window_fits(const char *what, struct shape in, uint32_t kh, uint32_t kw,
                          uint32_t stride, uint32_t padding, struct shape *out)
{
    status result = OK;
    if (kh == 0 || kw == 0 || stride == 0 || in.height + 2 * padding < kh ||
        in.width + 2 * padding < kw) {
        FAIL(ERROR_USAGE,
             "model: %s of %u×%u with stride %u does not fit an input of %u×%u; use a model for "
             "larger images",
             what, kh, kw, stride, in.height, in.width);
    }
    out->height = (in.height + 2 * padding - kh) / stride + 1;
    out->width = (in.width + 2 * padding - kw) / stride + 1;
done:
    return result;
}

static tensor *convolution(tape *t, tensor *x, const char *name, uint32_t channels, uint32_t kernel,
                           uint32_t stride, uint32_t padding, bool biased)
{
    size_t at = 0;
    struct shape in = x->d.output, out = {.channels = channels};
    struct layer l = {.kind = OP_CONVOLUTION,
                      .weight_rank = 4,
                      .weight_shape = {channels, in.channels, kernel, kernel},
                      .fan_in = in.channels * kernel * kernel};
    if (t->failed != OK)
        return &t->dead;
    STICK(t, window_fits(name, in, kernel, kernel, stride, padding, &out));
    STICK(t, tape_find_layer(t, &l, name, biased, &at));
    return tape_record(t,
                       (struct op_description){.kind = OP_CONVOLUTION,
                                               .flags = biased ? OP_BIASED : 0,
                                               .kernel_height = kernel,
                                               .kernel_width = kernel,
                                               .stride = stride,
                                               .padding = padding,
                                               .output = out},
                       at, x, NULL);
}

tensor *conv2d(tape *t, tensor *x, const char *name, uint32_t channels, uint32_t kernel,
               uint32_t stride, uint32_t padding)
{
    return convolution(t, x, name, channels, kernel, stride, padding, true);
}

tensor *conv2d_unbiased(tape *t, tensor *x, const char *name, uint32_t channels, uint32_t kernel,
                        uint32_t stride, uint32_t padding)
{
    return convolution(t, x, name, channels, kernel, stride, padding, false);
}

static tensor *pool(tape *t, tensor *x, enum op_kind kind, uint32_t kh, uint32_t kw,
                    uint32_t stride)
{
    struct shape out = {.channels = x->d.output.channels};
    if (t->failed != OK)
        return &t->dead;
    STICK(t, window_fits("a pooling window", x->d.output, kh, kw, stride, 0, &out));
    return tape_record(
        t,
        (struct op_description){
            .kind = kind, .kernel_height = kh, .kernel_width = kw, .stride = stride, .output = out},
        NO_SLICE, x, NULL);
}

tensor *max_pool(tape *t, tensor *x, uint32_t kernel, uint32_t stride)
{
    return pool(t, x, OP_MAX_POOL, kernel, kernel, stride);
}

tensor *avg_pool(tape *t, tensor *x, uint32_t kernel, uint32_t stride)
{
    return pool(t, x, OP_AVERAGE_POOL, kernel, kernel, stride);
}

tensor *global_avg_pool(tape *t, tensor *x)
{
    return pool(t, x, OP_AVERAGE_POOL, x->d.output.height, x->d.output.width, 1);
}

tensor *activate(tape *t, tensor *x, enum activation a)
{
    if (t->failed != OK || a == ACTIVATION_NONE)
        return t->failed != OK ? &t->dead : x;
    bool waiting = x->node == NULL && x->d.activation == ACTIVATION_NONE && x != &t->dead;
    if (t->mode != TAPE_DISCOVER && waiting && !tape_skips(t) && t->b->kind->fuses(&x->d, a)) {
        tensor *y;
        STICK(t, tape_new_tensor(t, &y));
        *y = *x;
        y->d.activation = a;
        return y;
    }
    return tape_record(
        t, (struct op_description){.kind = OP_ACTIVATION, .activation = a, .output = x->d.output},
        NO_SLICE, x, NULL);
}

tensor *relu(tape *t, tensor *x)
{
    return activate(t, x, ACTIVATION_RELU);
}

tensor *hyperbolic_tangent(tape *t, tensor *x)
{
    return activate(t, x, ACTIVATION_TANH);
}

tensor *gelu(tape *t, tensor *x)
{
    return activate(t, x, ACTIVATION_GELU);
}

static status same_shape(struct shape a, struct shape b)
{
    status result = OK;
    if (memcmp(&a, &b, sizeof a) != 0) {
        FAIL(ERROR_USAGE, "model: add of %u×%u×%u and %u×%u×%u: the shapes must be equal",
             a.channels, a.height, a.width, b.channels, b.height, b.width);
    }
done:
    return result;
}

/* Fuses a + b into the batch norm `a` if it has not run and the backend supports it; else NULL. */
static tensor *residual(tape *t, tensor *a, tensor *b)
{
    tensor *y;
    if (t->mode == TAPE_DISCOVER || tape_skips(t) || a == b || a->d.kind != OP_BATCH_NORM ||
        a->node != NULL || a->d.activation != ACTIVATION_NONE || a->input[1] != NULL)
        return NULL;
    STICK(t, tape_run(t, b));
    if (!t->b->kind->fuses_residual(t->b, a->input[0]->node->value, b->node->value))
        return NULL;
    STICK(t, tape_new_tensor(t, &y));
    *y = *a;
    y->input[1] = b;
    y->d.flags |= OP_RESIDUAL | (b->wants_gradient ? OP_INPUT_GRADIENT : 0);
    return y;
}

tensor *add(tape *t, tensor *a, tensor *b)
{
    if (t->failed != OK)
        return &t->dead;
    STICK(t, same_shape(a->d.output, b->d.output));
    tensor *y = residual(t, a, b);
    if (y == NULL && b->node == NULL)
        y = residual(t, b, a);
    if (y != NULL)
        return y;
    return tape_record(t, (struct op_description){.kind = OP_ADD, .output = a->d.output}, NO_SLICE,
                       a, b);
}

static status same_count(struct shape a, struct shape b)
{
    status result = OK;
    if (shape_count(a) != shape_count(b)) {
        FAIL(ERROR_USAGE,
             "model: reshape of %u×%u×%u to %u×%u×%u: the number of elements must be equal",
             a.channels, a.height, a.width, b.channels, b.height, b.width);
    }
done:
    return result;
}

tensor *reshape(tape *t, tensor *x, uint32_t channels, uint32_t height, uint32_t width)
{
    struct shape out = {channels, height, width};
    if (t->failed != OK)
        return &t->dead;
    STICK(t, same_count(x->d.output, out));
    return tape_record(t, (struct op_description){.kind = OP_RESHAPE, .output = out}, NO_SLICE, x,
                       NULL);
}

tensor *batch_norm(tape *t, tensor *x, const char *name)
{
    size_t at = 0;
    uint32_t channels = x->d.output.channels;
    struct layer l = {
        .kind = OP_BATCH_NORM, .weight_rank = 1, .weight_shape = {channels}, .fan_in = 1};
    if (t->failed != OK)
        return &t->dead;
    STICK(t, tape_find_layer(t, &l, name, true, &at));
    uint32_t given = t->mode == TAPE_EVALUATE ? OP_GIVEN_STATISTICS
                     : t->joins               ? OP_JOINT_STATISTICS
                                              : 0;
    return tape_record(t,
                       (struct op_description){.kind = OP_BATCH_NORM,
                                               .flags = OP_BIASED | given,
                                               .output = x->d.output},
                       at, x, NULL);
}

static status are_logits(const tape *t, const char *loss, struct shape s, bool per_position)
{
    status result = OK;
    const uint32_t rows = per_position ? s.channels : 1;
    if (s.height != 1 || (s.width != 1 && !per_position) || rows != t->targets) {
        FAIL(ERROR_USAGE,
             "model: %s of %u×%u×%u with %u label%s for each sample: the shape must be classes×1×1 "
             "for one label, labels×1×classes for several; end the model with linear, or with "
             "linear_per_position",
             loss, s.channels, s.height, s.width, t->targets, t->targets == 1 ? "" : "s");
    }
done:
    return result;
}

tensor *softmax_cross_entropy(tape *t, tensor *logits)
{
    const bool per_position = t->targets > 1 || logits->d.output.width > 1;
    if (t->failed != OK)
        return &t->dead;
    STICK(t, are_logits(t, "cross-entropy", logits->d.output, per_position));
    return tape_record(t,
                       (struct op_description){.kind = OP_CROSS_ENTROPY,
                                               .flags = per_position ? OP_PER_POSITION : 0,
                                               .output = {1, 1, 1},
                                               .smoothing = t->smoothing},
                       NO_SLICE, logits, NULL);
}

void tape_smooth_labels(tape *t, double smoothing)
{
    t->smoothing = (float)smoothing;
}

tensor *squared_error(tape *t, tensor *y, float scale, float shift)
{
    if (t->failed != OK)
        return &t->dead;
    STICK(t, are_logits(t, "squared error", y->d.output, false));
    return tape_record(t,
                       (struct op_description){.kind = OP_SQUARED_ERROR,
                                               .output = {1, 1, 1},
                                               .target_scale = scale,
                                               .target_shift = shift},
                       NO_SLICE, y, NULL);
}
