/*
 * plan_make.c — makes what a plan lacks: puts it into the queue, then starts `gradlag run --queued`
 * for one run after the other, as many at a time as was asked for.
 *
 * The rows alone say what is done. This process may be killed at any moment: its children die with
 * it, and what they had not ended is found again as waiting or as failed.
 */
#include "experiments/plan.h"

#include "experiments/child.h"
#include "experiments/command.h"
#include "experiments/config.h"
#include "experiments/launch.h"
#include "experiments/places.h"
#include "experiments/print.h"
#include "experiments/progress.h"
#include "experiments/provenance.h"
#include "experiments/queued.h"
#include "experiments/role.h"
#include "experiments/summary.h"
#include "results/queue.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { POLL_MS = 20, LOOK_AGAIN_MS = 500, TELL_AFTER_S = 5, MOST_JOBS = 4096 };

struct job {
    struct child child;
    struct place place;
    struct planned_run *run; /* NULL: free */
};
struct making {
    struct plan *plan;
    const struct plan_options *o;
    FILE *to;
    struct places places;
    struct planned_run **order; /* of the plan's runs, those of a higher priority first */
    struct job *jobs;
    unsigned job_count, running;
    size_t made, missing;
    double begun_s;
    int stops_seen;
    bool stopping;
    status broken; /* what ends the whole plan; OK: nothing */
    struct progress progress;
};

static const char *results_of(const struct planned_run *r)
{
    return options_text(r->settings, "results");
}

/* ---- the queue ----------------------------------------------------------------------------------
 */

static enum planned_state state_of(enum queue_state state)
{
    static const enum planned_state states[] = {
        [QUEUE_WAITING] = PLANNED_MISSING,   [QUEUE_TAKEN] = PLANNED_ELSEWHERE,
        [QUEUE_FINISHED] = PLANNED_FINISHED, [QUEUE_DIVERGED] = PLANNED_DIVERGED,
        [QUEUE_FAILED] = PLANNED_FAILED,     [QUEUE_STOPPED] = PLANNED_MISSING};
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
        r->state = state_of(entry.state);
    }
    return result;
}

/* In one transaction per results file, so that two sweeps of the same runs add each of them once.
 */
static status put_missing(struct plan *p)
{
    status result = OK;
    queue *q = NULL;
    const char *path = "";
    for (size_t i = 0; i < p->count; i++) {
        struct planned_run *r = &p->runs[i];
        if ((r->state != PLANNED_MISSING && r->state != PLANNED_ELSEWHERE) || r->waiting) {
            continue;
        }
        if (q != NULL && strcmp(path, results_of(r)) != 0) {
            TRY(queue_commit(q));
            queue_close(&q);
        }
        if (q == NULL) {
            path = results_of(r);
            TRY(queue_open(&q, path));
        }
        TRY(put(q, r, p->again, 1));
    }
    if (q != NULL) {
        TRY(queue_commit(q));
    }
done:
    queue_close(&q);
    return result;
}

static status put_again(const struct making *m, struct planned_run *r)
{
    status result = OK;
    queue *q = NULL;
    TRY(queue_open(&q, results_of(r)));
    TRY(put(q, r, m->plan->again, r->attempt + 1));
    TRY(queue_commit(q));
done:
    queue_close(&q);
    return result;
}

/* ---- one run ------------------------------------------------------------------------------------
 */

/* "[3/12, 4:10 left] async ×4 …": what is left is judged by the runs made so far. */
static void add_place_and_time(const struct making *m, struct text *out)
{
    char time[32];
    text_add(out, "[%zu/%zu", m->made + m->running, m->missing);
    if (m->made > 0) {
        double each = (clock_seconds() - m->begun_s) / (double)m->made;
        progress_duration(each * (double)(m->missing - m->made), time);
        text_add(out, ", %s left", time);
    }
    text_add(out, "]");
}

