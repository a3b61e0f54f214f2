/*
 * scratch.h — the folder for files of tests: $TMPDIR. scripts/run-tests creates one for each
 * program and removes it afterwards, also if the program was killed.
 */
#ifndef GRADLAG_TESTS_RIGS_SCRATCH_H
#define GRADLAG_TESTS_RIGS_SCRATCH_H

/* At most SCRATCH_BYTES with the NUL, because the path of a socket is short. /tmp if $TMPDIR is
 * unset or longer. */
enum { SCRATCH_BYTES = 32 };
const char *scratch_folder(void);

#endif
