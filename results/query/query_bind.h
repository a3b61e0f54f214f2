/*
 * query_bind.h — prepares a query and binds its parameters. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_QUERY_QUERY_BIND_H
#define GRADLAG_RESULTS_QUERY_QUERY_BIND_H

#include "results/store/database.h"
#include "results/query/query.h"

/* Whether `question` is a name: one word of a–z, 0–9 and '-'. Otherwise it is SQL. */
bool query_is_name(const char *question);

/* Prepares one statement that only reads. ERROR_USAGE: wrong SQL, several statements, or a
 * statement that would change something. `what` names the query in errors. */
status query_prepare(sqlite3 *db, sqlite3_stmt **out, const char *sql, const char *what) MUST_CHECK;
/* Binds "key=value" settings. Other parameters get the defaults declared in the comments of `sql`.
 * ERROR_USAGE: a parameter is missing or unknown; the message lists the parameters. */
status query_bind(sqlite3 *db, sqlite3_stmt *s, const char *sql, const char *what,
                  const char *const *settings, size_t setting_count) MUST_CHECK;
/* database_check() for the result of sqlite3_step(). ERROR_USAGE: the query fails for these values,
 * for example by an integer overflow or invalid JSON. */
status query_check_step(sqlite3 *db, int code) MUST_CHECK;

/* Finds the id of a run by its id, the start of its uuid, or "last". ERROR_USAGE: no such run. */
status query_run_id(sqlite3 *db, const char *name, int64_t *run_id) MUST_CHECK;
/* query_find_run() on an open connection. */
status query_bind_find_run(sqlite3 *db, const struct run_key *key, struct found_run *out,
                           bool *found) MUST_CHECK;

#endif
