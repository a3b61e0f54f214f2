/* campaign_faults.c — the faults; see campaign.h. */
#include "tests/process/campaign.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static bool has_network, has_disk;

bool campaign_has_network(void)
{
    return has_network;
}

bool campaign_has_disk(void)
{
    return has_disk;
}

static bool shell(const char *line)
{
    return system(line) == 0;
}

void campaign_isolate(struct campaign_episode *e)
{
    has_network = shell("ip link >/dev/null 2>&1") && unshare(CLONE_NEWNET) == 0 &&
                  shell("ip link set lo up");
    has_disk = unshare(CLONE_NEWNS) == 0 &&
               mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
               mount("tmpfs", e->rig->folder, "tmpfs", 0, "size=1g") == 0;
}

void campaign_leave(struct process_rig *r)
{
    if (has_disk)
        umount2(r->folder, MNT_DETACH);
}

/* ---- who is hit ---- */

static pid_t starter(const struct campaign_episode *e)
{
    return e->rig->pid;
}

/* A random process of that role, late workers included; 0: none is left. */
static pid_t one_of(struct campaign_episode *e, const char *role)
{
    pid_t all[32];
    const struct process_rig here = {.pid = getpid()};
    unsigned count = process_find(&here, role, all, COUNT_OF(all));
    return count > 0 ? all[random_below(&e->random, count)] : 0;
}

static pid_t worker_or_rank(struct campaign_episode *e)
{
    return one_of(e, e->async ? "worker" : "rank");
}

static void send(pid_t pid, int signal_number)
{
    if (pid > 0)
        kill(pid, signal_number);
}

static void stop_for(struct campaign_episode *e, pid_t pid)
{
    send(pid, SIGSTOP);
    campaign_sleep(campaign_between(e, 1, campaign_chance(e, 0.02) ? 40 : 8));
    send(pid, SIGCONT);
}

/* ---- possible where ---- */

static bool always(const struct campaign_episode *e)
{
    (void)e;
    return true;
}

static bool with_processes(const struct campaign_episode *e)
{
    return e->processes;
}

static bool with_server(const struct campaign_episode *e)
{
    return e->processes && e->async;
}

static bool with_tcp(const struct campaign_episode *e)
{
    return e->tcp && has_network;
}

/* A broken link between two servers ends the run (docs/wire-format.md). */
static bool with_tcp_and_one_server(const struct campaign_episode *e)
{
    return with_tcp(e) && e->servers == 1;
}

static bool with_disk(const struct campaign_episode *e)
{
    (void)e;
    return has_disk;
}

/* ---- what they do ---- */

static void nothing(struct campaign_episode *e)
{
    (void)e;
}

static void kill_worker(struct campaign_episode *e)
{
    send(worker_or_rank(e), SIGKILL);
}

static void stop_worker(struct campaign_episode *e)
{
    stop_for(e, worker_or_rank(e));
}

static void kill_server(struct campaign_episode *e)
{
    send(one_of(e, "server"), SIGKILL);
}

static void stop_server(struct campaign_episode *e)
{
    stop_for(e, one_of(e, "server"));
}

static void kill_starter(struct campaign_episode *e)
{
    send(starter(e), SIGKILL);
}

static void terminate(struct campaign_episode *e)
{
    send(starter(e), SIGTERM);
}

/* Near the end, where row and exit code could disagree. */
static void terminate_late(struct campaign_episode *e)
{
    campaign_sleep(campaign_between(e, 0.3, 1.3) * e->seconds);
    send(starter(e), SIGTERM);
}

static void interrupt_twice(struct campaign_episode *e)
{
    send(starter(e), SIGINT);
    campaign_sleep(campaign_between(e, 0, 0.5));
    send(starter(e), SIGINT);
}

static void link_down(struct campaign_episode *e)
{
    (void)shell("ip link set lo down");
    campaign_sleep(campaign_between(e, 0.1, 6));
    (void)shell("ip link set lo up");
}

static void kill_connections(struct campaign_episode *e)
{
    for (unsigned i = 0; i < 3; i++) {
        (void)shell("ss -K -t state established >/dev/null 2>&1");
        campaign_sleep(campaign_between(e, 0.05, 0.5));
    }
}

static void fill_disk(struct campaign_episode *e)
{
    static char block[1 << 20];
    int fd = open(process_path(e->rig, "filler"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    while (write(fd, block, sizeof block) > 0) {
    }
    campaign_sleep(campaign_between(e, 0.5, 5));
    close(fd);
    remove(process_path(e->rig, "filler"));
}

static void lock_results(struct campaign_episode *e)
{
    sqlite3 *db = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s", process_path(e->rig, "results.db"));
    if (access(path, F_OK) == 0 && sqlite3_open(path, &db) == SQLITE_OK &&
        sqlite3_busy_timeout(db, 500) == SQLITE_OK &&
        sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK)
        campaign_sleep(campaign_between(e, 0.5, 8));
    sqlite3_close(db);
}

static const struct campaign_fault faults[] = {
    {"none", always, nothing, {-1}},
    {"kill-worker", with_processes, kill_worker, {ERROR_PEER, -1}},
    {"stop-worker", with_processes, stop_worker, {ERROR_PEER, -1}},
    {"kill-server", with_server, kill_server, {ERROR_PEER, -1}},
    {"stop-server", with_server, stop_server, {ERROR_PEER, -1}},
    {"kill-starter", always, kill_starter, {128 + SIGKILL, -1}},
    {"sigterm", always, terminate, {STOPPED, -1}},
    {"sigterm-late", always, terminate_late, {STOPPED, -1}},
    {"sigint-twice", always, interrupt_twice, {STOPPED, 128 + SIGINT, -1}},
    {"link-down", with_tcp, link_down, {ERROR_PEER, -1}},
    {"connections-killed", with_tcp_and_one_server, kill_connections, {-1}},
    {"disk-full", with_disk, fill_disk, {ERROR_OTHER, ERROR_DATA, ERROR_RESULTS, STOPPED, -1}},
    {"results-locked", always, lock_results, {ERROR_RESULTS, -1}},
};

bool campaign_explains(const struct campaign_episode *e, int code)
{
    bool explained = code == OK || code == ERROR_DIVERGED;
    for (size_t i = 0; e->fault != NULL && e->fault->codes[i] >= 0; i++)
        explained = explained || e->fault->codes[i] == code;
    return explained;
}

const struct campaign_fault *campaign_draw_fault(struct campaign_episode *e)
{
    const struct campaign_fault *fault;
    do {
        fault = &faults[e->faulty ? random_below(&e->random, COUNT_OF(faults)) : 0];
    } while (!fault->possible(e) || (fault == faults) == e->faulty);
    return fault;
}
