/*
 * launch_watch.c — watches the processes of a run: their mails, their ends, signals and limits.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/run/launch_internal.h"

#include "experiments/run/role.h"
#include "sync/communicator/communicator.h"
#include "sync/pipeline/pipeline.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LOADING_LIMIT_S = 900, /* a dataset that is made on first use may take this long */
    ENDING_LIMIT_S = 15,   /* from the request to stop, or the first failure, to the last exit */
    TELL_AFTER_S = 5,
    POLL_MS = 50,
};

/* ---- ending -------------------------------------------------------------------------------------
 */

/* Asks the process that writes the results to end; the others follow it. */
static void ask_to_end(struct launch *l)
{
    l->asked_ns = clock_ns();
    l->ending_ns = l->ending_ns == 0 ? l->asked_ns : l->ending_ns;
    child_signal(&l->processes[0].child, l->async ? SIGTERM : SIGUSR1);
}

static void take_word(struct launch *l, status code, const char *text)
{
    memory_free(l->message);
    l->verdict = code;
    l->message = text_copy(text);
}

static void fail(struct launch *l, status code, const char *text)
{
    if (l->verdict != OK)
        return;
    take_word(l, code, text);
    if (code != STOPPED) {
        /* The server is told why, so that the run's row says it too. */
        role_write_verdict(l->folder.path, code, text);
    }
    ask_to_end(l);
}

void launch_kill_all(struct launch *l)
{
    for (unsigned i = 0; l->processes != NULL && i < l->places; i++)
        child_kill(&l->processes[i].child);
}

/* " (stage 1 of replica 0)", of a pipeline's rank. */
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

/* N of "… process rank N with PID … exited on signal M", which mpirun prints when a rank is killed,
 * be it on one line or (Open MPI 5) on several. */
static bool find_killed_rank(const struct launch *l, int *rank, int *by)
{
    struct text flat = {0};
    text_add(&flat, "%s", l->noise.at != NULL ? l->noise.at : "");
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
    const char *noise = l->noise.at != NULL ? l->noise.at : "";
    if (find_killed_rank(l, &rank, &by)) {
        text_add(out, "rank %d", rank);
        add_stage(l, rank, out);
        text_add(out, " was killed by signal %d (%s)", by, strsignal(by));
        return;
    }
    text_add(out, "mpirun %s", how);
    if (noise[0] != '\0') {
        text_add(out, ". It wrote: %.1500s", noise);
        out->length -= out->at[out->length - 1] == '\n';
        out->at[out->length] = '\0';
    }
}

static void add_name(const struct launch *l, const struct watched *w, struct text *out)
{
    const char *name = w->role == ROLE_RANK     ? "mpirun"
                       : w->role == ROLE_WORKER ? "worker %u"
                       : l->servers > 1         ? "server %u"
                                                : "the server";
    text_add(out, name, w->index);
}

/* Every worker has ended, and none of them well. A server that lives sees that, too. */
static bool nobody_is_left(const struct launch *l)
{
    for (unsigned i = 1; i <= l->workers; i++) {
        const struct child *c = &l->processes[i].child;
        if (c->running || (WIFEXITED(c->wait_status) && WEXITSTATUS(c->wait_status) == 0))
            return false;
    }
    return true;
}

/* A process ended: what does that mean? */
static void judge(struct launch *l, struct watched *w)
{
    int how = w->child.wait_status;
    struct text text = {0};
    bool well = WIFEXITED(how) && WEXITSTATUS(how) == 0 && (!w->told || w->code == OK);
    if (l->error_is_secondhand && w == &l->processes[0] && w->told && w->code != OK) {
        l->error_is_secondhand = false;
        take_word(l, w->code, w->message);
    }
    bool continues = strcmp(options_text(l->o->settings, "on_lost"), "continue") == 0;
    if (well || l->verdict != OK)
        goto done;
    if (w->dismissal == PS_RUN_ENDED && l->processes[0].child.running) {
        l->ending_ns = l->ending_ns == 0 ? clock_ns() : l->ending_ns;
        goto done;
    }
    if (w->told && w->code != OK) {
        if (w->role == ROLE_WORKER)
            text_add(&text, "worker %u: ", w->index);
        text_add(&text, "%s", w->message);
    } else if (w->role == ROLE_RANK) {
        describe_ranks(l, how, &text);
    } else {
        char end[96];
        child_describe(how, end);
        add_name(l, w, &text);
        text_add(&text,
                 " (process %ld) %s. If nobody killed it, memory may have run out: see the "
                 "kernel's log, use fewer workers or a smaller model",
                 (long)w->child.pid, end);
    }
    status code = w->told && w->code != OK ? w->code : ERROR_PEER;
    if (w->role == ROLE_WORKER && continues && !nobody_is_left(l)) {
        progress_clear(&l->progress);
        log_warning("%s; the run goes on without it (on_lost=continue)", text.at);
    } else if (w->role == ROLE_WORKER && (l->ending_ns != 0 || !l->processes[0].child.running)) {
        log_debug("after the end: %s", text.at);
    } else {
        fail(l, code, text.at);
        l->error_is_secondhand = w->dismissal == PS_EVICTED;
    }
done:
    text_free(&text);
}

