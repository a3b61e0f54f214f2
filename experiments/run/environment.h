/*
 * environment.h — what a run's row says of where it was started: the command line, the folder, the
 * variables of the environment that matter, the system and its GPUs. All as JSON.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_ENVIRONMENT_H
#define GRADLAG_EXPERIMENTS_RUN_ENVIRONMENT_H

#include "base/text.h"

/* ["gradlag","run","workers=4"]: as this process was started, or the sweep that started it for one
 * run; a run's token is left out. */
void environment_arguments(struct text *out);
/* "/home/me/study": what relative paths in the settings start from; null where it cannot be told.
 */
void environment_folder(struct text *out);
/* {"OMP_NUM_THREADS":"2"}: those of environment_variable() that are set, by name. */
void environment_environment(struct text *out);
/* "Debian GNU/Linux 12 (bookworm)", or null. */
void environment_system(struct text *out);
/* "NVIDIA H200, NVIDIA H200": all that this machine has, by the driver's files; null without. */
void environment_gpus(struct text *out);
/* The driver's version, or null. */
void environment_gpu_driver(struct text *out);

/* Entry i of the variables that are recorded; false at the end. */
struct variable {
    const char *name; /* ends in '*': all that begin so */
    const char *meaning;
};
bool environment_variable(size_t i, struct variable *out);

#endif
