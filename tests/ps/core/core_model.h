/*
 * core_model.h — a second, naive server core to hold the real one against.
 *
 * It shares no code with ps/ but struct definitions and the schedule: it copies whole vectors and
 * writes down the actions that each event must have. What a worker read is a copy, not a slot.
 *
 * Policies and rules it knows by name, in words of its own (core_model_rules.c). One that it does
 * not know, it asks itself: with views, histories and states that it kept its own way, so that what
 * the core shows a rule, when, and what it makes of the answer is checked for every rule in the
 * registries. It does the same with those it knows if `asks` is set. Corrections it always asks;
 * tests/ps/rules/test_rules_training.c has them in other words. Optimizers and outer rules it has
 * in its own words alone, with the operations in the order that their headers give, since bits are
 * compared.
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
    uint64_t next, version, clock, arrival;
    int waited_for;
    float read[MODEL_COUNT];
    struct server_push push;
    float gradient[MODEL_COUNT];
};

/* Of a correction: what counts, as it was when the last update was made. */
struct model_states {
    float shared[CORRECTION_SHARED][MODEL_COUNT], own[MODEL_WORKERS][MODEL_COUNT];
    bool started;
    uint64_t version;
    double rate, largest_rate; /* of the last update; the largest */
};

/* How the parameters are changed. `kind`: an optimizer's name, or "delayed-nesterov": what an outer
 * rule other than a plain one makes of differences. */
struct model_optimizer {
    char kind[24];
    double option[OPTIMIZER_PARAMETERS];
    float momentum, weight_decay;
    bool rate_inside; /* the velocity */
    struct optimizer_layer layer[MODEL_LAYERS];
    size_t layers;
    float velocity[MODEL_COUNT], squares[MODEL_COUNT]; /* its states */
};

struct core_model {
    bool asks;
    bool follows; /* it does not evaluate, nor end by itself */
    const struct consistency_policy *policy;
    double policy_parameters[CONSISTENCY_PARAMETERS];
    const struct damping_rule *damping;
    double damping_parameters[DAMPING_PARAMETERS];
    const struct correction_rule *correction;
    double correction_parameters[CORRECTION_PARAMETERS];
    double decay;           /* that the optimizer adds to what a correction makes */
    bool correction_scales; /* it applies the damping's scale itself */
    struct model_states states;
    struct { /* every gradient that was scaled, or may yet be */
        uint64_t count, ages[DAMPING_AGES], computed[MODEL_WORKERS], us[MODEL_WORKERS];
    } seen;
    struct model_optimizer optimizer;
    bool outer;    /* workers send differences; the rate is constant then: */
    bool from_now; /* and they are made differences to the parameters of now */
    double outer_rate;
    double momentum_set, momentum_now;       /* where the correction adjusts it */
    float past[MODEL_VERSIONS][MODEL_COUNT]; /* parameters of every version, there */
    struct schedule schedule;
    unsigned workers;
    size_t count;
    uint64_t total, every;

    struct model_worker worker[MODEL_WORKERS];
    float theta[MODEL_COUNT];
    uint64_t version, used, computed;
    uint64_t arrivals;
    unsigned about; /* the worker that the event is about */
    bool evaluating, complete, ended;

    /* Gradients whose workers went on, in order of arrival: copies, as scaled as they go in. */
    struct {
        float gradient[MODEL_COUNT];
        struct push_record record;
        uint32_t samples;
    } taken[MODEL_TAKEN];
    unsigned taken_count;

    struct server_action expected[MODEL_ACTIONS]; /* no slots; of records what is not measured */
    size_t expected_count;
};

/* The rules and the optimizer, as `o` has them; `workers`, `count` and `total` are set. */
void model_begin(struct core_model *m, const options *o, const float *initial,
                 uint64_t epoch_samples);
void model_hello(struct core_model *m, unsigned worker);
void model_lost(struct core_model *m, unsigned worker);
void model_evaluated(struct core_model *m);
void model_end(struct core_model *m);
/* False: the push must be refused. */
bool model_push(struct core_model *m, const struct server_push *push);

/* θ ← one update of the optimizer, with samples (before, after] of training. */
void model_step(struct core_model *m, const float *gradient, double scale, double rate,
                uint64_t before, uint64_t after); /* core_model_step.c */

/* ---- rules: core_model_rules.c ---- */

unsigned model_held(const struct core_model *m);
/* What becomes of a worker's push, which is not counted as held yet. */
enum consistency_decision model_decision(const struct core_model *m, unsigned worker);
/* Whether `held` pushes that wait, or `taken` ones, are to be applied. */
bool model_is_due(const struct core_model *m, unsigned held, unsigned taken);
bool model_may_go(const struct core_model *m, unsigned worker);

void model_observe(struct core_model *m, unsigned worker);
/* Below 0: dropped. */
double model_scale(const struct core_model *m, unsigned worker);
/* The gradient of a worker as its correction leaves it; moves `states` on. */
void model_correct(const struct core_model *m, struct model_states *states, unsigned worker,
                   double scale, double lr, float *out);
/* An update was made of this worker's gradient: fills in the record, changes the momentum. */
void model_adjust(struct core_model *m, unsigned worker, struct push_record *record);

#endif
