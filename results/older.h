/*
 * older.h — results files of versions 1 to 5, and those whose views another gradlag made: brought
 * up to date when written to, shown as if they were when read. Internal to results/.
 *
 * Version 1 had no run.settings and no run.runner, and its config_hash covered keys that do not
 * decide the outcome. Both follow from run.config, so nothing is lost and no run has to be made
 * again. Version 2 had no push.arrival, batch, waited_for, rate and reason, and no
 * event.push_number, version 3 no step.data_us, forward_us, backward_us, hidden_us, staleness and
 * at_seconds, and no run.sent_bytes: they are NULL in its rows. Nor had it push.server and
 * event.server: there was one server, 0. In version 4 push was a table, and took 95 to 105 bytes a
 * row; there were no summaries. Version 5 had no run.collapsed and no evaluation.top_class_share.
 */
#ifndef GRADLAG_RESULTS_OLDER_H
#define GRADLAG_RESULTS_OLDER_H

#include "results/database.h"

/* Within a transaction of the caller's: makes a file of `version` one of DATABASE_VERSION. */
status older_upgrade(sqlite3 *db, int64_t version) MUST_CHECK;

/* Whether a view is not as views.sql has it: of a file of this version, too, for what a view is
 * made of may change without its columns. */
status older_views_differ(sqlite3 *db, bool *out) MUST_CHECK;
/* Within a transaction of the caller's: makes those anew. */
status older_renew_views(sqlite3 *db) MUST_CHECK;

/* For a connection that only reads, before it asks anything: what differs from the file's tables is
 * laid over them as temporary views. That is, for an older file, the present columns and
 * views; and for runs whose process is gone (runner.h), that they failed. Changes nothing in the
 * file. */
status older_show_as_present(sqlite3 *db, int64_t version) MUST_CHECK;

#endif
