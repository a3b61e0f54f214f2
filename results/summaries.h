/*
 * summaries.h — what a run's rows come to, written down when it ends (summaries.sql), so that views
 * over many runs need not look at every row. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_SUMMARIES_H
#define GRADLAG_RESULTS_SUMMARIES_H

#include "results/database.h"

/* Within a transaction of the caller's. The second is for a run that goes on. */
status summaries_make(sqlite3 *db, int64_t run_id) MUST_CHECK;
status summaries_forget(sqlite3 *db, int64_t run_id) MUST_CHECK;
/* Of all runs that have ended and have none. */
status summaries_make_all(sqlite3 *db) MUST_CHECK;

#endif
