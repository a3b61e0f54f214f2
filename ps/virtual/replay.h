/*
 * replay.h — a recorded asynchronous run once more, in one process and in recorded order.
 *
 * Gradients are pure functions and the core takes no clock, so what the server did follows from the
 * order of its events. replay_run() hands the core the same events with gradients computed anew
 * and, where it compares, holds every record against the one that was written.
 *
 * With other rules (`compares` false) the same workers' gradients arrive in the same order, each
 * computed at the parameters that those rules lead to: what would this run have come to?
 *
 * Several servers each recorded their own order. A push can be handed to its server once all
 * servers have released its worker, as it was then; so events of different servers are taken in any
 * order that obeys this, and there is one, that of the recorded run.
 */
#ifndef GRADLAG_PS_VIRTUAL_REPLAY_H
#define GRADLAG_PS_VIRTUAL_REPLAY_H

#include "ps/virtual/simulation.h"

enum replay_kind {
    REPLAY_JOINED,
    REPLAY_PUSH,
    REPLAY_LOST,
    REPLAY_END, /* the run ended here, for a reason the core does not know */
};

struct replay_event {
    enum replay_kind kind;
    unsigned worker;
    uint64_t number;                    /* REPLAY_PUSH: of the row */
    const struct push_record *recorded; /* REPLAY_PUSH */
};

struct replay_events { /* of one server, in their order */
    const struct replay_event *at;
    size_t count;
};

struct replay_options {
    const options *settings;
    gradient_pool *pool; /* borrowed; opened for as many workers */
    unsigned workers;
    struct training_length length;
    struct training_hooks hooks;
    recorder *recorder;                  /* may be NULL */
    const struct training_state *start;  /* of a run that went on from a checkpoint; else NULL */
    const struct replay_events *servers; /* of each server its own */
    unsigned server_count;
    bool lockstep; /* all servers had the same events: each is handed to all before the next */
    bool compares;
};

struct replay_difference {
    bool found;
    uint64_t number; /* of the first row that differs */
    char text[320];  /* which update it was, and what differs: recorded, and replayed */
};

struct replay_row {
    struct push_record record;
    uint64_t number;
};
/* A worker that came or was lost when the core had been given `push_number` gradients. */
struct replay_coming {
    uint64_t push_number;
    unsigned worker;
    bool joined;
};
struct replay_recording {          /* of one server */
    const struct replay_row *rows; /* in the order of the table */
    const struct replay_coming *comings;
    size_t row_count, coming_count;
    unsigned workers;
    bool finished; /* the run's own length ended it */
};
/* The events in their order; they point into the rows. *out is owned by the caller (memory_free).
 * ERROR_DATA: a row of a worker that the run had not. */
status replay_order(const struct replay_recording *r, struct replay_event **out,
                    size_t *out_count) MUST_CHECK;

/* ERROR_DIVERGED (where it does not compare), STOPPED, or what a hook returned. A difference is no
 * error: training stops there. */
status replay_run(const struct replay_options *o, struct training_outcome *out,
                  struct replay_difference *difference) MUST_CHECK;

#endif
