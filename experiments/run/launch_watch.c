/*
 * launch_watch.c — watches the processes of a run: their messages, exits, signals and time limits.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/run/launch_internal.h"

#include "experiments/run/role.h"
#include "ps/core/late_workers.h"
#include "ps/net/liveness.h"
#include "sync/communicator/communicator.h"
#include "sync/pipeline/pipeline.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ENDING_LIMIT_S = 15, /* see ending_limit_s() */
    NOTICE_AFTER_S = 5,
    PLACE_FREE_S = 1, /* until the place of a lost worker is free */
    HOST_GRACE_S = 2, /* for the server to end the run itself, after the workers of a host failed */
    POLL_MS = 50,
};

/* ---- ending ---------------------------------------------------------------------------------- */

/* Asks the writer of the results to stop; the other processes follow it. */
static void request_end(struct launch *l)
{
    l->stop_sent_ns = clock_ns();
    l->ending_ns = l->ending_ns == 0 ? l->stop_sent_ns : l->ending_ns;
    child_signal(&l->processes[0].child, l->async ? SIGTERM : SIGUSR1);
}

static void set_verdict(struct launch *l, status code, const char *text)
{
    memory_free(l->message);
    l->verdict = code;
    l->message = text_copy(text);
}

static void fail(struct launch *l, status code, const char *text)
{
    if (l->verdict != OK)
        return;
    set_verdict(l, code, text);
    /* The server reads the reason and writes it into the run's row. */
    if (code != STOPPED)
        role_write_verdict(l->folder.path, code, text);
    else
        role_forget_verdict(l->folder.path); /* on_host_failure() may have written one */
    request_end(l);
}

void launch_kill_all(struct launch *l)
{
    for (unsigned i = 0; l->processes != NULL && i < l->places; i++)
        child_kill(&l->processes[i].child);
    child_kill(&l->builder);
}

/* For a rank of a pipeline: adds " (stage 1 of replica 0)". */
static void add_stage(const struct launch *l, int rank, struct text *out)
{
    const options *o = l->o->settings;
    unsigned stages;
    uint32_t micro_batches;
    if (strcmp(options_text(o, "mode"), "pipeline") == 0 &&
        pipeline_shape(o, &stages, &micro_batches) == OK) {
        text_add(out, " (stage %u of replica %u)", (unsigned)rank % stages,
                 (unsigned)rank / stages);
    }
}

/* Finds N and M in "… process rank N with PID … exited on signal M", which mpirun prints for a
 * killed rank, on one line or (Open MPI 5) on several. */
static bool find_killed_rank(const struct launch *l, int *rank, int *by)
{
    struct text flat = {0};
    text_add(&flat, "%s", l->mpirun_output.at != NULL ? l->mpirun_output.at : "");
    for (size_t i = 0; i < flat.length; i++)
        flat.at[i] = flat.at[i] == '\n' ? ' ' : flat.at[i];
    const char *found = flat.at != NULL ? strstr(flat.at, "process rank ") : NULL;
    const char *number = found != NULL ? strstr(found, "exited on signal ") : NULL;
    if (number != NULL) {
        *rank = atoi(found + 13);
        *by = atoi(number + 17);
    }
    text_free(&flat);
    return number != NULL;
}

static void describe_ranks(const struct launch *l, int wait_status, struct text *out)
{
    char how[96];
    int rank = 0, by = 0;
    child_describe(wait_status, how);
    const char *output = l->mpirun_output.at != NULL ? l->mpirun_output.at : "";
    if (find_killed_rank(l, &rank, &by)) {
        text_add(out, "rank %d", rank);
        add_stage(l, rank, out);
        text_add(out, " was killed by signal %d (%s)", by, strsignal(by));
        return;
    }
    text_add(out, "mpirun %s", how);
    if (output[0] != '\0') {
        text_add(out, ". Its output: %.1500s", output);
        out->length -= out->at[out->length - 1] == '\n';
        out->at[out->length] = '\0';
    }
}

