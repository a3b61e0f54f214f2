/*
 * push_reader.h — an asynchronous run as it was recorded, for replaying it and for what its
 * workers' steps took.
 */
#ifndef GRADLAG_RESULTS_QUERY_PUSH_READER_H
#define GRADLAG_RESULTS_QUERY_PUSH_READER_H

#include "results/store/recorder.h"

/* One gradient that reached the server; its times, where none were recorded, are 0. */
struct recorded_push {
    struct push_record record;
    uint64_t number; /* its place in the table */
};

/* A worker that came, or was lost, when the server had been given `push_number` gradients. */
struct recorded_coming {
    uint64_t push_number;
    unsigned worker, server;
    bool joined; /* false: lost */
};

struct recorded_run { /* zero-initialise; owns all it points to */
    int64_t id;
    char uuid[37], status[16], mode[16], engine[16], parameters_sha256[65]; /* "" where not known */
    unsigned workers;
    uint64_t updates, samples_used;
    double final_accuracy; /* NaN: not measured */
    char *config;          /* JSON: every key and value */
    char *program;         /* JSON: the program of model=external; NULL: a built-in model */
    bool foreign;          /* another program than gradlag computed gradients of it */
    char *resumed;         /* the checkpoint that it went on from; NULL: it began anew */
    char resumed_sha256[65];
    struct recorded_push *pushes; /* in their order */
    size_t push_count;
    struct recorded_coming *comings; /* in their order */
    size_t coming_count;
};

/* `run`: an id, the start of a uuid, or "last". ERROR_USAGE: no such run; ERROR_RESULTS. */
status recorded_run_read(struct recorded_run *out, const char *path, const char *run) MUST_CHECK;
void recorded_run_free(struct recorded_run *r);

#endif
