/*
 * run_row.h — the life of a run's row: inserted, taken up, ended. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_STORE_RUN_ROW_H
#define GRADLAG_RESULTS_STORE_RUN_ROW_H

#include "results/store/database.h"
#include "results/store/recorder.h"

status run_row_insert(sqlite3 *db, const struct run_description *run, const char *run_status,
                      int64_t *run_id) MUST_CHECK;
/* Sets status to running; of one that was stopped this process answers from now on. ERROR_RESULTS:
 * there is no such run, or it has ended. */
status run_row_resume(sqlite3 *db, int64_t run_id) MUST_CHECK;
/* Writes the outcome, and what follows from the rows the run has. */
status run_row_finish(sqlite3 *db, int64_t run_id, const struct run_outcome *outcome) MUST_CHECK;
/* Ends a run that still says queued or running, with counts as far as its rows tell; `at` (UTC) is
 * when it ended, NULL: now. */
status run_row_settle(sqlite3 *db, int64_t run_id, const char *run_status, const char *error,
                      const char *at, bool *changed) MUST_CHECK;
/* Ends those whose process was killed (run_owner.h), as of when it last said something: so a copy
 * of the file comes to the same row. They would say "running" for ever. */
status run_row_end_gone(sqlite3 *db) MUST_CHECK;

#endif
