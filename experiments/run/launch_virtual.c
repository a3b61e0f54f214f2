/*
 * launch_virtual.c — a run with engine=virtual, in this process: a thread pool computes gradients
 * on a simulated clock.
 */
#include "base/clock.h"
#include "experiments/run/launch_internal.h"

#include "experiments/run/config_from_row.h"
#include "experiments/run/role.h"
#include "ps/core/late_workers.h"
#include "ps/virtual/virtual.h"
#include "results/query/push_reader.h"
#include "sync/trainer.h"

#include <stdlib.h>
#include <string.h>

/* The number of batches in each recorded gradient. */
static status batches_of(const struct recorded_run *run, double *out)
{
    status result = OK;
    struct settings all = {0};
    TRY(config_from_row_settings(&all, run->config, "pace.run"));
    const char *steps = settings_find(&all, "outer.steps");
    *out = steps != NULL ? strtod(steps, NULL) : 1;
done:
    settings_free(&all);
    return result;
}

/* For pace=fit: reads the recorded steps to draw from. */
static status read_steps_to_fit(pace *p, const options *o)
{
    status result = OK;
    struct recorded_run run = {0};
    struct pace_table table = {0};
    double batches;
    if (strcmp(options_text(o, "pace"), "fit") != 0)
        return OK;
    if (options_text(o, "pace.run")[0] == '\0') {
        FAIL(ERROR_USAGE, "pace=fit needs a recorded run to draw steps from; set pace.run= to its "
                          "number (`gradlag query runs` lists runs)");
    }
    TRY(recorded_run_read(&run, options_text(o, "results"), options_value(o, "pace.run")));
    TRY(batches_of(&run, &batches));
    for (size_t i = 0; i < run.push_count; i++) {
        const struct push_record *push = &run.pushes[i].record;
        if (push->server == 0) /* other servers' rows repeat these steps */
            TRY(pace_table_add(&table, push->worker, i, push->compute_us / batches));
    }
    TRY(pace_table_finish(&table));
    pace_give(p, &table);
done:
    pace_table_free(&table);
    recorded_run_free(&run);
    return result;
}

static status train_ranks(struct role_process *p, gradient_pool *pool, const pace *steps,
                          struct training_outcome *out)
{
    status result = OK;
    const options *o = p->settings;
    struct virtual_ranks ranks = {.count = (unsigned)options_integer(o, "workers"), .pool = pool};
    struct sync_trainer_options trainer = {.settings = o,
                                           .worker = p->worker,
                                           .virtual = &ranks,
                                           .hooks = p->hooks,
                                           .recorder = p->recorder};
    struct training_length length;
    const uint64_t epoch = worker_epoch_samples(p->worker);
    TRY(training_length_of(o, epoch, (double)options_integer(o, "batch") * ranks.count, &length));
    role_warn_of_warmup(o, length.total_samples, epoch);
    cluster_open(&ranks.cluster, o, steps);
    TRY(communicator_open_alone(&trainer.communicator, worker_parameter_count(p->worker)));
    TRY(sync_trainer_run(&trainer, out));
done:
    communicator_close(&trainer.communicator);
    return result;
}

static status train(struct role_process *p, gradient_pool *pool, const pace *steps,
                    struct training_outcome *out)
{
    status result = OK;
    const options *o = p->settings;
    unsigned workers = (unsigned)options_integer(o, "workers");
    if (strcmp(options_text(o, "mode"), "async") != 0)
        return train_ranks(p, pool, steps, out);
    struct virtual_options cluster = {.settings = o,
                                      .pool = pool,
                                      .pace = steps,
                                      .workers = workers,
                                      .hooks = p->hooks,
                                      .recorder = p->recorder};
    const uint64_t epoch = worker_epoch_samples(gradient_pool_own(pool));
    TRY(role_server_length(o, epoch, &cluster.length));
    role_warn_of_warmup(o, cluster.length.total_samples, epoch);
    TRY(virtual_run(&cluster, out));
done:
    return result;
}

/* Records the cost of the simulation itself. "the rest" is evaluations, updates and the engine. It
 * is separate only if gradient_pool_computing_s() counts the whole time of gradients. */
static void note_cost(const struct role_process *p, gradient_pool *pool, double began_s,
                      double cpu_s, const struct training_outcome *out)
{
    struct text detail = {0};
    const double all_s = clock_process_cpu_seconds() - cpu_s;
    const double computing_s = gradient_pool_computing_s(pool);
    const unsigned threads = gradient_pool_threads(pool);
    text_add(&detail, "%.3f s on %u thread%s for %.6f virtual seconds; processor time: ",
             clock_seconds() - began_s, threads, threads == 1 ? "" : "s", out->train_seconds);
    if (options_integer(p->settings, "threads") == 1 &&
        strcmp(options_text(p->settings, "model"), "external") != 0)
        text_add(&detail, "%.3f s gradients, %.3f s the rest", computing_s, all_s - computing_s);
    else
        text_add(&detail, "%.3f s", all_s);
    recorder_event(p->recorder, out->train_seconds, SEVERITY_INFO, "simulated", -1, detail.at);
    text_free(&detail);
}

/* Records what the simulation leaves out. It does so at the end, so that `gradlag show` prints it
 * even after thousands of other events. */
static void note_not_modelled(const struct role_process *p, const struct training_outcome *out)
{
    struct text names = {0};
    cluster_not_modelled(p->settings, &names);
    recorder_event(p->recorder, out->train_seconds, SEVERITY_INFO, "not_modelled", -1, names.at);
    text_free(&names);
}

status launch_virtual(const struct launch_options *o, int64_t run_id, struct progress *progress)
{
    status result = OK;
    struct role_process p = {.role = ROLE_SERVER, .progress = *progress, .run_id = run_id};
    struct training_outcome outcome = {0};
    gradient_pool *pool = NULL;
    pace *steps = NULL;
    /* Discards const: the role only reads these settings, and they are not closed here. */
    p.settings = (options *)(uintptr_t)o->settings;
    p.hooks.stop = launch_stop_flag();
    p.request_stop = launch_request_stop;
    TRY(role_open_recorder(&p));
    TRY(pace_open(&steps, o->settings, 0));
    TRY(read_steps_to_fit(steps, o->settings));
    TRY(gradient_pool_open(&pool, o->settings, (unsigned)options_integer(o->settings, "workers"),
                           workers_max_of(o->settings),
                           (unsigned)options_integer(o->settings, "virtual.threads"),
                           p.hooks.stop));
    p.worker = gradient_pool_own(pool);
    worker_evaluate_on(p.worker, gradient_pool_threads(pool));
    double began_s = clock_seconds(), cpu_s = clock_process_cpu_seconds();
    result = train(&p, pool, steps, &outcome);
    note_cost(&p, pool, began_s, cpu_s, &outcome);
    note_not_modelled(&p, &outcome);
done:
    progress_clear(&p.progress);
    if (p.recorder != NULL && p.run_id > 0)
        result = role_finish_row(&p, result, &outcome);
    recorder_close(&p.recorder);
    gradient_pool_close(&pool);
    pace_close(&steps);
    return result;
}
