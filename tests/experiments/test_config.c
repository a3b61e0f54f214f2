/* Composition of settings: precedence, ignored settings, errors, and what the hash covers. */
#include "base/text.h"
#include "experiments/config/config.h"
#include "experiments/config/keys.h"
#include "experiments/sweep/sweep_axis.h"
#include "tests/rigs/scratch.h"
#include "worker/optimizer/optimizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Composes "key=value" texts ended by NULL. */
static status compose(options **out, const char *const *texts)
{
    struct settings s = {0};
    int count = 0;
    while (texts[count] != NULL)
        count++;
    *out = NULL;
    status result = settings_read_arguments(&s, count, (char **)texts);
    if (result == OK)
        result = config_compose(out, &s);
    settings_free(&s);
    return result;
}
#define COMPOSE(out, ...) compose(out, (const char *const[]){__VA_ARGS__, NULL})

static void expect_refused(const char *const *texts, const char *part)
{
    options *o;
    assert_int_equal(compose(&o, texts), ERROR_USAGE);
    assert_null(o);
    if (strstr(error_message(), part) == NULL)
        fail_msg("'%s' is not in: %s", part, error_message());
}
#define EXPECT_REFUSED(part, ...) expect_refused((const char *const[]){__VA_ARGS__, NULL}, part)

static void nothing_set_gives_the_defaults(void **state)
{
    (void)state;
    options *o;
    assert_int_equal(compose(&o, (const char *const[]){NULL}), OK);
    assert_string_equal(options_text(o, "mode"), "async");
    assert_int_equal(options_integer(o, "workers"), 1);
    assert_true(options_real(o, "momentum") == 0.9);
    options_close(&o);
}

static void a_later_setting_overrides_an_earlier_one(void **state)
{
    (void)state;
    options *o;
    assert_int_equal(COMPOSE(&o, "workers=2", "lr=0.1", "workers=8"), OK);
    assert_int_equal(options_integer(o, "workers"), 8);
    options_close(&o);
}

static void choosing_a_part_declares_its_keys(void **state)
{
    (void)state;
    options *o;
    assert_int_equal(COMPOSE(&o, "damping.power=0.25", "damping=polynomial"), OK);
    options_close(&o);
    assert_int_equal(COMPOSE(&o, "damping=polynomial", "damping.power=0.25"), OK);
    assert_true(options_real(o, "damping.power") == 0.25);
    options_close(&o);
    EXPECT_REFUSED("damping=polynomial", "damping=inverse", "damping.power=0.25");
}

/* In one layer the order does not matter. */
static void a_dotted_key_before_its_part_on_one_command_line_is_no_earlier_choice(void **state)
{
    (void)state;
    EXPECT_REFUSED("damping=polynomial", "damping.power=0.25", "damping=inverse");
    EXPECT_REFUSED("damping=polynomial", "damping=polynomial", "damping.power=0.25",
                   "damping=inverse");
    EXPECT_REFUSED("'damping.power'", "damping.powr=0.25", "damping=polynomial");
}

static void an_error_names_the_key_and_the_nearest_name(void **state)
{
    (void)state;
    EXPECT_REFUSED("'workers'", "worker=2");
    EXPECT_REFUSED("'model'", "modle=cnn");
    EXPECT_REFUSED("workers=0", "workers=0");
    EXPECT_REFUSED("4096", "workers=4097");
    EXPECT_REFUSED("workers=two", "workers=two");
    EXPECT_REFUSED("'inverse'", "damping=invers");
    EXPECT_REFUSED("workers=4", "workers", "4");
    EXPECT_REFUSED("lr=VALUE", "lr", "batch=8");
    EXPECT_REFUSED("'workers'", "wrokers");
    EXPECT_REFUSED("'/tmp'", "/tmp");
    EXPECT_REFUSED("'--quiet'", "--quiet");
    EXPECT_REFUSED("'no.yaml'", "no.yaml");
}

