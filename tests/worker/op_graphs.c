#include "tests/worker/op_graphs.h"

tensor *with_linear(tape *t, tensor *x, const struct model *m)
{
    x = hyperbolic_tangent(t, linear(t, x, "fc1", 17));
    return linear(t, x, "fc2", m->classes);
}

tensor *with_convolutions(tape *t, tensor *x, const struct model *m)
{
    x = hyperbolic_tangent(t, conv2d(t, x, "conv1", 6, 3, 1, 1));
    x = hyperbolic_tangent(t, conv2d(t, x, "conv2", 18, 3, 2, 0));
    x = conv2d_unbiased(t, x, "conv3", 4, 2, 1, 1);
    return linear(t, x, "fc", m->classes);
}

tensor *with_max_pool(tape *t, tensor *x, const struct model *m)
{
    x = conv2d(t, x, "conv1", 8, 3, 1, 1);
    x = max_pool(t, x, 2, 2);
    x = max_pool(t, x, 2, 1);
    return linear(t, x, "fc", m->classes);
}

tensor *with_avg_pool(tape *t, tensor *x, const struct model *m)
{
    x = conv2d(t, x, "conv1", 16, 3, 1, 1);
    x = avg_pool(t, x, 3, 2);
    return linear(t, global_avg_pool(t, x), "fc", m->classes);
}

tensor *with_relu(tape *t, tensor *x, const struct model *m)
{
    x = relu(t, conv2d(t, x, "conv1", 16, 3, 1, 1));
    x = relu(t, avg_pool(t, x, 2, 2)); /* not fused */
    x = relu(t, linear(t, x, "fc1", 20));
    return linear(t, x, "fc2", m->classes);
}

tensor *with_relu_and_max_pool(tape *t, tensor *x, const struct model *m)
{
    x = max_pool(t, relu(t, conv2d(t, x, "conv1", 16, 3, 1, 1)), 2, 2);
    x = max_pool(t, relu(t, conv2d(t, x, "conv2", 8, 3, 1, 1)), 2, 1);
    return linear(t, x, "fc", m->classes);
}

/* Other operations read a ReLU's result before and after its pool, and another pool's result. */
tensor *with_shared_max_pools(tape *t, tensor *x, const struct model *m)
{
    tensor *a = relu(t, conv2d(t, x, "a", 16, 3, 1, 1));
    tensor *first = linear(t, a, "fc1", m->classes);
    tensor *pooled = max_pool(t, a, 2, 2);
    tensor *b = relu(t, conv2d(t, x, "b", 16, 3, 1, 1));
    tensor *other = max_pool(t, hyperbolic_tangent(t, conv2d(t, b, "c", 16, 3, 1, 1)), 2, 2);
    other = add(t, add(t, max_pool(t, b, 2, 2), other), pooled);
    return add(t, add(t, first, linear(t, other, "fc2", m->classes)),
               linear(t, b, "fc3", m->classes));
}

tensor *with_tanh_after_pool(tape *t, tensor *x, const struct model *m)
{
    x = conv2d(t, x, "conv1", 8, 3, 1, 0);
    x = hyperbolic_tangent(t, max_pool(t, x, 2, 2));
    return linear(t, x, "fc", m->classes);
}

/* Few channels, a batch of more than 16, no padding. */
tensor *with_narrow_convolutions(tape *t, tensor *x, const struct model *m)
{
    x = conv2d(t, x, "conv1", 6, 3, 1, 0);
    tensor *pooled = hyperbolic_tangent(t, max_pool(t, x, 2, 1));
    tensor *again = relu(t, conv2d(t, pooled, "conv2", 5, 3, 1, 0));
    tensor *deep = hyperbolic_tangent(t, conv2d_unbiased(t, again, "conv3", 7, 3, 1, 0));
    tensor *other = hyperbolic_tangent(t, conv2d(t, pooled, "conv2", 5, 3, 1, 0));
    other = add(t, max_pool(t, other, 2, 2), max_pool(t, again, 2, 2));
    return add(t, add(t, linear(t, deep, "fc1", m->classes), linear(t, other, "fc2", m->classes)),
               linear(t, pooled, "fc3", m->classes));
}

tensor *with_gelu(tape *t, tensor *x, const struct model *m)
{
    x = gelu(t, conv2d(t, x, "conv1", 5, 3, 1, 1));
    x = gelu(t, linear(t, x, "fc1", 20));
    return linear(t, x, "fc2", m->classes);
}

