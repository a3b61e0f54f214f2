/* config_effect.c — finds settings without effect, and settings that contradict each other. */
#include "experiments/config/config_effect.h"

#include "experiments/config/config.h"
#include "experiments/config/keys.h"
#include "experiments/config/precision_trial.h"
#include "ps/rules/consistency/consistency.h"
#include "ps/rules/correction/correction.h"
#include "ps/core/slices.h"
#include "ps/rules/damping/damping.h"
#include "ps/local_steps.h"
#include "ps/rules/outer/outer.h"
#include "ps/core/late_workers.h"
#include "ps/server/resume.h"
#include "sync/compression/compression_exchange.h"
#include "sync/pipeline/pipeline.h"
#include "sync/trainer.h"
#include "worker/data/sampler.h"
#include "worker/model/model.h"
#include "worker/optimizer/optimizer.h"
#include "worker/pace/cluster.h"
#include "worker/pace/pace.h"
#include "worker/training.h"

#include <stdlib.h>
#include <string.h>

#define HEX_DIGITS "0123456789abcdefABCDEF"

/* The key was set, but keys.def limits it to another mode or engine. */
static bool is_in_wrong_mode(const options *o, const char *key, struct ineffective *out)
{
    const char *mode = key_mode(key_where_of(key)), *engine = key_engine(key_where_of(key));
    if (options_is_initial(o, key))
        return false;
    if (mode != NULL && strcmp(mode, options_text(o, "mode")) != 0) {
        *out = (struct ineffective){.key = key, .with = "mode", .instead = mode};
        return true;
    }
    bool real = strcmp(options_text(o, "engine"), "real") == 0;
    if (engine != NULL && real != (strcmp(engine, "real") == 0)) {
        *out = (struct ineffective){.key = key, .with = "engine", .instead = engine};
        return true;
    }
    return false;
}

static const struct damping_rule *chosen_damping(const options *o)
{
    return (const struct damping_rule *)registry_find(&damping_registry,
                                                      options_text(o, "damping"));
}

/* Keys that another key, with its initial value, leaves without a subject: of local SGD, batch
 * growth, warm-up, weight decay, checkpoints, late workers and several servers. */
static bool recipe_without_effect(const options *o, struct ineffective *out)
{
    static const struct {
        const char *key, *with, *initial, *instead;
    } of[] = {
        {"batch_growth_max", "decay", "rate", "batch"},
        {"local_momentum", "local_steps", "1", "8"},
        {"local_momentum", "optimizer", "sgd", "one with a state, such as momentum"},
        {"crash.down_s", "crash.mtbf_s", "0", "the mean time until a crash"},
        {"post_local", "local_steps", "1", "8"},
        {"post_local_epoch", "post_local", "none", "epoch"},
        {"post_local_epoch", "post_local", "decay", "epoch"},
        {"delay_correction", "delay", "0", "1"},
        {"delay_annealing", "delay", "0", "4"},
        {"delay_annealing", "delay", "1", "4"},
        {"weight_decay_of", "weight_decay", "0", "0.1"},
        {"weight_decay_of", "optimizer", "lars", "another, because lars excludes vectors itself"},
        {"warmup", "lr_scaling", "none", "linear or sqrt"},
        {"decay", "schedule", "constant", "one that falls, such as linear"},
        {"checkpoint_every", "checkpoint", "", "the path of a .safetensors file"},
        {"join.after_s", "workers.max", "0", "more than workers"},
        {"read", "servers", "1", "2 or more"},
    };
    if (options_is(o, "post_local", "decay") && options_is(o, "schedule", "constant")) {
        *out = (struct ineffective){"post_local", "schedule", "one that falls, such as linear"};
        return true;
    }
    bool local_sgd = options_integer(o, "local_steps") > 1 && options_is_initial(o, "post_local");
    /* Ranks exchange parameters, not gradients. */
    if (local_sgd && !options_is_initial(o, "compression")) {
        *out = (struct ineffective){"compression", "local_steps", "1"};
        return true;
    }
    const char *warmup = options_integer(o, "warmup_updates") > 0 ? "warmup_updates"
                         : options_real(o, "warmup_seconds") > 0  ? "warmup_seconds"
                                                                  : NULL;
    const char *length = warmup == NULL ? NULL : warmup + strlen("warmup_");
    if (length != NULL && options_is(o, length, "0")) {
        *out = (struct ineffective){warmup, length, "a number"};
        return true;
    }
    if (warmup != NULL && !options_is_initial(o, "warmup_epochs")) {
        *out = (struct ineffective){"warmup_epochs", warmup, "0"};
        return true;
    }
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        if (!options_is_initial(o, of[i].key) && options_is(o, of[i].with, of[i].initial)) {
            *out = (struct ineffective){of[i].key, of[i].with, of[i].instead};
            return true;
        }
    }
    return false;
}