/* One idle key for each case, and what makes it idle. Without the key the settings compose. */
static void keys_without_effect_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *with[4], *idle, *blamed;
    } cases[] = {
        {{"mode=sync"}, "damping=inverse", "mode=sync"},
        {{"mode=sync"}, "consistency=bsp", "mode=sync"},
        {{"mode=sync"}, "payload=frames", "mode=sync"},
        {{"mode=async"}, "communicator=mpi", "mode=async"},
        {{"mode=async"}, "reduction=ordered", "mode=async"},
        {{"mode=pipeline"}, "compression=fp16", "mode=pipeline"},
        {{"mode=async"}, "delay=1", "mode=async"},
        {{"mode=async"}, "batch_norm=synchronised", "mode=async"},
        {{"mode=pipeline"}, "delay=1", "mode=pipeline"},
        {{"mode=pipeline"}, "batch_norm=synchronised", "mode=pipeline"},
        {{"mode=pipeline"}, "on_nonfinite=skip", "mode=pipeline"},
        {{"mode=pipeline"}, "resume=x", "mode=pipeline"},
        {{"mode=sync", "engine=virtual", "pace=gamma"}, "compression=sign", "engine=virtual"},
        {{"mode=sync", "engine=virtual", "pace=gamma"},
         "batch_norm=synchronised",
         "engine=virtual"},
        {{"mode=sync", "engine=virtual", "pace=gamma"}, "resume=x", "engine=virtual"},
        {{"mode=sync", "local_steps=2"}, "compression=fp16", "local_steps=2"},
        {{"mode=sync"}, "delay_correction=error-feedback", "delay=0"},
        {{"record=evaluations"}, "probe_every=5", "record=evaluations"},
        {{"weight_decay=0.0"}, "weight_decay_of=matrices", "weight_decay=0.0"},
        {{"mode=sync"}, "delay_annealing=9", "delay=0"},
        {{"mode=sync"}, "checkpoint_every=1", "checkpoint="},
        {{"mode=sync", "delay=1"}, "delay_annealing=9", "delay=1"},
        {{"outer=easgd", "optimizer=sgd"}, "compression=topk", "outer=easgd"},
        {{"outer=easgd", "optimizer=sgd"}, "pull_precision=bf16", "outer=easgd"},
        {{"mode=sync"}, "pull_precision=bf16", "mode=sync"},
        {{"optimizer=momentum"}, "compression=dgc", "optimizer=momentum"},
        {{"outer=sgd", "optimizer=sgd"}, "compression=dgc", "outer=sgd"},
        {{"servers=2", "read=torn", "optimizer=sgd"}, "compression=dgc", "read=torn"},
        {{"mode=sync", "optimizer=sgd", "workers=1"}, "compression=dgc", "workers=1"},
        {{"servers=2"}, "on_nonfinite=skip", "servers=1"},
        {{"mode=sync"}, "workers.max=3", "mode=sync"},
        {{"engine=virtual", "pace=gamma"}, "workers.max=3", "join.after_s=10"},
        {{"engine=virtual", "pace=gamma"}, "join.after_s=1", "workers.max"},
        {{"mode=sync", "engine=virtual", "pace=gamma"}, "workers.max=3", "mode=sync"},
        {{"consistency=bsp"}, "workers.max=3", "consistency=bsp"},
        {{"consistency=backup", "workers=2"}, "workers.max=3", "consistency=backup"},
        {{"sampler=reshuffled"}, "workers.max=3", "sampler=reshuffled"},
        {{"workers=4"}, "workers.max=3", "workers=4"},
        {{"servers=2"}, "clip_norm=1", "servers=1"},
        {{"outer=nesterov"}, "clip_norm=1", "outer=nesterov"},
        {{"mode=pipeline"}, "clip_norm=1", "a pipeline"},
        {{"weight_decay=0"}, "weight_decay_of=matrices", "weight_decay=0"},
        {{"optimizer=lars", "weight_decay=0.1"}, "weight_decay_of=matrices", "optimizer=lars"},
        {{"warmup_epochs=3"}, "warmup=gradual", "lr_scaling=none"},
        {{"mode=sync", "schedule=constant"}, "decay=batch", "schedule=constant"},
        {{"mode=sync", "local_steps=4", "schedule=constant"}, "post_local=decay", "post_local"},
        {{"schedule=step"}, "schedule.at=", "schedule.at=0.5"},
        {{"updates=9", "warmup_updates=3"}, "warmup_epochs=2", "warmup_updates=3"},
        {{"optimizer=sgd"}, "momentum=0", "optimizer=sgd"},
        {{"consistency=bsp"}, "damping=inverse", "consistency=bsp"},
        {{"consistency=rennala"}, "damping=inverse", "consistency=rennala"},
        {{"consistency=bsp"}, "damping=rescaled", "consistency=bsp"},
        {{"engine=virtual", "pace=gamma"}, "pace.factor=10", "pace.worker=-1"},
        {{"engine=virtual", "pace=gamma", "workers=4"}, "pace.worker=4", "workers=4"},
        {{"pace=constant", "pace.worker=2", "workers=3"}, "workers=2", "pace.worker=2"},
        {{"pace=slow", "workers.max=3"}, "pace.worker=3", "pace=slow has no effect"},
        {{"dataset=least-squares"}, "augment=standard", "dataset=least-squares"},
        {{"dataset=least-squares"}, "label_smoothing=0.1", "dataset=least-squares"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *texts[5] = {0};
        options *o;
        size_t count = 0;
        for (; cases[i].with[count] != NULL; count++)
            texts[count] = cases[i].with[count];
        assert_int_equal(compose(&o, texts), OK);
        options_close(&o);
        texts[count] = cases[i].idle;
        expect_refused(texts, cases[i].blamed);
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(cases[i].idle, "="), cases[i].idle);
        assert_non_null(strstr(error_message(), key));
    }
}

