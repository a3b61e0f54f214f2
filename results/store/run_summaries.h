/*
 * run_summaries.h — the totals of a run's rows, written when it ends (run_summaries.sql), so that
 * views over many runs need not read every row. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_STORE_RUN_SUMMARIES_H
#define GRADLAG_RESULTS_STORE_RUN_SUMMARIES_H

#include "results/store/database.h"

/* Call both within a transaction. A run that resumes forgets its summary. */
status run_summaries_make(sqlite3 *db, int64_t run_id) MUST_CHECK;
status run_summaries_forget(sqlite3 *db, int64_t run_id) MUST_CHECK;

#endif
