/*
 * dataset_archive.h — the files in a tar archive (plain, or compressed with gzip, bzip2, xz or
 * zstd), one after the other, through libarchive. No program is started and nothing is written.
 *
 * An archive is not trusted: the size of a member is told before anything of it is read, and only
 * what was asked for is read. Errors are ERROR_DATA and name the archive and the member.
 */
#ifndef GRADLAG_WORKER_DATASET_ARCHIVE_H
#define GRADLAG_WORKER_DATASET_ARCHIVE_H

#include "worker/base.h"

typedef struct tar_reader tar_reader;

/* `path` is copied. */
status tar_reader_open(tar_reader **out, const char *path) MUST_CHECK;
void tar_reader_close(tar_reader **r);
/* The next regular file: its name, valid until the next call, or NULL at the end of the archive. */
status tar_reader_next(tar_reader *r, const char **name, uint64_t *bytes) MUST_CHECK;
/* All of it; once per file, `bytes` as tar_reader_next gave them. */
status tar_reader_read(tar_reader *r, void *out, size_t bytes) MUST_CHECK;

#endif