tensor *with_add(tape *t, tensor *x, const struct model *m)
{
    tensor *a = conv2d(t, x, "a", 6, 3, 1, 1);
    tensor *b = hyperbolic_tangent(t, conv2d(t, a, "b", 6, 3, 1, 1));
    tensor *c = add(t, a, b);
    c = add(t, c, c);
    c = relu(t, add(t, c, b));
    tensor *flat = linear(t, c, "fc1", 6 * 9 * 7);
    /* One side row-major, the other blocked. */
    tensor *image = reshape(t, flat, 6, 9, 7);
    return linear(t, add(t, image, c), "fc2", m->classes);
}

/* Two operations read each batch norm; the first of these is not a convolution. */
tensor *with_shared_batch_norms(tape *t, tensor *x, const struct model *m)
{
    x = relu(t, batch_norm(t, conv2d_unbiased(t, x, "conv1", 16, 3, 1, 1), "bn1"));
    /* The inputs of a sum run when the sum is recorded. */
    tensor *first = add(t, linear(t, x, "fc1", m->classes), linear(t, x, "fc4", m->classes));
    tensor *y = batch_norm(t, conv2d_unbiased(t, x, "conv2", 32, 3, 1, 1), "bn2");
    tensor *z = batch_norm(t, conv2d_unbiased(t, x, "conv3", 32, 1, 1, 0), "bn3");
    x = relu(t, add(t, y, z));
    tensor *second = add(t, first, linear(t, x, "fc2", m->classes));
    x = conv2d(t, x, "conv4", 16, 3, 2, 1);
    return add(t, second, linear(t, x, "fc3", m->classes));
}

tensor *with_reshape(tape *t, tensor *x, const struct model *m)
{
    x = conv2d(t, x, "conv1", 4, 3, 1, 1);
    x = reshape(t, x, 9, 14, 2);
    x = hyperbolic_tangent(t, conv2d(t, x, "conv2", 4, 2, 1, 0));
    return linear(t, x, "fc", m->classes);
}

tensor *with_batch_norm(tape *t, tensor *x, const struct model *m)
{
    x = hyperbolic_tangent(t, batch_norm(t, conv2d_unbiased(t, x, "conv1", 16, 3, 1, 1), "bn1"));
    x = relu(t, batch_norm(t, conv2d_unbiased(t, x, "conv2", 6, 3, 1, 1), "bn2"));
    return linear(t, x, "fc", m->classes);
}

/* Sums of batch norms and other branches, with and without ReLU, with equal and different layouts.
 */
tensor *with_residuals(tape *t, tensor *x, const struct model *m)
{
    x = conv2d(t, x, "conv1", 16, 3, 1, 1);
    tensor *y = relu(t, add(t, batch_norm(t, x, "bn1"), x));
    tensor *z = batch_norm(t, conv2d_unbiased(t, y, "conv2", 16, 3, 1, 1), "bn2");
    tensor *other = batch_norm(t, conv2d_unbiased(t, y, "conv3", 16, 1, 1, 0), "bn3");
    z = add(t, z, other);
    z = relu(t, add(t, y, batch_norm(t, z, "bn4")));
    tensor *plain = reshape(t, linear(t, z, "fc1", 16 * 9 * 7), 16, 9, 7);
    z = add(t, batch_norm(t, z, "bn5"), plain);
    return linear(t, add(t, z, batch_norm(t, z, "bn6")), "fc2", m->classes);
}

/* The value before the activation is also read. */
tensor *with_value_before_activation(tape *t, tensor *x, const struct model *m)
{
    tensor *before = conv2d(t, x, "conv1", 8, 3, 1, 1);
    tensor *after = relu(t, before);
    tensor *again = hyperbolic_tangent(t, conv2d(t, after, "conv2", 8, 3, 1, 1));
    return linear(t, add(t, again, before), "fc", m->classes);
}

tensor *with_shared_weights(tape *t, tensor *x, const struct model *m)
{
    x = conv2d(t, x, "in", 8, 3, 1, 1);
    for (int i = 0; i < 3; ++i)
        x = hyperbolic_tangent(t, batch_norm(t, conv2d(t, x, "same", 8, 3, 1, 1), "bn"));
    x = hyperbolic_tangent(t, linear(t, x, "fc1", 12));
    for (int i = 0; i < 2; ++i)
        x = hyperbolic_tangent(t, linear(t, x, "fc_same", 12));
    return linear(t, x, "fc2", m->classes);
}

/* Whole blocks of 16 channels, which special kernels compute, before operations without such
 * kernels; several operations read them. */
