/*
 * plan_execute.c — executes the missing runs of a plan: puts them into the queue, then starts
 * `gradlag run --queued` for one run after the other, up to --jobs at a time.
 *
 * Only the rows record which runs are done. This process may be killed at any moment: its children
 * die with it, and the next sweep finds their runs as waiting or as failed.
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
#include "results/store/recorder.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { POLL_MS = 20, CHECK_OTHERS_MS = 500, LOG_WAIT_AFTER_S = 5 };

struct job {
    struct child child;
    struct core_share cores;
    struct planned_run *run; /* NULL: this job is free */
};
struct execution {
    struct plan *plan;
    const struct plan_options *o;
    FILE *to;
    struct core_allocation allocation;
    struct planned_run **order; /* [plan->count], by priority */
    struct job *jobs;
    struct pollfd *sources; /* [job_count]: what the plan waits for */
    unsigned job_count, running;
    size_t ended, missing; /* runs that ended here; runs that were missing at the start */
    double begun_s;
    int stops_seen;
    bool stopping;
    status error; /* not OK: start no more runs, and end the plan with this error */
    struct progress progress;
};

/* ---- one run ------------------------------------------------------------------------------------
 */

/* "[3/12, 4:10 left]", estimated from the runs so far. */
static void add_position_and_time(const struct execution *m, struct text *out)
{
    char time[32];
    text_add(out, "[%zu/%zu", m->ended + m->running, m->missing);
    if (m->ended > 0) {
        double each = (clock_seconds() - m->begun_s) / (double)m->ended;
        progress_duration(each * (double)(m->missing - m->ended), time);
        text_add(out, ", %s left", time);
    }
    text_add(out, "]");
}

static status start(struct execution *m, struct job *j, struct planned_run *r)
{
    status result = OK;
    char number[24];
    struct text title = {0}, results = {0}, gpus = {0};
    snprintf(number, sizeof number, "%lld", (long long)r->run_id);
    text_add(&title, QUEUED_TITLE "=");
    m->running++;
    add_position_and_time(m, &title);
    text_add(&title, " %s", r->title);
    text_add(&results, "results=%s", plan_results(r));
    core_allocation_gpu_variable(&m->allocation, &j->cores, &gpus);
    bool quiet = m->o->quiet || m->job_count > 1;
    const char *argv[] = {role_program(),           "run", "--queued", number, results.at,
                          quiet ? "--quiet" : NULL, NULL};
    const char *environment[] = {title.at, gpus.at, NULL};
    TRY(child_start_on(&j->child, argv, environment, -1,
                       j->cores.core_count > 0 ? &j->cores.cores : NULL));
    j->run = r;
done:
    m->running -= result != OK;
    text_free(&title);
    text_free(&results);
    text_free(&gpus);
    return result;
}

static status report(const struct execution *m, const struct planned_run *r, const char *error)
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

static status run_ended(struct execution *m, struct planned_run *r, const char *error)
{
    status result = OK;
    struct plan_score ignored;
    if (r->state == PLANNED_DROPPED) {
        m->missing--;
    } else if (r->state != PLANNED_ELSEWHERE && r->state != PLANNED_MISSING) {
        m->ended++;
        progress_clear(&m->progress);
        TRY(report(m, r, error));
    }
    if (m->plan->of_trials && r->state == PLANNED_FINISHED) /* a search needs each score */
        TRY(plan_score(r, &ignored));
done:
    return result;
}

/* A wrong setting or a missing file would fail again. */
static bool may_retry(const struct planned_run *r, int wait_status)
{
    bool permanent = WIFEXITED(wait_status) && (WEXITSTATUS(wait_status) == ERROR_USAGE ||
                                                WEXITSTATUS(wait_status) == ERROR_DATA);
    return !permanent && r->attempt <= (unsigned)options_integer(r->settings, "retries");
}