static void add_name(const struct launch *l, const struct watched *w, struct text *out)
{
    if (w->host != NULL) {
        text_add(out, "the workers of host %s", w->host->name);
        return;
    }
    const char *name = w->role == ROLE_RANK     ? "mpirun"
                       : w->role == ROLE_WORKER ? "worker %u"
                       : l->servers > 1         ? "server %u"
                                                : "the server";
    text_add(out, name, w->index);
}

/* Reads the clock on each call, because `since_ns` may be newer than an earlier reading. */
static bool has_passed(uint64_t since_ns, unsigned seconds)
{
    return clock_ns() - since_ns > seconds * 1000000000ULL;
}

/* Whether the process has ended with an error and will not be started again. */
static bool is_lost(const struct watched *w)
{
    const struct child *c = &w->child;
    return !c->running && w->again_ns == 0 &&
           (!WIFEXITED(c->wait_status) || WEXITSTATUS(c->wait_status) != 0);
}

/* True if every worker has ended with an error. A running server notices this itself. After
 * the begin of training only the server knows whether late workers are left. */
static bool all_workers_failed(const struct launch *l)
{
    if (l->async && l->updates > 0 && workers_max_of(l->o->settings) > l->workers)
        return false;
    for (unsigned i = 0; i < l->count_here; i++)
        if (!is_lost(&l->processes[1 + l->first_here + i]))
            return false;
    for (unsigned i = 1; i < l->places; i++)
        if (l->processes[i].host != NULL && !is_lost(&l->processes[i]))
            return false;
    return true;
}

/* With on_lost=continue, a lost worker is started again after a pause (key restarts). */
static void plan_again(struct launch *l, unsigned index, double pause_s)
{
    struct watched *w = &l->processes[1 + index];
    const uint64_t at_ns = clock_ns() + (uint64_t)(pause_s * 1e9);
    if (w->again_ns == 0) {
        if (l->restarts == options_integer(l->o->settings, "restarts"))
            return;
        l->restarts++;
    }
    w->again_ns = w->again_ns == 0 || at_ns < w->again_ns ? at_ns : w->again_ns;
}

/* Says why the workers of another host have failed. Returns the exit code of the run. */
static status describe_host(const struct watched *w, struct text *out)
{
    const int how = w->child.wait_status;
    char path[PATH_MAX], end[96];
    if (w->message != NULL) {
        text_add(out, "host %s: %s", w->host->name, w->message);
        return WIFEXITED(how) ? (status)WEXITSTATUS(how) : ERROR_PEER;
    }
    if (WIFEXITED(how) && WEXITSTATUS(how) == STOPPED) {
        text_add(out, "the workers of host %s were told to stop", w->host->name);
        return STOPPED;
    }
    child_describe(how, end);
    text_add(out,
             "the workers of host %s are lost: mpirun %s. Either the host is gone, or mpirun "
             "cannot start gradlag there: try `mpirun --host %s %s --version`",
             w->host->name, end, w->host->name, role_program_path(path));
    return ERROR_PEER;
}

static bool run_continues(const struct launch *l)
{
    return strcmp(options_text(l->o->settings, "on_lost"), "continue") == 0;
}

/* Whether the failure of a host's mpirun can still decide the outcome of the run. */
static bool is_undecided(const struct launch *l)
{
    return l->verdict == OK && l->ending_ns == 0 && l->processes[0].child.running;
}

/* The mpirun of a host has failed. Its daemon on that host sends SIGTERM to the workers, and a
 * worker then tells the server that it was asked to stop. So store the true reason: the server ends
 * the run with the stored one. */
static void on_host_failure(struct launch *l, struct watched *w)
{
    struct text text = {0};
    w->failed_ns = clock_ns();
    if (run_continues(l) || !is_undecided(l))
        return;
    const status code = describe_host(w, &text);
    if (code != STOPPED)
        role_write_verdict(l->folder.path, code, text.at);
    text_free(&text);
}

/* The workers of another host have failed. If the server has ended the run meanwhile, its own error
 * counts. */
