/*
 * sync_rig.h — runs parts of a test under mpirun: mpirun starts the test program again as ranks,
 * and each rank runs one named case.
 */
#ifndef GRADLAG_TESTS_SYNC_SYNC_RIG_H
#define GRADLAG_TESTS_SYNC_SYNC_RIG_H

#include "sync/communicator/communicator.h"

#include <sys/types.h>

/* The code of a rank. Its result is the rank's exit code. */
struct sync_case {
    const char *name;
    status (*run)(unsigned rank, unsigned size);
};

/* Called in a rank: sets the page of the gate that all ranks share, and returns the page before.
 * NULL: the ranks wait as if they were on several hosts. */
struct gate_page;
struct gate_page *sync_rig_set_gate(communicator *c, struct gate_page *page);

/* Call it first in main. If this process is a rank, runs its case and returns true with the exit
 * code in *code. */
bool sync_rig_is_rank(int argc, char **argv, const struct sync_case *cases, int *code);

struct sync_run {
    int exit_code; /* of mpirun; 128 + signal if it was killed; −1 if it exceeded the limit */
    double seconds;
    char output[32768]; /* of all ranks and mpirun, both streams */
};
/* Runs a case for at most `limit_s` × PATIENCE. */
void sync_rig_run(unsigned ranks, const char *case_name, double limit_s, struct sync_run *out);
/* The same for several cases at once, all started now; out[i] is of starts[i]. For cases whose
 * ranks sleep most of the time. */
struct sync_start {
    unsigned ranks;
    const char *case_name;
};
void sync_rig_run_together(const struct sync_start *starts, size_t count, double limit_s,
                           struct sync_run *out);
/* The number of lines with `begins` ("rank 0: warning: ") and `part` after it. */
unsigned sync_rig_lines(const struct sync_run *run, const char *begins, const char *part);
/* Fails the test unless the error message of a rank has a duration from `least_s` to `most_s` ×
 * PATIENCE and the name `missing` ("rank 1"; NULL: not checked). */
void sync_rig_expect_timeout(const struct sync_run *run, double least_s, double most_s,
                             const char *missing);
/* sync_rig_run, and fails the test unless all ranks ended well. */
void sync_rig_expect_ok(unsigned ranks, const char *case_name);

/* Starts a case. mpirun leads its own process group. *fd ← its output, owned by the caller. */
pid_t sync_rig_start(unsigned ranks, const char *case_name, int *fd);

/* Fills out[0..count) with numbers whose sum over ranks depends on the order of addition. They are
 * determined by rank and `round`. */
void sync_rig_rough(unsigned rank, size_t count, uint64_t round, float *out);

/* The settings that communicators read, with small buckets. */
options *sync_rig_settings(void);
status sync_rig_set(options *o, const char *key, const char *value) MUST_CHECK;

/* The settings of a training run: softmax on 2 000 gaussian images of 8 × 8, batch 10, one epoch,
 * momentum; then "key=value" texts, ended by NULL. */
status sync_rig_training(options **out, const char *const *assignments) MUST_CHECK;

#endif