/* If a process died before it claimed its row, the row still has the state `waiting`. */
static status fail_unclaimed(struct planned_run *r, int wait_status, struct queue_entry *entry)
{
    status result = OK;
    char end[96], why[200];
    child_describe(wait_status, end);
    snprintf(why, sizeof why, "its process %s before the run began", end);
    TRY(recorder_settle(plan_results(r), r->run_id, "failed", why, NULL));
    TRY(plan_queue_entry(r, entry));
done:
    return result;
}

static status retry(struct execution *m, struct planned_run *r, const char *error)
{
    status result = OK;
    int64_t failed = r->run_id;
    TRY(plan_enqueue(r, m->plan->again, r->attempt + 1));
    progress_clear(&m->progress);
    log_warning("run %lld failed: %s; repeating it as run %lld (attempt %u of %lld)",
                (long long)failed, error, (long long)r->run_id, r->attempt,
                (long long)options_integer(r->settings, "retries") + 1);
done:
    return result;
}

/* SIGINT kills a child that does not handle signals yet. This counts as a stop; its row still
 * waits. */
static int exit_code(const struct execution *m, int wait_status)
{
    const bool stopped = m->stopping && WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGINT;
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : stopped ? STOPPED : -1;
}

/* Sets the run's state from its row after its process has ended. */
static status process_ended(struct execution *m, struct planned_run *r, int wait_status)
{
    status result = OK;
    struct queue_entry entry;
    const int code = exit_code(m, wait_status);
    TRY(plan_queue_entry(r, &entry));
    if (entry.state == QUEUE_WAITING && code != ERROR_RESULTS && code != STOPPED)
        TRY(fail_unclaimed(r, wait_status, &entry));
    r->state = plan_state_of(entry.state);
    if (code == STOPPED) {
        m->stopping = true; /* also if only this child got the signal */
        if (m->plan->again && r->state == PLANNED_MISSING) /* queue it for `sweep --work` */
            TRY(plan_enqueue(r, true, r->attempt));
        goto done;
    }
    if (code == ERROR_RESULTS) {
        r->state = PLANNED_MISSING;
        m->error = ERROR_RESULTS;
        goto done;
    }
    if (r->state == PLANNED_FAILED && may_retry(r, wait_status)) {
        TRY(retry(m, r, entry.error));
        goto done;
    }
    TRY(run_ended(m, r, entry.error));
done:
    return result;
}

/* ---- all runs --------------------------------------------------------------------------------
 */

static status reap(struct execution *m)
{
    status result = OK;
    for (unsigned i = 0; i < m->job_count; i++) {
        struct job *j = &m->jobs[i];
        if (j->run != NULL && child_poll(&j->child)) {
            struct planned_run *r = j->run;
            j->run = NULL;
            m->running--;
            core_allocation_give_back(&m->allocation, &j->cores);
            TRY(process_ended(m, r, j->child.wait_status));
        }
    }
done:
    return result;
}

static bool is_running(const struct execution *m, const struct planned_run *r)
{
    for (unsigned i = 0; i < m->job_count; i++)
        if (m->jobs[i].run == r)
            return true;
    return false;
}

/* The next run to start, as far as this process knows; NULL: none. */
static struct planned_run *next_run(const struct execution *m)
{
    for (size_t i = 0; i < m->plan->count; i++)
        if (m->order[i]->state == PLANNED_MISSING && !is_running(m, m->order[i]))
            return m->order[i];
    return NULL;
}

/* Another sweep may have taken the run. */
static status check_still_waits(struct execution *m, struct planned_run *r)
{
    status result = OK;
    struct queue_entry entry;
    TRY(plan_queue_entry(r, &entry));
    r->attempt = entry.attempt;
    if (entry.state != QUEUE_WAITING) {
        r->state = entry.state == QUEUE_STOPPED ? PLANNED_ELSEWHERE : plan_state_of(entry.state);
        m->missing -= r->state != PLANNED_ELSEWHERE;
    }
done:
    return result;
}

