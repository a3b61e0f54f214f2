/*
 * core_episode.h — one episode of random events for the server's core
 * (test_server_core_properties.c): its rules and settings, drawn from a seed, the core, or several
 * of them that have a slice of the parameters each, and the naive model of all.
 */
#ifndef GRADLAG_TESTS_PS_CORE_CORE_EPISODE_H
#define GRADLAG_TESTS_PS_CORE_CORE_EPISODE_H

#include "tests/ps/core/core_model.h"
#include "tests/ps/core/core_rig.h"
#include "tests/ps/rules/rule_combinations.h"

enum { SERVERS = 3 };

/* One of several servers, or the only one. */
struct episode_host {
    struct core_rig rig;
    size_t begin, count;
    unsigned slot[MODEL_WORKERS];                 /* what the core released each worker with */
    struct server_action released[MODEL_WORKERS]; /* by one that does not wait for evaluations */
    size_t released_count;
};

struct episode {
    uint64_t seed, random, events;
    struct episode_host host[SERVERS];
    unsigned servers;
    struct core_model model;
    float initial[MODEL_COUNT];
    double squares[MODEL_ACTIONS], gaps[MODEL_ACTIONS]; /* of the records, server by server */
    /* Each worker's gradient stays where it is until the worker is released. */
    float gradient[MODEL_WORKERS][MODEL_COUNT];
    uint64_t applied, accepted, records;
    bool over; /* servers are no longer alike */
};

/* A number below that, the next of the episode's own. */
uint64_t below(struct episode *e, uint64_t bound);

/* Everything follows from the seed. */
void open_episode(struct episode *e, uint64_t seed, const struct combination *c);
void close_episode(struct episode *e);

#endif
