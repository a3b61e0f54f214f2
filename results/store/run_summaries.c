#include "results/store/run_summaries.h"

static status execute_for(sqlite3 *db, const char *sql, int64_t run_id)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s, sql));
    sqlite3_bind_int64(s, 1, run_id);
    TRY(database_check(db, sqlite3_step(s), "write the totals of a run"));
done:
    sqlite3_finalize(s);
    return result;
}

/* The totals equal what the views compute for runs without totals (views.sql). */
static const char *const insert_sql[] = {
    ("INSERT INTO run_staleness"
     " SELECT run_id, staleness, count(*) FILTER (WHERE outcome IN ('applied', 'aggregated')),"
     "  count(*) FILTER (WHERE outcome IN ('dropped_stale', 'dropped_late')),"
     "  avg(scale) FILTER (WHERE outcome IN ('applied', 'aggregated'))"
     " FROM push WHERE run_id = ?1 GROUP BY staleness"),
    "INSERT INTO run_worker_time SELECT * FROM where_time_goes WHERE run_id = ?1",
    /* Torn reads are an event, because older files have no table for them. */
    ("INSERT INTO event (run_id, severity, code, detail)"
     " SELECT ?1, 'info', 'torn_reads', json_object('gradients', count(*), 'torn', sum(torn))"
     " FROM (SELECT max(read_version) > min(read_version) AS torn FROM push"
     "  WHERE run_id = ?1 AND (SELECT config ->> '$.read' FROM run WHERE id = ?1) = 'torn'"
     "  GROUP BY worker, batch)"
     " HAVING count(*) > 0"),
    "UPDATE run SET summarized = 1 WHERE id = ?1",
};

static const char *const delete_sql[] = {
    "UPDATE run SET summarized = NULL WHERE id = ?1",
    "DELETE FROM run_staleness WHERE run_id = ?1",
    "DELETE FROM run_worker_time WHERE run_id = ?1",
    "DELETE FROM event WHERE run_id = ?1 AND code = 'torn_reads'",
};

status run_summaries_delete(sqlite3 *db, int64_t run_id)
{
    status result = OK;
    for (size_t i = 0; i < COUNT_OF(delete_sql); i++)
        TRY(execute_for(db, delete_sql[i], run_id));
done:
    return result;
}

status run_summaries_write(sqlite3 *db, int64_t run_id)
{
    status result = OK;
    TRY(run_summaries_delete(db, run_id)); /* so that where_time_goes reads the run's rows */
    for (size_t i = 0; i < COUNT_OF(insert_sql); i++)
        TRY(execute_for(db, insert_sql[i], run_id));
done:
    return result;
}
