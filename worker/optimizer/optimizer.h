/*
 * optimizer.h — the parameter update: the same code for the parameter server and for every rank.
 *
 * One fused pass over flat float32 vectors. Each optimizer_NAME.c has its equations. The basic
 * ones:
 *   - sgd       θ ← θ − η g
 *   - momentum  v ← μ v + g;  θ ← θ − η v  (Polyak 1964, in the form of Sutskever 2013 §2 with η
 *     outside the velocity)
 *   - nesterov  v ← μ v + g;  θ ← θ − η (g + μ v)
 *
 * g = scale · gradient + weight_decay · θ_in. Kinds with `decay_apart` (adamw, nadamw, lion, muon)
 * subtract η · weight_decay · θ_in from θ instead. No -ffast-math and no contraction: every element
 * is computed by the same IEEE operations for any vector width, position and chunking.
 *
 * η outside the velocity is the momentum correction of Goyal et al. 2017 (§3): a change of η acts
 * at once on the whole of v. With optimizer.momentum_correction=false η is inside, and each part of
 * v keeps the rate of its update: v ← μ v + η g; θ ← θ − v (their equation 10, unchanged).
 *
 * The update is a transaction. It reads θ_in and writes θ_out (another buffer, or the same), and
 * keeps two copies of its state. If a gradient element is not finite, the state does not change and
 * `finite` is false; if θ_out is another buffer, its content is then undefined. If θ_out == θ_in, a
 * separate pass checks the gradient first, so that θ does not change either.
 *
 * Key clip_norm (Pascanu, Mikolov, Bengio 2013, algorithm 1): if the norm of scale · gradient
 * exceeds it, that vector is multiplied by clip_norm / norm first. Unlike in PyTorch, nothing is
 * added to the norm.
 *
 * A state that would be subnormal is stored as 0 (flush_subnormal in base/vector.h).
 *
 * The update is also rejected if the norm of the scaled gradient exceeds √FLT_MAX = 1.8e19. Beyond
 * this bound a square may overflow float32. In optimizers that store squares, the parameters may
 * then overflow, too. In the other optimizers, one such gradient cannot make the parameters
 * infinite, at any rate and momentum that the keys allow, but many such gradients can.
 */
#ifndef GRADLAG_WORKER_OPTIMIZER_OPTIMIZER_H
#define GRADLAG_WORKER_OPTIMIZER_OPTIMIZER_H

#include "base/helpers.h"
#include "base/registry.h"
#include "base/vector.h"

typedef struct optimizer optimizer;

/* Results of one pass. */
struct optimizer_pass {
    bool finite;          /* the update was made: gradient finite and not too large */
    double gradient_norm; /* ‖gradient‖₂ before scale and decay */
    double gap; /* RMS(θ_in − read_at) = ‖·‖₂/√count; 0 when read_at is NULL or θ_in */
};

enum { OPTIMIZER_LANES = VECTOR_LANES, OPTIMIZER_PARAMETERS = 8, OPTIMIZER_CONSTANTS = 8 };

struct optimizer_rates { /* float32, rounded once, so that all callers compute the same */
    float scale, lr, momentum, weight_decay;
    float own[OPTIMIZER_CONSTANTS]; /* constants of the kind: struct optimizer_kind, constants */
};

/* One pass over `count` elements. `out` may equal `in` or `read_at`; state_out may equal state_in.
 */
struct optimizer_call {
    struct optimizer_rates rates;
    size_t count;
    const float *in, *gradient, *state_in; /* state_in: NULL if there are no states */
    size_t stride;                         /* elements between two states */
    const float *read_at;                  /* NULL: no gap */
    float *state_out, *out;
    bool streamed; /* writes bypass the caches; requires 16-byte alignment of state_out and out */
    size_t ahead;  /* elements between a load and its prefetch; 0: no effect */
    double
        squares[OPTIMIZER_LANES]; /* result: Σ gradient², element i in lane i mod OPTIMIZER_LANES */
    double gaps[OPTIMIZER_LANES]; /* result: Σ (in − read_at)² */
};

