/*
 * optimizer_lars.c — layer-wise adaptive rate scaling: for each layer l
 *
 *   λ ← η ‖w‖ / (‖g‖ + β ‖w‖);   v ← m v + γ λ (g + β w);   w ← w − v
 *
 * You, Gitman, Ginsburg, "Large batch training of convolutional networks" (arXiv:1708.03888),
 * algorithm 1. η is optimizer.trust, β key weight_decay, m key momentum, γ the schedule's rate,
 * which is inside the velocity.
 *
 * A layer is a slice of the flat vector (fc1.weight). Slices of rank 1 (biases, batch norm's γ and
 * β) are excluded: λ = 1 and β = 0, so the schedule's rate must suit them too. If ‖w‖ or ‖g‖ is 0,
 * λ = 1. Norms are summed in double, in a fixed order.
 *
 * λ cancels a factor of the gradient. So damping scales the rate, as in optimizer_adamw.c, and with
 * it the weight decay.
 *
 * Our choice: the paper does not define the treatment of biases and of zero norms.
 */
#define OPTIMIZER_STATES 1
#define OPTIMIZER_STEP                                                                             \
    v = momentum * v + g;                                                                          \
    out = in - lr * v
#include "worker/optimizer/optimizer_loop.h"

static double layer_factor(const double *parameters, double weights, double gradient, double decay)
{
    return weights > 0 && gradient > 0 ? parameters[0] * weights / (gradient + decay * weights) : 1;
}

static const struct option parameters_of[] = {
    {"optimizer.trust", OPTION_REAL, "0.001", 0, 1e6, NULL, NULL,
     "trust coefficient: without momentum the norm of a layer's step is lr x trust x norm of its "
     "weights"},
    {0},
};

const struct optimizer_kind optimizer_lars = {
    .about =
        {"lars",
         "momentum with one rate for each layer, from the norms of its weights and its gradient",
         "You, Gitman, Ginsburg 2017, algorithm 1", parameters_of},
    .states = OPTIMIZER_STATES,
    .has_momentum = true,
    .scale_free = true,
    .update = optimizer_loop,
    .layer_factor = layer_factor,
};
