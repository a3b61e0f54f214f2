/*
 * launch_start.c — starts the processes of a run, with their command lines and environments.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/run/launch_internal.h"

#include "experiments/print_columns.h"
#include "experiments/run/role.h"
#include "ps/core/late_workers.h"
#include "ps/core/slices.h"
#include "ps/net/curve.h"
#include "worker/data/dataset.h"
#include "worker/data/dataset_shared.h"
#include "worker/device_placement.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Local rank and size, from which a process chooses its device. They are always set, because inside
 * a Slurm step a process would otherwise use those of the step. Servers are numbered after the last
 * worker. Processes under mpirun get them from mpirun, so here they are empty. */
static void local_rank(const struct launch *l, const struct watched *w, char rank[48],
                       char size[48])
{
    if (w->role == ROLE_RANK || w->host != NULL) {
        snprintf(rank, 48, "%s=", PLACEMENT_LOCAL_RANK);
        snprintf(size, 48, "%s=", PLACEMENT_LOCAL_SIZE);
        return;
    }
    unsigned own = w->role == ROLE_SERVER ? l->count_here + w->index : w->index - l->first_here;
    snprintf(rank, 48, "%s=%u", PLACEMENT_LOCAL_RANK, own);
    snprintf(size, 48, "%s=%u", PLACEMENT_LOCAL_SIZE, l->count_here + l->servers);
}

/* Starts this program as `role`, directly or (m) through mpirun. */
static status start_role(struct launch *l, struct watched *w, const struct mpirun *m,
                         const char *role, const struct settings *more)
{
    static const char *const nothing[] = {NULL};
    const char *const *before = m != NULL ? m->words : nothing;
    char rank[48], size[48], path[PATH_MAX];
    local_rank(l, w, rank, size);
    status result = OK;
    const char **argv = NULL;
    size_t n = 0, front = 0;
    struct text *joined = NULL;
    size_t settings = l->arguments.count + more->count;
    while (before[front] != NULL)
        front++;
    TRY(memory_new(&argv, front + settings + 3, sizeof *argv, "arguments"));
    TRY(memory_new(&joined, settings + 1, sizeof *joined, "arguments"));
    for (; n < front; n++)
        argv[n] = before[n];
    argv[n++] = m != NULL && l->hosts.count > 0 ? role_program_path(path) : role_program();
    argv[n++] = role;
    for (size_t i = 0; i < settings; i++) {
        const struct setting *s =
            i < l->arguments.count ? &l->arguments.at[i] : &more->at[i - l->arguments.count];
        text_add(&joined[i], "%s=%s", s->key, s->value);
        argv[n++] = joined[i].at;
    }
    const bool elsewhere = w->host != NULL;
    /* mpirun may pass these variables to other hosts, where the starter's files cannot be reached:
     * there, variables that name such files must be empty. */
    const char *environment[8 + COUNT_OF(l->mpirun.environment)] = {
        elsewhere ? STATUS_PIPE_VARIABLE "=" : l->status_pipe_variable, l->token_variable,
        m != NULL && l->hosts.count > 0 ? DATASET_SHARED_FILE "=" : l->dataset_variable, rank,
        size};
    size_t e = 5;
    for (size_t i = 0; m != NULL && m->environment[i] != NULL; i++)
        environment[e++] = m->environment[i];
    if (elsewhere && l->worker_key.length > 0)
        environment[e++] = l->worker_key.at;
    char own[HOST_NAME_BYTES] = "", host[HOST_NAME_BYTES + 32];
    (void)gethostname(own, sizeof own - 1);
    snprintf(host, sizeof host, STATUS_PIPE_HOST "=%s", own);
    environment[e++] = host;
    TRY(child_start(&w->child, argv, environment, l->child_fd));
done:
    for (size_t i = 0; joined != NULL && i < settings; i++)
        text_free(&joined[i]);
    memory_free(joined);
    memory_free(argv);
    return result;
}

/* Adds the endpoints of all servers, separated by commas. If a server listens already, this is its
 * actual endpoint, in which `address` replaces 0.0.0.0. Otherwise it is the endpoint on which the
 * server shall listen. */
