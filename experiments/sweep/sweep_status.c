#include "experiments/sweep/sweep_status.h"

#include "base/terminal.h"
#include "experiments/run/progress.h"
#include "results/query/live_runs.h"
#include "results/query/query.h"

#include <math.h>

status sweep_status_print(const char *results, FILE *to)
{
    status result = OK;
    struct live_runs l = {0};
    char time[32];
    TRY(live_runs_read(&l, results, 0));
    if (!l.there) {
        FAIL(ERROR_RESULTS,
             "%s: the results file does not exist or has no runs; give its path with results=FILE",
             results);
    }
    size_t running = l.running_count + l.more_running;
    fprintf(to, "%s: %u waiting, %zu running, %u ended, %u failed or stopped\n", results, l.waiting,
            running, l.finished + l.diverged, l.failed + l.stopped);
    if (l.waiting + running == 0)
        goto done;
    if (isfinite(l.queue_seconds_left)) {
        progress_duration(l.queue_seconds_left, time);
        fprintf(to, "about %s left, %zu at a time\n\n", time, running > 0 ? running : 1);
    } else {
        fprintf(to, "time left unknown: no similar run has ended yet\n\n");
    }
    fflush(to);
    struct query_request request = {.path = results,
                                    .question = "queue",
                                    .format = QUERY_TABLE,
                                    .width = terminal_columns(fileno(to))};
    TRY(query_run(&request, to, NULL));
done:
    live_runs_free(&l);
    return result;
}
