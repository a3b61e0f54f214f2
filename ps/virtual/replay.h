/*
 * replay.h — repeats a recorded asynchronous run in one process and in recorded order.
 *
 * Gradients are pure functions and the core reads no clock, so the order of events determines what
 * the server does. replay_run() passes the same events to the core, with gradients computed anew.
 * If `compares` is true, it compares every record with the recorded one.
 *
 * If `compares` is false, the rules may differ ("what if"): the same workers' gradients arrive in
 * the same order, each computed at the parameters that the other rules produce.
 *
 * Each of several servers recorded its own order. A push can be passed to its server after all
 * servers have released its worker, as in the recorded run. Events of different servers are passed
 * in any order that obeys this; the order of the recorded run is one.
 */
#ifndef GRADLAG_PS_VIRTUAL_REPLAY_H
#define GRADLAG_PS_VIRTUAL_REPLAY_H

#include "ps/virtual/simulation.h"

enum replay_kind {
    REPLAY_JOINED,
    REPLAY_PUSH,
    REPLAY_LOST,
    REPLAY_END, /* the run ended here for a reason outside the core */
};

struct replay_event {
    enum replay_kind kind;
    unsigned worker;
    uint64_t number;                    /* REPLAY_PUSH: of the row */
    const struct push_record *recorded; /* REPLAY_PUSH */
};

struct replay_events { /* of one server, in order */
    const struct replay_event *at;
    size_t count;
};

struct replay_options {
    const options *settings;
    gradient_pool *pool;           /* borrowed; opened for as many workers */
    unsigned workers, workers_max; /* as in struct simulation_options */
    struct training_length length;
    struct training_hooks hooks;
    recorder *recorder;                  /* may be NULL */
    const struct training_state *start;  /* the checkpoint of a resumed run; NULL: none */
    const struct replay_events *servers; /* [server_count] */
    unsigned server_count;
    bool lockstep; /* all servers had the same events: pass each event to all before the next */
    bool compares;
};

struct replay_difference {
    bool found;
    bool missing;    /* no row differs, but rows that the next one needs are absent */
    uint64_t number; /* of the first row that differs, or cannot be replayed */
    char text[320];  /* the update, the column, its recorded and its replayed value */
};

struct replay_row {
    struct push_record record;
    uint64_t number;
};
/* A worker joined or was lost after the core had got `push_number` gradients. */
struct replay_member_event {
    uint64_t push_number;
    unsigned worker;
    bool joined;
};
struct replay_recording {          /* of one server */
    const struct replay_row *rows; /* in the order of the table */
    const struct replay_member_event *member_events;
    size_t row_count, member_event_count;
    unsigned workers_max; /* worker numbers are 0 … workers_max − 1 */
    bool finished;        /* the run reached its length */
};
/* *out ← the events in order, with pointers into the rows; the caller frees it (memory_free).
 * A worker without an event at the start begins as lost. ERROR_DATA: a row names a worker that the
 * run could not have. */
status replay_order(const struct replay_recording *r, struct replay_event **out,
                    size_t *out_count) MUST_CHECK;

/* Replays, and stops at the first difference, which is not an error. ERROR_DIVERGED (only if
 * `compares` is false), STOPPED, or the error of a hook. */
status replay_run(const struct replay_options *o, struct training_outcome *out,
                  struct replay_difference *difference) MUST_CHECK;

#endif