static void judge_host(struct launch *l, struct watched *w)
{
    struct text text = {0};
    w->failed_ns = 0;
    if (!is_undecided(l))
        return;
    const status code = describe_host(w, &text);
    if (run_continues(l) && !all_workers_failed(l)) {
        progress_clear(&l->progress);
        log_warning("%s; the run continues without its workers (on_lost=continue)", text.at);
        /* The server notices the loss of workers on another host only after timeout_s. */
        for (unsigned i = 0; i < w->count; i++) {
            status_pipe_note_end(&l->pipe, w->first + i);
            plan_again(l, w->first + i, options_real(l->o->settings, "timeout_s") + 1);
        }
    } else {
        fail(l, code, text.at);
    }
    text_free(&text);
}

/* The server has freed the place of a worker on another host. Kills an mpirun whose workers are all
 * lost, because it may hang. */
static void on_lost(struct launch *l, unsigned index)
{
    if (index >= l->workers || launch_host_of(l, index) == NULL)
        return;
    struct watched *w = &l->processes[1 + index];
    plan_again(l, index, PLACE_FREE_S);
    if (w->was_lost)
        return;
    w->was_lost = true;
    for (unsigned i = l->workers + l->servers; i < l->places; i++) {
        struct watched *host = &l->processes[i];
        bool any = host->host == NULL;
        for (unsigned k = 0; k < host->count; k++)
            any = any || !l->processes[1 + host->first + k].was_lost;
        if (!any)
            child_kill(&host->child);
    }
}

static void judge_hosts(struct launch *l)
{
    for (unsigned i = 1; i < l->places; i++)
        if (l->processes[i].failed_ns != 0 &&
            (!l->processes[0].child.running || has_passed(l->processes[i].failed_ns, HOST_GRACE_S)))
            judge_host(l, &l->processes[i]);
}

/* Decides what the end of a process means for the run. */
static void judge_end(struct launch *l, struct watched *w)
{
    int how = w->child.wait_status;
    struct text text = {0};
    bool succeeded = WIFEXITED(how) && WEXITSTATUS(how) == 0 && (!w->reported || w->code == OK);
    if (w->host != NULL) {
        w->failed_ns = 0;
        if (!succeeded)
            on_host_failure(l, w);
        return;
    }
    if (l->error_is_secondhand && w == &l->processes[0] && w->reported && w->code != OK) {
        l->error_is_secondhand = false;
        set_verdict(l, w->code, w->message);
    }
    if (succeeded || l->verdict != OK)
        goto done;
    if (w->dismissal == PS_RUN_ENDED && l->processes[0].child.running) {
        l->ending_ns = l->ending_ns == 0 ? clock_ns() : l->ending_ns;
        goto done;
    }
    if (w->reported && w->code != OK) {
        if (w->role == ROLE_WORKER)
            text_add(&text, "worker %u: ", w->index);
        text_add(&text, "%s", w->message);
    } else if (w->role == ROLE_RANK) {
        describe_ranks(l, how, &text);
    } else {
        char end[96];
        child_describe(how, end);
        add_name(l, w, &text);
        text_add(
            &text,
            " (process %ld) %s. If no user killed it, a likely cause is lack of memory: see the "
            "kernel's log (dmesg), use fewer workers or a smaller model",
            (long)w->child.pid, end);
    }
    status code = w->reported && w->code != OK ? w->code : ERROR_PEER;
    if (w->role == ROLE_WORKER && run_continues(l) && !all_workers_failed(l)) {
        progress_clear(&l->progress);
        log_warning("%s; the run continues without it (on_lost=continue)", text.at);
        status_pipe_note_end(&l->pipe, w->index);
        plan_again(l, w->index, PLACE_FREE_S);
    } else if (w->role == ROLE_WORKER && (l->ending_ns != 0 || !l->processes[0].child.running)) {
        log_debug("after the end of the run: %s", text.at);
    } else {
        fail(l, code, text.at);
        /* Before the server listens, server and workers may fail for the same reason. */
        l->error_is_secondhand =
            w->dismissal == PS_EVICTED || (w->role == ROLE_WORKER && !l->bound);
    }
done:
    text_free(&text);
}

/* ---- watching -------------------------------------------------------------------------------- */

