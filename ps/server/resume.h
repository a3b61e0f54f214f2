/*
 * resume.h — whether an asynchronous run can be resumed from a checkpoint.
 */
#ifndef GRADLAG_PS_SERVER_RESUME_H
#define GRADLAG_PS_SERVER_RESUME_H

#include "worker/training.h"

/* Call it for key resume, and for key restarts if a restarted run resumes from its checkpoint.
 * ERROR_USAGE, naming the key, if these settings keep state that a checkpoint does not hold. */
status resume_check(const options *settings) MUST_CHECK;

#endif
