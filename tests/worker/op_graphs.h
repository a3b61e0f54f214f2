/*
 * op_graphs.h — small models that together run every operation of a tape in every situation: other
 * layouts before it, values used twice, activations fused and not fused.
 */
#ifndef GRADLAG_TESTS_WORKER_OP_GRAPHS_H
#define GRADLAG_TESTS_WORKER_OP_GRAPHS_H

#include "worker/model/model.h"

typedef tensor *forward_function(tape *t, tensor *x, const struct model *m);

forward_function with_linear;
forward_function with_convolutions;
forward_function with_max_pool;
forward_function with_avg_pool;
forward_function with_relu;
forward_function with_relu_and_max_pool;
forward_function with_shared_max_pools;
forward_function with_tanh_after_pool;
forward_function with_narrow_convolutions;
forward_function with_gelu;
forward_function with_add;
forward_function with_reshape;
forward_function with_batch_norm;
forward_function with_shared_batch_norms;
forward_function with_residuals;
forward_function with_value_before_activation;
forward_function with_shared_weights;
forward_function with_whole_blocks;

/* On hidden states T×1×C. */
forward_function with_layer_norm;
forward_function with_attention;
forward_function with_position_embedding;
/* On tokens 1×T×1, with a loss at each position. */
forward_function with_embedding;
forward_function with_tied_embedding;

/* Tables for loops over every operation: op_graphs on images, sequence_graphs on sequences. */
struct op_graph {
    const char *name;
    forward_function *forward;
    struct shape images; /* a shape of images, hidden states or tokens that it accepts */
    bool tokens;         /* reads tokens */
};
extern const struct op_graph op_graphs[], sequence_graphs[];
extern const size_t op_graph_count, sequence_graph_count;

#endif