static void settings_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    EXPECT_REFUSED("compression.ratio", "mode=sync", "compression=topk", "compression.ratio=0");
    EXPECT_REFUSED("communicator.nodes", "mode=sync", "communicator=ring", "communicator.nodes=2");
    EXPECT_REFUSED("are only 2", "mode=sync", "workers=2", "communicator=hierarchical",
                   "communicator.nodes=3");
    EXPECT_REFUSED("backups=2", "consistency=backup", "workers=2", "consistency.backups=2");
    EXPECT_REFUSED("gradlag replay RUN", "engine=replay");
    EXPECT_REFUSED("transport=ipc", "transport=ipc", "endpoint=tcp://127.0.0.1:7");
    EXPECT_REFUSED("run_token=xyz", "run_token=xyz");
    EXPECT_REFUSED("deterministic=false", "deterministic=false");
    EXPECT_REFUSED("epochs=2 (command line), samples=9 (command line)", "epochs=2", "samples=9");
    EXPECT_REFUSED("local_steps=4", "mode=sync", "workers=2", "optimizer=sgd", "compression=dgc",
                   "local_steps=4", "post_local=epoch");
    EXPECT_REFUSED("damping=inverse", "optimizer=rmsprop-warmup", "damping=inverse");
    EXPECT_REFUSED("clip_norm", "correction=dana-zero", "optimizer=sgd", "clip_norm=1");
    EXPECT_REFUSED("compression=dgc", "correction=dana-slim", "optimizer=sgd", "compression=dgc");
    EXPECT_REFUSED("model=gpt reads tokens", "model=gpt");
    EXPECT_REFUSED("model.heads=3", "model=gpt", "dataset=text", "model.heads=3");
    EXPECT_REFUSED("pace.path", "pace=trace");
}

static void a_slow_worker_is_any_that_the_run_can_have(void **state)
{
    (void)state;
    static const char *const slow[][3] = {{"pace=slow", "pace.worker=-1", "pace.factor=2"},
                                          {"pace=slow", "pace.worker=2", "workers.max=3"},
                                          {"pace=gamma", "pace.worker=0", "pace.factor=1"}};
    for (size_t i = 0; i < COUNT_OF(slow); i++) {
        options *o;
        assert_int_equal(COMPOSE(&o, slow[i][0], slow[i][1], slow[i][2]), OK);
        options_close(&o);
    }
}

