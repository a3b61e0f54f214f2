/*
 * places.h — the processor cores and GPUs of this machine, dealt out to runs that are made side by
 * side, so that none computes on another's.
 *
 * Cores are those that this process may use; GPUs those that it sees (CUDA_VISIBLE_DEVICES).
 * What a run wants: with engine=real workers × threads cores, with engine=virtual virtual.threads
 * (0: its share); with device=cuda a GPU for each worker. At most what there is: a run of 16
 * workers on 2 cores gets both, and is alone meanwhile.
 */
#ifndef GRADLAG_EXPERIMENTS_PLACES_H
#define GRADLAG_EXPERIMENTS_PLACES_H

#include "worker/options.h"

#include <sched.h>

enum { PLACES_GPUS = 64 };

struct places {
    cpu_set_t cores, free_cores;
    unsigned core_count, jobs;
    char gpus[PLACES_GPUS][64];     /* as CUDA_VISIBLE_DEVICES names them */
    unsigned gpu_runs[PLACES_GPUS]; /* how many runs have it */
    unsigned gpu_count;
    bool gpus_known; /* looked for once a run wants one */
    bool shared; /* --oversubscribe: every run has all cores; GPUs go to as few runs as can be */
};
struct place {
    cpu_set_t cores;
    unsigned core_count; /* 0: all, unbound */
    bool gpus[PLACES_GPUS];
    unsigned gpu_count; /* 0: as it is */
};

/* For `jobs` runs at a time. ERROR_USAGE: more than there are cores, unless `shared`. */
status places_open(struct places *p, unsigned jobs, bool shared) MUST_CHECK;
/* Gives a run what it wants; false where that is not free now. */
bool places_take(struct places *p, const options *o, struct place *out);
void places_give_back(struct places *p, const struct place *place);
/* "CUDA_VISIBLE_DEVICES=0,2"; empty where the run has no GPUs of its own. */
void places_gpu_variable(const struct places *p, const struct place *place, struct text *out);

#endif