/* The update that a device's kernel computes (worker/cuda/kernels/cuda_kernels_update.h). */
enum optimizer_form { OPTIMIZER_HOST_ONLY, OPTIMIZER_SGD, OPTIMIZER_MOMENTUM, OPTIMIZER_NESTEROV };

/* The slices of the flat vector, in order. Slices of rank 1 (biases, batch norm's γ and β) are
 * excluded from layer-wise rules: factor 1 and no weight decay. */
struct optimizer_layer {
    size_t count;
    bool excluded;
    /* Of a hidden matrix, row-major, rows × columns = count. 0: a vector, an embedding or the
     * output layer. */
    uint32_t rows, columns;
};
struct optimizer_layers {
    const struct optimizer_layer *at;
    size_t count; /* 0: unknown */
};

/* State of training at an update, for kinds that depend on it. */
struct optimizer_moment {
    const double *parameters;
    uint64_t number; /* number of the update: 1, 2, … */
    double lr, decay;
    double epoch; /* set by optimizer_set_epoch */
    bool matrix;  /* true: a hidden matrix, for kinds that update matrices as a whole */
    double scale; /* of the gradient */
    /* ‖g‖², ‖v‖² and g·v over the layer, for kinds with `correlates`: g is the gradient without its
     * scale, v the first state before the update. */
    double gradient, state, product;
};

/* The second part of the update of a hidden matrix; all vectors have rows × columns elements. */
struct optimizer_matrix {
    uint32_t rows, columns;
    struct optimizer_rates rates;
    const float *in;
    float *direction;        /* written by `direction`; the call may change it */
    float *out;              /* may equal `in` */
    float *scratch;          /* `matrix_scratch` floats */
    struct helpers *threads; /* NULL: none */
};

/* One optimizer: an entry of optimizer_registry. Its file has a few lines, because the loop is in
 * worker/optimizer/optimizer_loop.h. */
struct optimizer_kind {
    struct about about; /* its options are flags and numbers, in parameter order */
    unsigned states;    /* state vectors: 0 for sgd, 1 for momentum, 2 for adamw */
    bool has_momentum;  /* reads key momentum */
    bool decay_apart;   /* weight decay is not added to the gradient */
    bool scale_free;    /* a factor that all gradients share does not change the update */
    bool squares_scale; /* a part of the update ignores such a factor, so damping is refused */
    bool correlates;    /* `constants` uses sums over each layer of gradient and first state */
    bool local_steps;   /* local steps (ps/local_steps.h) may use it although `form` is 0 */
    void (*update)(struct optimizer_call *c);
    enum optimizer_form form; /* 0: no kernel; parameters stay on the host */
    bool momentum_correction; /* parameter 0 tells whether η is outside the velocity */
    /* Computes the constants that do not depend on the element, once for each update; NULL: none.
     */
    void (*constants)(const struct optimizer_moment *now, float own[OPTIMIZER_CONSTANTS]);
    /* Computes for each layer a factor on η (which is then inside the velocity) from the Euclidean
     * norms of its parameters and its scaled gradient; NULL: the same rate for all layers. */
    double (*layer_factor)(const double *parameters, double weights, double gradient, double decay);
    /* For kinds that update hidden matrices as a whole; NULL: none. `direction` replaces `update`
     * there and writes a direction in place of θ. When all parts are done and the gradient is
     * accepted, `matrix` computes θ. */
    void (*direction)(struct optimizer_call *c);
    void (*matrix)(const struct optimizer_matrix *m);
    size_t (*matrix_scratch)(uint32_t rows, uint32_t columns); /* floats */
};
extern const struct registry optimizer_registry;
extern const struct option optimizer_momentum_options[];
/* For the server's update with an outer rule (ps/rules/outer/outer.h); not in the registry. */
extern const struct optimizer_kind optimizer_delayed_nesterov, optimizer_heloco,
    optimizer_outer_adam;

/* The entry of key optimizer. */
status optimizer_kind_of(const options *o, const struct optimizer_kind **out) MUST_CHECK;
/* Reads keys optimizer, its dotted keys, momentum and weight_decay. The state starts at zero. */
status optimizer_open(optimizer **out, const options *o, size_t count) MUST_CHECK;
/* Opens an optimizer for the differences that workers send after local steps
 * (ps/rules/outer/outer.h). It reads no key; `parameters` has the kind's parameters. NULL as kind:
 * θ ← θ − η g. */