static void rules_that_ignore_staleness_go_with_a_barrier(void **state)
{
    (void)state;
    static const char *const together[][2] = {
        {"consistency=bsp", "damping=trim"},
        {"consistency=rennala", "damping=trim"},
        {"consistency=rennala",
         "damping=rescaled"}, /* a fast worker's gradients count more often */
    };
    for (size_t i = 0; i < COUNT_OF(together); i++) {
        options *o;
        assert_int_equal(COMPOSE(&o, together[i][0], together[i][1]), OK);
        options_close(&o);
    }
}

static void of_two_lengths_from_different_origins_the_later_counts(void **state)
{
    (void)state;
    struct settings s = {0};
    options *o;
    settings_add(&s, "epochs", "5", "base.yaml:3");
    settings_add(&s, "samples", "100", "command line");
    assert_int_equal(config_compose(&o, &s), OK);
    assert_false(options_was_set(o, "epochs"));
    assert_int_equal(options_integer(o, "samples"), 100);
    options_close(&o);
    settings_free(&s);
}

static const char *write_file(const char *text)
{
    static char path[64];
    snprintf(path, sizeof path, "%s/glconfig-XXXXXX", scratch_folder());
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

static void hosts_give_the_workers_of_a_real_run_without_workers(void **state)
{
    (void)state;
    static const struct {
        const char *texts[3], *workers;
    } cases[] = {
        {{"hosts=localhost:4,192.0.2.1:4"}, "8"},
        {{"hosts=localhost:4,192.0.2.1:4", "workers=3"}, "3"},
        {{"hosts=localhost"}, NULL},
        {{"hosts=localhost:4", "engine=virtual"}, NULL},
        {{"mode=sync"}, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct settings s = {0};
        int count = 0;
        while (cases[i].texts[count] != NULL)
            count++;
        assert_int_equal(settings_read_arguments(&s, count, (char **)cases[i].texts), OK);
        assert_int_equal(settings_add_workers_of_hosts(&s), OK);
        const char *workers = settings_find(&s, "workers");
        assert_int_equal(workers == NULL, cases[i].workers == NULL);
        if (workers != NULL)
            assert_string_equal(workers, cases[i].workers);
        settings_free(&s);
    }
}

static void arguments_override_a_file(void **state)
{
    (void)state;
    options *o;
    const char *path = write_file("workers: 4 # four\nmodel.activation: tanh\nlr: 1e-2\n");
    assert_int_equal(COMPOSE(&o, path, "lr=0.05"), OK);
    assert_int_equal(options_integer(o, "workers"), 4);
    assert_string_equal(options_text(o, "model.activation"), "tanh");
    assert_true(options_real(o, "lr") == 0.05);
    assert_non_null(strstr(options_origin(o, "workers"), ":1"));
    options_close(&o);
    unlink(path);
}

static void a_later_choice_of_another_part_drops_the_dotted_keys_of_a_file(void **state)
{
    (void)state;
    options *o;
    const char *path = write_file("damping.power: 0.25\ndamping: polynomial\n");
    assert_int_equal(COMPOSE(&o, path, "damping=inverse"), OK);
    assert_false(options_declared(o, "damping.power"));
    options_close(&o);
    unlink(path);
    path = write_file("model: external\nmodel.command: a\nmodel.mine: 3\n");
    assert_int_equal(COMPOSE(&o, path, "dataset=gaussian", "model=mlp"), OK);
    options_close(&o);
    unlink(path);
    path = write_file("damping.power: 0.25\ndamping: inverse\n");
    EXPECT_REFUSED(":1: key damping.power belongs to damping=polynomial", path);
    unlink(path);
    path = write_file("damping.powr: 0.25\ndamping: polynomial\n");
    EXPECT_REFUSED("'damping.powr'", path, "damping=inverse");
    unlink(path);
}

static void a_sweep_file_is_a_base_for_one_of_its_runs(void **state)
{
    (void)state;
    options *o;
    const char *path =
        write_file("seed: [1, 2]\nlr: 0.001..0.3:log\nmodel.activation: relu,tanh\n");
    assert_int_equal(COMPOSE(&o, path, "lr=0.05", "seed=3", "model.activation=relu"), OK);
    assert_int_equal(options_integer(o, "seed"), 3);
    assert_true(options_real(o, "lr") == 0.05);
    options_close(&o);
    EXPECT_REFUSED(":1: seed=1,2 ", path, "lr=0.05", "model.activation=relu");
    EXPECT_REFUSED(":2: lr=0.001..0.3:log ", path, "seed=1", "model.activation=relu");
    unlink(path);
}

static void a_list_element_with_commas_is_one_value(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t values;
        const char *first;
    } cases[] = {
        {"schedule.at: [\"0.5,0.75\"]\n", 1, "0.5,0.75"},
        {"schedule.at: [\"(0.5,0.75)\"]\n", 1, "0.5,0.75"},
        {"schedule.at: [\"0.5,0.75\", \"0.3\"]\n", 2, "0.5,0.75"},
        {"schedule.at: [0.5, 0.75]\n", 2, "0.5"},
        {"schedule.at: 0.5,0.75\n", 2, "0.5"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct settings s = {0};
        struct axis a;
        const char *path = write_file(cases[i].text);
        assert_int_equal(settings_read_arguments(&s, 1, (char **)&path), OK);
        assert_int_equal(axis_read(&a, &s.at[0]), OK);
        assert_int_equal(a.count, cases[i].values);
        assert_string_equal(a.values[0], cases[i].first);
        axis_free(&a);
        settings_free(&s);
        unlink(path);
    }
    options *o;
    const char *path = write_file("schedule: step\nschedule.at: [\"0.5,0.75\"]\n");
    assert_int_equal(COMPOSE(&o, path), OK);
    assert_string_equal(options_text(o, "schedule.at"), "0.5,0.75");
    options_close(&o);
    unlink(path);
}

static void a_setting_of_a_file_is_dropped_if_a_later_choice_makes_it_idle(void **state)
{
    (void)state;
    options *o;
    const char *path = write_file("damping: polynomial\ndamping.power: 0.3\n");
    assert_int_equal(COMPOSE(&o, path, "mode=sync"), OK);
    assert_string_equal(options_text(o, "damping"), "none");
    assert_false(options_declared(o, "damping.power"));
    options_close(&o);
    assert_int_equal(COMPOSE(&o, "mode=sync", path), OK); /* the order of the two does not matter */
    options_close(&o);
    EXPECT_REFUSED("mode=sync", path, "mode=sync", "damping=inverse");
    EXPECT_REFUSED("mode=sync", path, "mode=sync", "damping.power=0.5");
    unlink(path);
    /* An idle key is an error in the file of the choice, and on the command line after a file. */
    path = write_file("damping: inverse\nmode: sync\n");
    EXPECT_REFUSED(":1: damping=inverse ", path);
    unlink(path);
    path = write_file("mode: sync\n");
    EXPECT_REFUSED("command line: damping=inverse ", path, "damping=inverse");
    unlink(path);
}

static void errors_in_a_file_name_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"workers: 4\nbatsch: 3\n", ":2: "},
        {"workers: 4\nbatsch: 3\n", "'batsch'"},
        {"power: 1\ndamping: polynomial\n", ":1: "},
        {"power: 1\ndamping: polynomial\n", "'damping.power'"},
        {"workers: 4\n\nbatch: -1\n", ":3: batch=-1 "},
        {"workers: {a: 1}\n", ":1: workers "},
        {"workers: 4\nworkers: 5\n", ":2: 'workers' "},
        {"workers: 4\n  lr: : 3\n", ":2: "},
        {"epochs: 3\nupdates: 50\n", ":2: epochs and updates both"},
        {"updates: 50\nepochs: 3\n", "both set the length"},
        {"lr: 0.1\n---\nlr: 0.2\n", ":2: "},
        {"lr: 0.1\n...\nbatch: [\n", ":3: "},
        {"", "glconfig-"},
        {"- a\n- b\n", ":1: "},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *path = write_file(cases[i].text);
        EXPECT_REFUSED(cases[i].part, path);
        unlink(path);
    }
}

