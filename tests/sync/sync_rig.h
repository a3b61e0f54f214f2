/*
 * sync_rig.h — runs parts of a test under mpirun: the test program starts itself again, as many
 * times as there are ranks, and each rank runs one named case.
 */
#ifndef GRADLAG_TESTS_SYNC_SYNC_RIG_H
#define GRADLAG_TESTS_SYNC_SYNC_RIG_H

#include "sync/communicator/communicator.h"

#include <sys/types.h>

/* What a rank does. Its result is the rank's exit code. */
struct sync_case {
    const char *name;
    status (*run)(unsigned rank, unsigned size);
};

/* In a rank: all ranks' gate has this page from now on; NULL: as if they were on several hosts.
 * What it had before. */
struct gate_page;
struct gate_page *sync_rig_set_gate(communicator *c, struct gate_page *page);

/* First thing in main: if this process is a rank, runs its case and returns true with the exit code
 * in *code. */
bool sync_rig_is_rank(int argc, char **argv, const struct sync_case *cases, int *code);

struct sync_run {
    int exit_code; /* of mpirun; 128 + signal where it was killed; −1 where it overran */
    double seconds;
    char output[32768]; /* of all ranks and mpirun, both streams */
};
/* For at most `limit_s` × PATIENCE. */
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

/* In two steps: mpirun is the leader of a process group of its own. *fd: its output. */
pid_t sync_rig_start(unsigned ranks, const char *case_name, int *fd);

/* What the communicators read; small buckets. */
options *sync_rig_settings(void);
status sync_rig_set(options *o, const char *key, const char *value) MUST_CHECK;

/* All that a training run reads: softmax on 8 × 8 gaussian images, 2 000 of them, batch 10, one
 * epoch, momentum. Then "key=value" texts, ended by NULL. */
status sync_rig_training(options **out, const char *const *assignments) MUST_CHECK;

#endif