static status list_endpoints(const struct launch *l, const char *address, struct text *out)
{
    static const char any[] = "tcp://0.0.0.0:";
    status result = OK;
    const char *chosen = options_text(l->o->settings, "endpoint");
    bool tcp = strcmp(options_text(l->o->settings, "transport"), "tcp") == 0;
    for (unsigned i = 0; i < l->servers; i++) {
        char endpoint[SERVERS_ENDPOINT_BYTES];
        text_add(out, "%s", i > 0 ? "," : "");
        if (l->endpoints[i] != NULL && strncmp(l->endpoints[i], any, strlen(any)) == 0) {
            text_add(out, "tcp://%s:%s", address, l->endpoints[i] + strlen(any));
        } else if (l->endpoints[i] != NULL) {
            text_add(out, "%s", l->endpoints[i]);
        } else if (chosen[0] != '\0') {
            TRY(servers_endpoint(chosen, l->servers, i, endpoint));
            text_add(out, "%s", endpoint);
        } else if (l->hosts.count > 0) {
            text_add(out, "tcp://*:*");
        } else if (tcp) {
            text_add(out, "tcp://127.0.0.1:*");
        } else if (i == 0) {
            text_add(out, "ipc://%s/server", l->folder.path);
        } else {
            text_add(out, "ipc://%s/server-%u", l->folder.path, i);
        }
    }
done:
    return result;
}

/* Starts a server or worker with the run's settings, all endpoints, and its number. */
static status start_numbered(struct launch *l, struct watched *w, enum role role, unsigned index)
{
    status result = OK;
    char number[16];
    struct settings more = {0};
    struct text endpoints = {0};
    TRY(list_endpoints(l, "127.0.0.1", &endpoints));
    snprintf(number, sizeof number, "%u", index);
    settings_add(&more, "endpoint", endpoints.at, "run");
    if (role == ROLE_WORKER || index > 0)
        settings_add(&more, role_name(role), number, "run");
    if (role == ROLE_WORKER)
        settings_add(&more, "restarts", "0", "run"); /* the starter restarts workers itself */
    w->role = role;
    w->index = index;
    TRY(start_role(l, w, NULL, role_name(role), &more));
done:
    settings_free(&more);
    text_free(&endpoints);
    return result;
}

static status start_followers(struct launch *l)
{
    status result = OK;
    for (unsigned i = 1; i < l->servers; i++)
        TRY(start_numbered(l, &l->processes[l->workers + i], ROLE_SERVER, i));
done:
    return result;
}

/* `hosts`: in the form of mpirun's --host; NULL: all of the Slurm allocation. */
static struct mpirun_hosts on_hosts(const struct launch *l, unsigned count, const char *hosts,
                                    const char *folder)
{
    static const char *const users[] = {"LD_LIBRARY_PATH", "GRADLAG_LOG", "GRADLAG_DATASETS"};
    struct mpirun_hosts m = {
        .count = count,
        .hosts = hosts,
        .folder = folder,
        .in_allocation = l->hosts.are_slurms,
        .interface = options_text(l->o->settings, "network.interface"),
        .survive = l->async && strcmp(options_text(l->o->settings, "on_lost"), "continue") == 0};
    size_t n = 0;
    for (size_t i = 0; i < COUNT_OF(users); i++)
        if (getenv(users[i]) != NULL)
            m.passed[n++] = users[i];
    if (l->async)
        m.passed[n++] = "GRADLAG_RUN_TOKEN";
    if (l->worker_key.length > 0)
        m.passed[n++] = CURVE_WORKER_VARIABLE;
    return m;
}

/* Starts one mpirun for the workers of another host, so that the loss of this host ends no other
 * worker. */
