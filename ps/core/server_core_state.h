/*
 * server_core_state.h — what the files of the core share; nobody else includes it.
 *
 *   server_core.c         events: who comes, pushes, goes; releases
 *   server_core_update.c  the fate of a push: held, taken, dropped; updates
 *   server_core_checkpoint.c    what a checkpoint keeps, and going on from it
 *
 * A worker sits in a member. The member's states, and what moves it on:
 *
 *   - EMPTY ── hello ──▶ READY ── release ──▶ READING ── push ──▶ HELD
 *   - HELD ── update, taken, or dropped ──▶ READY
 *   - any ── lost ──▶ LOST ── hello ──▶ READY
 *
 * READING and HELD members count as readers of their slot; READY ones have given it back. An event
 * ends by releasing all READY members that the policy lets go, unless an evaluation is due first or
 * training has ended.
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
    uint64_t next_sequence;
    uint64_t next_batch; /* the one after that of the last gradient, over all incarnations */
    uint64_t clock;      /* gradients handed in, over all incarnations; see server_core_lost() */
    uint64_t version;    /* last released with */
    unsigned slot;
    int32_t waited_for; /* before that release */
    /* Of the held push: */
    struct server_push push;
    uint64_t arrival, staleness;
    double scale, gap, norm;
    double momentum, total_momentum; /* NOT_MEASURED unless the correction moves it */
    bool measured;                   /* norm is known */
    bool drop;
};

struct server_core {
    unsigned workers, slot_count;
    size_t count;
    float **slots;
    uint64_t *slot_version;
    unsigned *slot_readers;
    unsigned latest;
    uint64_t version, arrivals, samples_used, samples_computed, total_samples, evaluate_every;
    struct member *members;
    unsigned held, lost, here; /* members in a state; here: joined and not lost */
    uint64_t *ready;           /* a bit for each member, set where it is READY */
    uint64_t slowest;          /* clock, of all members that are not lost; UINT64_MAX: none */
    unsigned at_slowest;       /* how many of them have it; 0: to be looked for */
    unsigned cause;            /* the worker that the event is about */
    double rate;               /* of the last update, without scales */

    /* Pushes whose gradients are in the running sum, in order of arrival. */
    struct push_record *taken;
    unsigned taken_count, taken_capacity;
    uint64_t taken_samples;

    bool evaluating, complete, ended, follows;
    bool may_skip;         /* on_nonfinite=skip */
    unsigned skipped_last; /* gradients that were not finite, since the last update */

    struct consistency consistency;
    struct damping damping;
    struct aggregate aggregate;
    struct outer outer;
    struct schedule schedule; /* not asked where there is an outer rule */
    optimizer *optimizer;
    double momentum_set, momentum; /* key momentum; that of the next update */
    struct total_momentum total;   /* where the correction adjusts the momentum */
    helpers *helpers;

    struct server_action *actions;
    size_t action_count, action_capacity;

    /* Room for server_core_state(). */
    uint64_t *checkpoint_batches;
    float **checkpoint_vectors;
    double *checkpoint_account;
};

/* Room for what is kept; and a core that has just been opened goes on from o->start. */
status core_keep(server_core *c) MUST_CHECK;
status core_begin_at(server_core *c, const struct server_core_options *o) MUST_CHECK;

struct server_action *core_emit(server_core *c, enum server_action_kind kind);
unsigned core_number_of(const server_core *c, const struct member *member);
/* The one way from a state of a member to another: keeps the counts and the bits of READY. */
void core_move(server_core *c, struct member *member, enum member_state next);
/* What every decision of the policy sees. */
struct consistency_view core_view(const server_core *c);

/* A push that came in is in its member, held: what becomes of it, and of an update that it is for.
 */
void core_decide(server_core *c, struct member *member);
/* Applies what is held or taken if the policy says so. */
bool core_apply_if_due(server_core *c);
/* Emits SERVER_EVALUATE where an evaluation is due: `before` samples were used when the core was
 * last asked. */
void core_ask_for_evaluation(server_core *c, uint64_t before);
/* The member gives back its slot: its held push is dealt with, or its worker is gone. */
void core_stop_reading(server_core *c, struct member *member, enum member_state next);
/* Drops a held push, or all that are held or taken (PUSH_DROPPED_LATE). */
void core_drop_late(server_core *c, struct member *member, enum push_reason reason,
                    enum member_state next);
void core_drop_all(server_core *c, enum push_reason reason);
/* The push is not finite: it is left out, or the run ends. */
void core_not_finite(server_core *c, struct member *culprit, enum push_reason reason);

#endif
