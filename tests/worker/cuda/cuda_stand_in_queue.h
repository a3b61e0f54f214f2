/*
 * cuda_stand_in_queue.h — what is queued on the stand-in.
 *
 * A lane is a row of work: what a stream was given, or what a graph took of one stream. An event
 * is a place in a lane: passed when that much of the lane is done.
 */
#ifndef GRADLAG_TESTS_WORKER_CUDA_CUDA_STAND_IN_QUEUE_H
#define GRADLAG_TESTS_WORKER_CUDA_CUDA_STAND_IN_QUEUE_H

#include "tests/worker/cuda/cuda_stand_in_internal.h"

/* What all handles begin with: the next one of their kind. */
struct handle {
    struct handle *next;
};

struct lane {
    struct lane *next; /* of the same capture */
    cudaStream_t stream;
    struct work *first, *at, **end; /* at: what is to be done next */
    size_t given, done;
    size_t joined; /* captured: that much of it the stream that captures has waited for */
    bool keeps;    /* work that is done stays, for the next time */
    bool leads;    /* the stream whose capture it was */
};

struct work {
    struct work *next;
    void (*run)(void *data); /* NULL: a wait, or an event */
    void *data;
    const struct lane *until; /* `count` of it must be done first */
    size_t count;
    cudaEvent_t passes;
};

struct CUstream_st {
    struct handle handle;
    unsigned device;
    struct lane queue;
    struct lane *captured; /* NULL: it does not capture */
};

struct CUevent_st {
    struct handle handle;
    unsigned device;
    bool timed;
    const struct lane *lane; /* NULL: not recorded */
    size_t place;
    size_t capture; /* the number of the capture it was recorded in; 0: none */
    double passed_ms;
};

/* Graphs, and what is made of them. */
struct CUgraph_st {
    struct handle handle;
    struct lane *lanes;
};

struct stand_in_queues {
    struct handle *streams, *events, *graphs;
    cudaStream_t origin; /* of the capture that lasts; NULL: none */
    struct lane *captured;
    size_t capture, waits, launches; /* how many there were */
};
extern struct stand_in_queues stand_in_queues;

bool stand_in_is_known(const struct handle *list, const void *handle);
void *stand_in_make(struct handle **list, size_t bytes);
void stand_in_unmake(struct handle **list, void *handle);

/* Where the stream's work goes now: its queue, or what is captured of it. */
struct lane *stand_in_lane(cudaStream_t s);
void stand_in_give(struct lane *l, const struct work *work);
void stand_in_drop_work(struct lane *l);
void stand_in_free_lanes(struct lane *l);
/* Does the next work unless it must wait or there is none. After a fault nothing is done. */
bool stand_in_advance(struct lane *l);
void stand_in_run_until(struct lane *l, size_t count);
/* The same for a host that waits: about every other time the other streams go first, as far as
 * their events allow. */
void stand_in_wait_for(struct lane *l, size_t count);
/* In a capture, `s` becomes part of it. */
void stand_in_join(cudaStream_t s);

#endif