static void hash_of(char hex[65], const char *const *texts)
{
    options *o;
    assert_int_equal(compose(&o, texts), OK);
    config_hash(o, hex);
    options_close(&o);
}
#define HASH(hex, ...) hash_of(hex, (const char *const[]){__VA_ARGS__, NULL})

static void the_hash_covers_exactly_the_keys_that_define_the_computation(void **state)
{
    (void)state;
    char base[65], other[65];
    HASH(base, "lr=0.03");
    HASH(other, "lr=3e-2", "results=b.db", "tag=x", "experiment=e", "arm=a", "timeout_s=5",
         "checkpoint=c", "run_id=7", "run_token=ff", "endpoint=tcp://127.0.0.1:1", "payload=frames",
         "transport=tcp", "record=evaluations", "on_lost=continue", "dataset.path=/elsewhere");
    assert_string_equal(base, other);
    const char *const deciding[] = {
        "lr=0.031",  "seed=2",     "workers=2",     "model=mlp", "epochs=4",  "damping=inverse",
        "mode=sync", "pace=gamma", "sampler=whole", "initial=c", "threads=2", "evaluate_every=2"};
    for (size_t i = 0; i < COUNT_OF(deciding); i++) {
        HASH(other, deciding[i]);
        assert_string_not_equal(base, other);
    }
    /* Optional keys count once they differ from their default. */
    HASH(base, "engine=virtual", "pace=constant", "workers=4");
    HASH(other, "engine=virtual", "pace=constant", "workers=4", "network.racks=0",
         "pace.window_of=all", "network.uplink_gbps=0.0");
    assert_string_equal(base, other);
    HASH(other, "engine=virtual", "pace=constant", "workers=4", "network.racks=2",
         "network.uplink_gbps=1");
    assert_string_not_equal(base, other);
    HASH(base, "workers=2");
    HASH(other, "workers=2", "workers.max=3");
    assert_string_not_equal(base, other);
    options *o;
    struct text json = {0};
    assert_int_equal(COMPOSE(&o, "engine=virtual", "pace=constant"), OK);
    config_settings_json(o, &json);
    assert_null(strstr(json.at, "network.racks"));
    text_free(&json);
    options_close(&o);
    HASH(base, "damping=polynomial", "damping.power=0.5");
    HASH(other, "damping=polynomial", "damping.power=0.6");
    assert_string_not_equal(base, other);
}