/* ---- watching -----------------------------------------------------------------------------------
 */

static void keep_end(struct launch *l, const struct status_message *m)
{
    unsigned limit = m->role == ROLE_WORKER ? l->workers : l->servers, place = 0;
    if (m->role != ROLE_RANK && m->index >= limit)
        return;
    if (m->role == ROLE_WORKER)
        place = 1 + m->index;
    else if (m->role == ROLE_SERVER && m->index > 0)
        place = l->workers + m->index;
    struct watched *w = &l->processes[place];
    /* Of several ranks the first that failed counts. */
    if (w->told && w->code != OK)
        return;
    w->told = true;
    w->dismissal = m->dismissal;
    w->code = m->code;
    memory_free(w->message);
    w->message = NULL;
    if (m->code != OK) {
        struct text text = {0};
        if (m->role == ROLE_RANK && m->code != STOPPED && m->code != ERROR_DIVERGED)
            text_add(&text, "rank %u: ", m->index);
        text_add(&text, "%s", m->text);
        w->message = text_copy(text.at);
        text_free(&text);
    }
}

static status read_mail(struct launch *l)
{
    status result = OK;
    struct status_message m;
    while (status_pipe_receive(&l->pipe, &m)) {
        switch (m.kind) {
        case STATUS_BOUND:
            if (l->async && !l->bound)
                TRY(launch_bound(l, m.index, m.text, &l->bound));
            l->met = true;
            break;
        case STATUS_PROGRESS:
            progress_show(&l->progress, &m.progress);
            l->bound = true;
            break;
        case STATUS_ENDED:
            keep_end(l, &m);
            break;
        }
    }
done:
    return result;
}

/* Our own processes' lines go on to the user; what mpirun says is kept for when nobody else says
 * why the job ended. */
static void pass_line(struct launch *l)
{
    if (l->async || strncmp(l->line.at, "gradlag", 7) == 0) {
        progress_clear(&l->progress);
        ssize_t written = write(STDERR_FILENO, l->line.at, l->line.length);
        (void)written;
    } else if (l->line.length > 1 && l->line.at[0] != '-' && l->noise.length < 8192) {
        text_add(&l->noise, "%s", l->line.at);
    }
    l->line.length = 0;
}

static void read_noise(struct launch *l)
{
    char bytes[4096];
    ssize_t got;
    while ((got = read(l->noise_fd, bytes, sizeof bytes)) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            text_add_bytes(&l->line, &bytes[i], 1);
            if (bytes[i] == '\n' || l->line.length > 4000)
                pass_line(l);
        }
    }
}

static void heed_signals(struct launch *l)
{
    int requests = launch_stop_requests();
    if (requests > l->stops_seen && l->verdict == OK) {
        progress_clear(&l->progress);
        log_info("stopping; what was measured so far is kept (once more: at once)");
        fail(l, STOPPED, "stopped on request; what was measured so far is in the results file");
    } else if (requests > l->stops_seen) {
        l->killed = true;
    }
    l->stops_seen = requests;
}

static void tell_who_is_left(struct launch *l)
{
    struct text names = {0};
    for (unsigned i = 0; i < l->places; i++) {
        if (l->processes[i].child.running) {
            text_add(&names, "%s", names.length > 0 ? ", " : "");
            add_name(l, &l->processes[i], &names);
        }
    }
    progress_clear(&l->progress);
    log_info("waiting for %s to end (at most %d s more)", names.at != NULL ? names.at : "nobody",
             ENDING_LIMIT_S - TELL_AFTER_S);
    l->told_ending = true;
    text_free(&names);
}

