/*
 * placement.h — which of a host's devices a process computes on.
 *
 * Local rank modulo visible devices. The local rank is what the launcher says (its environment);
 * where none says anything, processes are numbered as their workers are. Only visible devices
 * count: CUDA_VISIBLE_DEVICES is the driver's business, and a launcher that shows each process one
 * device of its own needs nothing else. Several processes may share a device.
 *
 * Pure functions of their arguments.
 */
#ifndef GRADLAG_WORKER_PLACEMENT_H
#define GRADLAG_WORKER_PLACEMENT_H

#include "worker/options.h"

/* How `gradlag run` tells the processes it starts without mpirun; comes before all others. */
#define PLACEMENT_LOCAL_RANK "GRADLAG_LOCAL_RANK"
#define PLACEMENT_LOCAL_SIZE "GRADLAG_LOCAL_SIZE"

struct placement {
    unsigned local_rank; /* of this process on its host */
    unsigned local_size; /* the run's processes on its host */
    int64_t device;      /* key device.index: −1: by local rank */
};

/* `value`: an environment variable's text or NULL, as getenv gives it. `index` of `count` workers
 * is what is believed where no launcher has spoken. What is no number counts as unset. `o` may be
 * NULL, or declare device.index or not. */
struct placement placement_of(char *(*value)(const char *name), unsigned index, unsigned count,
                              const options *o);

/* The device among `visible` ones. ERROR_USAGE: device.index names none of them. */
status placement_device(const struct placement *p, unsigned visible, unsigned *out) MUST_CHECK;

/* Whether waiting may burn a processor: only if every thread of the run has one of its own. */
bool placement_may_spin(const struct placement *p, unsigned threads, unsigned processors);

/* The keys of a backend with several devices (device.index); ended by key == NULL. */
extern const struct option placement_options[];

#endif
