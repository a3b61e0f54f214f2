/*
 * resume_record.h — of a run that goes on from a checkpoint: whose it was, and by how many versions
 * that goes back.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_RESUME_RECORD_H
#define GRADLAG_EXPERIMENTS_RUN_RESUME_RECORD_H

#include "experiments/run/role.h"

/* Event `resumed` in words, and the numbers in run.host. `start` was read from `path`. */
status resume_record(const struct role_process *p, const char *path,
                     const struct training_state *start) MUST_CHECK;

#endif
