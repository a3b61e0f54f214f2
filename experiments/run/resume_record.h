/*
 * resume_record.h — records, for a resumed run, the run that wrote the checkpoint and how many of
 * its versions are lost.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_RESUME_RECORD_H
#define GRADLAG_EXPERIMENTS_RUN_RESUME_RECORD_H

#include "experiments/run/role.h"

/* Writes event `resumed` and the member `resumed` of run.host. `start` was read from `path`.
 * ERROR_DATA: the file cannot be read. */
status resume_record(const struct role_process *p, const char *path,
                     const struct training_state *start) MUST_CHECK;

#endif
