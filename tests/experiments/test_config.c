/*
 * Composition of settings: who wins, what falls away, what is an error, and what the hash covers.
 */
#include "base/text.h"
#include "experiments/config/config.h"
#include "experiments/config/keys.h"
#include "tests/rigs/scratch.h"

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

static void what_stands_later_wins(void **state)
{
    (void)state;
    options *o;
    assert_int_equal(COMPOSE(&o, "workers=2", "lr=0.1", "workers=8"), OK);
    assert_int_equal(options_integer(o, "workers"), 8);
    options_close(&o);
}

static void a_chosen_part_brings_its_keys(void **state)
{
    (void)state;
    options *o;
    assert_int_equal(COMPOSE(&o, "damping.power=0.25", "damping=polynomial"), OK);
    options_close(&o);
    assert_int_equal(COMPOSE(&o, "damping=polynomial", "damping.power=0.25"), OK);
    assert_true(options_real(o, "damping.power") == 0.25);
    options_close(&o);
    EXPECT_REFUSED("belongs to damping=polynomial", "damping=inverse", "damping.power=0.25");
}

static void a_dotted_key_falls_away_with_a_later_choice_of_another_part(void **state)
{
    (void)state;
    options *o;
    assert_int_equal(COMPOSE(&o, "damping=polynomial", "damping.power=0.25", "damping=inverse"),
                     OK);
    assert_false(options_declared(o, "damping.power"));
    options_close(&o);
}

static void mistakes_are_named_with_what_would_be_right(void **state)
{
    (void)state;
    EXPECT_REFUSED("Did you mean 'workers'", "worker=2");
    EXPECT_REFUSED("Did you mean 'model'", "modle=cnn");
    EXPECT_REFUSED("1 to 4096", "workers=0");
    EXPECT_REFUSED("not a whole number", "workers=two");
    EXPECT_REFUSED("Did you mean 'inverse'", "damping=invers");
    EXPECT_REFUSED("'workers' is a key without a value; write workers=4", "workers", "4");
    EXPECT_REFUSED("write lr=VALUE", "lr", "batch=8");
    EXPECT_REFUSED("neither key=value nor a file: 'wrokers'. Did you mean 'workers'", "wrokers");
    EXPECT_REFUSED("neither key=value nor a file", "/tmp");
    EXPECT_REFUSED("'--quiet' is no option of this command", "--quiet");
    EXPECT_REFUSED("there is no file 'no.yaml'", "no.yaml");
}

static void keys_without_effect_are_refused(void **state)
{
    (void)state;
    EXPECT_REFUSED("no effect with mode=sync", "mode=sync", "damping=inverse");
    EXPECT_REFUSED("no effect with mode=sync", "mode=sync", "consistency=bsp");
    EXPECT_REFUSED("no effect with mode=async", "communicator=mpi");
    EXPECT_REFUSED("no effect with mode=pipeline", "mode=pipeline", "on_nonfinite=skip");
    EXPECT_REFUSED("set servers=1", "servers=2", "on_nonfinite=skip");
    EXPECT_REFUSED("no effect with mode=sync", "mode=sync", "payload=frames");
    EXPECT_REFUSED("no effect with mode=async", "reduction=ordered");
    EXPECT_REFUSED("no effect with mode=async", "compression=fp16");
    EXPECT_REFUSED("no effect with engine=virtual", "mode=sync", "engine=virtual", "pace=gamma",
                   "compression=sign");
    EXPECT_REFUSED("compression.ratio", "mode=sync", "compression=topk", "compression.ratio=0");
    EXPECT_REFUSED("communicator.nodes", "mode=sync", "communicator=ring", "communicator.nodes=2");
    EXPECT_REFUSED("no effect with optimizer=sgd", "optimizer=sgd", "momentum=0");
    EXPECT_REFUSED("no effect with consistency=bsp", "consistency=bsp", "damping=inverse");
    EXPECT_REFUSED("no effect with consistency=rennala", "consistency=rennala", "damping=inverse");
    EXPECT_REFUSED("would favour the slow ones", "consistency=bsp", "damping=rescaled");
    EXPECT_REFUSED("consistency.backups=2 leaves no gradient of 2 workers", "consistency=backup",
                   "workers=2", "consistency.backups=2");
    EXPECT_REFUSED("do not fit together", "transport=ipc", "endpoint=tcp://127.0.0.1:7");
    EXPECT_REFUSED("hexadecimal", "run_token=xyz");
    EXPECT_REFUSED("epochs=2 (command line), samples=100 (command line)", "epochs=2",
                   "samples=100");
}

static void rules_that_look_at_no_age_go_with_a_barrier(void **state)
{
    (void)state;
    static const char *const together[][2] = {
        {"consistency=bsp", "damping=trim"},
        {"consistency=rennala", "damping=trim"},
        {"consistency=rennala", "damping=rescaled"}, /* a fast worker's count more often there */
    };
    for (size_t i = 0; i < COUNT_OF(together); i++) {
        options *o;
        assert_int_equal(COMPOSE(&o, together[i][0], together[i][1]), OK);
        options_close(&o);
    }
}

static void the_later_of_two_lengths_from_different_places_counts(void **state)
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

static void a_file_gives_a_base_that_arguments_change(void **state)
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

static void a_sweeps_file_is_a_base_for_one_run_of_it(void **state)
{
    (void)state;
    options *o;
    const char *path =
        write_file("seed: [1, 2]\nlr: 0.001..0.3:log\nmodel.activation: relu,tanh\n");
    assert_int_equal(COMPOSE(&o, path, "lr=0.05", "seed=3", "model.activation=relu"), OK);
    assert_int_equal(options_integer(o, "seed"), 3);
    assert_true(options_real(o, "lr") == 0.05);
    options_close(&o);
    EXPECT_REFUSED(":1: seed=1,2 is not a whole number", path, "lr=0.05", "model.activation=relu");
    EXPECT_REFUSED(":2: lr=0.001..0.3:log is not", path, "seed=1", "model.activation=relu");
    unlink(path);
}