/* Strictly in order; otherwise a run that needs many cores might never start. */
static status start_runs(struct execution *m)
{
    status result = OK;
    for (unsigned i = 0; i < m->job_count; i++) {
        struct job *j = &m->jobs[i];
        struct planned_run *r = next_run(m);
        if (j->run != NULL)
            continue;
        if (r == NULL || !core_allocation_take(&m->allocation, r->settings, &j->cores))
            break;
        result = check_still_waits(m, r);
        if (result == OK && r->state == PLANNED_MISSING)
            result = start(m, j, r);
        else
            core_allocation_give_back(&m->allocation, &j->cores);
        TRY(result);
    }
done:
    return result;
}

static void check_signals(struct execution *m)
{
    int requests = launch_stop_requests();
    for (int n = m->stops_seen; n < requests; n++) {
        m->stopping = true;
        for (unsigned i = 0; i < m->job_count; i++)
            child_signal(&m->jobs[i].child, SIGINT);
    }
    m->stops_seen = requests;
}

static void show_progress(struct execution *m)
{
    struct text line = {0};
    if (m->job_count > 1 && m->running > 0) {
        add_position_and_time(m, &line);
        text_add(&line, " %zu ended, %u running", m->ended, m->running);
        progress_text(&m->progress, line.at);
        text_free(&line);
    }
}

static bool has_runs_to_start(const struct execution *m)
{
    return !m->stopping && m->error == OK && next_run(m) != NULL;
}

/* Keeps the first error. Running runs continue: each has time limits of its own. */
static void record_error(struct execution *m, status result)
{
    if (result != OK && m->error == OK) {
        progress_clear(&m->progress);
        log_warning("%s%s", error_message(),
                    m->running > 0 ? "; the running runs continue to their end" : "");
        m->error = result;
    }
}

/* Waits until a run ends or a signal arrives, at most POLL_MS. */
static void wait_for_exit(struct execution *m)
{
    for (unsigned i = 0; i < m->job_count; i++) {
        const struct job *j = &m->jobs[i];
        m->sources[i] = j->run != NULL ? child_source(&j->child) : (struct pollfd){.fd = -1};
    }
    poll(m->sources, m->job_count, POLL_MS);
}

static void execute(struct execution *m)
{
    while (m->running > 0 || has_runs_to_start(m)) {
        if (!m->stopping && m->error == OK)
            record_error(m, start_runs(m));
        show_progress(m);
        if (m->running > 0)
            wait_for_exit(m);
        record_error(m, reap(m));
        check_signals(m);
    }
}

/* Waits for the runs that other processes of this host took from the queue. They have time limits
 * of their own, and a killed process is noticed. Sets *again if one of the runs waits again. */
static status wait_for_others(struct execution *m, bool *again)
{
    status result = OK;
    double begun_s = clock_seconds();
    bool logged = false;
    *again = false;
    for (size_t i = 0; i < m->plan->count && !m->stopping;) {
        struct planned_run *r = &m->plan->runs[i];
        struct queue_entry entry;
        if (r->state != PLANNED_ELSEWHERE) {
            i++;
            continue;
        }
        TRY(plan_queue_entry(r, &entry));
        if (entry.state == QUEUE_TAKEN && entry.here) {
            if (!logged && clock_seconds() - begun_s > LOG_WAIT_AFTER_S) {
                log_info("waiting for run %lld, which %s executes", (long long)r->run_id, entry.by);
                logged = true;
            }
            clock_sleep_until_ns(clock_ns() + CHECK_OTHERS_MS * UINT64_C(1000000));
            check_signals(m);
            continue;
        }
        if (entry.state == QUEUE_TAKEN) {
            log_warning("not waiting for run %lld, which %s executes; run the same command again "
                        "after it has ended",
                        (long long)r->run_id, entry.by);
        } else if (entry.state == QUEUE_WAITING || entry.state == QUEUE_STOPPED) {
            TRY(plan_enqueue(r, m->plan->again, entry.attempt));
            *again = *again || r->state == PLANNED_MISSING;
        } else {
            r->state = plan_state_of(entry.state);
            TRY(run_ended(m, r, entry.error));
        }
        i++;
    }
done:
    return result;
}

