/*
 * atomic_file.h — a results file in the making: under another name beside its own, until it is
 * whole. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_STORE_ATOMIC_FILE_H
#define GRADLAG_RESULTS_STORE_ATOMIC_FILE_H

#include "base/text.h"

struct atomic_file { /* zero-initialise */
    struct text path;
};

/* An empty file, "INTO.merging-…"; `into` itself may be there or not. ERROR_RESULTS: it cannot be
 * made. */
status atomic_file_open(struct atomic_file *d, const char *into) MUST_CHECK;
bool atomic_file_is_open(const struct atomic_file *d);
const char *atomic_file_path(const struct atomic_file *d);
/* It is `into` from now on, and no draft any more. No connection to it may be open. ERROR_RESULTS:
 * there is one by now. */
status atomic_file_publish(struct atomic_file *d, const char *into) MUST_CHECK;
/* Takes it away, with what SQLite keeps beside it. */
void atomic_file_close(struct atomic_file *d);

/* Of drafts of `into` that somebody left, or is at. */
void atomic_file_warn_of_others(const char *into);

#endif