static status start_host(struct launch *l, struct watched *w, const struct run_host *host,
                         unsigned first, unsigned count)
{
    status result = OK;
    char list[HOST_NAME_BYTES + 16], address[HOST_ADDRESS_BYTES], number[16], folder[128];
    struct text endpoints = {0};
    struct settings more = {0};
    struct mpirun m = {.preload_fd = -1};
    snprintf(list, sizeof list, "%s:%u", host->name, count);
    snprintf(number, sizeof number, "%u", first);
    snprintf(folder, sizeof folder, "%s/mpirun-%u", l->folder.path, first);
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        FAIL(ERROR_OTHER, "%s cannot be created: %s; check that the disk is not full", folder,
             strerror(errno));
    const struct mpirun_hosts wanted = on_hosts(l, count, list, folder);
    mpirun_open_hosts(&m, &wanted);
    TRY(hosts_own_address(host, wanted.interface, address));
    TRY(list_endpoints(l, address, &endpoints));
    settings_add(&more, "endpoint", endpoints.at, "run");
    settings_add(&more, "worker.first", number, "run");
    settings_add(&more, "restarts", "0", "run");
    w->role = ROLE_WORKER;
    w->host = host;
    w->first = first;
    w->count = count;
    TRY(start_role(l, w, &m, role_name(ROLE_WORKER), &more));
done:
    mpirun_close(&m);
    settings_free(&more);
    text_free(&endpoints);
    return result;
}

const struct run_host *launch_host_of(const struct launch *l, unsigned index)
{
    unsigned first = 0;
    for (size_t i = 0; i < l->hosts.count; i++) {
        const unsigned count = hosts_workers_of(&l->hosts, i, l->workers, &first);
        if (index >= first && index < first + count)
            return l->hosts.at[i].is_here ? NULL : &l->hosts.at[i];
    }
    return NULL;
}

/* Stops between two workers on request, because starting hundreds takes a while. */
static status start_workers(struct launch *l)
{
    status result = OK;
    unsigned first = 0;
    for (size_t i = 0; i < l->hosts.count; i++) {
        const unsigned count = hosts_workers_of(&l->hosts, i, l->workers, &first);
        if (count > 0 && !l->hosts.at[i].is_here)
            TRY(start_host(l, &l->processes[l->workers + l->servers + i], &l->hosts.at[i], first,
                           count));
    }
    for (unsigned i = 0; i < l->count_here; i++) {
        if (l->verdict != OK || launch_stop_requests() > l->stops_seen)
            break;
        const unsigned index = l->first_here + i;
        TRY(start_numbered(l, &l->processes[1 + index], ROLE_WORKER, index));
    }
done:
    return result;
}

/* Starts a lost worker again. A worker on another host gets a separate mpirun. */
static status start_again(struct launch *l, unsigned index)
{
    struct watched *w = &l->processes[1 + index];
    const struct run_host *host = launch_host_of(l, index);
    child_kill(&w->child); /* a former mpirun that still runs */
    memory_free(w->message);
    *w = (struct watched){0};
    return host == NULL ? start_numbered(l, w, ROLE_WORKER, index)
                        : start_host(l, w, host, index, 1);
}

void launch_start_lost_workers(struct launch *l)
{
    for (unsigned i = 0; i < l->workers && l->async; i++) {
        struct watched *w = &l->processes[1 + i];
        if (w->again_ns == 0 || clock_ns() < w->again_ns)
            continue;
        w->again_ns = 0;
        if (l->verdict != OK || l->ending_ns != 0 || !l->processes[0].child.running)
            continue;
        progress_clear(&l->progress);
        log_info("worker %u is started again (restart %lld of %lld)", i, (long long)l->restarts,
                 (long long)options_integer(l->o->settings, "restarts"));
        status_pipe_forget_end(&l->pipe, i);
        if (start_again(l, i) != OK)
            log_warning("%s", error_message());
        w->was_lost = true;
    }
}

/* True if the endpoint of the one server is known before it listens, so that the workers can load
 * their data meanwhile. They wait at the gate of the status pipe. */
static bool endpoint_is_known(const struct launch *l)
{
    const options *o = l->o->settings;
    return l->servers == 1 && l->hosts.count == 0 && options_text(o, "endpoint")[0] == '\0' &&
           strcmp(options_text(o, "transport"), "tcp") != 0;
}

