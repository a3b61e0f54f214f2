/*
 * launch_start.c — starts the processes of a run, with their command lines and environments.
 */
#include "base/memory.h"
#include "base/text.h"
#include "experiments/run/launch_internal.h"

#include "experiments/run/role.h"
#include "ps/core/slices.h"
#include "worker/data/dataset.h"
#include "worker/device_placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Local rank and size, from which a process chooses its device. They are always set, because inside
 * a Slurm step a process would otherwise use those of the step. Servers come after the last worker.
 * Ranks get them from mpirun, so here they are empty. */
static void local_rank(const struct launch *l, const struct watched *w, char rank[48],
                       char size[48])
{
    if (w->role == ROLE_RANK) {
        snprintf(rank, 48, "%s=", PLACEMENT_LOCAL_RANK);
        snprintf(size, 48, "%s=", PLACEMENT_LOCAL_SIZE);
        return;
    }
    unsigned own = w->role == ROLE_SERVER ? l->workers + w->index : w->index;
    snprintf(rank, 48, "%s=%u", PLACEMENT_LOCAL_RANK, own);
    snprintf(size, 48, "%s=%u", PLACEMENT_LOCAL_SIZE, l->workers + l->servers);
}

/* Starts this program as `role`. `before` precedes it: mpirun and its arguments, or nothing. */
static status start_role(struct launch *l, struct watched *w, const char *const *before,
                         const char *role, const struct settings *more)
{
    char rank[48], size[48];
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
    argv[n++] = role_program();
    argv[n++] = role;
    for (size_t i = 0; i < settings; i++) {
        const struct setting *s =
            i < l->arguments.count ? &l->arguments.at[i] : &more->at[i - l->arguments.count];
        text_add(&joined[i], "%s=%s", s->key, s->value);
        argv[n++] = joined[i].at;
    }
    const char *environment[6 + COUNT_OF(l->mpirun.environment)] = {
        l->status_pipe_variable, l->token_variable, l->dataset_variable, rank, size};
    for (size_t i = 0; w->role == ROLE_RANK && l->mpirun.environment[i] != NULL; i++)
        environment[5 + i] = l->mpirun.environment[i];
    TRY(child_start(&w->child, argv, environment, l->child_fd));
done:
    for (size_t i = 0; joined != NULL && i < settings; i++)
        text_free(&joined[i]);
    memory_free(joined);
    memory_free(argv);
    return result;
}

/* The endpoints of all servers, separated by commas: of a server that listens the actual one, of
 * the others the one to use. */
static status list_endpoints(const struct launch *l, struct text *out)
{
    status result = OK;
    const char *chosen = options_text(l->o->settings, "endpoint");
    bool tcp = strcmp(options_text(l->o->settings, "transport"), "tcp") == 0;
    for (unsigned i = 0; i < l->servers; i++) {
        char endpoint[SERVERS_ENDPOINT_BYTES];
        text_add(out, "%s", i > 0 ? "," : "");
        if (l->endpoints[i] != NULL) {
            text_add(out, "%s", l->endpoints[i]);
        } else if (chosen[0] != '\0') {
            TRY(servers_endpoint(chosen, l->servers, i, endpoint));
            text_add(out, "%s", endpoint);
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
    const char *const nothing[] = {NULL};
    char number[16];
    struct settings more = {0};
    struct text endpoints = {0};
    TRY(list_endpoints(l, &endpoints));
    snprintf(number, sizeof number, "%u", index);
    settings_add(&more, "endpoint", endpoints.at, "run");
    if (role == ROLE_WORKER || index > 0)
        settings_add(&more, role_name(role), number, "run");
    w->role = role;
    w->index = index;
    TRY(start_role(l, w, nothing, role_name(role), &more));
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

/* Stops between two workers on request, because starting hundreds takes a while. */
static status start_workers(struct launch *l)
{
    status result = OK;
    for (unsigned i = 0; i < l->workers; i++) {
        if (l->verdict != OK || launch_stop_requests() > l->stops_seen)
            break;
        TRY(start_numbered(l, &l->processes[1 + i], ROLE_WORKER, i));
    }
done:
    return result;
}

/* True if the endpoint of the one server is known before it listens, so that the workers can load
 * their data meanwhile. They wait at the gate of the status pipe. */
static bool endpoint_is_known(const struct launch *l)
{
    const options *o = l->o->settings;
    return l->servers == 1 && options_text(o, "endpoint")[0] == '\0' &&
           strcmp(options_text(o, "transport"), "tcp") != 0;
}

status launch_start_server(struct launch *l)
{
    status result = OK;
    TRY(start_numbered(l, &l->processes[0], ROLE_SERVER, 0));
    if (endpoint_is_known(l))
        TRY(start_workers(l));
done:
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
done:
    return result;
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

/* An error is no harm: the ranks build what is missing, and report it. */
static void build_dataset(const void *context)
{
    const struct launch *l = context;
    struct dataset data;
    putenv((char *)(uintptr_t)l->dataset_variable);
    (void)!dataset_open(&data, l->o->settings, true);
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
    TRY(folder_make(&l->shared, access("/dev/shm", W_OK) == 0 ? "/dev/shm" : NULL));
    TRY(mpirun_open(&l->mpirun, l->workers, l->folder.path, l->shared.path));
    l->processes[0].role = ROLE_RANK;
    TRY(start_role(l, &l->processes[0], l->mpirun.words, "rank", &none));
    /* mpirun needs a while, and mostly one processor, until the ranks run. */
    if (dataset_is_shared(l->o->settings))
        TRY(child_fork(&l->builder, build_dataset, l));
done:
    return result;
}
