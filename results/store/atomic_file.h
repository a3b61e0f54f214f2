/*
 * atomic_file.h — writes a results file under a temporary name beside its final name, and renames
 * it when it is complete. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_STORE_ATOMIC_FILE_H
#define GRADLAG_RESULTS_STORE_ATOMIC_FILE_H

#include "base/text.h"

struct atomic_file { /* zero-initialise */
    struct text path;
};

/* Creates an empty file "INTO.merging-…"; `into` may exist or not. ERROR_RESULTS: it cannot be
 * created. */
status atomic_file_open(struct atomic_file *d, const char *into) MUST_CHECK;
bool atomic_file_is_open(const struct atomic_file *d);
const char *atomic_file_path(const struct atomic_file *d);
/* Renames the file to `into`. No connection to it may be open. ERROR_RESULTS: `into` exists now. */
status atomic_file_publish(struct atomic_file *d, const char *into) MUST_CHECK;
/* Deletes a file that was not published, with SQLite's files beside it. */
void atomic_file_close(struct atomic_file *d);

/* Logs a warning if another temporary file of `into` exists. */
void atomic_file_warn_of_others(const char *into);

#endif