status optimizer_open_outer(optimizer **out, const struct optimizer_kind *kind,
                            const double parameters[OPTIMIZER_PARAMETERS], size_t count) MUST_CHECK;
void optimizer_close(optimizer **p);
/* True: a factor that all gradients share does not change the updates, so that the scale of a stale
 * gradient must be a factor of its learning rate instead. */
bool optimizer_is_scale_free(const optimizer *p);
/* True: the selected optimizer reads key momentum. */
status optimizer_has_momentum(const options *o, bool *out) MUST_CHECK;
/* The weight decay λ if the optimizer adds λ θ to every element of the gradient. 0 if it keeps the
 * decay separate or has layers without decay. */
status optimizer_added_decay(const options *o, double *out) MUST_CHECK;
/* Replaces the value of key momentum. May be negative. */
void optimizer_set_momentum(optimizer *p, double momentum);
/* Sets the layers, for layer-wise kinds (lars, heloco), kinds of whole matrices (muon) and
 * weight_decay_of=matrices. Without this call the whole vector is one layer, and no hidden matrix.
 * The table is copied. Its counts must add up to the vector's count. */
status optimizer_set_layers(optimizer *p, const struct optimizer_layers *layers) MUST_CHECK;
/* Sets the position of the next update in epochs, for kinds that change during training
 * (rmsprop-warmup). Initially 0. */
void optimizer_set_epoch(optimizer *p, double epoch);
/* Sets the number of updates so far. A resumed run sets it together with the state. */
void optimizer_set_updates(optimizer *p, uint64_t updates);
/* Shares large updates with these helper threads (borrowed); NULL: none. The result does not depend
 * on them. */
void optimizer_share(optimizer *p, helpers *helpers);

/* False: an update with this squared gradient norm is rejected. */
bool optimizer_takes(double squares, double scale);
/* Reverts the state of the last update. Requires that it was finite and not in place, and that no
 * other update followed. */
void optimizer_take_back(optimizer *p);

/* θ_out ← update(θ_in, scale · gradient) with learning rate `lr`. `read_at`: the parameters at
 * which the gradient was computed; NULL: no gap. θ_out may be the buffer of read_at. Each buffer
 * has `count` elements. */
void optimizer_apply(optimizer *p, const float *in, const float *gradient, double scale, double lr,
                     const float *read_at, float *out, struct optimizer_pass *pass);

/* The optimizer of the settings, for a device that applies it. */
struct optimizer_rule {
    enum optimizer_form form;
    unsigned states;
    float momentum, weight_decay;
    bool rate_inside;    /* η is inside the velocity: optimizer.momentum_correction=false */
    bool decay_matrices; /* weight_decay_of=matrices: excluded layers have no weight decay */
    float clip_norm;     /* the largest norm of the scaled gradient; 0: no limit */
    bool by_layer;       /* the update of an element depends on its whole layer */
    bool local_steps;    /* local steps of a worker may use it (ps/local_steps.h) */
};
/* The factors that a kernel uses. */
struct optimizer_rates optimizer_rule_rates(const struct optimizer_rule *rule, double scale,
                                            double lr);
status optimizer_rule_of(const options *o, struct optimizer_rule *out) MUST_CHECK;
/* The key to name if this rule is refused because of clip_norm, by_layer, local_steps or
 * OPTIMIZER_HOST_ONLY. */
const char *optimizer_rule_key(const struct optimizer_rule *rule);

/* State for checkpoints: `states` flat vectors in order, states × count elements. */
size_t optimizer_state_count(const optimizer *p);
const float *optimizer_state(const optimizer *p);
void optimizer_set_state(optimizer *p, const float *state);
/* The same state, writable between updates. */
float *optimizer_state_in_place(optimizer *p);

/* out ← mean of gradients[0..n), summed in that order, then × 1/n. consistency=bsp and
 * reduction=ordered share this ordered reduction. `out` may be gradients[0]. */
void reduce_mean_ordered(const float *const *gradients, size_t n, size_t count, float *out);

#endif
