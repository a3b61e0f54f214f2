#include "experiments/command.h"

#include "base/clock.h"
#include "base/log.h"
#include "experiments/run/child_process.h"
#include "experiments/run/role.h"
#include "ps/core/late_workers.h"
#include "ps/trainer.h"

enum { RESTARTS_MAX = 1000 }; /* as in keys.def */

/* Key restarts. Only a worker that was started by hand or by a launcher has this key: `gradlag run`
 * restarts workers itself. After the loss of its server the worker tries to join once a second,
 * until timeout_s has passed. The new server decides at which batch the worker goes on. A refused
 * worker does the same: its server may be a new one, on another host, or may have evicted it. */
static status train(const struct role_process *p, const struct ps_trainer_options *trainer,
                    unsigned most)
{
    const uint64_t second_ns = 1000000000;
    const uint64_t limit_ns = (uint64_t)(options_real(p->settings, "timeout_s") * 1e9);
    unsigned restarts = 0;
    uint64_t lost_ns = 0;
    for (;;) {
        const status result = ps_trainer_run(trainer);
        const uint64_t now = clock_ns();
        if (result != ERROR_PEER ||
            (*trainer->joined ? restarts == most : lost_ns == 0 || now - lost_ns >= limit_ns))
            return result;
        if (*trainer->joined) {
            lost_ns = now;
            log_warning("%s; worker %u joins again if a server answers within %s s (timeout_s; "
                        "restart %u of %u)",
                        error_message(), p->index, options_value(p->settings, "timeout_s"),
                        ++restarts, most);
        }
        clock_sleep_until_ns(now + second_ns);
    }
}

static status work(struct role_process *p, unsigned restarts)
{
    status result = OK;
    const options *o = p->settings;
    const unsigned count = (unsigned)options_integer(o, "workers"), most = workers_max_of(o);
    if (p->index >= most) {
        FAIL(ERROR_USAGE, "worker=%u, but %s=%u: workers are numbered from 0 to %u", p->index,
             most > count ? "workers.max" : "workers", most, most - 1);
    }
    if (options_text(o, "endpoint")[0] == '\0')
        FAIL(ERROR_USAGE, "`gradlag worker` needs endpoint=…, which `gradlag server` prints");
    TRY(role_token(o, false, &p->token));
    TRY(open_files_allow(1 + servers_of(o), servers_of(o)));
    struct worker_options shard = {
        .settings = o, .index = p->index, .count = count, .stop = p->hooks.stop};
    struct training_length length;
    bool joined;
    TRY(worker_open(&p->worker, &shard));
    TRY(role_server_length(o, worker_epoch_samples(p->worker), &length));
    struct ps_trainer_options trainer = {
        .settings = o,
        .worker = p->worker,
        .index = p->index,
        .workers = count,
        .total_samples = length.total_samples,
        .endpoint = options_text(o, "endpoint"),
        .run_token = p->token,
        .settings_hash = config_hash_number(o),
        .stop = p->hooks.stop,
        .dismissal = &p->dismissal,
        .joined = &joined,
    };
    if (!status_pipe_await_gate(LOADING_LIMIT_S, p->hooks.stop))
        FAIL(ERROR_PEER,
             "the server did not listen within %d s: it hangs, or generating the "
             "dataset takes too long",
             LOADING_LIMIT_S);
    TRY(train(p, &trainer, restarts));
done:
    return result;
}

const char command_worker_help[] =
    "gradlag worker endpoint=… worker=N …\n\n"
    "Starts one asynchronous worker. Give it the settings of its server, the endpoint and the\n"
    "run_token that the server printed, and the worker's number from 0 (under mpirun or srun the\n"
    "default is its rank). With restarts=N it waits for a restarted server up to N times.\n\n"
    "  gradlag worker endpoint=tcp://127.0.0.1:5555 run_token=… worker=0 key=value…\n\n"
    "  run_token=HEX   the secret of the run, or in GRADLAG_RUN_TOKEN\n"
    "  worker.first=N  under mpirun or srun: the number of rank 0; rank r is worker N + r\n\n"
    "`gradlag list keys` describes all other keys.\n";

status command_worker(int argc, char **argv)
{
    status result = OK;
    struct settings read = {0};
    struct role_process p = {.role = ROLE_WORKER};
    struct training_outcome none = {0};
    unsigned index = 0, restarts = 0;
    TRY(settings_read_arguments(&read, argc, argv));
    TRY(role_worker_index(&read, &index));
    /* Remove `restarts` before composition, which would require checkpoint=; only the server has
     * that. */
    TRY(role_take_number(&read, "restarts", RESTARTS_MAX + 1, &restarts));
    role_default_workers(&read);
    TRY(role_begin(&p, ROLE_WORKER, index, &read));
    TRY(work(&p, restarts));
done:
    result = role_end(&p, result, &none);
    settings_free(&read);
    return result;
}
