/*
 * plan_make.c — makes the missing runs of a plan: puts them into the queue, then starts `gradlag
 * run --queued` for one run after the other, --jobs at a time.
 *
 * Only the rows say what is done. This process may be killed at any moment: its children die with
 * it, and the next sweep finds their runs as waiting or as failed.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/sweep/plan.h"

#include "experiments/run/child_process.h"
#include "experiments/config/config.h"
#include "experiments/run/launch.h"
#include "experiments/sweep/core_allocation.h"
#include "experiments/sweep/plan_queue.h"
#include "experiments/config/prerequisites.h"
#include "experiments/print_columns.h"
#include "experiments/run/progress.h"
#include "experiments/run/queued_run.h"
#include "experiments/run/role.h"
#include "experiments/run/run_summary_text.h"
#include "results/run_queue.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { POLL_MS = 20, LOOK_AGAIN_MS = 500, TELL_AFTER_S = 5 };

struct job {
    struct child child;
    struct core_share place;
    struct planned_run *run; /* NULL: free */
};
struct making {
    struct plan *plan;
    const struct plan_options *o;
    FILE *to;
    struct core_allocation places;
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
    snprintf(number, sizeof number, "%lld", (long long)r->run_id);
    text_add(&title, QUEUED_TITLE "=");
    m->running++;
    add_place_and_time(m, &title);
    text_add(&title, " %s", r->title);
    text_add(&results, "results=%s", plan_results(r));
    core_allocation_gpu_variable(&m->places, &j->place, &gpus);
    bool quiet = m->o->quiet || m->job_count > 1;
    const char *argv[] = {role_program(),           "run", "--queued", number, results.at,
                          quiet ? "--quiet" : NULL, NULL};
    const char *environment[] = {title.at, gpus.at, NULL};
    TRY(child_start_on(&j->child, argv, environment, -1,
                       j->place.core_count > 0 ? &j->place.cores : NULL));
    j->run = r;
done:
    m->running -= result != OK;
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
        TRY(run_summary_read(plan_results(r), r->run_id, r->settings, &figures));
        run_summary_line(&figures, &line);
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

/* What is to be said of a run that is not to be made any more. */
static status note_end(struct making *m, struct planned_run *r, const char *error)
{
    status result = OK;
    if (r->state == PLANNED_DROPPED) {
        m->missing--;
    } else if (r->state != PLANNED_ELSEWHERE && r->state != PLANNED_MISSING) {
        m->made++;
        progress_clear(&m->progress);
        TRY(report(m, r, error));
    }
done:
    return result;
}

/* A wrong setting or a missing file fails the next time, too. */
static bool is_worth_another_try(const struct planned_run *r, int how)
{
    bool hopeless =
        WIFEXITED(how) && (WEXITSTATUS(how) == ERROR_USAGE || WEXITSTATUS(how) == ERROR_DATA);
    return !hopeless && r->attempt <= (unsigned)options_integer(r->settings, "retries");
}

/* The row of a run whose process could not even begin still says that it waits. */
static status fail_unbegun(struct planned_run *r, int how, struct queue_entry *entry)
{
    status result = OK;
    char end[96], why[200];
    child_describe(how, end);
    snprintf(why, sizeof why, "the process that was to make it %s before it could begin", end);
    TRY(recorder_settle(plan_results(r), r->run_id, "failed", why, NULL));
    TRY(plan_look(r, entry));
done:
    return result;
}

static status make_again(struct making *m, struct planned_run *r, const char *error)
{
    status result = OK;
    int64_t failed = r->run_id;
    TRY(plan_put(r, m->plan->again, r->attempt + 1));
    progress_clear(&m->progress);
    log_warning("run %lld failed: %s; it is made again as run %lld (attempt %u of %lld)",
                (long long)failed, error, (long long)r->run_id, r->attempt,
                (long long)options_integer(r->settings, "retries") + 1);
done:
    return result;
}

/* One that was asked to stop before it listens ends by the signal itself: its row waits on. */
static int code_of(const struct making *m, int how)
{
    const bool asked = m->stopping && WIFSIGNALED(how) && WTERMSIG(how) == SIGINT;
    return WIFEXITED(how) ? WEXITSTATUS(how) : asked ? STOPPED : -1;
}

/* Sets the run's state from its row, once its process has ended. `how`: a wait status. */
static status judge(struct making *m, struct planned_run *r, int how)
{
    status result = OK;
    struct queue_entry entry;
    const int code = code_of(m, how);
    TRY(plan_look(r, &entry));
    if (entry.state == QUEUE_WAITING && code != ERROR_RESULTS && code != STOPPED)
        TRY(fail_unbegun(r, how, &entry));
    r->state = plan_state_of(entry.state);
    if (code == STOPPED) {
        m->stopping = true; /* even if the signal went to this child alone */
        goto done;
    }
    if (code == ERROR_RESULTS) {
        r->state = PLANNED_MISSING;
        m->broken = ERROR_RESULTS;
        goto done;
    }
    if (r->state == PLANNED_FAILED && is_worth_another_try(r, how)) {
        TRY(make_again(m, r, entry.error));
        goto done;
    }
    TRY(note_end(m, r, entry.error));
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
            core_allocation_give_back(&m->places, &j->place);
            TRY(judge(m, r, j->child.wait_status));
        }
    }
