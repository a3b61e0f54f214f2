#include "experiments/sweep/plan_queue.h"

#include "experiments/run/provenance.h"
#include "experiments/sweep/precision_choice.h"

#include <string.h>

const char *plan_results(const struct planned_run *r)
{
    return options_text(r->settings, "results");
}

enum planned_state plan_state_of(enum queue_state state)
{
    static const enum planned_state states[] = {
        [QUEUE_WAITING] = PLANNED_MISSING,   [QUEUE_TAKEN] = PLANNED_ELSEWHERE,
        [QUEUE_FINISHED] = PLANNED_FINISHED, [QUEUE_DIVERGED] = PLANNED_DIVERGED,
        [QUEUE_FAILED] = PLANNED_FAILED,     [QUEUE_STOPPED] = PLANNED_MISSING,
        [QUEUE_DROPPED] = PLANNED_DROPPED};
    return states[state];
}

static status put(queue *q, struct planned_run *r, bool again, unsigned attempt)
{
    struct run_row row;
    struct queue_entry entry;
    run_row_open(&row, r->settings);
    struct queue_request request = {.run = &row.description,
                                    .priority = options_integer(r->settings, "priority"),
                                    .attempt = attempt,
                                    .again = again};
    plan_key(r, &request.key);
    request.key.waiting_first = again;
    status result = queue_add(q, &request, &entry);
    run_row_close(&row);
    if (result == OK) {
        r->run_id = entry.id;
        r->attempt = entry.attempt;
        r->state = plan_state_of(entry.state);
    }
    return result;
}

status plan_enqueue_missing(struct plan *p)
{
    status result = OK;
    queue *q = NULL;
    const char *path = "";
    for (size_t i = 0; i < p->count; i++) {
        struct planned_run *r = &p->runs[i];
        if ((r->state != PLANNED_MISSING && r->state != PLANNED_ELSEWHERE) || r->waiting)
            continue;
        if (q != NULL && strcmp(path, plan_results(r)) != 0) {
            TRY(queue_commit(q));
            queue_close(&q);
        }
        if (q == NULL) {
            path = plan_results(r);
            TRY(queue_open(&q, path));
        }
        TRY(precision_confirm(r->settings));
        TRY(put(q, r, p->again, 1));
    }
    if (q != NULL)
        TRY(queue_commit(q));
done:
    queue_close(&q);
    return result;
}

status plan_enqueue(struct planned_run *r, bool again, unsigned attempt)
{
    status result = OK;
    queue *q = NULL;
    TRY(queue_open(&q, plan_results(r)));
    TRY(put(q, r, again, attempt));
    TRY(queue_commit(q));
done:
    queue_close(&q);
    return result;
}

status plan_queue_entry(const struct planned_run *r, struct queue_entry *out)
{
    return queue_look(plan_results(r), r->run_id, r->hash, out);
}
