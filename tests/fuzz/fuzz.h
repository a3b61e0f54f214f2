/*
 * fuzz.h — helpers of the fuzz targets. A target is one file with one LLVMFuzzerTestOneInput, which
 * passes its bytes to code that reads foreign data. A returned error is a correct result.
 */
#ifndef GRADLAG_TESTS_FUZZ_FUZZ_H
#define GRADLAG_TESTS_FUZZ_FUZZ_H

#include "base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The path of a file in memory with these bytes; valid until the next call. Aborts if the system
 * refuses it. */
const char *fuzz_file(const uint8_t *data, size_t size);
/* The bytes as a NUL-terminated text; the caller frees it (memory_free). */
char *fuzz_text(const uint8_t *data, size_t size);
/* A private folder for the lifetime of the process; it contains $XDG_CACHE_HOME. */
const char *fuzz_folder(void);
/* Writes or replaces a file in that folder. */
void fuzz_write(const char *name, const uint8_t *data, size_t size);

#endif
