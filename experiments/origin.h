/*
 * origin.h — of a run that goes on from a checkpoint: whose it was, and by how many versions that
 * goes back.
 */
#ifndef GRADLAG_EXPERIMENTS_ORIGIN_H
#define GRADLAG_EXPERIMENTS_ORIGIN_H

#include "experiments/role.h"

/* Event `resumed` in words, and the numbers in run.host. `start` was read from `path`. */
status origin_record(const struct role_process *p, const char *path,
                     const struct training_state *start) MUST_CHECK;

#endif
