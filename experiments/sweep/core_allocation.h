/*
 * core_allocation.h — assigns processor cores and GPUs of this machine to runs that execute at the
 * same time, so that two runs never share a core or a GPU.
 *
 * Cores are those that this process may use; GPUs those that it sees (CUDA_VISIBLE_DEVICES). A run
 * gets workers × threads cores with engine=real, and virtual.threads cores with engine=virtual (0:
 * an equal share). With device=cuda it gets a GPU for each worker, with engine=virtual one GPU. It
 * never gets more than the machine has: a run of 16 workers on 2 cores gets both, and no other run
 * executes meanwhile.
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
    unsigned gpu_runs[CORE_ALLOCATION_GPUS]; /* number of runs that use it */
    unsigned gpu_count;
    bool gpus_known; /* find_gpus() has run; the first run with device=cuda calls it */
    bool shared;     /* --oversubscribe: each run may use all cores; GPUs are shared evenly */
};
struct core_share {
    cpu_set_t cores;
    unsigned core_count; /* 0: all cores, not bound */
    bool gpus[CORE_ALLOCATION_GPUS];
    unsigned gpu_count; /* 0: the environment stays as it is */
};

/* Prepares *p for `jobs` runs at a time. ERROR_USAGE: `jobs` exceeds the number of cores and
 * `shared` is false. */
status core_allocation_open(struct core_allocation *p, unsigned jobs, bool shared) MUST_CHECK;
/* Assigns cores and GPUs to a run; false: not enough of them are free now. */
bool core_allocation_take(struct core_allocation *p, const options *o, struct core_share *out);
void core_allocation_give_back(struct core_allocation *p, const struct core_share *share);
/* "CUDA_VISIBLE_DEVICES=0,2"; empty if the run has no GPUs of its own. */
void core_allocation_gpu_variable(const struct core_allocation *p, const struct core_share *share,
                                  struct text *out);

#endif