static status start(struct making *m, struct job *j, struct planned_run *r)
{
    status result = OK;
    char number[24];
    struct text title = {0}, results = {0}, gpus = {0};
    j->run = r;
    m->running++;
    snprintf(number, sizeof number, "%lld", (long long)r->run_id);
    text_add(&title, QUEUED_TITLE "=");
    add_place_and_time(m, &title);
    text_add(&title, " %s", r->title);
    text_add(&results, "results=%s", results_of(r));
    places_gpu_variable(&m->places, &j->place, &gpus);
    bool quiet = m->o->quiet || m->job_count > 1;
    const char *argv[] = {role_program(),           "run", "--queued", number, results.at,
                          quiet ? "--quiet" : NULL, NULL};
    const char *environment[] = {title.at, gpus.at, NULL};
    TRY(child_start_on(&j->child, argv, environment, -1,
                       j->place.core_count > 0 ? &j->place.cores : NULL));
done:
    text_free(&title);
    text_free(&results);
    text_free(&gpus);
    return result;
}

static status report(const struct making *m, const struct planned_run *r, const char *error)
{
    status result = OK;
    struct text line = {0};
    struct run_figures figures;
    if (r->state == PLANNED_FINISHED) {
        TRY(summary_read(results_of(r), r->run_id, &figures));
        summary_line(&figures, &line);
    } else {
        text_add(&line, "%s: %s", r->state == PLANNED_DIVERGED ? "diverged" : "failed", error);
    }
    fprintf(m->to, "run %-4lld ", (long long)r->run_id);
    print_padded(m->to, r->title, 41);
    fprintf(m->to, "%s\n", line.at);
    fflush(m->to);
done:
    text_free(&line);
    return result;
}

/* A wrong setting or a missing file fails the next time, too. */
static bool is_worth_another_try(const struct planned_run *r, int how)
{
    bool hopeless =
        WIFEXITED(how) && (WEXITSTATUS(how) == ERROR_USAGE || WEXITSTATUS(how) == ERROR_DATA);
    return !hopeless && r->attempt <= (unsigned)options_integer(r->settings, "retries");
}

/* Its process has ended: what does its row say? */
static status judge(struct making *m, struct planned_run *r, int how)
{
    status result = OK;
    struct queue_entry entry;
    char end[96];
    int code = WIFEXITED(how) ? WEXITSTATUS(how) : -1;
    child_describe(how, end);
    TRY(queue_look(results_of(r), r->run_id, &entry));
    if (entry.state == QUEUE_WAITING && code != ERROR_RESULTS && code != STOPPED) {
        char why[200];
        snprintf(why, sizeof why, "the process that was to make it %s before it could begin", end);
        TRY(recorder_settle(results_of(r), r->run_id, "failed", why, NULL));
        TRY(queue_look(results_of(r), r->run_id, &entry));
    }
    r->state = state_of(entry.state);
    if (code == STOPPED) {
        m->stopping = true; /* also where somebody asked that one process alone */
        goto done;
    }
    if (code == ERROR_RESULTS) {
        r->state = PLANNED_MISSING;
        m->broken = ERROR_RESULTS;
        goto done;
    }
    if (r->state == PLANNED_FAILED && is_worth_another_try(r, how)) {
        int64_t failed = r->run_id;
        TRY(put_again(m, r));
        progress_clear(&m->progress);
        log_warning("run %lld failed: %s; it is made again as run %lld (attempt %u of %lld)",
                    (long long)failed, entry.error, (long long)r->run_id, r->attempt,
                    (long long)options_integer(r->settings, "retries") + 1);
        goto done;
    }
    if (r->state != PLANNED_ELSEWHERE && r->state != PLANNED_MISSING) {
        m->made++;
        progress_clear(&m->progress);
        TRY(report(m, r, entry.error));
    }
done:
    return result;
}

/* ---- all of them --------------------------------------------------------------------------------
 */

static status reap(struct making *m)
{
    status result = OK;
    for (unsigned i = 0; i < m->job_count; i++) {
        struct job *j = &m->jobs[i];
        if (j->run != NULL && child_poll(&j->child)) {
            struct planned_run *r = j->run;
            j->run = NULL;
            m->running--;
            places_give_back(&m->places, &j->place);
            TRY(judge(m, r, j->child.wait_status));
        }
    }
done:
    return result;
}