/* Only asynchronous workers and real ranks compress gradients. */
static bool compression_without_effect(const options *o, struct ineffective *out)
{
    if (options_is_initial(o, "compression") || strcmp(options_text(o, "mode"), "async") == 0)
        return false;
    if (strcmp(options_text(o, "mode"), "pipeline") == 0) {
        *out = (struct ineffective){"compression", "mode", "sync or async"};
        return true;
    }
    *out = (struct ineffective){"compression", "engine", "real"};
    return strcmp(options_text(o, "engine"), "real") != 0;
}

/* Keys of a slow worker that the run never has. With pace=slow, -1 is every worker. */
static bool slow_worker_without_effect(const options *o, struct ineffective *out)
{
    if (!options_declared(o, "pace.factor"))
        return false;
    const bool slow = strcmp(options_text(o, "pace"), "slow") == 0;
    const int64_t first = options_integer(o, "pace.worker");
    const bool never_comes =
        first >= options_integer(o, "workers") && first >= options_integer(o, "workers.max");
    if (slow || !options_is_initial(o, "pace.factor")) {
        *out = (struct ineffective){slow ? "pace" : "pace.factor", "pace.worker",
                                    "0 or another number below workers"};
        return never_comes || (first < 0 && !slow);
    }
    *out = (struct ineffective){"pace.worker", "workers", "a larger number"};
    return never_comes;
}

/* Keys that have no effect with the chosen pace. */
static bool pace_without_effect(const options *o, struct ineffective *out)
{
    bool one_is_slow = options_declared(o, "pace.factor") && options_integer(o, "pace.worker") >= 0;
    if (slow_worker_without_effect(o, out))
        return true;
    if (!options_is_initial(o, "pace.slow_workers") && !one_is_slow) {
        *out = options_declared(o, "pace.factor")
                   ? (struct ineffective){"pace.slow_workers", "pace.worker", "0"}
                   : (struct ineffective){"pace.slow_workers", "pace", "slow"};
        return true;
    }
    if (!options_is_initial(o, "pace.worker_cv") && !options_declared(o, "pace.mean_ms")) {
        *out = (struct ineffective){"pace.worker_cv", "pace", "gamma"};
        return true;
    }
    return false;
}

/* Keys of a computation in this process, if another program computes the model. precision=auto is
 * allowed: it chooses fp32. */
static bool external_without_effect(const options *o, struct ineffective *out)
{
    static const char *const idle[] = {"device",  "precision",       "dataset.path",
                                       "augment", "label_smoothing", "batch_norm"};
    if (!model_is_external(o))
        return false;
    for (size_t i = 0; i < COUNT_OF(idle); i++) {
        const bool asks = strcmp(idle[i], "precision") == 0 && precision_is_auto(o);
        if (!options_is_initial(o, idle[i]) && !asks) {
            *out = (struct ineffective){idle[i], "model", "lenet or another built-in model"};
            return true;
        }
    }
    return false;
}

static const struct dataset_kind *chosen_dataset(const options *o)
{
    return (const struct dataset_kind *)registry_find(&dataset_registry,
                                                      options_text(o, "dataset"));
}

