/*
 * device_placement.h — selects the device of a host that a process computes on.
 *
 * The device is the local rank modulo the number of visible devices. The launcher's environment
 * gives the local rank. Without a launcher, processes are numbered by worker. Only visible devices
 * count: the driver applies CUDA_VISIBLE_DEVICES, so a launcher that gives each process one visible
 * device needs no other setting. Several processes may share a device.
 *
 * All functions are pure functions of their arguments.
 */
#ifndef GRADLAG_WORKER_DEVICE_PLACEMENT_H
#define GRADLAG_WORKER_DEVICE_PLACEMENT_H

#include "base/options.h"

/* Variables that `gradlag run` sets for the processes that it starts without mpirun. They take
 * precedence over all other launchers' variables. */
#define PLACEMENT_LOCAL_RANK "GRADLAG_LOCAL_RANK"
#define PLACEMENT_LOCAL_SIZE "GRADLAG_LOCAL_SIZE"

struct placement {
    unsigned local_rank; /* number of this process on its host */
    unsigned local_size; /* processes of the run on its host */
    int64_t device;      /* key device.index; −1: select by local rank */
};

/* `value` returns the text of an environment variable or NULL, like getenv. `index` of `count`
 * workers is used if no launcher is found. A variable that is not a number counts as unset. `o` may
 * be NULL and need not declare device.index. */
struct placement placement_of(char *(*value)(const char *name), unsigned index, unsigned count,
                              const options *o);

/* Selects one of `visible` devices. ERROR_USAGE: device.index names none of them. */
status placement_device(const struct placement *p, unsigned visible, unsigned *out) MUST_CHECK;

/* True if every thread of the run has a processor: then a waiting thread may spin. */
bool placement_may_spin(const struct placement *p, unsigned threads, unsigned processors);

/* Keys of backends with several devices (device.index); ends with key == NULL. */
extern const struct option placement_options[];

#endif
