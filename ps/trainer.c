/*
 * trainer.c — the loop of one asynchronous worker. Compare sync/trainer.c: there a rank exchanges
 * gradients with its peers and applies the update itself.
 */
#include "ps/trainer.h"

#include "base/memory.h"
#include "ps/client.h"
#include "ps/local_steps.h"

static status gradient(void *context, const float *parameters, uint64_t batch, float *gradient,
                       struct step_stats *stats)
{
    return worker_gradient(context, parameters, batch, gradient, stats);
}

static status open_local(const struct ps_trainer_options *o, struct local_steps_plan *plan,
                         struct local_steps *local, float **scratch)
{
    status result = OK;
    TRY(local_steps_plan_open(plan, o->settings, o->workers, worker_parameter_count(o->worker),
                              o->total_samples, worker_epoch_samples(o->worker)));
    TRY(local_steps_open(local, plan));
    struct optimizer_layers layers = worker_layers(o->worker);
    TRY(local_steps_compress(local, o->settings, &layers, worker_epoch_samples(o->worker)));
    TRY(memory_new(scratch, local_steps_scratch(plan), sizeof **scratch, "local steps"));
done:
    return result;
}

status ps_trainer_run(const struct ps_trainer_options *o)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at; /* θ, its version, and the batch to compute */
    struct local_steps_plan plan;
    struct local_steps local = {0};
    float *scratch = NULL;

    *o->joined = false;
    *o->dismissal = PS_NOT_DISMISSED;
    TRY(open_local(o, &plan, &local, &scratch));
    TRY(ps_client_open(&client,
                       &(struct ps_client_options){.settings = o->settings,
                                                   .endpoint = o->endpoint,
                                                   .run_token = o->run_token,
                                                   .settings_hash = o->settings_hash,
                                                   .worker = o->index,
                                                   .count = worker_parameter_count(o->worker),
                                                   .layers = worker_layers(o->worker),
                                                   .stop = o->stop,
                                                   .dismissal = o->dismissal},
                       &at));
    *o->joined = true;
    worker_hold_memory(o->worker);
    while (!at.finished) {
        struct local_steps_push steps = {.parameters = at.parameters,
                                         .samples = at.samples,
                                         .number = at.batch,
                                         .difference = at.gradient,
                                         .scratch = scratch};
        TRY(local_steps_run(&local, gradient, o->worker, &steps));
        const struct step_stats *step = &steps.stats;
        struct ps_push push = {.codes = steps.coded ? &local.codes : NULL,
                               .loss = step->loss,
                               .samples = step->samples,
                               .compute_us = (double)(step->data_ns + step->compute_ns) * 1e-3,
                               .data_us = (double)step->data_ns * 1e-3,
                               .forward_us = (double)step->forward_ns * 1e-3,
                               .backward_us = (double)step->backward_ns * 1e-3};
        TRY(ps_client_push_pull(client, &push, &at));
    }
done:
    if (client != NULL)
        *o->dismissal = ps_client_dismissal(client);
    if (result != OK)
        ps_client_leave(client, result, error_message());
    worker_forget_memory(o->worker); /* before the client unmaps it */
    ps_client_close(&client);
    local_steps_close(&local);
    memory_free(scratch);
    return result;
}
