/*
 * replay_order.c — the events that the core was fed, in their order, from what was recorded.
 *
 * A row is written when its gradient's fate is known, so rows are first put in the order in which
 * the gradients came. Rows of older files do not know it: there their times decide, and that a
 * worker was lost and came back shows in its sequence, which begins at 0 again; where it came back,
 * in the version that it was released with.
 */
#include "ps/replay.h"

#include <stdlib.h>

enum { NEVER = -1 };

struct joining { /* a worker that came when training was under way */
    unsigned worker;
    size_t before; /* the row that it came before */
};

struct ordering {
    const struct replay_row **rows; /* as they came */
    size_t count, event_count, joining_count;
    struct joining *joining;
    struct replay_event *events;
    int64_t *last; /* [workers]: the row of each worker's last push, or NEVER */
    unsigned workers;
};

static int by_arrival(const void *a, const void *b)
{
    const struct replay_row *const *x = a, *const *y = b;
    uint64_t first = (*x)->record.arrival, second = (*y)->record.arrival;
    return first < second ? -1 : first > second;
}

static int by_time(const void *a, const void *b)
{
    const struct replay_row *const *x = a, *const *y = b;
    double first = (*x)->record.at_seconds, second = (*y)->record.at_seconds;
    if (first != second) {
        return first < second ? -1 : 1;
    }
    return (*x)->number < (*y)->number ? -1 : (*x)->number > (*y)->number;
}

/* ---- rows that do not know when workers came ------------------------------------------------ */

static bool is_used(const struct push_record *row)
{
    return row->outcome == PUSH_APPLIED || row->outcome == PUSH_AGGREGATED;
}

/* The row after the one that made `version`. */
static size_t after_version(const struct ordering *o, uint64_t version)
{
    size_t after = 0;
    for (size_t i = 0; version > 0 && i < o->count; i++) {
        const struct push_record *row = &o->rows[i]->record;
        if (is_used(row) && row->update_version == version) {
            after = i + 1;
        }
    }
    return after;
}

static void find_joining(struct ordering *o)
{
    for (size_t i = 0; i < o->count; i++) {
        const struct push_record *row = &o->rows[i]->record;
        int64_t last = o->last[row->worker];
        bool at_the_beginning = last == NEVER && row->read_version == 0;
        if (row->sequence == 0 && !at_the_beginning) {
            size_t before = after_version(o, row->read_version);
            before = (int64_t)before > last ? before : (size_t)(last + 1);
            o->joining[o->joining_count++] = (struct joining){row->worker, before};
        }
        o->last[row->worker] = (int64_t)i;
    }
}

static void add(struct ordering *o, struct replay_event event)
{
    o->events[o->event_count++] = event;
}

static bool came_later(const struct ordering *o, unsigned w)
{
    for (size_t i = 0; i < o->count; i++) {
        if (o->rows[i]->record.worker == w) {
            return o->rows[i]->record.read_version > 0;
        }
    }
    return false;
}

static void add_push(struct ordering *o, size_t row)
{
    add(o, (struct replay_event){.kind = REPLAY_PUSH,
                                 .worker = o->rows[row]->record.worker,
                                 .number = o->rows[row]->number,
                                 .recorded = &o->rows[row]->record});
}

static void add_coming(struct ordering *o, unsigned w, bool joined)
{
    add(o, (struct replay_event){.kind = joined ? REPLAY_JOINED : REPLAY_LOST, .worker = w});
}

static void lay_out_by_versions(struct ordering *o, bool finished)
{
    size_t last_in_time = 0;
    find_joining(o);
    for (size_t i = 0; i < o->count; i++) {
        last_in_time = o->rows[i]->record.outcome == PUSH_DROPPED_LATE ? last_in_time : i + 1;
    }
    for (unsigned w = 0; w < o->workers; w++) {
        add_coming(o, w, !came_later(o, w));
    }
    for (size_t i = 0; i < o->count; i++) {
        if (i == last_in_time && !finished) {
            add(o, (struct replay_event){.kind = REPLAY_END});
        }
        for (size_t k = 0; k < o->joining_count; k++) {
            if (o->joining[k].before == i) {
                add_coming(o, o->joining[k].worker, false);
                add_coming(o, o->joining[k].worker, true);
            }
        }
        add_push(o, i);
    }
}