done:
    return result;
}

static bool is_running(const struct making *m, const struct planned_run *r)
{
    for (unsigned i = 0; i < m->job_count; i++)
        if (m->jobs[i].run == r)
            return true;
    return false;
}

/* The next in order that waits, as far as is known here; NULL: none. */
static struct planned_run *next_run(const struct making *m)
{
    for (size_t i = 0; i < m->plan->count; i++)
        if (m->order[i]->state == PLANNED_MISSING && !is_running(m, m->order[i]))
            return m->order[i];
    return NULL;
}

/* Reads the run's row before the start: another sweep may have taken the run. */
static status look_whether_it_waits(struct making *m, struct planned_run *r)
{
    status result = OK;
    struct queue_entry entry;
    TRY(plan_look(r, &entry));
    r->attempt = entry.attempt;
    if (entry.state != QUEUE_WAITING) {
        r->state = entry.state == QUEUE_STOPPED ? PLANNED_ELSEWHERE : plan_state_of(entry.state);
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
        if (j->run != NULL)
            continue;
        if (r == NULL || !core_allocation_take(&m->places, r->settings, &j->place))
            break;
        result = look_whether_it_waits(m, r);
        if (result == OK && r->state == PLANNED_MISSING)
            result = start(m, j, r);
        else
            core_allocation_give_back(&m->places, &j->place);
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
        for (unsigned i = 0; i < m->job_count; i++)
            child_signal(&m->jobs[i].child, SIGINT);
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

/* What goes wrong here ends no run: those that are going on have limits of their own. */
static void note_trouble(struct making *m, status result)
{
    if (result != OK && m->broken == OK) {
        progress_clear(&m->progress);
        log_warning("%s%s", error_message(),
                    m->running > 0 ? "; what is being made goes on to its end" : "");
        m->broken = result;
    }
}

static void work(struct making *m)
{
    while (m->running > 0 || has_runs_to_start(m)) {
        if (!m->stopping && m->broken == OK)
            note_trouble(m, start_what_fits(m));
        show_progress(m);
        if (m->running > 0)
            clock_sleep_until_ns(clock_ns() + POLL_MS * UINT64_C(1000000));
        note_trouble(m, reap(m));
        heed_signals(m);
    }
}

/* Waits for the runs that other processes of this host took from the queue. Each of them has time
 * limits of its own, and a killed process is noticed. *again: one of the runs waits once more. */
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
        TRY(plan_look(r, &entry));
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
            TRY(plan_put(r, m->plan->again, entry.attempt));
            *again = *again || r->state == PLANNED_MISSING;
        } else {
            r->state = plan_state_of(entry.state);
            TRY(note_end(m, r, entry.error));
        }
        i++;
    }
done:
    return result;
}

/* The queue in a results file is for the processes of one host. */
static void warn_of_network(const struct making *m)
{
    const char *path = plan_results(&m->plan->runs[0]), *name = queue_network(path);
    if (name != NULL) {
        log_warning("%s is on a file system that other hosts may see (%s). While runs go on, only "
                    "this host may open it: SQLite's log and its locks do not reach other hosts. "
                    "Give each host a results file of its own and a part of the runs (--part K/N)",
                    path, name);
    }
}

/* Fails where no missing run can begin. If some can, the others are recorded as failed. */
static status check_prerequisites(const struct plan *p)
{
    status result = OK;
    for (size_t i = 0; i < p->count; i++) {
        if (p->runs[i].state == PLANNED_MISSING) {
            result = prerequisites_check(p->runs[i].settings);
            if (result == OK)
                break;
        }
    }
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
    warn_of_network(m);
    TRY(plan_check_checkpoints(p));
    TRY(check_prerequisites(p));
    TRY(core_allocation_open(&m->places, m->job_count, m->o->oversubscribe));
    TRY(memory_new(&m->jobs, m->job_count, sizeof *m->jobs, "jobs"));
    TRY(memory_new(&m->order, p->count, sizeof *m->order, "the order of the runs"));
    for (size_t i = 0; i < p->count; i++)
        m->order[i] = &p->runs[i];
    qsort(m->order, p->count, sizeof *m->order, plan_by_priority);
    TRY(plan_put_missing(p));
done:
    return result;
}

status plan_make(struct plan *p, const struct plan_options *o, FILE *to)
{
    status result = OK;
    struct making m = {.plan = p, .o = o, .to = to};
    bool again = true;
    if (plan_missing(p) == 0)
        return OK;
    TRY(prepare(&m));
    while (again) {
        work(&m);
        if (m.stopping || m.broken != OK)
            break;
        TRY(wait_for_others(&m, &again));
    }
    if (m.broken != OK) {
        FAIL(m.broken,
             "stopped after %zu of %zu runs (the warning says why); run the same command again to "
             "continue",
             m.made, m.missing);
    }
    if (m.stopping || launch_stop_requests() > 0) {
        FAIL(STOPPED,
             "stopped on request after %zu of %zu runs; run the same command again, or `gradlag "
             "sweep --work`, to continue",
             m.made, m.missing);
    }
done:
    progress_clear(&m.progress);
    for (unsigned i = 0; m.jobs != NULL && i < m.job_count; i++)
        child_kill(&m.jobs[i].child);
    memory_free(m.jobs);
    memory_free(m.order);
    return result;
}
