/*
 * optimizer.h — the parameter update, the same code for the parameter server and for every rank.
 *
 * One fused pass over flat float32 vectors. With g the scaled, weight-decayed gradient:
 *   - sgd       θ ← θ − η g
 *   - momentum  v ← μ v + g;  θ ← θ − η v  (Polyak 1964, in the form of Sutskever 2013 §2 with η
 *     outside the velocity)
 *   - nesterov  v ← μ v + g;  θ ← θ − η (g + μ v)
 *
 * where g = scale · gradient + weight_decay · θ_in. No -ffast-math, no contraction: every element
 * is computed by the same IEEE operations whatever the vector width, position or chunking.
 *
 * The update is a transaction: it reads θ_in and writes θ_out (another buffer, or the same), and
 * keeps two copies of its state. If any gradient element is not finite the state stays as it was
 * and `finite` is false; θ_out then holds rubbish when it is another buffer. When θ_out == θ_in the
 * gradient is checked in a pass of its own first, so that θ stays whole then too.
 */
#ifndef GRADLAG_WORKER_OPTIMIZER_H
#define GRADLAG_WORKER_OPTIMIZER_H

#include "worker/crew.h"
#include "worker/registry.h"
#include "worker/vector.h"

typedef struct optimizer optimizer;

/* What one pass learns on its way. */
struct optimizer_pass {
    bool finite;
    double gradient_norm; /* ‖gradient‖₂ before scale and decay */
    double gap; /* RMS(θ_in − read_at) = ‖·‖₂/√count; 0 when read_at is NULL or θ_in */
};

struct optimizer_rates { /* float32, rounded once, so that every caller computes alike */
    float scale, lr, momentum, weight_decay;
};

enum { OPTIMIZER_LANES = VECTOR_LANES };

/* One pass over `count` elements; out may be in or read_at, state_out may be state_in. */
struct optimizer_call {
    struct optimizer_rates rates;
    size_t count;
    const float *in, *gradient, *state_in; /* states NULL when there are none */
    const float *read_at;                  /* NULL: no gap */
    float *state_out, *out;
    bool streamed; /* written past the caches; needs 16-byte alignment of state_out and out */
    double squares[OPTIMIZER_LANES]; /* out: Σ gradient², element i in lane i mod OPTIMIZER_LANES */
    double gaps[OPTIMIZER_LANES];    /* out: Σ (in − read_at)² */
};

/* Which update a device's kernel computes (worker/cuda_kernels_update.h). */
enum optimizer_form { OPTIMIZER_HOST_ONLY, OPTIMIZER_SGD, OPTIMIZER_MOMENTUM, OPTIMIZER_NESTEROV };

/* One optimizer: an entry of optimizer_registry. Its file is a few lines: worker/optimizer_loop.h.
 */
struct optimizer_kind {
    struct about about;
    unsigned states; /* flat vectors of state per parameter: 0 for sgd, 1 for momentum */
    void (*update)(struct optimizer_call *c);
    enum optimizer_form form; /* 0 where no kernel knows it: then parameters stay with the host */
};
extern const struct registry optimizer_registry;

/* Reads keys optimizer, momentum, weight_decay. State starts at zero. */
status optimizer_open(optimizer **out, const options *o, size_t count) MUST_CHECK;
void optimizer_close(optimizer **p);
/* In place of key momentum. May be negative. */
void optimizer_set_momentum(optimizer *p, double momentum);
/* Large updates are shared with these helpers; NULL: with nobody. The crew is borrowed. What comes
 * out does not depend on it. */
void optimizer_share(optimizer *p, crew *helpers);

/* θ_out ← update(θ_in, scale · gradient) with learning rate `lr`. `read_at`: the parameters that
 * the gradient was computed at, or NULL where the gap is not wanted; θ_out may take their place.
 * Buffers: `count` elements each. */
void optimizer_apply(optimizer *p, const float *in, const float *gradient, double scale, double lr,
                     const float *read_at, float *out, struct optimizer_pass *pass);

/* The optimizer that the settings name, for a device that applies it itself. */
struct optimizer_rule {
    enum optimizer_form form;
    unsigned states;
    float momentum, weight_decay;
};
status optimizer_rule_of(const options *o, struct optimizer_rule *out) MUST_CHECK;

/* State for checkpoints: `states` flat vectors, one after the other, states × count elements. */
size_t optimizer_state_count(const optimizer *p);
const float *optimizer_state(const optimizer *p);
void optimizer_set_state(optimizer *p, const float *state);

/* out ← mean of gradients[0..n) summed in that order, then × 1/n: the one ordered reduction that
 * consistency=bsp and reduction=ordered share. out may be gradients[0]. */
void reduce_mean_ordered(const float *const *gradients, size_t n, size_t count, float *out);

#endif