static void runs_that_differ_only_in_the_seed_have_the_same_settings(void **state)
{
    (void)state;
    options *o;
    static const char *const one[] = {"seed=1", NULL}, *const two[] = {"seed=2", "tag=b", NULL},
                             *const three[] = {"seed=1", "warmup_epochs=0", NULL};
    const char *const *const all[] = {one, two, three};
    struct text json[3] = {0};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        assert_int_equal(compose(&o, all[i]), OK);
        config_settings_json(o, &json[i]);
        options_close(&o);
    }
    assert_string_equal(json[0].at, json[1].at);
    assert_string_not_equal(json[0].at, json[2].at);
    for (size_t i = 0; i < COUNT_OF(json); i++)
        text_free(&json[i]);
}

static void json_holds_every_key_with_its_type(void **state)
{
    (void)state;
    options *o;
    struct text text = {0};
    assert_int_equal(COMPOSE(&o, "tag=a \"quoted\" word", "lr=0.1", "workers=3"), OK);
    config_json(o, &text);
    json_t *json = json_loads(text.at, 0, NULL);
    assert_non_null(json);
    assert_string_equal(json_string_value(json_object_get(json, "tag")), "a \"quoted\" word");
    assert_true(json_real_value(json_object_get(json, "lr")) == 0.1);
    assert_int_equal(json_integer_value(json_object_get(json, "workers")), 3);
    for (size_t i = 0; i < options_count(o); i++) {
        const char *key = options_at(o, i)->key;
        assert_int_equal(json_object_get(json, key) != NULL, key_use_of(key) != KEY_INTERNAL);
    }
    json_decref(json);
    text_free(&text);
    options_close(&o);
}

