/*
 * optimizer.h — the parameter update, the same code for the parameter server and for every rank.
 *
 * One fused pass over flat float32 vectors; each optimizer_NAME.c has its equations. Of those with
 * momentum:
 *   - sgd       θ ← θ − η g
 *   - momentum  v ← μ v + g;  θ ← θ − η v  (Polyak 1964, in the form of Sutskever 2013 §2 with η
 *     outside the velocity)
 *   - nesterov  v ← μ v + g;  θ ← θ − η (g + μ v)
 *
 * where g = scale · gradient + weight_decay · θ_in (adamw alone keeps the decay apart). No
 * -ffast-math, no contraction: every element is computed by the same IEEE operations whatever the
 * vector width, position or chunking.
 *
 * η outside the velocity is what Goyal et al. 2017 (§3) call momentum correction: a change of η
 * acts at once on all of v. With optimizer.momentum_correction=false η is inside, and what v has
 * gathered keeps the rate it came with: v ← μ v + η g; θ ← θ − v (their equation 10 as it stands).
 *
 * The update is a transaction: it reads θ_in and writes θ_out (another buffer, or the same), and
 * keeps two copies of its state. If any gradient element is not finite the state stays as it was
 * and `finite` is false; θ_out then holds rubbish when it is another buffer. When θ_out == θ_in the
 * gradient is checked in a pass of its own first, so that θ stays whole then too. The same where
 * the scaled gradient's norm is above √FLT_MAX = 1.8e19: where squares are kept one in float32 may
 * not be finite then, nor the parameters after it; elsewhere many such would take the parameters
 * there, and one does not, at any rate and momentum that the keys allow.
 */
#ifndef GRADLAG_WORKER_OPTIMIZER_H
#define GRADLAG_WORKER_OPTIMIZER_H

#include "worker/crew.h"
#include "worker/registry.h"
#include "worker/vector.h"

typedef struct optimizer optimizer;

/* What one pass learns on its way. */
struct optimizer_pass {
    bool finite;          /* and not too large, and an update was made */
    double gradient_norm; /* ‖gradient‖₂ before scale and decay */
    double gap; /* RMS(θ_in − read_at) = ‖·‖₂/√count; 0 when read_at is NULL or θ_in */
};

enum { OPTIMIZER_LANES = VECTOR_LANES, OPTIMIZER_PARAMETERS = 6, OPTIMIZER_CONSTANTS = 8 };

struct optimizer_rates { /* float32, rounded once, so that every caller computes alike */
    float scale, lr, momentum, weight_decay;
    float own[OPTIMIZER_CONSTANTS]; /* OPTIMIZER_CONSTANTS of the kind: struct optimizer_kind,
                                       constants */
};

/* One pass over `count` elements; out may be in or read_at, state_out may be state_in. */
struct optimizer_call {
    struct optimizer_rates rates;
    size_t count;
    const float *in, *gradient, *state_in; /* states NULL when there are none */
    size_t stride;                         /* elements from a state to the next one */
    const float *read_at;                  /* NULL: no gap */
    float *state_out, *out;
    bool streamed; /* written past the caches; needs 16-byte alignment of state_out and out */
    double squares[OPTIMIZER_LANES]; /* out: Σ gradient², element i in lane i mod OPTIMIZER_LANES */
    double gaps[OPTIMIZER_LANES];    /* out: Σ (in − read_at)² */
};

/* Which update a device's kernel computes (worker/cuda_kernels_update.h). */
enum optimizer_form { OPTIMIZER_HOST_ONLY, OPTIMIZER_SGD, OPTIMIZER_MOMENTUM, OPTIMIZER_NESTEROV };

/* The slices of the flat vector, one after the other. Those of rank 1 (biases, batch norm's γ and
 * β) are excluded from what a kind does with layers: factor 1 and no weight decay. */
struct optimizer_layer {
    size_t count;
    bool excluded;
};
struct optimizer_layers {
    const struct optimizer_layer *at;
    size_t count; /* 0: not known */
};

/* When an update happens, for kinds that look. */
struct optimizer_moment {
    const double *parameters;
    uint64_t number; /* of the update: 1, 2, … */
    double lr, decay;
    double epoch; /* optimizer_set_epoch */
};

/* One optimizer: an entry of optimizer_registry. Its file is a few lines: worker/optimizer_loop.h.
 */
