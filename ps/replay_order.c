/*
 * replay_order.c — the events that the core was fed, in their order, from the rows it wrote.
 *
 * A row of a gradient that was held is written when its update is made, so rows are put in the
 * order in which the gradients came. That a worker was lost and came back shows in its sequence,
 * which begins at 0 again; where it came back, in the version that it was released with.
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

static int as_they_came(const void *a, const void *b)
{
    const struct replay_row *const *x = a, *const *y = b;
    double first = (*x)->record.at_seconds, second = (*y)->record.at_seconds;
    if (first != second) {
        return first < second ? -1 : 1;
    }
    return (*x)->number < (*y)->number ? -1 : (*x)->number > (*y)->number;
}

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

static void lay_out(struct ordering *o, bool finished)
{
    size_t last_in_time = 0;
    for (size_t i = 0; i < o->count; i++) {
        last_in_time = o->rows[i]->record.outcome == PUSH_DROPPED_LATE ? last_in_time : i + 1;
    }
    for (unsigned w = 0; w < o->workers; w++) {
        add(o, (struct replay_event){.kind = came_later(o, w) ? REPLAY_LOST : REPLAY_JOINED,
                                     .worker = w});
    }
    for (size_t i = 0; i < o->count; i++) {
        if (i == last_in_time && !finished) {
            add(o, (struct replay_event){.kind = REPLAY_END});
        }
        for (size_t k = 0; k < o->joining_count; k++) {
            unsigned w = o->joining[k].worker;
            if (o->joining[k].before == i) {
                add(o, (struct replay_event){.kind = REPLAY_LOST, .worker = w});
                add(o, (struct replay_event){.kind = REPLAY_JOINED, .worker = w});
            }
        }
        add(o, (struct replay_event){.kind = REPLAY_PUSH,
                                     .worker = o->rows[i]->record.worker,
                                     .number = o->rows[i]->number,
                                     .recorded = &o->rows[i]->record});
    }
}

status replay_order(const struct replay_row *rows, size_t count, unsigned workers, bool finished,
                    struct replay_event **out, size_t *out_count)
{
    status result = OK;
    struct ordering o = {.count = count, .workers = workers};
    *out = NULL;
    *out_count = 0;
    TRY(memory_new(&o.rows, count + 1, sizeof(struct replay_row *), "recorded gradients"));
    TRY(memory_new(&o.last, workers, sizeof *o.last, "recorded workers"));
    TRY(memory_new(&o.joining, count + 1, sizeof *o.joining, "recorded workers"));
    for (size_t i = 0; i < count; i++) {
        if (rows[i].record.worker >= workers) {
            FAIL(ERROR_DATA, "push %llu is of worker %u, but the run had %u workers",
                 (unsigned long long)rows[i].number, rows[i].record.worker, workers);
        }
        o.rows[i] = &rows[i];
    }
    for (unsigned w = 0; w < workers; w++) {
        o.last[w] = NEVER;
    }
    qsort(o.rows, count, sizeof *o.rows, as_they_came);
    find_joining(&o);
    TRY(memory_new(&o.events, count + 2 * o.joining_count + workers + 1, sizeof *o.events,
                   "recorded events"));
    lay_out(&o, finished);
    *out = o.events;
    *out_count = o.event_count;
done:
    memory_free(o.rows);
    memory_free(o.last);
    memory_free(o.joining);
    return result;
}
