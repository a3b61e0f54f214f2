/* database_path.h — whether a path can be a results file: clear errors before SQLite opens it. */
#ifndef GRADLAG_RESULTS_STORE_DATABASE_PATH_H
#define GRADLAG_RESULTS_STORE_DATABASE_PATH_H

#include "base/status.h"

/* ERROR_RESULTS: it exists and is not a regular file. SQLite would block on a FIFO. */
status database_path_regular(const char *path) MUST_CHECK;
/* ERROR_RESULTS: it can be neither written nor created. SQLite would leave -wal and -shm files
 * beside a read-only file or a device. */
status database_path_writable(const char *path) MUST_CHECK;

#endif
