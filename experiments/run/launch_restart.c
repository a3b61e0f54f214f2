/*
 * launch_restart.c — restarts the ranks after the loss of one; the run keeps its row.
 *
 * The number of ranks stays the same, and so do the batch, the learning rate and the bits. The
 * remaining hosts run the ranks of a lost host.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/run/launch_internal.h"

#include "experiments/run/role.h"
#include "experiments/run/run_checkpoint.h"
#include "results/query/query.h"
#include "results/store/recorder.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

bool launch_may_restart(const struct launch *l)
{
    return !l->async && l->verdict == ERROR_PEER && l->run_id > 0 && l->was_ready &&
           launch_stop_requests() == l->stops_before &&
           l->restarts < options_integer(l->o->settings, "restarts");
}

/* ---- the hosts that are left --------------------------------------------------------------------
 */

/* Whether mpirun can start a program (`true`) on this host within LIMIT_S. */
static bool answers(const struct launch *l, const struct run_host *host)
{
    enum { LIMIT_S = 20 };
    char list[HOST_NAME_BYTES + 16];
    const char *argv[40];
    size_t n = 0;
    struct mpirun m = {.preload_fd = -1};
    struct child c = {0};
    snprintf(list, sizeof list, "%s:1", host->name);
    const struct mpirun_hosts wanted = {.count = 1,
                                        .hosts = list,
                                        .in_allocation = l->hosts.are_slurms,
                                        .interface =
                                            options_text(l->o->settings, "network.interface")};
    mpirun_open_hosts(&m, &wanted);
    for (; m.words[n] != NULL; n++)
        argv[n] = m.words[n];
    argv[n++] = "true";
    argv[n] = NULL;
    const uint64_t until = clock_ns() + LIMIT_S * UINT64_C(1000000000);
    bool started = child_start(&c, argv, m.environment, l->child_fd) == OK;
    while (started && !child_poll(&c) && clock_ns() < until &&
           launch_stop_requests() == l->stops_seen) {
        struct pollfd source = child_source(&c);
        poll(&source, 1, 100);
    }
    child_kill(&c);
    mpirun_close(&m);
    return started && WIFEXITED(c.wait_status) && WEXITSTATUS(c.wait_status) == 0;
}

/* Gives the slots of lost hosts to the remaining hosts, in turn. */
static status choose_hosts(struct launch *l)
{
    status result = OK;
    struct text lost = {0};
    size_t kept = 0;
    const bool are_slurms = l->hosts.are_slurms;
    hosts_free(&l->hosts);
    TRY(launch_read_hosts(l, l->all_hosts.at));
    const unsigned slots = hosts_slots(&l->hosts);
    l->hosts.are_slurms = are_slurms;
    for (size_t i = 0; i < l->hosts.count; i++)
        if (l->hosts.at[i].is_here || answers(l, &l->hosts.at[i]))
            l->hosts.at[kept++] = l->hosts.at[i];
        else
            text_add(&lost, "%s%s", lost.length > 0 ? ", " : "", l->hosts.at[i].name);
    l->hosts.count = kept;
    const unsigned needed = slots < l->workers ? slots : l->workers;
    for (size_t i = 0; hosts_slots(&l->hosts) < needed; i = (i + 1) % kept)
        l->hosts.at[i].slots++;
    if (lost.length > 0)
        log_warning("no answer from %s; the other hosts run its ranks", lost.at);
    launch_list_hosts(l);
done:
    text_free(&lost);
    return result;
}

/* ---- starting again -----------------------------------------------------------------------------
 */

/* *path ← the last checkpoint of the run (owned), or the one that it was resumed from; NULL: none.
 */
static status find_checkpoint(const struct launch *l, char **path, uint64_t *version)
{
    status result = OK;
    char number[32];
    const char *const settings[] = {number};
    const char *resumed = options_text(l->o->settings, "resume");
    *version = 0;
    snprintf(number, sizeof number, "run=%lld", (long long)l->run_id);
    TRY(query_value(options_text(l->o->settings, "results"),
                    "SELECT path FROM checkpoint WHERE run_id = :run ORDER BY version DESC LIMIT 1",
                    settings, 1, path));
    if (*path == NULL && resumed[0] != '\0')
        *path = text_copy(resumed);
    if (*path != NULL)
        TRY(run_checkpoint_check(*path, l->o->settings, version));
done:
    return result;
}

/* Resets the launch to the state before the first rank was started. */
static void forget_ranks(struct launch *l)
{
    struct status_message stale;
    while (status_pipe_receive(&l->pipe, &stale)) {
    }
    memory_free(l->processes[0].message);
    l->processes[0] = (struct watched){0};
    memory_free(l->message);
    l->message = NULL;
    l->verdict = OK;
    role_forget_verdict(l->folder.path);
    l->bound = l->ranks_met = l->killed = l->wait_logged = l->ending_logged = false;
    l->ending_ns = l->stop_sent_ns = 0;
    l->begun_ns = clock_ns();
    text_free(&l->line);
    text_free(&l->mpirun_output);
    mpirun_close(&l->mpirun);
    folder_remove(&l->shared);
}

status launch_restart(struct launch *l)
{
    status result = OK;
    char *path = NULL, *why = text_copy(l->message);
    struct text detail = {0};
    uint64_t version = 0;
    TRY(find_checkpoint(l, &path, &version));
    text_add(&detail, "from update %llu, %llu of the reported updates lost: %s",
             (unsigned long long)version,
             (unsigned long long)(l->updates > version ? l->updates - version : 0), why);
    TRY(recorder_roll_back(options_text(l->o->settings, "results"), l->run_id, version, detail.at));
    l->restarts++;
    l->updates = version;
    forget_ranks(l);
    log_warning("restart %lld of %lld, %.400s", (long long)l->restarts,
                (long long)options_integer(l->o->settings, "restarts"), detail.at);
    launch_drop_argument(l, "resume");
    launch_drop_argument(l, "restarted");
    if (path != NULL) {
        settings_add(&l->arguments, "resume", path, "run");
        settings_add(&l->arguments, "restarted", "true", "run");
    }
    if (l->hosts.count > 0)
        TRY(choose_hosts(l));
    TRY(launch_start_ranks(l));
done:
    if (result != OK && l->verdict != OK) {
        text_free(&detail);
        text_add(&detail, "%s. No restart: %s", why, error_message());
        memory_free(l->message);
        l->message = text_copy(detail.at);
    }
    text_free(&detail);
    memory_free(path);
    memory_free(why);
    return result;
}
