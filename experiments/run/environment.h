/*
 * environment.h — describes where a run was started, for its row: command line, folder, relevant
 * environment variables, operating system, GPUs. Each function adds one JSON value to `out`.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_ENVIRONMENT_H
#define GRADLAG_EXPERIMENTS_RUN_ENVIRONMENT_H

#include "base/text.h"

/* ["gradlag","run","workers=4"]: the command line of this process, or of the sweep that started it.
 * The value of run_token is removed. */
void environment_arguments(struct text *out);
/* "/home/me/study": the current folder, from which relative paths start; null if unknown. */
void environment_folder(struct text *out);
/* {"OMP_NUM_THREADS":"2"}: the variables of environment_variable() that are set, sorted by name. */
void environment_variables(struct text *out);
/* "Debian GNU/Linux 12 (bookworm)", or null. */
void environment_system(struct text *out);
/* "NVIDIA H200, NVIDIA H200": all GPUs in the files of the driver; null: none. */
void environment_gpus(struct text *out);
/* The version of the NVIDIA driver, or null. */
void environment_gpu_driver(struct text *out);

/* Entry i of the variables that are recorded; false at the end. */
struct variable {
    const char *name; /* if it ends in '*': all names with this prefix */
    const char *meaning;
};
bool environment_variable(size_t i, struct variable *out);

#endif
