/*
 * reader_views.h — the temporary views through which a connection of gradlag sees a results file.
 * Internal to results/.
 *
 * The views of views.sql are temporary views of the connection. SQLite looks up a name among
 * temporary objects first, so queries of gradlag mean the same in every file, even if its own views
 * were changed. The file itself is not changed.
 */
#ifndef GRADLAG_RESULTS_STORE_READER_VIEWS_H
#define GRADLAG_RESULTS_STORE_READER_VIEWS_H

#include "results/store/database.h"

/* Call once for each connection, before its first query. */
status reader_views_add(sqlite3 *db) MUST_CHECK;
/* Call before reader_views_add(), on a connection that only reads. If the process of a run
 * (run_owner.h) no longer exists, table run shows this run as failed. */
status reader_views_add_gone_runs(sqlite3 *db) MUST_CHECK;

#endif
