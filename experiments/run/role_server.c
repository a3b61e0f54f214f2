#include "base/log.h"
#include "base/thread.h"
#include "base/memory.h"
#include "experiments/command.h"
#include "experiments/print_columns.h"

#include "experiments/run/child_process.h"
#include "experiments/run/resume_record.h"
#include "experiments/run/role.h"
#include "experiments/run/run_checkpoint.h"
#include "ps/rules/consistency/consistency.h"
#include "ps/rules/outer/outer.h"
#include "ps/core/late_workers.h"
#include "ps/server/server.h"
#include "ps/core/slices.h"

#include <stdio.h>
#include <string.h>

/* An update consists of the policy's mean number of gradients (if no worker is lost), each of as
 * many batches as a worker has local steps. */
status role_server_length(const options *o, uint64_t epoch_samples, struct training_length *out)
{
    status result = OK;
    struct consistency consistency;
    struct outer outer;
    double gradients;
    const unsigned workers = (unsigned)options_integer(o, "workers");
    TRY(consistency_open(&consistency, o));
    TRY(consistency_mean_gradients(&consistency, workers, &gradients));
    TRY(outer_open(&outer, o, workers));
    TRY(training_length_of(o, epoch_samples,
                           (double)options_integer(o, "batch") * outer.steps * gradients, out));
done:
    return result;
}

static void bound(void *context, const char *endpoint)
{
    const struct role_process *p = context;
    unsigned servers = servers_of(p->settings);
    const unsigned long long hash = config_hash_number(p->settings);
    if (status_pipe_exists()) {
        struct status_message m = {.kind = STATUS_BOUND, .role = ROLE_SERVER, .index = p->index};
        snprintf(m.text, sizeof m.text, "%s", endpoint);
        status_pipe_send(&m);
        return;
    }
    if (servers > 1) {
        log_info(
            "listening on %s as server %u of %u; start the other servers (gradlag server server=1 "
            "…) and each worker (gradlag worker worker=0 …) with the same settings, "
            "run_token=%016llx and endpoint=…, the endpoints of all servers; settings hash %016llx",
            endpoint, p->index, servers, (unsigned long long)p->token, hash);
        return;
    }
    const char *keys = options_text(p->settings, "curve");
    int64_t workers = options_integer(p->settings, "workers");
    log_info("listening on %s for %lld worker%s; start each with the same settings: gradlag worker "
             "endpoint=%s run_token=%016llx%s%s worker=N …%s; settings hash %016llx",
             endpoint, (long long)workers, plural((uint64_t)workers), endpoint,
             (unsigned long long)p->token,
             keys[0] != '\0'                                ? " curve="
             : options_flag(p->settings, "trusted_network") ? " trusted_network=yes"
                                                            : "",
             keys,
             strncmp(endpoint, "tcp://0.0.0.0:", 14) == 0
                 ? " (replace 0.0.0.0 by an address of this host)"
             : strncmp(endpoint, "tcp://[::]:", 11) == 0
                 ? " (replace :: by an address of this host)"
                 : "",
             hash);
}

/* The endpoints of this server and of server 0. */
struct server_endpoints {
    char own[SERVERS_ENDPOINT_BYTES], leader[SERVERS_ENDPOINT_BYTES];
};

static status find_endpoints(const struct role_process *p, struct server_endpoints *out)
{
    status result = OK;
    const char *endpoint = options_text(p->settings, "endpoint");
    unsigned servers = servers_of(p->settings);
    if (p->index >= servers) {
        FAIL(ERROR_USAGE, "server=%u, but servers=%u: servers are numbered from 0 to %u", p->index,
             servers, servers - 1);
    }
    if (endpoint[0] == '\0' && servers > 1) {
        FAIL(ERROR_USAGE,
             "with servers=%u `gradlag server` needs endpoint=…, the endpoints of all servers "
             "separated by commas, server 0 first",
             servers);
    }
    endpoint = endpoint[0] == '\0' ? "tcp://127.0.0.1:*" : endpoint;
    TRY(servers_endpoint(endpoint, servers, p->index, out->own));
    TRY(servers_endpoint(endpoint, servers, 0, out->leader));
done:
    return result;
}

static bool worker_ended(void *context, unsigned index)
{
    (void)context;
    return status_pipe_worker_ended(index);
}

static void worker_lost(void *context, unsigned index)
{
    (void)context;
    status_pipe_send(
        &(struct status_message){.kind = STATUS_LOST, .role = ROLE_WORKER, .index = index});
}

/* A follower has no recorder and evaluates nothing; it needs the model only for initial parameters.
 */
static status open_model(struct role_process *p)
{
    status result = OK;
    struct worker_options evaluation = {.settings = p->settings, .count = 1, .stop = p->hooks.stop};
    TRY(role_token(p->settings, p->index == 0, &p->token));
    if (p->index == 0)
        TRY(role_open_recorder(p));
    else
        p->hooks.context = p;
    p->hooks.worker_ended = status_pipe_exists() ? worker_ended : NULL;
    p->hooks.lost = status_pipe_exists() ? worker_lost : NULL;
    TRY(worker_open(&p->worker, &evaluation));
done:
    return result;
}