static bool is_running(const struct making *m, const struct planned_run *r)
{
    for (unsigned i = 0; i < m->job_count; i++) {
        if (m->jobs[i].run == r) {
            return true;
        }
    }
    return false;
}

/* The next in order that waits, as far as is known here; NULL: none. */
static struct planned_run *next_run(const struct making *m)
{
    for (size_t i = 0; i < m->plan->count; i++) {
        if (m->order[i]->state == PLANNED_MISSING && !is_running(m, m->order[i])) {
            return m->order[i];
        }
    }
    return NULL;
}

/* Another sweep may have been faster. */
static status look_whether_it_waits(struct making *m, struct planned_run *r)
{
    status result = OK;
    struct queue_entry entry;
    TRY(queue_look(results_of(r), r->run_id, &entry));
    if (entry.state != QUEUE_WAITING) {
        r->state = entry.state == QUEUE_STOPPED ? PLANNED_ELSEWHERE : state_of(entry.state);
        m->missing -= r->state != PLANNED_ELSEWHERE;
    }
done:
    return result;
}

/* Strictly in order: a run that wants many cores is not overtaken for ever. */
static status start_what_fits(struct making *m)
{
    status result = OK;
    for (unsigned i = 0; i < m->job_count; i++) {
        struct job *j = &m->jobs[i];
        struct planned_run *r = next_run(m);
        if (j->run != NULL) {
            continue;
        }
        if (r == NULL || !places_take(&m->places, r->settings, &j->place)) {
            break;
        }
        result = look_whether_it_waits(m, r);
        if (result == OK && r->state == PLANNED_MISSING) {
            result = start(m, j, r);
        } else {
            places_give_back(&m->places, &j->place);
        }
        TRY(result);
    }
done:
    return result;
}

static void heed_signals(struct making *m)
{
    int requests = launch_stop_requests();
    for (int n = m->stops_seen; n < requests; n++) {
        m->stopping = true;
        for (unsigned i = 0; i < m->job_count; i++) {
            child_signal(&m->jobs[i].child, SIGINT);
        }
    }
    m->stops_seen = requests;
}

static void show_progress(struct making *m)
{
    struct text line = {0};
    if (m->job_count > 1 && m->running > 0) {
        add_place_and_time(m, &line);
        text_add(&line, " %zu made, %u running", m->made, m->running);
        progress_text(&m->progress, line.at);
        text_free(&line);
    }
}

static bool has_runs_to_start(const struct making *m)
{
    return !m->stopping && m->broken == OK && next_run(m) != NULL;
}

static status work(struct making *m)
{
    status result = OK;
    while (m->running > 0 || has_runs_to_start(m)) {
        if (!m->stopping && m->broken == OK) {
            TRY(start_what_fits(m));
        }
        show_progress(m);
        if (m->running > 0) {
            clock_sleep_until_ns(clock_ns() + POLL_MS * UINT64_C(1000000));
        }
        TRY(reap(m));
        heed_signals(m);
    }
done:
    return result;
}

/* Waits for what processes of this host took from the queue: each of them has limits of its own,
 * and one that is killed is seen to be. *again: one of them waits in the queue once more. */
static status wait_for_others(struct making *m, bool *again)
{
    status result = OK;
    double begun_s = clock_seconds();
    bool told = false;
    *again = false;
    for (size_t i = 0; i < m->plan->count && !m->stopping;) {
        struct planned_run *r = &m->plan->runs[i];
        struct queue_entry entry;
        if (r->state != PLANNED_ELSEWHERE) {
            i++;
            continue;
        }
        TRY(queue_look(results_of(r), r->run_id, &entry));
        if (entry.state == QUEUE_TAKEN && entry.here) {
            if (!told && clock_seconds() - begun_s > TELL_AFTER_S) {
                log_info("waits for run %lld, which %s makes", (long long)r->run_id, entry.by);
                told = true;
            }
            clock_sleep_until_ns(clock_ns() + LOOK_AGAIN_MS * UINT64_C(1000000));
            heed_signals(m);
            continue;
        }
        if (entry.state == QUEUE_TAKEN) {
            log_warning("run %lld is left to %s; the same command finds it once it has ended",
                        (long long)r->run_id, entry.by);
        } else if (entry.state == QUEUE_WAITING || entry.state == QUEUE_STOPPED) {
            TRY(put_again(m, r));
            *again = *again || r->state == PLANNED_MISSING;
        } else {
            r->state = state_of(entry.state);
            TRY(report(m, r, entry.error));
        }
        i++;
    }
done:
    return result;
}

