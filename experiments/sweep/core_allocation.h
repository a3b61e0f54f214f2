/*
 * core_allocation.h — the processor cores and GPUs of this machine, dealt out to runs that are made
 * side by side, so that none computes on another's.
 *
 * Cores are those that this process may use; GPUs those that it sees (CUDA_VISIBLE_DEVICES).
 * What a run wants: with engine=real workers × threads cores, with engine=virtual virtual.threads
 * (0: its share); with device=cuda a GPU for each worker. At most what there is: a run of 16
 * workers on 2 cores gets both, and is alone meanwhile.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_CORE_ALLOCATION_H
#define GRADLAG_EXPERIMENTS_SWEEP_CORE_ALLOCATION_H

#include "base/text.h"
#include "base/options.h"

#include <sched.h>

enum { CORE_ALLOCATION_GPUS = 64 };

struct core_allocation {
    cpu_set_t cores, free_cores;
    unsigned core_count, jobs;
    char gpus[CORE_ALLOCATION_GPUS][64];     /* as CUDA_VISIBLE_DEVICES names them */
    unsigned gpu_runs[CORE_ALLOCATION_GPUS]; /* how many runs have it */
    unsigned gpu_count;
    bool gpus_known; /* looked for once a run wants one */
    bool shared; /* --oversubscribe: every run has all cores; GPUs go to as few runs as can be */
};
struct core_share {
    cpu_set_t cores;
    unsigned core_count; /* 0: all, unbound */
    bool gpus[CORE_ALLOCATION_GPUS];
    unsigned gpu_count; /* 0: as it is */
};

/* For `jobs` runs at a time. ERROR_USAGE: more than there are cores, unless `shared`. */
status core_allocation_open(struct core_allocation *p, unsigned jobs, bool shared) MUST_CHECK;
/* Gives a run what it wants; false where that is not free now. */
bool core_allocation_take(struct core_allocation *p, const options *o, struct core_share *out);
void core_allocation_give_back(struct core_allocation *p, const struct core_share *place);
/* "CUDA_VISIBLE_DEVICES=0,2"; empty where the run has no GPUs of its own. */
void core_allocation_gpu_variable(const struct core_allocation *p, const struct core_share *place,
                                  struct text *out);

#endif