static void printed_settings_compose_to_the_same_configuration(void **state)
{
    (void)state;
    options *o, *again;
    char hash[65], after[65], *written = NULL;
    size_t length = 0;
    assert_int_equal(COMPOSE(&o, "damping=polynomial", "damping.power=0.3", "tag=x: # y", "lr=0.1",
                             "updates=50", "schedule=step", "schedule.at=0.5,0.75"),
                     OK);
    FILE *memory = open_memstream(&written, &length);
    config_print(o, memory);
    fclose(memory);
    const char *path = write_file(written);
    assert_int_equal(COMPOSE(&again, path), OK);
    assert_string_equal(options_text(again, "tag"), "x: # y");
    assert_non_null(strstr(written, "schedule.at: [\"0.5,0.75\"]")); /* one value of a sweep */
    config_hash(o, hash);
    config_hash(again, after);
    assert_string_equal(hash, after);
    options_close(&o);
    options_close(&again);
    free(written);
    unlink(path);
}

static void exported_arguments_compose_to_the_same_configuration(void **state)
{
    (void)state;
    options *o, *again;
    struct settings s = {0};
    char hash[65], after[65];
    assert_int_equal(COMPOSE(&o, "pace=gamma", "pace.mean_ms=3", "workers=4"), OK);
    config_arguments(o, &s);
    assert_int_equal(s.count, 3);
    assert_int_equal(config_compose(&again, &s), OK);
    config_hash(o, hash);
    config_hash(again, after);
    assert_string_equal(hash, after);
    options_close(&o);
    options_close(&again);
    settings_free(&s);
}

static void the_help_of_weight_decay_names_each_optimizer_that_decays_apart(void **state)
{
    (void)state;
    const char *help = keys_find("weight_decay")->help;
    for (size_t i = 0; i < optimizer_registry.count; i++) {
        const struct optimizer_kind *kind =
            (const struct optimizer_kind *)optimizer_registry.entries[i];
        if (kind->decay_apart != (strstr(help, kind->about.name) != NULL))
            fail_msg("%s: %s", kind->about.name, help);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_set_gives_the_defaults),
        cmocka_unit_test(a_later_setting_overrides_an_earlier_one),
        cmocka_unit_test(choosing_a_part_declares_its_keys),
        cmocka_unit_test(a_dotted_key_before_its_part_on_one_command_line_is_no_earlier_choice),
        cmocka_unit_test(an_error_names_the_key_and_the_nearest_name),
        cmocka_unit_test(keys_without_effect_are_refused),
        cmocka_unit_test(settings_that_contradict_each_other_are_refused),
        cmocka_unit_test(a_slow_worker_is_any_that_the_run_can_have),
        cmocka_unit_test(rules_that_ignore_staleness_go_with_a_barrier),
        cmocka_unit_test(of_two_lengths_from_different_origins_the_later_counts),
        cmocka_unit_test(hosts_give_the_workers_of_a_real_run_without_workers),
        cmocka_unit_test(arguments_override_a_file),
        cmocka_unit_test(a_later_choice_of_another_part_drops_the_dotted_keys_of_a_file),
        cmocka_unit_test(a_sweep_file_is_a_base_for_one_of_its_runs),
        cmocka_unit_test(a_list_element_with_commas_is_one_value),
        cmocka_unit_test(a_setting_of_a_file_is_dropped_if_a_later_choice_makes_it_idle),
        cmocka_unit_test(errors_in_a_file_name_its_line),
        cmocka_unit_test(the_hash_covers_exactly_the_keys_that_define_the_computation),
        cmocka_unit_test(runs_that_differ_only_in_the_seed_have_the_same_settings),
        cmocka_unit_test(json_holds_every_key_with_its_type),
        cmocka_unit_test(printed_settings_compose_to_the_same_configuration),
        cmocka_unit_test(exported_arguments_compose_to_the_same_configuration),
        cmocka_unit_test(the_help_of_weight_decay_names_each_optimizer_that_decays_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
