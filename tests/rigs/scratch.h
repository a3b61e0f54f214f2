/*
 * scratch.h — where tests put their files: $TMPDIR, which scripts/run-tests makes for each program
 * and removes after it, so that one that is killed leaves nothing behind.
 */
#ifndef GRADLAG_TESTS_RIGS_SCRATCH_H
#define GRADLAG_TESTS_RIGS_SCRATCH_H

/* At most SCRATCH_BYTES with its NUL, for the path of a socket is short; /tmp where $TMPDIR is not
 * set or longer. */
enum { SCRATCH_BYTES = 32 };
const char *scratch_folder(void);

#endif
