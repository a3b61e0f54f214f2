/*
 * run_summaries.h — totals of a run's rows, written when it ends (run_summaries.sql). With them,
 * views over many runs need not read every row. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_STORE_RUN_SUMMARIES_H
#define GRADLAG_RESULTS_STORE_RUN_SUMMARIES_H

#include "results/store/database.h"

/* Call both within a transaction. Writes the totals of a run that has ended. */
status run_summaries_write(sqlite3 *db, int64_t run_id) MUST_CHECK;
/* Deletes the totals of a run that resumes. */
status run_summaries_delete(sqlite3 *db, int64_t run_id) MUST_CHECK;

#endif
