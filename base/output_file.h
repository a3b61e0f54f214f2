/*
 * output_file.h — writes a file that its readers see whole or not at all: under a temporary name in
 * the same folder, which takes the place of an earlier file when all is written.
 *
 * Symbolic links are followed: the file that they name is replaced, and the link stays. What is not
 * a regular file (a device, a FIFO, /dev/stdout) is written in place and never replaced.
 */
#ifndef GRADLAG_BASE_OUTPUT_FILE_H
#define GRADLAG_BASE_OUTPUT_FILE_H

#include "base/text.h"

#include <stdio.h>

struct output_file { /* zero-initialise */
    FILE *to;
    struct text target;    /* the path with its last links followed */
    struct text temporary; /* empty: it is written in place */
    bool nameless;         /* the temporary file gets its name when it is whole */
};

/* Opens f->to for writing. ERROR_OTHER: it cannot be created, or is a FIFO that no process opens
 * for reading within some seconds. ERROR_USAGE: "-", which is no file. Every message begins with
 * the path. */
status output_file_open(struct output_file *f, const char *path) MUST_CHECK;
/* The same, but "-" is standard output. */
status output_file_open_or_stdout(struct output_file *f, const char *path) MUST_CHECK;
/* Puts it in its place and closes it, also after an error. `durable`: it is on the disk when this
 * returns, and survives a power failure. ERROR_OTHER: something was not written; an earlier file is
 * as it was. */
status output_file_close(struct output_file *f, bool durable) MUST_CHECK;
/* Removes what was not closed; an earlier file is as it was. Does nothing after a close. */
void output_file_abandon(struct output_file *f);

/* The path with its last symbolic links followed: where a file of that name is, or would be. */
status output_file_follow(const char *path, struct text *target) MUST_CHECK;
/* Whether the file can be written, as far as its folder and permissions tell. Errors as of
 * output_file_open(). */
status output_file_check(const char *path) MUST_CHECK;

#endif