static bool dataset_without_effect(const options *o, struct ineffective *out)
{
    const struct dataset_kind *data = chosen_dataset(o);
    if ((data->tokens || data->numeric) && !options_is_initial(o, "augment")) {
        *out = (struct ineffective){"augment", "dataset", "cifar10 or other images"};
        return true;
    }
    if (data->numeric && !options_is_initial(o, "label_smoothing")) {
        *out = (struct ineffective){"label_smoothing", "dataset", "cifar10 or other classes"};
        return true;
    }
    if (data->remedy == NULL && !options_is_initial(o, "dataset.path")) {
        *out = (struct ineffective){"dataset.path", "dataset", "text, cifar10 or fashion-mnist"};
        return true;
    }
    return false;
}

bool config_any_ineffective(const options *o, struct ineffective *out)
{
    const struct consistency_policy *policy = (const struct consistency_policy *)registry_find(
        &consistency_registry, options_text(o, "consistency"));
    const char *const of_rows = options_is_initial(o, "trace") ? "probe_every" : "trace";
    if (!options_is_initial(o, of_rows) && strcmp(options_text(o, "record"), "all") != 0) {
        *out =
            (struct ineffective){of_rows, "record", "all, because its results are in these rows"};
        return true;
    }
    for (const struct option *key = global_keys; key->key != NULL; key++)
        if (is_in_wrong_mode(o, key->key, out))
            return true;
    if (!options_is_initial(o, "network.interface") && options_is_initial(o, "hosts") &&
        strcmp(options_text(o, "mode"), "async") == 0) {
        *out = (struct ineffective){"network.interface", "hosts", "the hosts of the workers"};
        return true;
    }
    if (!options_is_initial(o, "restarts") && strcmp(options_text(o, "mode"), "pipeline") == 0) {
        *out = (struct ineffective){"restarts", "mode", "sync or async"};
        return true;
    }
    const bool revives = strcmp(options_text(o, "mode"), "async") == 0 &&
                         strcmp(options_text(o, "on_lost"), "continue") == 0;
    if (!options_is_initial(o, "restarts") && options_is_initial(o, "checkpoint") && !revives) {
        *out = (struct ineffective){"restarts", "checkpoint", "the path of a .safetensors file"};
        return true;
    }
    if (!options_is_initial(o, "resume") && strcmp(options_text(o, "mode"), "pipeline") == 0) {
        *out = (struct ineffective){
            "resume", "mode",
            "sync or async; or use initial= to start a new run from its parameters"};
        return true;
    }
    const struct optimizer_kind *its = (const struct optimizer_kind *)registry_find(
        &optimizer_registry, options_text(o, "optimizer"));
    if (!its->has_momentum && !options_is_initial(o, "momentum")) {
        *out = (struct ineffective){"momentum", "optimizer", "momentum or nesterov"};
        return true;
    }
    if (compression_without_effect(o, out) || recipe_without_effect(o, out) ||
        pace_without_effect(o, out) || external_without_effect(o, out) ||
        dataset_without_effect(o, out))
        return true;
    if (policy->never_stale && !options_is_initial(o, "correction")) {
        *out = (struct ineffective){"correction", "consistency", "asp"};
        return true;
    }
    if (policy->never_stale && !options_is_initial(o, "damping") &&
        !chosen_damping(o)->scales_fresh) {
        *out = (struct ineffective){"damping", "consistency",
                                    "asp, or damping=trim, which ignores staleness"};
        return true;
    }
    return false;
}

static const char *const lengths[] = {"epochs", "samples", "updates", "seconds"};

bool config_is_length(const char *key)
{
    bool any = false;
    for (size_t i = 0; i < COUNT_OF(lengths); i++)
        any = any || strcmp(key, lengths[i]) == 0;
    return any;
}

/* A list of values is not zero: it is an axis of a sweep. */
static bool is_zero(const struct node *n)
{
    return n->kind == NODE_SCALAR && strtod(n->text, NULL) == 0;
}

status config_check_lengths(const struct yaml_tree *d, const struct node *map)
{
    status result = OK;
    const char *before = NULL;
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        const struct node *n = node_child(map, lengths[i]);
        if (n == NULL || is_zero(n))
            continue;
        if (before != NULL) {
            FAIL(ERROR_USAGE, "%s:%u: %s and %s both set the length of training; keep one of them",
                 d->name, n->line, before, lengths[i]);
        }
        before = lengths[i];
    }
done:
    return result;
}

