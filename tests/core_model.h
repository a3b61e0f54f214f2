/*
 * core_model.h — a second, naive server core to hold the real one against.
 *
 * It shares no code with ps/ but struct definitions and the schedule: it copies whole vectors,
 * knows the rules by name, and writes down the actions that each event must have. What a worker
 * read is a copy, not a slot.
 */
#ifndef GRADLAG_TESTS_CORE_MODEL_H
#define GRADLAG_TESTS_CORE_MODEL_H

#include "ps/server_core.h"
#include "worker/schedule.h"

enum {
    MODEL_WORKERS = 9,
    MODEL_COUNT = 40,
    MODEL_TAKEN = 24,
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

struct model {
    char policy[16];
    unsigned parameter; /* of the policy: slack, n, backups, size or limit */
    char damping[16], optimizer[16];
    float momentum, weight_decay;
    struct schedule schedule;
    unsigned workers;
    size_t count;
    uint64_t total, every;

    struct model_worker worker[MODEL_WORKERS];
    float theta[MODEL_COUNT], velocity[MODEL_COUNT];
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

/* Whether updates are the mean over what waits (bsp, backup), or over what was taken. */
bool model_holds(const struct model *m);
bool model_takes(const struct model *m);

void model_hello(struct model *m, unsigned worker);
void model_lost(struct model *m, unsigned worker);
void model_evaluated(struct model *m);
void model_end(struct model *m);
/* False: the push must be refused. */
bool model_push(struct model *m, const struct server_push *push);

#endif
