/*
 * query_bind.h — finding a question's SQL, and filling in its parameters. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_QUERY_QUERY_BIND_H
#define GRADLAG_RESULTS_QUERY_QUERY_BIND_H

#include "results/store/database.h"
#include "results/query/query.h"

/* Whether `question` is meant as a name and not as SQL: one word of a–z, 0–9 and '-'. */
bool query_is_name(const char *question);

/* Prepares one statement that only reads. ERROR_USAGE: wrong SQL, several statements, or one that
 * would change something. `what` names the question in errors. */
status query_prepare(sqlite3 *db, sqlite3_stmt **out, const char *sql, const char *what) MUST_CHECK;
/* Binds "key=value" settings, and for the rest the defaults declared in the comments of `sql`.
 * ERROR_USAGE: a parameter is missing, or there is none of that name; lists those there are. */
status query_bind(sqlite3 *db, sqlite3_stmt *s, const char *sql, const char *what,
                  const char *const *settings, size_t setting_count) MUST_CHECK;

/* A run's id from how a user names it: id, start of a uuid, or "last". */
status query_run_id(sqlite3 *db, const char *name, int64_t *run_id) MUST_CHECK;
/* What query_find_run() says, on an open file. */
status query_bind_find_run(sqlite3 *db, const struct run_key *key, struct found_run *out,
                           bool *found) MUST_CHECK;

#endif