static void store_end(struct launch *l, const struct status_message *m)
{
    unsigned limit = m->role == ROLE_WORKER ? l->workers : l->servers, place = 0;
    if (m->role != ROLE_RANK && m->index >= limit)
        return;
    if (m->role == ROLE_WORKER)
        place = 1 + m->index;
    else if (m->role == ROLE_SERVER && m->index > 0)
        place = l->workers + m->index;
    struct watched *w = &l->processes[place];
    /* If several ranks fail, the first failure counts. */
    if (w->reported && w->code != OK)
        return;
    w->reported = true;
    w->dismissal = m->dismissal;
    w->code = m->code;
    memory_free(w->message);
    w->message = NULL;
    if (m->code != OK) {
        struct text text = {0};
        if (m->role == ROLE_RANK && m->code != STOPPED && m->code != ERROR_DIVERGED) {
            text_add(&text, "rank %u", m->index);
            add_stage(l, (int)m->index, &text);
            text_add(&text, ": ");
        }
        text_add(&text, "%s", m->text);
        w->message = text_copy(text.at);
        text_free(&text);
    }
}

static status read_messages(struct launch *l)
{
    status result = OK;
    struct status_message m;
    while (status_pipe_receive(&l->pipe, &m)) {
        switch (m.kind) {
        case STATUS_BOUND:
            if (l->async && !l->bound)
                TRY(launch_bound(l, m.index, m.text, &l->bound));
            l->ranks_met = l->was_ready = true;
            break;
        case STATUS_PROGRESS:
            progress_show(&l->progress, &m.progress);
            l->updates = m.progress.updates;
            l->bound = true;
            break;
        case STATUS_LOST:
            on_lost(l, m.index);
            break;
        case STATUS_ENDED:
            store_end(l, &m);
            break;
        }
    }
done:
    return result;
}

static void check_signals(struct launch *l)
{
    int requests = launch_stop_requests();
    if (requests > l->stops_seen && l->verdict == OK) {
        progress_clear(&l->progress);
        log_info("stopping; results so far are kept (a second Ctrl-C stops at once)");
        fail(l, STOPPED, "stopped on request; the results so far are in the results file");
    } else if (requests > l->stops_seen) {
        l->killed = true;
    }
    l->stops_seen = requests;
}

/* The time limit from a stop request or the first failure to the last exit. It includes the time
 * that the server or rank 0 may take for the last checkpoint. */
static unsigned ending_limit_s(const struct launch *l)
{
    const options *o = l->o->settings;
    const bool saves = l->verdict == STOPPED && options_text(o, "checkpoint")[0] != '\0';
    const double saving_s = saves ? LIVENESS_FACTOR * options_real(o, "timeout_s") : 0;
    return ENDING_LIMIT_S + (unsigned)saving_s;
}

static void log_running(struct launch *l)
{
    struct text names = {0};
    for (unsigned i = 0; i < l->places; i++) {
        if (l->processes[i].child.running) {
            text_add(&names, "%s", names.length > 0 ? ", " : "");
            add_name(l, &l->processes[i], &names);
        }
    }
    progress_clear(&l->progress);
    log_info("waiting for %s to end (at most %u s more)",
             names.at != NULL ? names.at : "no process", ending_limit_s(l) - NOTICE_AFTER_S);
    l->ending_logged = true;
    text_free(&names);
}

/* The limit until the ranks have met: time for mpirun on a busy machine, and for the meeting. */
static unsigned starting_limit_s(const struct launch *l)
{
    enum { MPIRUN_LIMIT_S = 60 };
    return MPIRUN_LIMIT_S + l->workers +
           (unsigned)(FIRST_CONTACT_TIMEOUTS * options_real(l->o->settings, "timeout_s"));
}

