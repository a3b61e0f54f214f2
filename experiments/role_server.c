#include "experiments/command.h"

#include "experiments/role.h"
#include "ps/consistency.h"
#include "ps/outer.h"
#include "ps/server.h"

#include <stdio.h>
#include <string.h>

/* An update is made of as many gradients as the policy says while nobody is lost or dropped, and
 * each of as many batches as a worker takes steps. */
status role_server_length(const options *o, uint64_t epoch_samples, struct training_length *out)
{
    status result = OK;
    struct consistency consistency;
    struct outer outer;
    unsigned gradients, workers = (unsigned)options_integer(o, "workers");
    TRY(consistency_open(&consistency, o));
    TRY(consistency_per_update(&consistency, workers, &gradients));
    TRY(outer_open(&outer, o, workers));
    TRY(training_length_of(o, epoch_samples,
                           (uint64_t)options_integer(o, "batch") * outer.steps * gradients, out));
done:
    return result;
}

static void bound(void *context, const char *endpoint)
{
    const struct role_process *p = context;
    if (mailbox_exists()) {
        struct mail m = {.kind = MAIL_BOUND, .role = ROLE_SERVER};
        snprintf(m.text, sizeof m.text, "%s", endpoint);
        mailbox_send(&m);
        return;
    }
    const char *keys = options_text(p->settings, "curve");
    log_info("listening on %s for %lld workers; start each with the same settings: gradlag worker "
             "endpoint=%s run_token=%016llx%s%s worker=N …%s",
             endpoint, (long long)options_integer(p->settings, "workers"), endpoint,
             (unsigned long long)p->token, keys[0] != '\0' ? " curve=" : "", keys,
             strncmp(endpoint, "tcp://0.0.0.0:", 14) == 0 ? " (0.0.0.0: any address of this host)"
                                                          : "");
}

static status serve(struct role_process *p, float **initial, struct training_outcome *out)
{
    status result = OK;
    const options *o = p->settings;
    const char *endpoint = options_text(o, "endpoint");
    struct worker_options evaluation = {.settings = o, .index = 0, .count = 1};
    TRY(role_token(o, true, &p->token));
    TRY(role_open_recorder(p));
    TRY(worker_open(&p->worker, &evaluation));
    size_t count = worker_parameter_count(p->worker);
    uint64_t epoch = worker_epoch_samples(p->worker);
    TRY(memory_new(initial, count, sizeof **initial, "initial parameters"));
    TRY(worker_initial_parameters(p->worker, *initial, count));
    struct ps_server_options server = {
        .settings = o,
        .workers = (unsigned)options_integer(o, "workers"),
        .count = count,
        .layers = worker_layers(p->worker),
        .initial = *initial,
        .epoch_samples = epoch,
        .run_token = p->token,
        .settings_hash = config_hash_number(o),
        .endpoint = endpoint[0] == '\0' ? "tcp://127.0.0.1:*" : endpoint,
        .bound = bound,
        .hooks = p->hooks,
        .recorder = p->recorder,
    };
    TRY(role_server_length(o, epoch, &server.length));
    TRY(ps_server_run(&server, out));
done:
    return result;
}

status command_server(int argc, char **argv)
{
    status result = OK;
    struct settings read = {0};
    struct role_process p = {0};
    struct training_outcome outcome = {0};
    float *initial = NULL;
    TRY(settings_read_arguments(&read, argc, argv));
    TRY(role_begin(&p, ROLE_SERVER, 0, &read));
    TRY(serve(&p, &initial, &outcome));
done:
    result = role_end(&p, result, &outcome);
    memory_free(initial);
    settings_free(&read);
    return result;
}