static bool on_path(const char *program)
{
    const char *path = getenv("PATH");
    while (path != NULL && *path != '\0') {
        char full[512];
        size_t length = strcspn(path, ":");
        snprintf(full, sizeof full, "%.*s/%s", (int)length, path, program);
        if (access(full, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

status launch_start_server(struct launch *l)
{
    status result = OK;
    if (l->hosts.count > 0 && !on_path("mpirun"))
        FAIL(ERROR_USAGE,
             "hosts= needs mpirun, which is not on PATH; install it (Debian: openmpi-bin)");
    TRY(start_numbered(l, &l->processes[0], ROLE_SERVER, 0));
    if (endpoint_is_known(l))
        TRY(start_workers(l));
done:
    return result;
}

/* Logs the command for late workers. On another host the user replaces HOST by an address of this
 * host. */
static status invite_late_workers(const struct launch *l)
{
    status result = OK;
    const options *o = l->o->settings;
    const unsigned most = workers_max_of(o);
    const char *token = options_text(o, "run_token");
    char numbers[32] = "";
    struct text endpoint = {0};
    if (most == l->workers)
        return OK;
    if (most > l->workers + 1)
        snprintf(numbers, sizeof numbers, " (worker=%u to %u)", l->workers, most - 1);
    TRY(list_endpoints(l, "HOST", &endpoint));
    log_info("%u more worker%s may join: gradlag worker endpoint=%s run_token=%s worker=%u … with "
             "the same settings%s",
             most - l->workers, plural(most - l->workers), endpoint.at,
             token[0] != '\0' ? token : strchr(l->token_variable, '=') + 1, l->workers, numbers);
done:
    text_free(&endpoint);
    return result;
}

status launch_bound(struct launch *l, unsigned server, const char *endpoint, bool *all)
{
    status result = OK;
    *all = false;
    if (server >= l->servers || l->endpoints[server] != NULL)
        goto done;
    l->endpoints[server] = text_copy(endpoint);
    if (server == 0)
        TRY(start_followers(l));
    for (unsigned i = 0; i < l->servers; i++)
        if (l->endpoints[i] == NULL)
            goto done;
    *all = true;
    status_pipe_open_gate(&l->pipe);
    if (!endpoint_is_known(l))
        TRY(start_workers(l));
    TRY(invite_late_workers(l));
done:
    return result;
}

/* Ignores errors: the ranks build the missing data themselves, and report their own errors. */
static void build_dataset(const void *context)
{
    const struct launch *l = context;
    struct dataset data;
    putenv((char *)(uintptr_t)l->dataset_variable);
    (void)!dataset_open(&data, l->o->settings, true);
}

/* Whether the folder has room for Open MPI's segments, a little more than 4 MiB for each rank. In a
 * container /dev/shm may have only 64 MiB. */
static bool has_room(const char *folder, unsigned ranks)
{
    enum { RANK_BYTES = 4352 << 10 };
    struct statvfs about;
    return access(folder, W_OK) == 0 && statvfs(folder, &about) == 0 &&
           (double)about.f_bavail * (double)about.f_frsize >= (double)RANK_BYTES * ranks;
}

status launch_start_ranks(struct launch *l)
{
    status result = OK;
    struct settings none = {0};
    if (!on_path("mpirun")) {
        FAIL(ERROR_USAGE,
             "mode=%s needs mpirun, which is not on PATH; install it (Debian: openmpi-bin), or use "
             "mode=async",
             options_text(l->o->settings, "mode"));
    }
    if (l->hosts.count > 0) {
        const struct mpirun_hosts wanted =
            on_hosts(l, l->workers, l->hosts.are_slurms ? NULL : l->host_list.at, NULL);
        mpirun_open_hosts(&l->mpirun, &wanted);
    } else {
        TRY(folder_make(&l->shared, has_room("/dev/shm", l->workers) ? "/dev/shm" : NULL));
        TRY(mpirun_open(&l->mpirun, l->workers, l->folder.path, l->shared.path));
    }
    l->processes[0].role = ROLE_RANK;
    TRY(start_role(l, &l->processes[0], &l->mpirun, "rank", &none));
    /* mpirun takes a while to start the ranks, and mostly uses one processor: build the data
     * meanwhile. */
    if (dataset_is_shared(l->o->settings))
        TRY(child_fork(&l->builder, build_dataset, l));
done:
    return result;
}
