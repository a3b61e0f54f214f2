/*
 * newton_schulz.h — the orthogonal factor of a matrix, approximately.
 *
 * For U = P S Qᵀ (its singular value decomposition) the result is near P Qᵀ: all singular values
 * move towards 1. Five steps of an iteration that needs only products:
 *
 *   X ← U / (‖U‖_F + ε);  five times: A ← X Xᵀ, X ← a X + (b A + c A²) X
 *
 * with a = 3.4445, b = −4.7750, c = 2.0315, ε = 1e-7 (Jordan et al. 2024, "Muon: An optimizer for
 * hidden layers in neural networks"). If U has more rows than columns, the iteration is that of Uᵀ.
 * A singular value of the first X in [0.002, 1] ends in [0.68, 1.21]. A smaller one is multiplied
 * by up to a⁵ = 485.
 *
 * Every element of a product is a sum in float32 in the order of its index, without fused
 * operations, so the bits depend neither on the processor nor on the threads. (The authors compute
 * in bfloat16.)
 */
#ifndef GRADLAG_WORKER_OPTIMIZER_NEWTON_SCHULZ_H
#define GRADLAG_WORKER_OPTIMIZER_NEWTON_SCHULZ_H

#include "base/helpers.h"

#include <stdint.h>

/* Floats of scratch memory for a matrix of this shape. */
size_t newton_schulz_scratch(uint32_t rows, uint32_t columns);

/* u[rows][columns] ← its orthogonal factor. 0 stays 0. `threads` share the products of large
 * matrices; NULL: none. */
void newton_schulz(uint32_t rows, uint32_t columns, float *u, float *scratch, helpers *threads);

#endif
