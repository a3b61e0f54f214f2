/*
 * dataset_archive.h — reads the files of a tar archive (plain, or compressed with gzip, bzip2, xz
 * or zstd) in order, through libarchive. It starts no program and writes nothing.
 *
 * An archive is untrusted input: the reader reports the size of a member before it reads the
 * content, and reads only what the caller requests. Errors are ERROR_DATA and name the archive and
 * the member.
 */
#ifndef GRADLAG_WORKER_DATA_DATASET_ARCHIVE_H
#define GRADLAG_WORKER_DATA_DATASET_ARCHIVE_H

#include "base/status.h"

typedef struct tar_reader tar_reader;

/* `path` is copied. */
status tar_reader_open(tar_reader **out, const char *path) MUST_CHECK;
void tar_reader_close(tar_reader **r);
/* The next regular file: its name, valid until the next call, or NULL at the end of the archive. */
status tar_reader_next(tar_reader *r, const char **name, uint64_t *bytes) MUST_CHECK;
/* Reads the whole member; call it once per file, with `bytes` from tar_reader_next. */
status tar_reader_read(tar_reader *r, void *out, size_t bytes) MUST_CHECK;

#endif
