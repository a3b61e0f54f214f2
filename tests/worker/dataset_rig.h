/*
 * dataset_rig.h — opens datasets in tests, from "key=value" texts, with a private cache.
 */
#ifndef GRADLAG_TESTS_WORKER_DATASET_RIG_H
#define GRADLAG_TESTS_WORKER_DATASET_RIG_H

#include "worker/data/dataset.h"

/* Folders that exist from dataset_rig_open to dataset_rig_close (group set-up and tear-down): the
 * cache that datasets use, and a folder for source files. */
extern char dataset_cache[80], dataset_source[80];
int dataset_rig_open(void **state);
int dataset_rig_close(void **state);
void dataset_rig_forget_cache(void);

/* Opens dataset `name` with the settings in `set`: "key=value" texts, ended by NULL. */
status dataset_rig_load(const char *name, const char *const *set, bool with_data,
                        struct dataset *out) MUST_CHECK;
#define SET(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
