#include "worker/model/model_residual.h"

#include <stdio.h>

enum { NAME_BYTES = 64 };

static tensor *convolution(tape *t, tensor *x, const char *prefix, const char *layer,
                           const char *norm, uint32_t channels, uint32_t kernel, uint32_t stride)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", prefix, layer);
    x = conv2d_unbiased(t, x, name, channels, kernel, stride, kernel / 2);
    snprintf(name, sizeof name, "%s.%s", prefix, norm);
    return batch_norm(t, x, name);
}

tensor *residual_block(tape *t, tensor *x, const char *prefix, uint32_t channels, uint32_t stride)
{
    tensor *straight = x;
    x = relu(t, convolution(t, x, prefix, "conv1", "bn1", channels, 3, stride));
    x = convolution(t, x, prefix, "conv2", "bn2", channels, 3, 1);
    if (stride != 1 || tensor_shape(straight).channels != channels)
        straight = convolution(t, straight, prefix, "shortcut", "shortcut_bn", channels, 1, stride);
    return relu(t, add(t, x, straight));
}