/* ---- rows that do --------------------------------------------------------------------------- */

/* Whoever was there when training began came before the first gradient: o->last is the place of
 * that coming. */
static void lay_out_beginning(struct ordering *o, const struct replay_recording *r)
{
    for (size_t i = 0; i < r->coming_count && r->comings[i].push_number == 0; i++) {
        int64_t *first = &o->last[r->comings[i].worker];
        *first = *first == NEVER && r->comings[i].joined ? (int64_t)i : *first;
    }
    for (unsigned w = 0; w < o->workers; w++) {
        add_coming(o, w, o->last[w] != NEVER);
    }
}

static void lay_out_by_arrivals(struct ordering *o, const struct replay_recording *r)
{
    size_t coming = 0;
    bool ended = false;
    lay_out_beginning(o, r);
    for (size_t i = 0; i <= o->count; i++) {
        const struct push_record *row = i < o->count ? &o->rows[i]->record : NULL;
        for (; coming < r->coming_count &&
               (row == NULL || r->comings[coming].push_number <= row->arrival);
             coming++) {
            if (o->last[r->comings[coming].worker] != (int64_t)coming) {
                add_coming(o, r->comings[coming].worker, r->comings[coming].joined);
            }
        }
        if (!ended && (row == NULL ? !r->finished : row->reason == PUSH_AFTER_END)) {
            add(o, (struct replay_event){.kind = REPLAY_END});
            ended = true;
        }
        if (row != NULL) {
            add_push(o, i);
        }
    }
}

/* ---- both ----------------------------------------------------------------------------------- */

static status check(const struct replay_recording *r)
{
    status result = OK;
    for (size_t i = 0; i < r->row_count; i++) {
        if (r->rows[i].record.worker >= r->workers) {
            FAIL(ERROR_DATA, "push %llu is of worker %u, but the run had %u workers",
                 (unsigned long long)r->rows[i].number, r->rows[i].record.worker, r->workers);
        }
    }
    for (size_t i = 0; i < r->coming_count; i++) {
        if (r->comings[i].worker >= r->workers) {
            FAIL(ERROR_DATA, "an event is of worker %u, but the run had %u workers",
                 r->comings[i].worker, r->workers);
        }
    }
done:
    return result;
}

status replay_order(const struct replay_recording *r, struct replay_event **out, size_t *out_count)
{
    status result = OK;
    struct ordering o = {.count = r->row_count, .workers = r->workers};
    *out = NULL;
    *out_count = 0;
    TRY(check(r));
    TRY(memory_new(&o.rows, o.count + 1, sizeof(struct replay_row *), "recorded gradients"));
    TRY(memory_new(&o.last, o.workers, sizeof *o.last, "recorded workers"));
    TRY(memory_new(&o.joining, o.count + 1, sizeof *o.joining, "recorded workers"));
    for (size_t i = 0; i < o.count; i++) {
        o.rows[i] = &r->rows[i];
    }
    for (unsigned w = 0; w < o.workers; w++) {
        o.last[w] = NEVER;
    }
    qsort(o.rows, o.count, sizeof *o.rows, r->complete ? by_arrival : by_time);
    TRY(memory_new(&o.events, 3 * o.count + r->coming_count + o.workers + 1, sizeof *o.events,
                   "recorded events"));
    if (r->complete) {
        lay_out_by_arrivals(&o, r);
    } else {
        lay_out_by_versions(&o, r->finished);
    }
    *out = o.events;
    *out_count = o.event_count;
done:
    memory_free(o.rows);
    memory_free(o.last);
    memory_free(o.joining);
    return result;
}
