/*
 * core_episode.h — one episode of random events (test_server_core_properties.c): rules and settings
 * drawn from a seed, one core or several cores with a slice each, and the naive model.
 */
#ifndef GRADLAG_TESTS_PS_CORE_CORE_EPISODE_H
#define GRADLAG_TESTS_PS_CORE_CORE_EPISODE_H

#include "ps/core/slices.h"
#include "tests/ps/core/core_model.h"
#include "tests/ps/core/core_rig.h"
#include "tests/ps/rules/rule_combinations.h"

enum { SERVERS = 3 };

/* One of several servers, or the only one. */
struct episode_host {
    struct core_rig rig;
    size_t begin, count;
    unsigned slot[MODEL_WORKERS];                 /* of each worker's last release */
    struct server_action released[MODEL_WORKERS]; /* a follower's, before an evaluation ends */
    size_t released_count;
};

struct episode {
    uint64_t seed, random, events;
    struct episode_host host[SERVERS];
    unsigned servers;
    struct slices slices;
    struct core_model model;
    float initial[MODEL_COUNT];
    double squares[MODEL_ACTIONS], gaps[MODEL_ACTIONS]; /* sums over servers, per record */
    /* Constant until the worker is released. */
    float gradient[MODEL_WORKERS][MODEL_COUNT];
    uint64_t applied, accepted, records;
    uint64_t accepted_late; /* gradients of late workers */
    bool over;              /* the servers differ; the episode ends */
};

/* The next random number of the episode, below `bound`. */
uint64_t below(struct episode *e, uint64_t bound);

/* The episode is a function of seed and combination. */
void open_episode(struct episode *e, uint64_t seed, const struct combination *c);
void close_episode(struct episode *e);

#endif
