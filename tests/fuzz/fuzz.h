/*
 * fuzz.h — what the fuzz targets share. Each target is one file with one LLVMFuzzerTestOneInput
 * that hands its bytes to a part of gradlag that reads what strangers wrote; an error is a fine
 * answer.
 */
#ifndef GRADLAG_TESTS_FUZZ_FUZZ_H
#define GRADLAG_TESTS_FUZZ_FUZZ_H

#include "base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A file in memory that holds the bytes; its path, valid until the next call. Aborts where the
 * system denies it. */
const char *fuzz_file(const uint8_t *data, size_t size);
/* The bytes as text with an end, owned by the caller (memory_free). */
char *fuzz_text(const uint8_t *data, size_t size);
/* A private folder that lives as long as the process, with $XDG_CACHE_HOME in it. */
const char *fuzz_folder(void);
/* Writes a file in it anew. */
void fuzz_write(const char *name, const uint8_t *data, size_t size);

#endif
