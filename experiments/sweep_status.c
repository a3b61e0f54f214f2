#include "experiments/sweep_status.h"

#include "experiments/progress.h"
#include "results/query.h"

#include <math.h>
#include <string.h>

static status number(const char *results, const char *sql, double *out)
{
    bool known;
    return query_number(results, sql, NULL, 0, out, &known);
}

/* What waits and what is left of the running ones, by as many at a time as run now (one, where none
 * does). NaN: nothing of the kind has ended yet. */
static status seconds_left(const char *results, double running, double *out)
{
    status result = OK;
    struct text sql = {0};
    const char *rows = query_text("queue");
    text_add(&sql,
             "WITH queue AS (%.*s) SELECT CASE WHEN count(expected_s) = count(*) THEN "
             "sum(max(expected_s - coalesce(elapsed_s, 0), 0)) END FROM queue",
             (int)(strrchr(rows, ';') - rows), rows);
    TRY(number(results, sql.at, out));
    *out /= fmax(running, 1);
done:
    text_free(&sql);
    return result;
}

status sweep_status_print(const char *results, FILE *to)
{
    status result = OK;
    double waiting, running, ended, failed, left;
    char time[32];
    TRY(number(results, "SELECT count(*) FROM run WHERE status = 'queued' AND runner IS NULL",
               &waiting));
    TRY(number(results,
               "SELECT count(*) FROM run WHERE status IN ('queued', 'running') "
               "AND runner IS NOT NULL",
               &running));
    TRY(number(results, "SELECT count(*) FROM run WHERE status IN ('finished', 'diverged')",
               &ended));
    TRY(number(results, "SELECT count(*) FROM run WHERE status IN ('failed', 'stopped')", &failed));
    fprintf(to, "%s: %.0f waiting, %.0f running, %.0f ended, %.0f failed or stopped\n", results,
            waiting, running, ended, failed);
    if (waiting + running == 0) {
        goto done;
    }
    TRY(seconds_left(results, running, &left));
    if (isfinite(left)) {
        progress_duration(left, time);
        fprintf(to, "about %s left, %.0f at a time\n\n", time, fmax(running, 1));
    } else {
        fprintf(to,
                "no run like these has ended yet, so nothing is known of how long they take\n\n");
    }
    fflush(to);
    struct query_request request = {.path = results, .question = "queue", .format = QUERY_TABLE};
    TRY(query_run(&request, to));
done:
    return result;
}
