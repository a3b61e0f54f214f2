/*
 * core_model.h — a second, naive server core to compare the real one with.
 *
 * It shares only struct definitions and the schedule with ps/ and worker/. It copies whole vectors
 * and lists the actions that each event must have. The parameters a worker reads are a copy, not a
 * slot.
 *
 * It implements policies and damping rules by name (core_model_rules.c). It calls the rule itself
 * if it does not know the name, or if `calls_rules` is set. Views, histories and states are its
 * own. This checks, for every rule in the registries, which inputs the core passes, when, and how
 * it uses the result. Corrections are always called; tests/ps/rules/test_rules_training.c
 * implements them again. Optimizers and outer rules are implemented here, with operations in the
 * order of their headers, because bits are compared.
 */
#ifndef GRADLAG_TESTS_PS_CORE_CORE_MODEL_H
#define GRADLAG_TESTS_PS_CORE_CORE_MODEL_H

#include "ps/rules/consistency/consistency.h"
#include "ps/rules/correction/correction.h"
#include "ps/rules/damping/damping.h"
#include "ps/rules/outer/outer.h"
#include "ps/core/server_core.h"
#include "worker/optimizer/schedule.h"

enum {
    MODEL_WORKERS = 9,
    MODEL_COUNT = 40,
    MODEL_TAKEN = 24,
    MODEL_VERSIONS = 3100,
    MODEL_LAYERS = 5,
    MODEL_ACTIONS = 2 * MODEL_WORKERS + MODEL_TAKEN + 8
};

struct model_worker {
    bool here, lost, computing, held;
    uint64_t next, version, used, clock, arrival; /* used: samples up to `version` */
    int waited_for;
    float read[MODEL_COUNT];
    struct server_push push;
    float gradient[MODEL_COUNT];
};

/* The state of a correction after the last update. */
struct model_states {
    float shared[CORRECTION_SHARED][MODEL_COUNT], own[MODEL_WORKERS][MODEL_COUNT];
    bool started;
    uint64_t version;
    double rate, largest_rate; /* of the last update; the largest */
};

/* The update of the parameters. `kind`: an optimizer's name; for outer rules also
 * "delayed-nesterov", "heloco" and "outer-adam". */
struct model_optimizer {
    char kind[24];
    double option[OPTIMIZER_PARAMETERS];
    float momentum, weight_decay;
    bool rate_inside; /* the velocity contains the learning rate */
    struct optimizer_layer layer[MODEL_LAYERS];
    size_t layers;
    float velocity[MODEL_COUNT], squares[MODEL_COUNT]; /* its states */
};

struct core_model {
    bool calls_rules;
    bool follows; /* a follower: does not evaluate or end training */
    const struct consistency_policy *policy;
    double policy_parameters[CONSISTENCY_PARAMETERS];
    const struct damping_rule *damping;
    double damping_parameters[DAMPING_PARAMETERS];
    const struct correction_rule *correction;
    double correction_parameters[CORRECTION_PARAMETERS];
    double decay;           /* weight decay that the optimizer adds after a correction */
    bool correction_scales; /* the correction applies the damping's scale */
    double mean_scale;      /* of the gradients of the last update */
    struct model_states states;
    struct { /* the damping's history */
        uint64_t count, ages[DAMPING_AGES], computed[MODEL_WORKERS], us[MODEL_WORKERS];
    } seen;
    struct model_optimizer optimizer;
    bool outer;    /* workers push differences; the rate is outer_rate */
    bool from_now; /* the differences are relative to the current parameters */
    double outer_rate;
    double momentum_set, momentum_now;       /* if the correction adjusts it */
    float past[MODEL_VERSIONS][MODEL_COUNT]; /* of every version; used if momentum is adjusted */
    struct schedule schedule;
    unsigned workers, workers_max; /* W of the rules; the number with late workers (0: none) */
    size_t count;
    uint64_t total, every;
    double seconds;     /* a push at or after this time ends training; 0: none does */
    uint64_t evaluated; /* number of versions evaluated at last, with version 0; 0: none */

    struct model_worker worker[MODEL_WORKERS];
    float theta[MODEL_COUNT];
    uint64_t version, used, computed;
    uint64_t arrivals;
    unsigned about; /* the worker of the event */
    bool evaluating, complete, ended;

    /* The running sum as a list of scaled copies, in order of arrival. */
    struct {
        float gradient[MODEL_COUNT];
        struct push_record record;
        uint32_t samples;
    } taken[MODEL_TAKEN];
    unsigned taken_count;

    struct server_action expected[MODEL_ACTIONS]; /* without slots and measured fields */
    size_t expected_count;
};

/* Reads rules and optimizer from `o`. Contract: `workers`, `count` and `total` are set. The caller
 * then calls model_lost() for each late worker. */
void model_begin(struct core_model *m, const options *o, const float *initial,
                 uint64_t epoch_samples);
void model_hello(struct core_model *m, unsigned worker);
void model_lost(struct core_model *m, unsigned worker);
void model_evaluated(struct core_model *m);
void model_end(struct core_model *m);
/* False: the core must refuse the push. */
bool model_push(struct core_model *m, const struct server_push *push);

/* True: the damping scales the rate of this optimizer's updates by mean_scale. */
bool model_scale_free(const struct core_model *m);
/* θ ← one update of the optimizer, with samples (before, after] of training. */
void model_step(struct core_model *m, const float *gradient, double scale, double rate,
                uint64_t before, uint64_t after); /* core_model_step.c */

/* ---- rules: core_model_rules.c ---- */

/* With policy groups: of the group of the event's worker. */
unsigned model_held(const struct core_model *m);
bool model_waits(const struct core_model *m, unsigned worker);
unsigned model_groups(const struct core_model *m);
/* The policy's decision about a worker's new push. */
enum consistency_decision model_decision(const struct core_model *m, unsigned worker);
/* True if `held` or `taken` pushes must be applied now. */
bool model_is_due(const struct core_model *m, unsigned held, unsigned taken);
bool model_may_go(const struct core_model *m, unsigned worker);

void model_observe(struct core_model *m, unsigned worker);
/* The damping's scale; negative: dropped. */
double model_scale(const struct core_model *m, unsigned worker);
/* Writes the corrected gradient of a worker to `out` and updates `states`. */
void model_correct(const struct core_model *m, struct model_states *states, unsigned worker,
                   double scale, double lr, float *out);
/* After an update with this worker's gradient: completes the record and adjusts the momentum. */
void model_adjust(struct core_model *m, unsigned worker, struct push_record *record);

#endif