/* The queue in a results file is for the processes of one host. */
static void warn_of_network_file(const struct execution *m)
{
    const char *path = plan_results(&m->plan->runs[0]), *name = queue_network(path);
    if (name != NULL) {
        log_warning(
            "%s is on a network file system (%s). While runs execute, only this host may open "
            "it, because SQLite's log and locks do not work across hosts. Give each host a "
            "results file of its own and a part of the runs (--part K/N)",
            path, name);
    }
}

/* Fails if no missing run can start. If some can, the others are recorded as failed. */
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

/* Parts have results files of their own, so the trials of two machines could choose differently. */
static status check_precision_of_parts(const struct plan *p, const struct plan_part *part)
{
    status result = OK;
    for (size_t i = 0; i < p->count && part->of > 1; i++) {
        if (options_text(p->runs[i].settings, "precision_trial")[0] != '\0') {
            FAIL(ERROR_USAGE,
                 "precision=auto cannot be combined with --part, because each part would make its "
                 "own trial and might choose another format; set precision=fp32 or precision=bf16");
        }
    }
done:
    return result;
}

static status prepare(struct execution *m)
{
    status result = OK;
    struct plan *p = m->plan;
    m->job_count = m->o->jobs > 0 ? m->o->jobs : 1;
    m->begun_s = clock_seconds();
    m->missing = plan_missing(p);
    m->stops_seen = launch_stop_requests();
    m->stopping = m->stops_seen > 0; /* between two plans of this command */
    recorder_keep_open(true);
    progress_open(&m->progress, "", false, m->o->quiet);
    warn_of_network_file(m);
    TRY(plan_check_files(p));
    TRY(check_precision_of_parts(p, &m->o->part));
    TRY(check_prerequisites(p));
    TRY(core_allocation_open(&m->allocation, m->job_count, m->o->oversubscribe));
    TRY(memory_new(&m->jobs, m->job_count, sizeof *m->jobs, "jobs"));
    TRY(memory_new(&m->sources, m->job_count, sizeof *m->sources, "jobs"));
    TRY(memory_new(&m->order, p->count, sizeof *m->order, "the order of the runs"));
    for (size_t i = 0; i < p->count; i++)
        m->order[i] = &p->runs[i];
    qsort(m->order, p->count, sizeof *m->order, plan_by_priority);
    TRY(plan_enqueue_missing(p));
done:
    return result;
}

status plan_execute(struct plan *p, const struct plan_options *o, FILE *to)
{
    status result = OK;
    struct execution m = {.plan = p, .o = o, .to = to};
    bool again = true;
    if (plan_missing(p) == 0)
        return OK;
    TRY(prepare(&m));
    while (again) {
        execute(&m);
        if (m.stopping || m.error != OK)
            break;
        TRY(wait_for_others(&m, &again));
    }
    if (m.error != OK) {
        FAIL(m.error,
             "stopped after %zu of %zu runs (the warning says why); run the same command again to "
             "continue",
             m.ended, m.missing);
    }
    if (m.stopping || launch_stop_requests() > 0) {
        FAIL(STOPPED,
             "stopped on request after %zu of %zu runs; to continue, run %s`gradlag sweep --work "
             "results=%s`",
             m.ended, m.missing, p->again ? "" : "the same command again, or ",
             plan_results(&p->runs[0]));
    }
done:
    progress_clear(&m.progress);
    for (unsigned i = 0; m.jobs != NULL && i < m.job_count; i++)
        child_kill(&m.jobs[i].child);
    memory_free(m.jobs);
    memory_free(m.sources);
    memory_free(m.order);
    return result;
}