/* Reads the initial parameters (version 0), or the checkpoint of key resume. */
static status open_start(const struct role_process *p, struct run_checkpoint_file *out,
                         size_t count)
{
    status result = OK;
    const char *resume = options_text(p->settings, "resume");
    if (resume[0] == '\0') {
        TRY(memory_new(&out->parameters, count, sizeof *out->parameters, "initial parameters"));
        TRY(worker_initial_parameters(p->worker, out->parameters, count));
        return OK;
    }
    TRY(run_checkpoint_open(out, resume, p->settings, p->worker));
    if (p->index == 0)
        TRY(resume_record(p, resume, &out->state));
done:
    return result;
}

/* A follower closes its worker, which owns the layers, to free the dataset. */
static status copy_layers(struct optimizer_layer **copy, struct optimizer_layers *layers)
{
    status result = OK;
    TRY(memory_new(copy, layers->count, sizeof **copy, "a model's layers"));
    memcpy(*copy, layers->at, layers->count * sizeof **copy);
    layers->at = *copy;
done:
    return result;
}

/* On one host each further server adds messages and wake-ups, which pay off only for long vectors
 * (docs/benchmarks.md, "Several servers"). Servers on several hosts are started by hand and get no
 * hint. */
static void hint_at_fewer_servers(const struct role_process *p, size_t parameters)
{
    enum { WORTH_SERVERS = 2000000 };
    const unsigned servers = servers_of(p->settings);
    if (p->index == 0 && servers > 1 && parameters < WORTH_SERVERS && status_pipe_exists()) {
        log_info("servers=%u on one host is slower than servers=1 for a model of %zu parameters "
                 "(below %d); set servers=1 unless the run studies several servers",
                 servers, parameters, WORTH_SERVERS);
    }
}

static status serve(struct role_process *p, struct run_checkpoint_file *start,
                    struct training_outcome *out)
{
    status result = OK;
    const options *o = p->settings;
    struct server_endpoints endpoints;
    struct optimizer_layer *layers = NULL;
    TRY(find_endpoints(p, &endpoints));
    if (options_flag(o, "trusted_network"))
        text_add(&p->network, "unencrypted (trusted_network=yes)");
    else if (options_text(o, "curve")[0] != '\0')
        text_add(&p->network, "encrypted (curve)");
    TRY(open_files_allow(workers_max_of(o) + servers_of(o), servers_of(o)));
    TRY(open_model(p));
    size_t count = worker_parameter_count(p->worker);
    uint64_t epoch = worker_epoch_samples(p->worker);
    hint_at_fewer_servers(p, count);
    TRY(open_start(p, start, count));
    struct ps_server_options server = {
        .settings = o,
        .workers = (unsigned)options_integer(o, "workers"),
        .workers_max = workers_max_of(o),
        .server = p->index,
        .leader = endpoints.leader,
        .count = count,
        .layers = worker_layers(p->worker),
        .initial = start->parameters,
        .start = start->state.parameters != NULL ? &start->state : NULL,
        .epoch_samples = epoch,
        .evaluates_on_cores = strcmp(options_text(o, "device"), "cpu") == 0 &&
                              strcmp(options_text(o, "model"), "external") != 0,
        .run_token = p->token,
        .settings_hash = config_hash_number(o),
        .endpoint = endpoints.own,
        .bound = bound,
        .hooks = p->hooks,
        .recorder = p->recorder,
    };
    TRY(role_server_length(o, epoch, &server.length));
    if (p->index == 0)
        role_warn_of_warmup(o, server.length.total_samples, epoch);
    if (p->index > 0) {
        TRY(copy_layers(&layers, &server.layers));
        worker_close(&p->worker);
    }
    TRY(ps_server_run(&server, out));
done:
    memory_free(layers);
    return result;
}

const char command_server_help[] =
    "gradlag server key=value…\n\n"
    "Starts one parameter server. It prints its endpoint and the settings that workers need, and\n"
    "ends with the run. `gradlag run` starts server and workers itself.\n\n"
    "  gradlag server workers=2 endpoint=tcp://127.0.0.1:*\n\n"
    "  server=N        with servers=2 and more: the number of this one, from 0\n"
    "  run_token=HEX   the secret of the run, or in GRADLAG_RUN_TOKEN; without it the server\n"
    "                  makes one and prints it\n\n"
    "`gradlag list keys` describes all other keys.\n";

status command_server(int argc, char **argv)
{
    status result = OK;
    struct settings read = {0};
    struct role_process p = {0};
    struct training_outcome outcome = {0};
    struct run_checkpoint_file start = {0};
    unsigned number = 0;
    TRY(settings_read_arguments(&read, argc, argv));
    TRY(role_take_number(&read, "server", SERVERS_MAX, &number));
    TRY(role_begin(&p, ROLE_SERVER, number, &read));
    TRY(serve(&p, &start, &outcome));
done:
    result = role_end(&p, result, &outcome);
    run_checkpoint_close(&start);
    settings_free(&read);
    return result;
}
