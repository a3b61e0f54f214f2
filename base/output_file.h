/*
 * output_file.h — writes a file that readers see completely or not at all. The file has a temporary
 * name in the same folder until it is complete, and then replaces an earlier file, whose
 * permissions it keeps.
 *
 * Symbolic links are followed: the target is replaced, and the link stays. A path that is no
 * regular file (a device, a FIFO, /dev/stdout) is written in place and never replaced.
 */
#ifndef GRADLAG_BASE_OUTPUT_FILE_H
#define GRADLAG_BASE_OUTPUT_FILE_H

#include "base/text.h"

#include <stdio.h>

struct output_file { /* zero-initialise */
    FILE *to;
    struct text target;    /* the path with its last links followed */
    struct text temporary; /* empty: the path is written in place */
    bool nameless;         /* the temporary file has no name until it is complete */
};

/* Opens f->to for writing. ERROR_OTHER: it cannot be created, or is a FIFO that no process opens
 * for reading within some seconds. ERROR_USAGE: "-", which is no file; an
 * SQLite database, which is never replaced. Every message begins with the path, "-" in quotes. */
status output_file_open(struct output_file *f, const char *path) MUST_CHECK;
/* Likewise, but "-" is standard output. */
status output_file_open_or_stdout(struct output_file *f, const char *path) MUST_CHECK;
/* Replaces the target and closes the file, also after an error. `durable`: the file is on the disk
 * on return and survives a power failure. ERROR_OTHER: a write failed; an earlier file is
 * unchanged. */
status output_file_close(struct output_file *f, bool durable) MUST_CHECK;
/* Closes and removes a file that is not complete; an earlier file is unchanged. Does nothing after
 * a close. */
void output_file_abandon(struct output_file *f);

/* The path with its last symbolic links followed: the target of a write. */
status output_file_follow(const char *path, struct text *target) MUST_CHECK;
/* OK if folder and permissions allow writing the file. Errors as of output_file_open(). */
status output_file_check(const char *path) MUST_CHECK;

#endif
