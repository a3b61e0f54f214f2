/*
 * plan_make.c — makes what a plan lacks: puts it into the queue, then starts `gradlag run --queued`
 * for one run after the other, as many at a time as was asked for.
 *
 * The rows alone say what is done. This process may be killed at any moment: its children die with
 * it, and what they had not ended is found again as waiting or as failed.
 */
#include "experiments/plan.h"

#include "experiments/child.h"
#include "experiments/config.h"
#include "experiments/launch.h"
#include "experiments/places.h"
#include "experiments/plan_queue.h"
#include "experiments/plan_shared.h"
#include "experiments/prerequisites.h"
#include "experiments/print.h"
#include "experiments/progress.h"
#include "experiments/queued.h"
#include "experiments/role.h"
#include "experiments/summary.h"
#include "results/queue.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { POLL_MS = 20, LOOK_AGAIN_MS = 500, TELL_AFTER_S = 5, LOOK_ABROAD_S = 5 };

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
    shared *hosts;              /* others that work on this plan; NULL: none */
    struct planned_run **order; /* of the plan's runs, those of a higher priority first */
    struct job *jobs;
    unsigned job_count, running;
    size_t made, missing;
    double begun_s, looked_s; /* looked_s: at those that other hosts make */
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
    places_gpu_variable(&m->places, &j->place, &gpus);
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
        TRY(summary_read(plan_results(r), r->run_id, r->settings, &figures));
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