static void a_files_setting_falls_away_where_a_later_choice_makes_it_idle(void **state)
{
    (void)state;
    options *o;
    const char *path = write_file("damping: polynomial\ndamping.power: 0.3\n");
    assert_int_equal(COMPOSE(&o, path, "mode=sync"), OK);
    assert_string_equal(options_text(o, "damping"), "none");
    assert_false(options_declared(o, "damping.power"));
    options_close(&o);
    assert_int_equal(COMPOSE(&o, "mode=sync", path), OK); /* wherever the file stands */
    options_close(&o);
    EXPECT_REFUSED("no effect with mode=sync", path, "mode=sync", "damping=inverse");
    EXPECT_REFUSED("no effect with mode=sync", path, "mode=sync", "damping.power=0.5");
    unlink(path);
    /* In one file with the choice, or on the command line over a file's choice, it is an error. */
    path = write_file("damping: inverse\nmode: sync\n");
    EXPECT_REFUSED(":1: damping=inverse has no effect with mode=sync", path);
    unlink(path);
    path = write_file("mode: sync\n");
    EXPECT_REFUSED("command line: damping=inverse has no effect", path, "damping=inverse");
    unlink(path);
}

static void ranks_settings_are_refused_where_there_are_none(void **state)
{
    (void)state;
    static const char *const of_ranks[] = {"double_buffering=yes", "batch_norm=synchronised"};
    for (size_t i = 0; i < COUNT_OF(of_ranks); i++) {
        EXPECT_REFUSED("no effect with mode=async", of_ranks[i]);
        EXPECT_REFUSED("no effect with mode=pipeline", "mode=pipeline", of_ranks[i]);
        EXPECT_REFUSED("no effect with engine=virtual", "mode=sync", "engine=virtual", of_ranks[i]);
    }
    EXPECT_REFUSED("resume=x has no effect with mode=pipeline", "mode=pipeline", "resume=x");
    EXPECT_REFUSED("resume=x has no effect with engine=virtual", "mode=sync", "engine=virtual",
                   "resume=x");
    EXPECT_REFUSED("compression=fp16 has no effect with local_steps=2", "mode=sync",
                   "local_steps=2", "compression=fp16");
}

static void errors_in_a_file_name_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"workers: 4\nbatsch: 3\n", ":2: there is no key 'batsch'"},
        {"power: 1\ndamping: polynomial\n",
         ":1: there is no key 'power'. Did you mean 'damping.power'?"},
        {"workers: 4\n\nbatch: -1\n", ":3: batch=-1 is out of range"},
        {"workers: {a: 1}\n", ":1: workers must be one word"},
        {"workers: 4\nworkers: 5\n", ":2: 'workers' stands here a second time"},
        {"workers: 4\n  lr: : 3\n", "not valid YAML"},
        {"", "empty"},
        {"- a\n- b\n", "must be a map"},
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

static void the_hash_covers_what_decides_the_outcome_and_nothing_else(void **state)
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
    HASH(base, "damping=polynomial", "damping.power=0.5");
    HASH(other, "damping=polynomial", "damping.power=0.6");
    assert_string_not_equal(base, other);
}

static void runs_that_differ_in_the_seed_alone_have_the_same_settings(void **state)
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

static void what_is_printed_composes_to_the_same(void **state)
{
    (void)state;
    options *o, *again;
    char hash[65], after[65], *written = NULL;
    size_t length = 0;
    assert_int_equal(
        COMPOSE(&o, "damping=polynomial", "damping.power=0.3", "tag=x: # y", "lr=0.1", "epochs=2"),
        OK);
    FILE *memory = open_memstream(&written, &length);
    config_print(o, memory);
    fclose(memory);
    const char *path = write_file(written);
    assert_int_equal(COMPOSE(&again, path), OK);
    assert_string_equal(options_text(again, "tag"), "x: # y");
    config_hash(o, hash);
    config_hash(again, after);
    assert_string_equal(hash, after);
    options_close(&o);
    options_close(&again);
    free(written);
    unlink(path);
}

static void arguments_compose_to_the_same(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_set_gives_the_defaults),
        cmocka_unit_test(what_stands_later_wins),
        cmocka_unit_test(a_chosen_part_brings_its_keys),
        cmocka_unit_test(a_dotted_key_falls_away_with_a_later_choice_of_another_part),
        cmocka_unit_test(mistakes_are_named_with_what_would_be_right),
        cmocka_unit_test(keys_without_effect_are_refused),
        cmocka_unit_test(rules_that_look_at_no_age_go_with_a_barrier),
        cmocka_unit_test(the_later_of_two_lengths_from_different_places_counts),
        cmocka_unit_test(a_file_gives_a_base_that_arguments_change),
        cmocka_unit_test(a_sweeps_file_is_a_base_for_one_run_of_it),
        cmocka_unit_test(a_files_setting_falls_away_where_a_later_choice_makes_it_idle),
        cmocka_unit_test(ranks_settings_are_refused_where_there_are_none),
        cmocka_unit_test(errors_in_a_file_name_its_line),
        cmocka_unit_test(the_hash_covers_what_decides_the_outcome_and_nothing_else),
        cmocka_unit_test(runs_that_differ_in_the_seed_alone_have_the_same_settings),
        cmocka_unit_test(json_holds_every_key_with_its_type),
        cmocka_unit_test(what_is_printed_composes_to_the_same),
        cmocka_unit_test(arguments_compose_to_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