/* The clock is read here each time: what a limit is counted from may have begun since the last. */
static bool has_passed(uint64_t since_ns, unsigned seconds)
{
    return clock_ns() - since_ns > seconds * 1000000000ULL;
}

/* Until the ranks have met: what mpirun may take on a busy machine, and their meeting. */
static unsigned starting_limit_s(const struct launch *l)
{
    enum { MPIRUN_LIMIT_S = 60 };
    return MPIRUN_LIMIT_S + l->workers +
           (unsigned)(FIRST_CONTACT_TIMEOUTS * options_real(l->o->settings, "timeout_s"));
}

static void heed_start(struct launch *l)
{
    const bool starting = !l->async && !l->met;
    const unsigned limit_s = starting ? starting_limit_s(l) : LOADING_LIMIT_S;
    if (!l->told_waiting && has_passed(l->begun_ns, TELL_AFTER_S)) {
        progress_clear(&l->progress);
        log_info("the %s not ready yet: %s (at most %d s more)",
                 l->async ? "server is" : "ranks are",
                 starting ? "mpirun is starting them" : "loading or making the dataset",
                 limit_s - TELL_AFTER_S);
        l->told_waiting = true;
    }
    if (!has_passed(l->begun_ns, limit_s))
        return;
    if (starting) {
        struct text why = {0};
        text_add(&why,
                 "mpirun did not start the ranks within %u s. It hangs, for example because the "
                 "disk of TMPDIR is full; try `mpirun -n 2 gradlag rank …` by hand%s%.1500s",
                 limit_s, l->noise.length > 0 ? ". It wrote: " : "",
                 l->noise.length > 0 ? l->noise.at : "");
        why.length -= why.at[why.length - 1] == '\n';
        why.at[why.length] = '\0';
        fail(l, ERROR_PEER, why.at);
        text_free(&why);
    } else {
        fail(l, ERROR_PEER,
             l->async ? "the server was not ready to listen in time: it hangs, or the dataset "
                        "takes too long to make; try `gradlag server` by hand"
                      : "the ranks did not begin in time: the dataset takes too long to make, or "
                        "a rank hangs; try `mpirun -n 2 gradlag rank …` by hand");
    }
}

static void heed_limits(struct launch *l)
{
    const struct watched *first = &l->processes[0];
    if (!l->bound && l->verdict == OK && first->child.running)
        heed_start(l);
    /* While it starts its ranks mpirun hands no signal on. */
    if (l->asked_ns != 0 && has_passed(l->asked_ns, 1))
        ask_to_end(l);
    /* The workers end by themselves once the server has. */
    if (l->ending_ns == 0 && !first->child.running)
        l->ending_ns = clock_ns();
    if (l->ending_ns != 0 && !l->told_ending && has_passed(l->ending_ns, TELL_AFTER_S))
        tell_who_is_left(l);
    if (l->ending_ns != 0 && has_passed(l->ending_ns, ENDING_LIMIT_S)) {
        if (l->verdict == OK)
            log_warning("processes that should have ended were killed");
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

status launch_watch(struct launch *l)
{
    status result = OK;
    while (any_running(l)) {
        struct pollfd sources[2] = {{.fd = l->pipe.fd, .events = POLLIN},
                                    {.fd = l->noise_fd, .events = POLLIN}};
        poll(sources, COUNT_OF(sources), POLL_MS);
        for (unsigned i = 0; i < l->places; i++)
            l->processes[i].ended_now = child_poll(&l->processes[i].child);
        /* Whoever has ended has sent its last mail before. */
        TRY(read_mail(l));
        read_noise(l);
        for (unsigned i = 0; i < l->places; i++)
            if (l->processes[i].ended_now)
                judge(l, &l->processes[i]);
        heed_signals(l);
        heed_limits(l);
        bool server_failed = l->verdict != OK && !l->processes[0].child.running;
        if (l->killed || server_failed)
            launch_kill_all(l);
    }
done:
    launch_kill_all(l);
    read_noise(l);
    if (l->line.length > 0) { /* the end of one that was killed while writing */
        text_add(&l->line, "\n");
        pass_line(l);
    }
    return result;
}
