/*
 * trainer.c — one asynchronous worker, whole. Beside it: sync/trainer.c, which exchanges gradients
 * with its peers where this one pushes to the server, and applies the update itself.
 */
#include "ps/trainer.h"

#include "ps/client.h"

static bool stop_wanted(const struct ps_trainer_options *o)
{
    return o->stop != NULL && *o->stop != 0;
}

status ps_trainer_run(const struct ps_trainer_options *o)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release
        at; /* what the server let us go on with: θ, its version, the batch to compute */
    struct step_stats step;

    TRY(ps_client_open(&client,
                       &(struct ps_client_options){.settings = o->settings,
                                                   .endpoint = o->endpoint,
                                                   .run_token = o->run_token,
                                                   .settings_hash = o->settings_hash,
                                                   .worker = o->index,
                                                   .count = worker_parameter_count(o->worker)},
                       &at));
    worker_hold_memory(o->worker);
    while (!at.finished) {
        if (stop_wanted(o))
            FAIL(STOPPED, "worker %u was told to stop", o->index);
        TRY(worker_gradient(o->worker, at.parameters, at.batch, at.gradient, &step));
        struct ps_push push = {.loss = step.loss,
                               .samples = step.samples,
                               .compute_us = (double)(step.data_ns + step.compute_ns) * 1e-3};
        TRY(ps_client_push_pull(client, &push, &at));
    }
done:
    if (result != OK)
        ps_client_leave(client, result, error_message());
    worker_forget_memory(o->worker); /* what it computed in is the client's */
    ps_client_close(&client);
    return result;
}
