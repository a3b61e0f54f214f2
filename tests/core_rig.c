/* core_rig.c — see core_rig.h. */
#include "tests/core_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "ps/consistency.h"
#include "ps/correction.h"
#include "ps/damping.h"
#include "ps/outer.h"
#include "worker/optimizer.h"
#include "worker/schedule.h"

static const struct option keys[] = {
    {.key = "consistency",
     .type = OPTION_NAME,
     .initial = "asp",
     .registry = &consistency_registry},
    {.key = "damping", .type = OPTION_NAME, .initial = "none", .registry = &damping_registry},
    {.key = "correction", .type = OPTION_NAME, .initial = "none", .registry = &correction_registry},
    {.key = "outer", .type = OPTION_NAME, .initial = "none", .registry = &outer_registry},
    {.key = "batch", .type = OPTION_INTEGER, .initial = "10", .minimum = 1, .maximum = 100},
    {.key = "optimizer",
     .type = OPTION_NAME,
     .initial = "momentum",
     .registry = &optimizer_registry},
    {.key = "momentum", .type = OPTION_REAL, .initial = "0.9", .maximum = 1},
    {.key = "weight_decay", .type = OPTION_REAL, .initial = "0", .maximum = 1},
    {.key = "lr", .type = OPTION_REAL, .initial = "0.05", .maximum = 100},
    {.key = "lr_scaling", .type = OPTION_NAME, .initial = "none", .names = "none|linear|sqrt"},
    {.key = "warmup_epochs", .type = OPTION_REAL, .initial = "0", .maximum = 100},
    {.key = "on_nonfinite", .type = OPTION_NAME, .initial = "stop", .names = "stop|skip"},
    {.key = "schedule", .type = OPTION_NAME, .initial = "constant", .registry = &schedule_registry},
    {0},
};

static status assign(options *o, const char *const *assignments, bool dotted)
{
    status result = OK;
    for (; *assignments != NULL; assignments++) {
        char key[64];
        const char *value = strchr(*assignments, '=');
        REQUIRE(value != NULL && (size_t)(value - *assignments) < sizeof key);
        snprintf(key, sizeof key, "%.*s", (int)(value - *assignments), *assignments);
        if ((strchr(key, '.') != NULL) == dotted) {
            TRY(options_set(o, key, value + 1, "test"));
        }
    }
done:
    return result;
}

status core_rig_settings(options **out, const char *const *assignments)
{
    status result = OK;
    TRY(options_open(out));
    TRY(options_declare(*out, keys));
    TRY(assign(*out, assignments, false));
    for (const struct option *key = keys; key->key != NULL; key++) {
        if (key->registry != NULL) {
            const struct about *about = registry_find(key->registry, options_text(*out, key->key));
            TRY(options_declare(*out, about->options));
        }
    }
    TRY(assign(*out, assignments, true));
done:
    if (result != OK) {
        options_close(out);
    }
    return result;
}

void core_rig_open(struct core_rig *rig, struct server_core_options o,
                   const char *const *assignments)
{
    *rig = (struct core_rig){.workers = o.workers, .count = o.count};
    if (core_rig_settings(&rig->settings, assignments) != OK) {
        fail_msg("%s", error_message());
    }
    rig->slot_count = o.slot_count != 0 ? o.slot_count : o.workers + 2;
    assert_int_equal(memory_new(&rig->slots, rig->slot_count, sizeof *rig->slots, "slots"), OK);
    for (unsigned i = 0; i < rig->slot_count; i++) {
        assert_int_equal(memory_new(&rig->slots[i], o.count, sizeof(float), "slot"), OK);
    }
    assert_int_equal(memory_new(&rig->initial, o.count, sizeof(float), "initial"), OK);
    core_rig_fill(rig->initial, o.count, 7);
    if (o.initial != NULL) {
        memcpy(rig->initial, o.initial, o.count * sizeof(float));
    }
    o.settings = rig->settings;
    o.slots = rig->slots;
    o.slot_count = rig->slot_count;
    o.initial = rig->initial;
    o.epoch_samples = o.epoch_samples != 0 ? o.epoch_samples : 1000;
    o.total_samples = o.total_samples != 0 ? o.total_samples : 1000000;
    rig->options = o;
    if (server_core_open(&rig->core, &o) != OK) {
        fail_msg("%s", error_message());
    }
}

void core_rig_close(struct core_rig *rig)
{
    server_core_close(&rig->core);
    for (unsigned i = 0; i < rig->slot_count; i++) {
        memory_free(rig->slots[i]);
    }
    memory_free(rig->slots);
    memory_free(rig->initial);
    options_close(&rig->settings);
}

/* splitmix64 (Steele, Lea, Flood 2014) */
uint64_t core_rig_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void core_rig_fill(float *out, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)((double)(core_rig_random(&seed) >> 11) * 0x1p-52 - 1);
    }
}