/* What is to be said of a run that is not to be made any more. */
static status note_end(struct making *m, struct planned_run *r, const char *error)
{
    status result = OK;
    if (r->state == PLANNED_DROPPED) {
        m->missing--;
    } else if (r->state != PLANNED_ELSEWHERE && r->state != PLANNED_MISSING) {
        m->made++;
        progress_clear(&m->progress);
        TRY(plan_shared_end(r, m->hosts));
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

/* Its process has ended: what does its row say? */
static status judge(struct making *m, struct planned_run *r, int how)
{
    status result = OK;
    struct queue_entry entry;
    const int code = code_of(m, how);
    bool lost = false;
    TRY(plan_look(r, &entry));
    if (entry.state == QUEUE_WAITING && code != ERROR_RESULTS && code != STOPPED) {
        TRY(fail_unbegun(r, how, &entry));
    }
    r->state = plan_state_of(entry.state);
    if (code == STOPPED && r->turn > 0) {
        TRY(plan_shared_was_lost(r, m->hosts, &lost));
    }
    if (lost) {
        r->state = PLANNED_ELSEWHERE;
        r->turn = 0;
        goto done;
    }
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

/* Where other hosts work on the plan a run is put into the queue once it is this process's. */
static status take_from_hosts(struct making *m, struct planned_run *r)
{
    status result = OK;
    bool had = r->turn > 0;
    TRY(plan_shared_take(r, m->hosts));
    if (r->state == PLANNED_MISSING && !had) {
        TRY(plan_put(r, m->plan->again, 1));
    } else if (r->state != PLANNED_MISSING) {
        m->missing--;
    }
done:
    return result;
}

/* Another sweep may have been faster. */
static status look_whether_it_waits(struct making *m, struct planned_run *r)
{
    status result = OK;
    struct queue_entry entry;
    if (m->hosts != NULL) {
        TRY(take_from_hosts(m, r));
        if (r->turn == 0) {
            goto done;
        }
    }
    TRY(plan_look(r, &entry));
    r->attempt = entry.attempt;
    if (entry.state != QUEUE_WAITING) {
        r->state = entry.state == QUEUE_STOPPED ? PLANNED_ELSEWHERE : plan_state_of(entry.state);
        m->missing -= r->state != PLANNED_ELSEWHERE;
        if (r->state != PLANNED_ELSEWHERE) {
            TRY(plan_shared_end(r, m->hosts));
        } else if (r->turn > 0) {
            FAIL(ERROR_USAGE,
                 "run %lld of %s is being made by %s, without --shared; let that end first",
                 (long long)r->run_id, plan_results(r), entry.by);
        }
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

/* Runs that another host took over, for this one was not heard of: a second outcome helps nobody.
 */
static status give_up_lost(struct making *m)
{
    status result = OK;
    if (m->hosts == NULL || clock_seconds() - m->looked_s < LOOK_ABROAD_S) {
        return OK;
    }
    m->looked_s = clock_seconds();
    for (unsigned i = 0; i < m->job_count; i++) {
        const struct job *j = &m->jobs[i];
        bool lost = false;
        if (j->run != NULL) {
            TRY(plan_shared_was_lost(j->run, m->hosts, &lost));
        }
        if (lost) {
            log_warning("run %lld is given up: another host took it over, since this one was not "
                        "heard of for too long",
                        (long long)j->run->run_id);
            child_signal(&j->child, SIGINT);
        }
    }
done:
    return result;
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
        if (!m->stopping && m->broken == OK) {
            note_trouble(m, start_what_fits(m));
        }
        show_progress(m);
        if (m->running > 0) {
            clock_sleep_until_ns(clock_ns() + POLL_MS * UINT64_C(1000000));
        }
        note_trouble(m, reap(m));
        shared_beat(m->hosts);
        note_trouble(m, give_up_lost(m));
        heed_signals(m);
    }
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

/* Waits until what other hosts make has ended, or one of them is lost: *again. */
static status wait_for_hosts(struct making *m, bool *again)
{
    status result = OK;
    double begun_s = clock_seconds();
    bool told = false;
    size_t going_on = 1;
    *again = false;
    while (going_on > 0 && !*again && !m->stopping) {
        TRY(plan_shared_look(m->plan, m->hosts, &going_on));
        *again = next_run(m) != NULL;
        if (going_on == 0 || *again) {
            break;
        }
        if (!told && clock_seconds() - begun_s > TELL_AFTER_S) {
            log_info("waits for %zu run%s that others make; what they leave this process takes up",
                     going_on, plural(going_on));
            told = true;
        }
        clock_sleep_until_ns(clock_ns() + LOOK_AGAIN_MS * UINT64_C(1000000));
        shared_beat(m->hosts);
        heed_signals(m);
    }
done:
    return result;
}

status plan_look_abroad(struct plan *p, const struct plan_options *o)
{
    status result = OK;
    shared *hosts = NULL;
    if (o->shared == NULL || p->count == 0) {
        return OK;
    }
    TRY(shared_open(&hosts, o->shared, plan_results(&p->runs[0]), o->lost_after_s));
    TRY(plan_shared_begin(p, hosts));
done:
    shared_close(&hosts);
    return result;
}

/* A queue in the results file itself is for processes of one host. */
static void warn_of_network(const struct making *m)
{
    const char *path = plan_results(&m->plan->runs[0]), *name = queue_network(path);
    if (m->o->shared == NULL && name != NULL) {
        log_warning("%s lies on a file system that other hosts may see (%s): none but this one may "
                    "use it while runs go on, for neither SQLite's log nor its locks reach there. "
                    "Hosts work together with a results file each, on disks of their own, and "
                    "--shared FOLDER",
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
            if (result == OK) {
                break;
            }
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
    TRY(places_open(&m->places, m->job_count, m->o->oversubscribe));
    TRY(memory_new(&m->jobs, m->job_count, sizeof *m->jobs, "jobs"));
    TRY(memory_new(&m->order, p->count, sizeof *m->order, "the order of the runs"));
    for (size_t i = 0; i < p->count; i++) {
        m->order[i] = &p->runs[i];
    }
    qsort(m->order, p->count, sizeof *m->order, plan_by_priority);
    if (m->o->shared == NULL) {
        TRY(plan_put_missing(p));
    } else {
        TRY(shared_open(&m->hosts, m->o->shared, plan_results(&p->runs[0]), m->o->lost_after_s));
        TRY(plan_shared_begin(p, m->hosts));
        m->missing = plan_missing(p);
    }
done:
    return result;
}

status plan_make(struct plan *p, const struct plan_options *o, FILE *to)
{
    status result = OK;
    struct making m = {.plan = p, .o = o, .to = to};
    bool again = true;
    if (p->count == 0 || (plan_missing(p) == 0 && o->shared == NULL)) {
        return OK;
    }
    TRY(prepare(&m));
    while (again) {
        work(&m);
        if (m.stopping || m.broken != OK) {
            break;
        }
        TRY(m.hosts != NULL ? wait_for_hosts(&m, &again) : wait_for_others(&m, &again));
    }
    if (m.broken != OK) {
        FAIL(m.broken, "%zu of %zu runs made, then what was said above; the same command goes on",
             m.made, m.missing);
    }
    if (m.stopping || launch_stop_requests() > 0) {
        FAIL(STOPPED, "stopped on request after %zu of %zu runs; the same command goes on%s",
             m.made, m.missing, m.hosts == NULL ? ", and so does `gradlag sweep --work`" : "");
    }
done:
    progress_clear(&m.progress);
    for (unsigned i = 0; m.jobs != NULL && i < m.job_count; i++) {
        child_kill(&m.jobs[i].child);
    }
    shared_close(&m.hosts);
    memory_free(m.jobs);
    memory_free(m.order);
    return result;
}
