/*
 * run_row.h — inserts, resumes and ends the row of a run. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_STORE_RUN_ROW_H
#define GRADLAG_RESULTS_STORE_RUN_ROW_H

#include "results/store/database.h"
#include "results/store/recorder.h"

status run_row_insert(sqlite3 *db, const struct run_description *run, const char *run_status,
                      int64_t *run_id) MUST_CHECK;
/* See recorder_roll_back(). */
status run_row_roll_back(sqlite3 *db, int64_t run_id, uint64_t version,
                         const char *detail) MUST_CHECK;
/* Sets status to running. ERROR_RESULTS: no such run, or it has ended. */
status run_row_resume(sqlite3 *db, int64_t run_id) MUST_CHECK;
/* Writes the outcome, and the columns that are computed from the run's other rows. */
status run_row_finish(sqlite3 *db, int64_t run_id, const struct run_outcome *outcome) MUST_CHECK;
/* Ends a run whose status is queued or running; computes its counts from its rows. `at` (UTC): when
 * it ended; NULL: now. *changed: whether the run was queued or running. */
status run_row_settle(sqlite3 *db, int64_t run_id, const char *run_status, const char *error,
                      const char *at, bool *changed) MUST_CHECK;
/* Ends the runs whose process no longer exists (run_owner.h). finished_at is the time of the last
 * progress report, so that a copy of the file gets the same row. */
status run_row_end_gone(sqlite3 *db) MUST_CHECK;

#endif