static void check_start(struct launch *l)
{
    const bool starting = !l->async && !l->ranks_met;
    const unsigned limit_s = starting ? starting_limit_s(l) : LOADING_LIMIT_S;
    const bool external = strcmp(options_text(l->o->settings, "model"), "external") == 0;
    if (!l->wait_logged && has_passed(l->begun_ns, NOTICE_AFTER_S)) {
        progress_clear(&l->progress);
        log_info("the %s not ready yet: %s (at most %d s more)",
                 l->async ? "server is" : "ranks are",
                 starting   ? "mpirun is starting them"
                 : external ? "model.command has not described its model yet"
                            : "loading or generating the dataset",
                 limit_s - NOTICE_AFTER_S);
        l->wait_logged = true;
    }
    if (!has_passed(l->begun_ns, limit_s))
        return;
    if (starting) {
        struct text why = {0};
        text_add(
            &why,
            "mpirun did not start the ranks within %u s. It hangs; a likely cause is a full disk "
            "at TMPDIR. Try `mpirun -n 2 gradlag rank …` by hand%s%.1500s",
            limit_s, l->mpirun_output.length > 0 ? ". Its output: " : "",
            l->mpirun_output.length > 0 ? l->mpirun_output.at : "");
        why.length -= why.at[why.length - 1] == '\n';
        why.at[why.length] = '\0';
        fail(l, ERROR_PEER, why.at);
        text_free(&why);
    } else {
        fail(l, ERROR_PEER,
             l->async ? "the server did not listen in time: it hangs, or generating the dataset "
                        "takes too long; try `gradlag server` by hand"
                      : "the ranks did not begin in time: a rank hangs, or generating the dataset "
                        "takes too long; try `mpirun -n 2 gradlag rank …` by hand");
    }
}

static void check_limits(struct launch *l)
{
    const struct watched *first = &l->processes[0];
    if (!l->bound && l->verdict == OK && first->child.running)
        check_start(l);
    /* Repeat the signal: mpirun does not forward one while it starts ranks. */
    if (l->stop_sent_ns != 0 && has_passed(l->stop_sent_ns, 1))
        request_end(l);
    /* The workers end by themselves after the server. */
    if (l->ending_ns == 0 && !first->child.running)
        l->ending_ns = clock_ns();
    if (l->ending_ns != 0 && !l->ending_logged && has_passed(l->ending_ns, NOTICE_AFTER_S))
        log_running(l);
    if (l->ending_ns != 0 && !l->killed && has_passed(l->ending_ns, ending_limit_s(l))) {
        log_warning("processes that did not end within %u s were killed", ending_limit_s(l));
        l->killed = true;
    }
}

static bool any_running(const struct launch *l)
{
    for (unsigned i = 0; i < l->places; i++)
        if (l->processes[i].child.running)
            return true;
    return false;
}

/* Waits until a message, output, an exit or a signal, at most POLL_MS. */
static void wait_for_event(struct launch *l)
{
    l->sources[0] = (struct pollfd){.fd = l->pipe.fd, .events = POLLIN};
    l->sources[1] = (struct pollfd){.fd = l->stderr_fd, .events = POLLIN};
    for (unsigned i = 0; i < l->places; i++)
        l->sources[2 + i] = child_source(&l->processes[i].child);
    poll(l->sources, l->places + 2, POLL_MS);
}

/* Ends the other processes of a failed run after its server has ended. An mpirun only gets SIGTERM,
 * so that it can end its processes on the other host and remove its files there; check_limits()
 * kills it later. */
static void end_followers(struct launch *l)
{
    for (unsigned i = 0; i < l->places; i++) {
        struct watched *w = &l->processes[i];
        if (w->host == NULL) {
            child_kill(&w->child);
        } else if (!w->dismissed) {
            child_signal(&w->child, SIGTERM);
            w->dismissed = true;
        }
    }
    child_kill(&l->builder);
}

status launch_watch(struct launch *l)
{
    status result = OK;
    while (any_running(l)) {
        wait_for_event(l);
        for (unsigned i = 0; i < l->places; i++)
            l->processes[i].ended_now = child_poll(&l->processes[i].child);
        /* child_poll() comes first: the last message of an ended process is then in the pipe. */
        TRY(read_messages(l));
        launch_read_stderr(l, false);
        for (unsigned i = 0; i < l->places; i++)
            if (l->processes[i].ended_now)
                judge_end(l, &l->processes[i]);
        judge_hosts(l);
        launch_start_lost_workers(l);
        check_signals(l);
        check_limits(l);
        if (l->killed)
            launch_kill_all(l);
        else if (l->verdict != OK && !l->processes[0].child.running)
            end_followers(l);
    }
done:
    launch_kill_all(l);
    launch_read_stderr(l, true);
    return result;
}
