/*
 * cuda_stand_in_queue.h — queued work of the stand-in.
 *
 * A lane is a queue of work: of a stream, or the part of a graph that was captured from one stream.
 * An event is a position in a lane. It has passed when the lane has done its work up to there.
 */
#ifndef GRADLAG_TESTS_WORKER_CUDA_CUDA_STAND_IN_QUEUE_H
#define GRADLAG_TESTS_WORKER_CUDA_CUDA_STAND_IN_QUEUE_H

#include "tests/worker/cuda/cuda_stand_in_internal.h"

/* The first member of every handle: the next handle of its kind. */
struct handle {
    struct handle *next;
};

struct lane {
    struct lane *next; /* next lane of the same capture */
    cudaStream_t stream;
    struct work *first, *at, **end; /* at: the work to do next */
    size_t given, done;
    size_t joined; /* captured lanes: how much of it the capturing stream has waited for */
    bool keeps;    /* true: finished work is kept for the next launch */
    bool leads;    /* true: the stream that began the capture */
};

struct work {
    struct work *next;
    void (*run)(void *data); /* NULL: a wait, or an event */
    void *data;
    const struct lane *until; /* the first `count` pieces of this lane must be done first */
    size_t count;
    cudaEvent_t passes;
};

struct CUstream_st {
    struct handle handle;
    unsigned device;
    struct lane queue;
    struct lane *captured; /* NULL: the stream does not capture */
};

struct CUevent_st {
    struct handle handle;
    unsigned device;
    bool timed;
    const struct lane *lane; /* NULL: not recorded */
    size_t place;
    size_t capture; /* number of the capture in which it was recorded; 0: none */
    double passed_ms;
};

/* Graphs and executable graphs. */
struct CUgraph_st {
    struct handle handle;
    struct lane *lanes;
};

struct stand_in_queues {
    struct handle *streams, *events, *graphs;
    cudaStream_t origin; /* stream that began the current capture; NULL: none */
    struct lane *captured;
    size_t capture, waits, launches; /* numbers of them so far */
};
extern struct stand_in_queues stand_in_queues;

bool stand_in_is_known(const struct handle *list, const void *handle);
void *stand_in_make(struct handle **list, size_t bytes);
void stand_in_unmake(struct handle **list, void *handle);

/* The lane for new work of the stream: its queue, or its part of the capture. */
struct lane *stand_in_lane(cudaStream_t s);
void stand_in_give(struct lane *l, const struct work *work);
void stand_in_drop_work(struct lane *l);
void stand_in_free_lanes(struct lane *l);
/* Runs the next work, unless it must wait or there is none. After a fault it runs nothing. */
bool stand_in_advance(struct lane *l);
void stand_in_run_until(struct lane *l, size_t count);
/* Likewise for a host that waits. About every other time the other streams run first, as far as
 * their events allow. */
void stand_in_wait_for(struct lane *l, size_t count);
/* Adds `s` to the current capture. */
void stand_in_join(cudaStream_t s);

#endif
