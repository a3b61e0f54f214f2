/*
 * resume.h — whether an asynchronous run can go on from a checkpoint.
 */
#ifndef GRADLAG_PS_RESUME_H
#define GRADLAG_PS_RESUME_H

#include "worker/training.h"

/* ERROR_USAGE where these settings keep something that a checkpoint does not hold: names the key.
 */
status resume_check(const options *settings) MUST_CHECK;

#endif
