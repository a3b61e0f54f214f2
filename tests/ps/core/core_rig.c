/* core_rig.c — see core_rig.h. */
#include "tests/ps/core/core_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "experiments/config/config.h"

status core_rig_settings(options **out, const char *const *assignments)
{
    static const char *const base[] = {"batch=10", "lr=0.05", "warmup_epochs=0",
                                       "schedule=constant", NULL};
    return config_compose_texts(out, base, assignments, "test");
}

void core_rig_open(struct core_rig *rig, struct server_core_options o,
                   const char *const *assignments)
{
    *rig = (struct core_rig){.workers = o.workers, .count = o.count};
    if (core_rig_settings(&rig->settings, assignments) != OK)
        fail_msg("%s", error_message());
    rig->slot_count = o.slot_count != 0 ? o.slot_count : o.workers + 2;
    assert_int_equal(memory_new(&rig->slots, rig->slot_count, sizeof *rig->slots, "slots"), OK);
    for (unsigned i = 0; i < rig->slot_count; i++)
        assert_int_equal(memory_new(&rig->slots[i], o.count, sizeof(float), "slot"), OK);
    assert_int_equal(memory_new(&rig->initial, o.count, sizeof(float), "initial"), OK);
    core_rig_fill(rig->initial, o.count, 7);
    if (o.initial != NULL)
        memcpy(rig->initial, o.initial, o.count * sizeof(float));
    o.settings = rig->settings;
    o.slots = rig->slots;
    o.slot_count = rig->slot_count;
    o.initial = rig->initial;
    o.epoch_samples = o.epoch_samples != 0 ? o.epoch_samples : 1000;
    o.total_samples = o.total_samples != 0 ? o.total_samples : 1000000;
    rig->options = o;
    if (server_core_open(&rig->core, &o) != OK)
        fail_msg("%s", error_message());
}

void core_rig_close(struct core_rig *rig)
{
    server_core_close(&rig->core);
    for (unsigned i = 0; i < rig->slot_count; i++)
        memory_free(rig->slots[i]);
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
    for (size_t i = 0; i < count; i++)
        out[i] = (float)((double)(core_rig_random(&seed) >> 11) * 0x1p-52 - 1);
}
