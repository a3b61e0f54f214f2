/*
 * server_core_state.h — what the files of the core share. No other file includes it.
 *
 *   server_core.c             events, releases, queries
 *   server_core_update.c      the outcome of a push: held, taken or dropped; updates
 *   server_core_checkpoint.c  the content of a checkpoint; resuming from it
 *
 * Each worker has a member. A member's states and transitions:
 *
 *   EMPTY ── hello ──▶ READY ── release ──▶ READING ── push ──▶ HELD
 *   HELD ── applied, taken or dropped ──▶ READY
 *   any ── lost ──▶ LOST ── hello ──▶ READY
 *
 * READING and HELD members are readers of their slot. At the end of an event the core releases all
 * READY members that the policy allows, unless an evaluation is due or training has ended.
 */
#ifndef GRADLAG_PS_CORE_SERVER_CORE_STATE_H
#define GRADLAG_PS_CORE_SERVER_CORE_STATE_H

#include "ps/core/aggregate.h"
#include "ps/rules/consistency/consistency.h"
#include "ps/rules/damping/damping.h"
#include "ps/rules/outer/outer.h"
#include "ps/core/server_core.h"
#include "ps/core/total_momentum.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/schedule.h"

enum member_state { MEMBER_EMPTY, MEMBER_LOST, MEMBER_READY, MEMBER_READING, MEMBER_HELD };

struct member {
    enum member_state state;
    unsigned group; /* of the consistency policy */
    uint64_t next_sequence;
    uint64_t next_batch; /* the batch after that of the last push, over all incarnations */
    uint64_t clock;      /* pushes over all incarnations; see server_core_lost() */
    uint64_t version;    /* of the last release */
    uint64_t samples;    /* used up to that version */
    unsigned slot;       /* of the last release */
    int32_t waited_for;  /* the worker whose event caused the last release; NO_WORKER: its own */
    /* The held push: */
    struct server_push push;
    uint64_t arrival, staleness;
    double scale, gap, norm;
    double momentum, total_momentum; /* NOT_MEASURED unless the correction adjusts the momentum */
    bool measured;                   /* `norm` is known */
    bool drop;                       /* damping drops it */
};

/* A group of the consistency policy: numbers of its members. */
struct group {
    unsigned held, lost, members;
};

struct server_core {
    unsigned workers, workers_max, slot_count;
    size_t count;           /* parameters */
    float **slots;          /* [slot_count][count] */
    uint64_t *slot_version; /* [slot_count] */
    unsigned *slot_readers; /* [slot_count] members that are READING or HELD */
    unsigned latest;        /* the slot of `version` */
    uint64_t version, arrivals, samples_used, samples_computed, total_samples, evaluate_every;
    struct member *members;       /* [workers_max] */
    struct group *groups;         /* [group_count] */
    unsigned group_count, joined; /* joined: number of members neither EMPTY nor LOST */
    uint64_t *ready;              /* one bit per member: it is READY */
    uint64_t slowest;             /* the lowest clock of members not LOST; UINT64_MAX: none */
    unsigned at_slowest;          /* members with that clock; 0: `slowest` is out of date */
    unsigned cause;               /* the worker of the current event */
    double rate;                  /* learning rate of the last update, without scales */
    double total_seconds;
    uint64_t evaluated; /* version of the last evaluation, plus 1; 0: none */

    /* Pushes in the running sum, in order of arrival. */
    struct push_record *taken;
    unsigned taken_count, taken_capacity;
    uint64_t taken_samples;

    bool evaluating, complete, ended, follows;
    bool may_skip;         /* on_nonfinite=skip */
    unsigned skipped_last; /* gradients skipped since the last update */

    struct consistency consistency;
    struct damping damping;
    struct aggregate aggregate;
    struct outer outer;
    struct schedule schedule; /* unused with an outer rule */
    optimizer *optimizer;
    double momentum_set, momentum; /* key momentum; momentum of the next update */
    struct total_momentum total;   /* used if the correction adjusts the momentum */
    helpers *helpers;

    struct server_action *actions;
    size_t action_count, action_capacity;

    /* Buffers of server_core_state(). */
    uint64_t *checkpoint_batches;
    float **checkpoint_vectors;
    double *checkpoint_account;
};

/* Allocates the buffers of server_core_state(). */
status core_allocate_checkpoint(server_core *c) MUST_CHECK;
/* Sets a newly opened core to the state o->start. */
status core_resume(server_core *c, const struct server_core_options *o) MUST_CHECK;

struct server_action *core_emit(server_core *c, enum server_action_kind kind);
unsigned core_number_of(const server_core *c, const struct member *member);
/* The only function that changes a member's state; it keeps `groups` and `ready` up to date. */
void core_move(server_core *c, struct member *member, enum member_state next);
/* The group of the worker of the current event. An event changes no other group. */
struct group *core_group(const server_core *c);
/* The policy's view of that group. The fields that only one decision reads are not set. */
struct consistency_view core_view(const server_core *c);

/* Asks the policy about a new push, which is HELD in its member, and carries out the decision. */
void core_decide(server_core *c, struct member *member);
/* Applies held or taken pushes if the policy demands it; returns whether it did. */
bool core_apply_if_due(server_core *c);
/* Emits SERVER_EVALUATE if an evaluation is due. `before`: samples used at the last call. */
void core_request_evaluation(server_core *c, uint64_t before);
/* The member's push arrived at or after the end: drops it and all others, and ends training. */
void core_end_by_time(server_core *c, struct member *member);
/* The member stops reading its slot and enters state `next`. */
void core_stop_reading(server_core *c, struct member *member, enum member_state next);
/* Drops one held push, or all held and taken pushes (PUSH_DROPPED_LATE). */
void core_drop_late(server_core *c, struct member *member, enum push_reason reason,
                    enum member_state next);
void core_drop_all(server_core *c, enum push_reason reason);
/* A held push is not finite: skips it or ends the run (C5). */
void core_reject_not_finite(server_core *c, struct member *culprit, enum push_reason reason);

#endif