static status check_correction(const options *o)
{
    status result = OK;
    const struct consistency_policy *policy = (const struct consistency_policy *)registry_find(
        &consistency_registry, options_text(o, "consistency"));
    const struct correction_rule *correction = (const struct correction_rule *)registry_find(
        &correction_registry, options_text(o, "correction"));
    const struct compression_kind *coded = compression_of(o);
    TRY(correction_check(o));
    if (correction->own_momentum && coded != NULL && coded->has_momentum) {
        FAIL(ERROR_USAGE,
             "%s: correction=%s and compression=%s each have a momentum; set another compression",
             options_origin(o, "compression"), correction->about.name, coded->about.name);
    }
    if (policy->holds || policy->takes)
        TRY(correction_check_sums(correction));
done:
    return result;
}

static status check_balance(const options *o)
{
    status result = OK;
    const struct consistency_policy *policy = (const struct consistency_policy *)registry_find(
        &consistency_registry, options_text(o, "consistency"));
    if (policy->even && chosen_damping(o)->equalizes_workers) {
        FAIL(
            ERROR_USAGE,
            "%s: damping=%s compensates for fast workers that contribute more gradients; with "
            "consistency=%s all workers contribute equally, so it would favour slow workers; leave "
            "it out, or set consistency=asp",
            options_origin(o, "damping"), options_text(o, "damping"), policy->about.name);
    }
done:
    return result;
}

static status check_damped_optimizer(const options *o)
{
    status result = OK;
    const struct optimizer_kind *its = (const struct optimizer_kind *)registry_find(
        &optimizer_registry, options_text(o, "optimizer"));
    if (its->squares_scale && !options_is_initial(o, "damping")) {
        FAIL(ERROR_USAGE,
             "%s: the RMSprop part of optimizer=%s divides by the size of the gradients, which "
             "undoes most of damping=%s; set another optimizer, or leave damping out",
             options_origin(o, "damping"), options_text(o, "optimizer"),
             options_text(o, "damping"));
    }
done:
    return result;
}

static status check_endpoints(const options *o)
{
    status result = OK;
    const char *transport = options_text(o, "transport"), *endpoint = options_text(o, "endpoint");
    const char *token = options_text(o, "run_token");
    char first[SERVERS_ENDPOINT_BYTES];
    if (endpoint[0] != '\0' && servers_of(o) > 1)
        TRY(servers_endpoint(endpoint, servers_of(o), 0, first));
    if (strcmp(transport, "auto") != 0 && endpoint[0] != '\0' &&
        (strncmp(endpoint, transport, 3) != 0 || strncmp(endpoint + 3, "://", 3) != 0)) {
        FAIL(ERROR_USAGE, "%s: transport=%s contradicts endpoint=%s; set only one of them",
             options_origin(o, "transport"), transport, endpoint);
    }
    if (options_text(o, "curve")[0] != '\0' && options_flag(o, "trusted_network")) {
        FAIL(ERROR_USAGE,
             "%s: curve=%s encrypts messages, and trusted_network=yes sends them unencrypted; set "
             "only one of them",
             options_origin(o, "trusted_network"), options_text(o, "curve"));
    }
    if (token[0] != '\0' && (strlen(token) > 16 || token[strspn(token, HEX_DIGITS)] != '\0')) {
        FAIL(ERROR_USAGE,
             "%s: run_token=%s is not 1 to 16 hexadecimal digits; server and workers need the same "
             "token",
             options_origin(o, "run_token"), token);
    }
done:
    return result;
}

/* A virtual cluster needs a pace that defines the duration of a step; a trace needs its file. */
static status check_pace(const options *o)
{
    status result = OK;
    const struct pace_kind *kind =
        (const struct pace_kind *)registry_find(&pace_registry, options_text(o, "pace"));
    bool virtual = strcmp(options_text(o, "engine"), "virtual") == 0;
    if (virtual && kind->as_long) {
        FAIL(ERROR_USAGE,
             "engine=virtual needs the duration of a step, which pace=%s does not define; set "
             "pace=constant, gamma, lognormal, pareto, trace or fit",
             options_text(o, "pace"));
    }
    if (kind->reads_file && options_text(o, "pace.path")[0] == '\0') {
        FAIL(ERROR_USAGE,
             "%s: pace=%s reads step times from a file, but pace.path is not set; set "
             "pace.path=FILE (`gradlag replay RUN --export FILE` writes such a file)",
             options_origin(o, "pace"), options_text(o, "pace"));
    }
    if (!virtual && kind->is_given) {
        FAIL(ERROR_USAGE,
             "%s: pace=%s needs engine=virtual; for real processes export the recorded times with "
             "`gradlag replay RUN --export FILE` and set pace=trace pace.path=FILE",
             options_origin(o, "pace"), options_text(o, "pace"));
    }
done:
    return result;
}

