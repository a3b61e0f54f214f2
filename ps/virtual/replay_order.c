/*
 * replay_order.c — computes the order of the core's events from the recorded rows; see replay.h.
 *
 * The server writes a row when it decides about the gradient, so rows are first sorted by arrival.
 */
#include "base/memory.h"
#include "ps/virtual/replay.h"

#include <stdlib.h>

enum { NEVER = -1 };

struct ordering {
    const struct replay_row **rows; /* by arrival */
    size_t count, event_count;
    struct replay_event *events;
    int64_t *first; /* [workers]: index of the worker's first joining, or NEVER */
    unsigned workers;
};

static int by_arrival(const void *a, const void *b)
{
    const struct replay_row *const *x = a, *const *y = b;
    uint64_t first = (*x)->record.arrival, second = (*y)->record.arrival;
    return first < second ? -1 : first > second;
}

static void add(struct ordering *o, struct replay_event event)
{
    o->events[o->event_count++] = event;
}

static void add_push(struct ordering *o, size_t row)
{
    add(o, (struct replay_event){.kind = REPLAY_PUSH,
                                 .worker = o->rows[row]->record.worker,
                                 .number = o->rows[row]->number,
                                 .recorded = &o->rows[row]->record});
}

static void add_member_event(struct ordering *o, unsigned w, bool joined)
{
    add(o, (struct replay_event){.kind = joined ? REPLAY_JOINED : REPLAY_LOST, .worker = w});
}

/* A worker that was there at the start of training joined before the first gradient. */
static void add_first_members(struct ordering *o, const struct replay_recording *r)
{
    for (size_t i = 0; i < r->member_event_count && r->member_events[i].push_number == 0; i++) {
        int64_t *first = &o->first[r->member_events[i].worker];
        *first = *first == NEVER && r->member_events[i].joined ? (int64_t)i : *first;
    }
    for (unsigned w = 0; w < o->workers; w++)
        add_member_event(o, w, o->first[w] != NEVER);
}

static void add_all(struct ordering *o, const struct replay_recording *r)
{
    size_t next = 0;
    bool ended = false;
    add_first_members(o, r);
    for (size_t i = 0; i <= o->count; i++) {
        const struct push_record *row = i < o->count ? &o->rows[i]->record : NULL;
        for (; next < r->member_event_count &&
               (row == NULL || r->member_events[next].push_number <= row->arrival);
             next++)
            if (o->first[r->member_events[next].worker] != (int64_t)next)
                add_member_event(o, r->member_events[next].worker, r->member_events[next].joined);
        if (!ended && (row == NULL ? !r->finished : row->reason == PUSH_AFTER_END)) {
            add(o, (struct replay_event){.kind = REPLAY_END});
            ended = true;
        }
        if (row != NULL)
            add_push(o, i);
    }
}

static status check(const struct replay_recording *r)
{
    status result = OK;
    for (size_t i = 0; i < r->row_count; i++) {
        if (r->rows[i].record.worker >= r->workers_max) {
            FAIL(ERROR_DATA,
                 "push %llu names worker %u, but the run had %u workers: is the results file "
                 "damaged?",
                 (unsigned long long)r->rows[i].number, r->rows[i].record.worker, r->workers_max);
        }
    }
    for (size_t i = 0; i < r->member_event_count; i++) {
        if (r->member_events[i].worker >= r->workers_max) {
            FAIL(ERROR_DATA,
                 "an event names worker %u, but the run had %u workers: is the results file "
                 "damaged?",
                 r->member_events[i].worker, r->workers_max);
        }
    }
done:
    return result;
}

status replay_order(const struct replay_recording *r, struct replay_event **out, size_t *out_count)
{
    status result = OK;
    struct ordering o = {.count = r->row_count, .workers = r->workers_max};
    *out = NULL;
    *out_count = 0;
    TRY(check(r));
    TRY(memory_new(&o.rows, o.count + 1, sizeof(struct replay_row *), "recorded gradients"));
    TRY(memory_new(&o.first, o.workers, sizeof *o.first, "recorded workers"));
    for (size_t i = 0; i < o.count; i++)
        o.rows[i] = &r->rows[i];
    for (unsigned w = 0; w < o.workers; w++)
        o.first[w] = NEVER;
    qsort(o.rows, o.count, sizeof *o.rows, by_arrival);
    TRY(memory_new(&o.events, o.count + r->member_event_count + o.workers + 1, sizeof *o.events,
                   "recorded events"));
    add_all(&o, r);
    *out = o.events;
    *out_count = o.event_count;
done:
    memory_free(o.rows);
    memory_free(o.first);
    return result;
}