struct optimizer_kind {
    struct about about; /* its options: flags and numbers, in parameter order */
    unsigned states;    /* flat vectors of state per parameter: 0 for sgd, 1 for momentum, 2 */
    bool has_momentum;  /* reads key momentum */
    bool decay_apart;   /* weight decay is no part of the gradient */
    void (*update)(struct optimizer_call *c);
    enum optimizer_form form; /* 0 where no kernel knows it: then parameters stay with the host */
    bool momentum_correction; /* parameter 0 says whether η is outside the velocity */
    /* What does not depend on the element, once for each update; NULL: nothing. */
    void (*constants)(const struct optimizer_moment *now, float own[OPTIMIZER_CONSTANTS]);
    /* For each layer a factor on η, which is then inside the velocity, from the Euclidean norms of
     * its parameters and its (scaled) gradient; NULL: layers are all alike. */
    double (*layer_factor)(const double *parameters, double weights, double gradient, double decay);
};
extern const struct registry optimizer_registry;
extern const struct option optimizer_momentum_options[];
/* Not in the registry: optimizer_open_outer's. */
extern const struct optimizer_kind optimizer_delayed_nesterov;

/* Reads keys optimizer, its dotted keys (their defaults where they are not declared), momentum,
 * weight_decay. State starts at zero. */
status optimizer_open(optimizer **out, const options *o, size_t count) MUST_CHECK;
/* Reads no key: what a server does with differences that workers send after steps of their own
 * (ps/outer.h). `every` 0: θ ← θ − η g. Else optimizer_delayed_nesterov.c has the equations; 1:
 * optimizer=nesterov. */
status optimizer_open_outer(optimizer **out, double momentum, unsigned every,
                            size_t count) MUST_CHECK;
void optimizer_close(optimizer **p);
/* Whether the optimizer that is set reads key momentum. */
status optimizer_has_momentum(const options *o, bool *out) MUST_CHECK;
/* The weight decay λ of which the optimizer adds λ θ to each element of the gradient; 0 where it
 * keeps the decay apart, or has layers without any. */
status optimizer_added_decay(const options *o, double *out) MUST_CHECK;
/* In place of key momentum. May be negative. */
void optimizer_set_momentum(optimizer *p, double momentum);
/* The layers, for kinds that treat each by itself (lars); others ignore them. Without this call the
 * whole vector is one layer. The table is copied; its counts add up to the vector's. */
status optimizer_set_layers(optimizer *p, const struct optimizer_layers *layers) MUST_CHECK;
/* Where in training the next update stands, in epochs: for kinds that change on their way
 * (rmsprop-warmup). 0 until it is called. */
void optimizer_set_epoch(optimizer *p, double epoch);
/* Updates made so far: with the state, what goes on from a checkpoint needs. */
uint64_t optimizer_updates(const optimizer *p);
void optimizer_set_updates(optimizer *p, uint64_t updates);
/* Large updates are shared with these helpers; NULL: with nobody. The crew is borrowed. What comes
 * out does not depend on it. */
void optimizer_share(optimizer *p, crew *helpers);

/* Whether an update is made of a gradient with this norm, squared. */
bool optimizer_takes(double squares, double scale);
/* Takes the last update's state back, if it was finite and not in place, and nothing came after. */
void optimizer_take_back(optimizer *p);

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
    bool rate_inside; /* the velocity: optimizer.momentum_correction=false */
    bool by_layer;    /* an element's update depends on all of its layer */
};
/* What a kernel multiplies with. */
struct optimizer_rates optimizer_rule_rates(const struct optimizer_rule *rule, double scale,
                                            double lr);
status optimizer_rule_of(const options *o, struct optimizer_rule *out) MUST_CHECK;

/* State for checkpoints: `states` flat vectors, one after the other, states × count elements. */
size_t optimizer_state_count(const optimizer *p);
const float *optimizer_state(const optimizer *p);
void optimizer_set_state(optimizer *p, const float *state);
/* The same to be written in place, between updates. */
float *optimizer_state_in_place(optimizer *p);

/* out ← mean of gradients[0..n) summed in that order, then × 1/n: the one ordered reduction that
 * consistency=bsp and reduction=ordered share. out may be gradients[0]. */
void reduce_mean_ordered(const float *const *gradients, size_t n, size_t count, float *out);

#endif
