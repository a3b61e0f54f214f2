/*
 * foreign_worker.h — a worker written from docs/wire-format.md alone. It includes no file of
 * gradlag and calls only libzmq and the C library. It trains model=linear on dataset=least-squares,
 * whose gradient needs a few lines.
 */
#ifndef GRADLAG_TESTS_PS_SERVER_FOREIGN_WORKER_H
#define GRADLAG_TESTS_PS_SERVER_FOREIGN_WORKER_H

#include "base/status.h"

#include <stdint.h>

struct foreign_worker {
    const char *endpoint;
    const char *run_token;  /* as `gradlag server` prints it */
    uint64_t settings_hash; /* 0: not checked */
    /* The run's settings of the same names; size and rows: dataset.size and dataset.samples. */
    uint32_t worker, workers, batch, size, rows;
    uint64_t seed, dataset_seed;
    double noise;
};

/* Trains until the server ends the run. 0: success; else *why is the reason. */
int foreign_worker_train(const struct foreign_worker *f, const char **why);

/* Batch `batch` of a worker with sampler=partition: indices into the training split. */
void foreign_worker_batch(const struct foreign_worker *f, uint64_t batch, uint32_t *indices);
/* The first four words of a random stream. */
void foreign_worker_words(uint32_t purpose, uint64_t seed, uint32_t worker, uint64_t step,
                          uint32_t out[4]);

#endif
