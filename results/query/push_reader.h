/*
 * push_reader.h — reads a recorded asynchronous run, for replay and for the times of its steps.
 */
#ifndef GRADLAG_RESULTS_QUERY_PUSH_READER_H
#define GRADLAG_RESULTS_QUERY_PUSH_READER_H

#include "results/store/recorder.h"

/* One gradient that reached the server. Times that were not recorded are 0. */
struct recorded_push {
    struct push_record record;
    uint64_t number; /* push.number */
};

/* A worker joined or was lost after the server had received `push_number` gradients. */
struct recorded_member_event {
    uint64_t push_number;
    unsigned worker, server;
    bool joined; /* false: lost */
};

struct recorded_run { /* zero-initialise; owns everything it points to */
    int64_t id;
    char uuid[37], status[16], mode[16], engine[16], parameters_sha256[65]; /* "": unknown */
    unsigned workers, workers_max; /* workers_max: numbers are 0 … workers_max − 1 */
    char instructions[24];         /* of oneDNN, as onednn_instructions(); "": unknown */
    uint64_t updates, samples_used;
    double final_accuracy; /* NaN: not measured */
    char *config;          /* JSON: every key and value */
    char *program;         /* JSON: identifies the program of model=external; NULL: none */
    bool foreign;          /* a program other than gradlag computed some gradients */
    char *resumed;         /* path of the checkpoint that the run resumed from; NULL: none */
    char resumed_sha256[65];
    struct recorded_push *pushes; /* by number */
    size_t push_count;
    struct recorded_member_event *member_events; /* by push_number */
    size_t member_event_count;
};

/* `run`: an id, the start of a uuid, or "last". ERROR_USAGE: no such run; ERROR_RESULTS. */
status recorded_run_read(struct recorded_run *out, const char *path, const char *run) MUST_CHECK;
void recorded_run_free(struct recorded_run *r);

#endif
