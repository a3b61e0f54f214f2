/*
 * model_residual.h — the basic block of residual networks (He et al. 2016, figure 2 left).
 */
#ifndef GRADLAG_WORKER_MODEL_MODEL_RESIDUAL_H
#define GRADLAG_WORKER_MODEL_MODEL_RESIDUAL_H

#include "worker/model/model.h"

/* relu(conv-bn-relu-conv-bn(x) + shortcut(x)). The shortcut is x or, if the shape changes, a 1×1
 * convolution with batch norm. Layer names: PREFIX.conv1, .bn1, .conv2, .bn2, .shortcut,
 * .shortcut_bn. */
tensor *residual_block(tape *t, tensor *x, const char *prefix, uint32_t channels, uint32_t stride);

#endif
