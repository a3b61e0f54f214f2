/*
 * worker_puppet.h — a worker that a test plays message by message, with payload=frames.
 */
#ifndef GRADLAG_TESTS_PS_SERVER_WORKER_PUPPET_H
#define GRADLAG_TESTS_PS_SERVER_WORKER_PUPPET_H

#include "ps/net/channel.h"
#include "tests/ps/server/ps_rig.h"

static const uint64_t FOREVER = 1000000000; /* samples of a run that does not end by itself */

struct puppet {
    struct rig *rig;
    channel *channel;
    struct wire_message
        m;            /* token, worker, incarnation, sequence: as a correct worker sends them */
    uint64_t version; /* of the last release */
    struct channel_received got;
};

struct puppet puppet_open(struct rig *r, unsigned w);
/* Joins with another host id: no shared memory, and no process is watched. */
struct puppet puppet_join(struct rig *r, unsigned w);
/* Receives the next message of this type; fails the test if none comes. */
void puppet_expect(struct puppet *p, enum wire_type type);
/* Sends p->m without a second frame. */
void puppet_send(struct puppet *p, enum wire_type type);
void puppet_announce(struct puppet *p, uint64_t version, uint32_t samples);
/* 1000 floats of a gradient, all zero. */
void puppet_part(struct puppet *p, uint64_t version, uint64_t offset);
/* Announces a push and sends 1000 floats. */
void puppet_push(struct puppet *p, uint64_t version, uint32_t samples);

/* Serves a run of two workers with on_lost=continue. Worker 1 joins and commits each offence in
 * turn. Fails the test unless the server drops it each time and worker 0 trains on. Closes both. */
void puppet_expect_dropped(struct rig *r, options *o, void (*const *offences)(struct puppet *),
                           size_t count);

#endif