/* The program of an external model brings its data. */
static status check_external(const options *o)
{
    status result = OK;
    const bool external = model_is_external(o);
    if (external != (strcmp(options_text(o, "dataset"), "external") == 0)) {
        FAIL(ERROR_USAGE,
             "%s: dataset=%s and model=%s do not fit together: a program brings its "
             "own data; %s",
             options_origin(o, "dataset"), options_text(o, "dataset"), options_text(o, "model"),
             external ? "leave dataset out" : "set model=external or another dataset");
    }
    if (external && options_text(o, "model.command")[0] == '\0') {
        FAIL(ERROR_USAGE,
             "%s: model=external requires the command that starts your program; set "
             "for example model.command='python3 my_model.py'",
             options_origin(o, "model"));
    }
    if (external && strcmp(options_text(o, "mode"), "pipeline") == 0) {
        FAIL(ERROR_USAGE,
             "%s: mode=pipeline cuts a model into stages and cannot cut one of "
             "another program (model=external); set mode=async or mode=sync",
             options_origin(o, "mode"));
    }
done:
    return result;
}

static status check_pipeline(const options *o)
{
    status result = OK;
    unsigned stages;
    uint32_t micro_batches;
    if (strcmp(options_text(o, "mode"), "pipeline") != 0)
        return OK;
    if (strcmp(options_text(o, "engine"), "virtual") == 0)
        FAIL(ERROR_USAGE, "mode=pipeline cannot be simulated; leave engine=virtual out");
    if (options_real(o, "clip_norm") > 0) {
        FAIL(ERROR_USAGE,
             "%s: clip_norm=%s needs the norm of the whole gradient, but each stage of a pipeline "
             "has a part; set clip_norm=0 or another mode",
             options_origin(o, "clip_norm"), options_value(o, "clip_norm"));
    }
    TRY(pipeline_shape(o, &stages, &micro_batches));
done:
    return result;
}

/* Several servers, workers with local steps, and stages cannot agree on when a time has passed. */
static status check_seconds(const options *o)
{
    status result = OK;
    static const struct {
        const char *key, *value;
    } needs[] = {{"servers", "1"}, {"outer", "none"}};
    if (options_real(o, "seconds") == 0)
        return OK;
    if (strcmp(options_text(o, "mode"), "pipeline") == 0)
        FAIL(ERROR_USAGE, "%s: mode=pipeline has no length in seconds; set epochs or updates",
             options_origin(o, "seconds"));
    for (size_t i = 0; i < COUNT_OF(needs); i++) {
        if (!options_is_initial(o, needs[i].key)) {
            FAIL(ERROR_USAGE,
                 "%s: seconds=%s requires %s=%s, but the settings have %s=%s; set epochs or "
                 "updates, or %s=%s",
                 options_origin(o, "seconds"), options_value(o, "seconds"), needs[i].key,
                 needs[i].value, needs[i].key, options_value(o, needs[i].key), needs[i].key,
                 needs[i].value);
        }
    }
done:
    return result;
}

static status check_workers(const options *o)
{
    enum { PROCESSES_MOST = 4096 };
    status result = OK;
    static const char *const keys[] = {"workers", "workers.max"};
    const bool real = strcmp(options_text(o, "mode"), "pipeline") == 0 ||
                      strcmp(options_text(o, "engine"), "real") == 0;
    for (size_t i = 0; i < COUNT_OF(keys) && real; i++) {
        if (options_integer(o, keys[i]) > PROCESSES_MOST)
            FAIL(ERROR_USAGE,
                 "%s: %s=%s: a run has at most %d processes; engine=virtual simulates more workers",
                 options_origin(o, keys[i]), keys[i], options_value(o, keys[i]), PROCESSES_MOST);
    }
done:
    return result;
}