static int by_priority(const void *a, const void *b)
{
    const struct planned_run *const *x = a, *const *y = b;
    int64_t p = options_integer((*x)->settings, "priority");
    int64_t q = options_integer((*y)->settings, "priority");
    return p != q ? (p < q) - (p > q) : (*x > *y) - (*x < *y);
}

/* Runs that would write over each other's checkpoint. */
static status check_checkpoints(const struct plan *p)
{
    status result = OK;
    for (size_t i = 0; i < p->count; i++) {
        const char *path = options_text(p->runs[i].settings, "checkpoint");
        bool own = path[0] == '\0' || strstr(path, "{run}") != NULL;
        for (size_t j = 0; j < i && !own; j++) {
            if (strcmp(options_text(p->runs[j].settings, "checkpoint"), path) == 0) {
                FAIL(ERROR_USAGE,
                     "checkpoint=%s is the same file for several runs; put {run} into its name",
                     path);
            }
        }
    }
done:
    return result;
}

static status prepare(struct making *m)
{
    status result = OK;
    struct plan *p = m->plan;
    m->job_count = m->o->jobs > 0 ? m->o->jobs : 1;
    m->begun_s = clock_seconds();
    m->missing = plan_missing(p);
    m->stops_seen = launch_stop_requests();
    progress_open(&m->progress, "", false, m->o->quiet);
    TRY(check_checkpoints(p));
    TRY(places_open(&m->places, m->job_count, m->o->oversubscribe));
    TRY(memory_new(&m->jobs, m->job_count, sizeof *m->jobs, "jobs"));
    TRY(memory_new(&m->order, p->count, sizeof *m->order, "the order of the runs"));
    for (size_t i = 0; i < p->count; i++) {
        m->order[i] = &p->runs[i];
    }
    qsort(m->order, p->count, sizeof *m->order, by_priority);
    TRY(put_missing(p));
done:
    return result;
}

status plan_make(struct plan *p, const struct plan_options *o, FILE *to)
{
    status result = OK;
    struct making m = {.plan = p, .o = o, .to = to};
    bool again = true;
    if (plan_missing(p) == 0) {
        return OK;
    }
    TRY(prepare(&m));
    while (again && !m.stopping && m.broken == OK) {
        TRY(work(&m));
        TRY(wait_for_others(&m, &again));
    }
    if (m.broken != OK) {
        FAIL(m.broken, "%zu of %zu runs made: the results file failed, as was said above", m.made,
             m.missing);
    }
    if (m.stopping || launch_stop_requests() > 0) {
        FAIL(STOPPED,
             "stopped on request after %zu of %zu runs; the same command goes on, and so does "
             "`gradlag sweep --work`",
             m.made, m.missing);
    }
done:
    progress_clear(&m.progress);
    for (unsigned i = 0; m.jobs != NULL && i < m.job_count; i++) {
        child_kill(&m.jobs[i].child);
    }
    memory_free(m.jobs);
    memory_free(m.order);
    return result;
}

status plan_options_read(struct plan_options *out, int *argc, char **argv)
{
    status result = OK;
    const char *jobs;
    char *end = NULL;
    *out = (struct plan_options){.jobs = 1};
    out->oversubscribe = command_flag(argc, argv, "--oversubscribe");
    TRY(command_value(argc, argv, "--jobs", &jobs));
    if (jobs != NULL) {
        long number = strtol(jobs, &end, 10);
        if (end == jobs || *end != '\0' || number < 1 || number > MOST_JOBS) {
            FAIL(ERROR_USAGE, "--jobs %s: a number of runs from 1 to %d is meant", jobs, MOST_JOBS);
        }
        out->jobs = (unsigned)number;
    }
done:
    return result;
}