tensor *with_whole_blocks(tape *t, tensor *x, const struct model *m)
{
    tensor *a = conv2d(t, x, "a", 32, 3, 1, 1);
    tensor *b = relu(t, conv2d(t, gelu(t, a), "b", 32, 3, 1, 1));
    tensor *first = linear(t, add(t, a, b), "fc1", m->classes);
    first = add(t, first, linear(t, global_avg_pool(t, a), "fc5", m->classes));
    tensor *second =
        linear(t, add(t, max_pool(t, a, 3, 2), max_pool(t, b, 3, 2)), "fc2", m->classes);
    tensor *c = conv2d(t, reshape(t, a, 16, 14, 9), "c", 16, 3, 2, 1);
    tensor *third = linear(t, add(t, c, c), "fc3", m->classes);
    tensor *fourth =
        linear(t, conv2d(t, max_pool(t, b, 2, 2), "d", 16, 3, 1, 1), "fc4", m->classes);
    return add(t, add(t, first, second), add(t, third, fourth));
}

/* ---- sequences ---- */

/* Width 12 fills no vector, 32 fills two; the first norm's input is read again. */
tensor *with_layer_norm(tape *t, tensor *x, const struct model *m)
{
    tensor *y = layer_norm(t, x, "ln1");
    x = linear_per_position(t, add(t, x, y), "wide", 32, 0);
    x = hyperbolic_tangent(t, layer_norm(t, x, "ln2"));
    x = add(t, x, layer_norm(t, x, "ln2"));
    return linear(t, x, "fc", m->classes);
}

/* Heads of 5, 20 and 1 features; the second attention adds to a gradient. */
tensor *with_attention(tape *t, tensor *x, const struct model *m)
{
    tensor *qkv = linear_per_position(t, x, "qkv1", 3 * 20, 0.3f);
    tensor *y = add(t, causal_attention(t, qkv, 4), causal_attention(t, qkv, 1));
    y = linear_per_position(t, gelu(t, y), "qkv2", 3 * 3, 0.3f);
    return linear(t, causal_attention(t, y, 3), "fc", m->classes);
}

/* The input's gradient is also that of another sum; the table is used twice. */
tensor *with_position_embedding(tape *t, tensor *x, const struct model *m)
{
    tensor *y = linear_per_position(t, x, "in", 12, 0);
    tensor *z = position_embedding(t, y, "places", 0.5f);
    z = add(t, hyperbolic_tangent(t, position_embedding(t, z, "places", 0.5f)), y);
    return linear(t, add(t, z, position_embedding(t, y, "others", 0.5f)), "fc", m->classes);
}

tensor *with_embedding(tape *t, tensor *x, const struct model *m)
{
    x = embedding(t, x, "tokens", m->classes, 9, 0.5f);
    x = hyperbolic_tangent(t, linear_per_position(t, x, "fc1", 10, 0));
    return linear_per_position(t, x, "fc2", m->classes, 0);
}

tensor *with_tied_embedding(tape *t, tensor *x, const struct model *m)
{
    x = embedding(t, x, "tokens", m->classes, 16, 0.5f);
    return linear_per_position(t, hyperbolic_tangent(t, x), "tokens", m->classes, 0.5f);
}

#define GRAPH(call, ...)                                                                           \
    {                                                                                              \
        .name = #call, .forward = call, .images = { __VA_ARGS__ }                                  \
    }
const struct op_graph op_graphs[] = {
    GRAPH(with_linear, 3, 9, 7),
    GRAPH(with_convolutions, 3, 9, 7),
    GRAPH(with_max_pool, 3, 9, 7),
    GRAPH(with_avg_pool, 3, 9, 7),
    GRAPH(with_relu, 3, 9, 7),
    GRAPH(with_relu_and_max_pool, 3, 9, 7),
    GRAPH(with_shared_max_pools, 3, 9, 7),
    GRAPH(with_tanh_after_pool, 3, 9, 7),
    GRAPH(with_narrow_convolutions, 3, 12, 11),
    GRAPH(with_gelu, 3, 9, 7),
    GRAPH(with_add, 3, 9, 7),
    GRAPH(with_reshape, 3, 9, 7),
    GRAPH(with_batch_norm, 3, 9, 7),
    GRAPH(with_shared_batch_norms, 3, 9, 7),
    GRAPH(with_residuals, 3, 9, 7),
    GRAPH(with_value_before_activation, 3, 9, 7),
    GRAPH(with_shared_weights, 3, 9, 7),
    GRAPH(with_whole_blocks, 3, 9, 7),
};
const size_t op_graph_count = COUNT_OF(op_graphs);

const struct op_graph sequence_graphs[] = {
    {"with_layer_norm", with_layer_norm, {7, 1, 12}, false},
    {"with_attention", with_attention, {19, 1, 12}, false},
    {"with_position_embedding", with_position_embedding, {7, 1, 12}, false},
    {"with_embedding", with_embedding, {1, 7, 1}, true},
    {"with_tied_embedding", with_tied_embedding, {1, 7, 1}, true},
};
const size_t sequence_graph_count = COUNT_OF(sequence_graphs);
