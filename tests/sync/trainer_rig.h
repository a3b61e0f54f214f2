/*
 * trainer_rig.h — a synchronous training run on a rank of sync_rig.h, and the calls of rank 0's
 * hooks.
 */
#ifndef GRADLAG_TESTS_SYNC_TRAINER_RIG_H
#define GRADLAG_TESTS_SYNC_TRAINER_RIG_H

#include "sync/trainer.h"
#include "tests/results/results_rig.h"
#include "tests/sync/sync_rig.h"

#define SETTINGS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

enum { SEEN = 64 };

/* Recorded by rank 0's hooks. */
struct seen {
    worker *worker;
    unsigned ranks;
    unsigned checkpoints;
    uint64_t checkpoint_version[SEEN];
    volatile sig_atomic_t stop;
    unsigned stop_after_checkpoints;
    uint64_t checkpoint_ns;       /* the time that a checkpoint takes */
    struct evaluation evaluation; /* computed by rank 0 alone, at the last checkpoint */
    struct training_state kept;   /* at the first checkpoint; its vectors are copies */
    float *vectors[2 * DELAY_MOST];
};

struct run {
    options *settings;
    worker *worker;
    communicator *communicator;
    recorder *recorder;
    struct seen seen;
    const struct training_state *start;
    struct training_outcome outcome;
};

/* Call it on every rank with a zero-initialised `r`. Call run_close also after an error. */
status run_open(struct run *r, const char *const *settings, unsigned rank,
                unsigned size) MUST_CHECK;
void run_close(struct run *r);
status run_train(struct run *r) MUST_CHECK;
/* An error unless the run ended with code `expected`. The message must contain `part`, a key or a
 * name (NULL: not checked). */
status run_expect(const struct run *r, status ended, status expected, const char *part) MUST_CHECK;
/* An error unless it made this many updates. */
status run_expect_updates(const struct run *r, uint64_t updates) MUST_CHECK;
/* An error unless the gradients of this many updates, of 10 samples a rank, were skipped. */
status run_expect_skipped(const struct run *r, unsigned updates, unsigned size) MUST_CHECK;

/* Expected results of SQL queries. For code of a rank, where the asserts of results_rig.h do not
 * work. */
struct fact {
    const char *sql, *expected;
};
status expect_facts(const struct fact *facts, size_t count) MUST_CHECK;

#endif