/* The key has no effect. It stays because config_hash, by which runs are found, contains it. */
static status check_deterministic(const options *o)
{
    status result = OK;
    if (!options_flag(o, "deterministic")) {
        FAIL(ERROR_USAGE,
             "%s: deterministic=false has no effect, because every device always repeats a "
             "computation bit for bit; leave it out",
             options_origin(o, "deterministic"));
    }
done:
    return result;
}

/* A pipeline always stops at a non-finite value. */
static status check_on_nonfinite(const options *o)
{
    status result = OK;
    if (!options_is_initial(o, "on_nonfinite") &&
        strcmp(options_text(o, "mode"), "pipeline") == 0) {
        FAIL(ERROR_USAGE, "%s: on_nonfinite=%s has no effect with mode=pipeline; leave it out",
             options_origin(o, "on_nonfinite"), options_value(o, "on_nonfinite"));
    }
done:
    return result;
}

/* Whether restarts repeat the whole run. With on_lost=continue only lost workers are restarted. */
static bool restarts_from_checkpoint(const options *o)
{
    return options_integer(o, "restarts") > 0 && strcmp(options_text(o, "on_lost"), "stop") == 0;
}

/* A key without effect is an error, so that a comparison really varies what it seems to vary. */
status config_check_replay(const options *o)
{
    status result = OK;
    struct training_length length;
    struct schedule schedule;
    struct ineffective none;
    struct consistency consistency;
    struct outer outer;
    unsigned per_update;
    if (config_any_ineffective(o, &none)) {
        const char *value = options_value(o, none.with);
        FAIL(ERROR_USAGE, "%s: %s=%s has no effect %s %s=%s; leave it out, or set %s=%s",
             options_origin(o, none.key), none.key, options_value(o, none.key),
             value[0] != '\0' ? "with" : "without", none.with, value, none.with, none.instead);
    }
    if (options_text(o, "results")[0] == '\0') {
        FAIL(ERROR_USAGE, "%s: results= is empty; name a file, as in results=results.db",
             options_origin(o, "results"));
    }
    if (strcmp(options_text(o, "mode"), "async") == 0) {
        TRY(check_correction(o));
        if (!options_is_initial(o, "resume") || restarts_from_checkpoint(o))
            TRY(resume_check(o));
        TRY(outer_open(&outer, o, (unsigned)options_integer(o, "workers")));
        TRY(local_steps_check(o));
        TRY(late_workers_check(o));
    }
    if (strcmp(options_text(o, "mode"), "sync") == 0) {
        TRY(sync_trainer_check(o));
        TRY(compression_check(o));
    }
    TRY(compression_check_momentum(o));
    TRY(check_deterministic(o));
    TRY(check_workers(o));
    TRY(check_external(o));
    TRY(sampler_check(o, chosen_dataset(o)->tokens));
    TRY(model_check(o, chosen_dataset(o)->tokens));
    TRY(check_pipeline(o));
    TRY(check_seconds(o));
    TRY(check_on_nonfinite(o));
    TRY(check_balance(o));
    TRY(check_damped_optimizer(o));
    TRY(check_pace(o));
    TRY(cluster_check(o));
    TRY(check_endpoints(o));
    TRY(slices_check(o));
    TRY(consistency_open(&consistency, o));
    TRY(consistency_per_update(&consistency, (unsigned)options_integer(o, "workers"), &per_update));
    TRY(training_length_of(o, UINT32_MAX, (double)options_integer(o, "batch"), &length));
    TRY(schedule_open(&schedule, o, 1, length.total_samples, UINT32_MAX));
done:
    return result;
}

status config_check(const options *o)
{
    status result = OK;
    if (strcmp(options_text(o, "engine"), "replay") == 0) {
        FAIL(ERROR_USAGE,
             "%s: engine=replay cannot be set for a run; `gradlag replay RUN key=value…` replays a "
             "recorded run with other rules",
             options_origin(o, "engine"));
    }
    TRY(config_check_replay(o));
done:
    return result;
}
