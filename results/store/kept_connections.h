/*
 * kept_connections.h — closed connections of this process that wait for the next opening of their
 * file, because opening costs more than a small query.
 *
 * When the last connection of a file closes, SQLite syncs the file. While this process keeps a
 * connection, closing another one syncs nothing. So that a power failure loses little, kept_put()
 * moves the content of the -wal file into the file and syncs it: when a writer is put back, at most
 * once a second.
 *
 * recorder_keep_open() (recorder.h) turns this on; then one connection of each kind is kept. Any
 * thread may call the functions.
 */
#ifndef GRADLAG_RESULTS_STORE_KEPT_CONNECTIONS_H
#define GRADLAG_RESULTS_STORE_KEPT_CONNECTIONS_H

#include "results/store/database.h"

enum kept_kind { KEPT_WRITER, KEPT_READER, KEPT_KINDS };

/* True: *out is a connection to the file that `path` names now. */
bool kept_take(enum kept_kind kind, const char *path, sqlite3 **out);
/* True: it is kept. False: the caller closes it. */
bool kept_put(sqlite3 *db);

#endif
