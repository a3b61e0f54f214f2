/* simulation_servers.c — see simulation_state.h. */
#include "base/memory.h"
#include "ps/virtual/simulation_state.h"

#include "ps/server/diverged.h"
#include "ps/core/slices.h"

#include <string.h>

enum { PAGE = 4096 };

static status reserve_slots(simulation *s, struct host *h)
{
    status result = OK;
    size_t stride = (h->count * sizeof(float) + PAGE - 1) / PAGE * PAGE;
    TRY(shared_memory_open(&h->area, "the version slots", stride * s->slot_count,
                           shared_memory_wanted(OTHERS_READ)));
    TRY(memory_new(&h->slots, s->slot_count, sizeof *h->slots, "version slots"));
    for (unsigned i = 0; i < s->slot_count; i++)
        h->slots[i] = (float *)(void *)(h->area.at + i * stride);
done:
    return result;
}

static status open_host(simulation *s, struct host *h, uint64_t epoch_samples, const float *initial)
{
    status result = OK;
    unsigned number = (unsigned)(h - s->hosts);
    struct slices slices;
    struct optimizer_layers layers = worker_layers(gradient_pool_own(s->o.pool));
    TRY(slices_open(&slices, s->o.settings, &layers, s->count));
    h->begin = slices.begin[number];
    h->count = slice_count(&slices, number);
    TRY(reserve_slots(s, h));
    TRY(server_core_open(
        &h->core, &(struct server_core_options){.settings = s->o.settings,
                                                .workers = s->o.workers,
                                                .workers_max = s->o.workers_max,
                                                .count = h->count,
                                                .layers = slice_layers(&slices, &layers, number),
                                                .slots = h->slots,
                                                .slot_count = s->slot_count,
                                                .initial = initial + h->begin,
                                                .epoch_samples = epoch_samples,
                                                .total_samples = s->o.length.total_samples,
                                                .total_seconds = s->o.length.seconds,
                                                .evaluate_every = s->o.length.evaluate_every,
                                                .follows = number > 0,
                                                .start = s->o.start,
                                                .begin = h->begin,
                                                .whole = s->count}));
done:
    return result;
}

status servers_open(simulation *s, uint64_t epoch_samples)
{
    status result = OK;
    float *initial = NULL;
    s->servers = servers_of(s->o.settings);
    s->slot_count = s->o.workers_max + 2;
    TRY(memory_new(&s->hosts, s->servers, sizeof *s->hosts, "servers"));
    TRY(memory_new(&s->whole, s->servers > 1 ? s->count : 1, sizeof *s->whole, "all slices"));
    TRY(memory_new(&initial, s->count, sizeof *initial, "initial parameters"));
    if (s->o.start != NULL)
        memcpy(initial, s->o.start->parameters, s->count * sizeof *initial);
    else
        TRY(worker_initial_parameters(gradient_pool_own(s->o.pool), initial, s->count));
    for (unsigned i = 0; i < s->servers; i++)
        TRY(open_host(s, &s->hosts[i], epoch_samples, initial));
done:
    memory_free(initial);
    return result;
}

void servers_close(simulation *s)
{
    for (unsigned i = 0; s->hosts != NULL && i < s->servers; i++) {
        server_core_close(&s->hosts[i].core);
        shared_memory_close(&s->hosts[i].area);
        memory_free(s->hosts[i].slots);
    }
    memory_free(s->hosts);
    memory_free(s->whole);
}

server_core *servers_first(const simulation *s)
{
    return s->hosts[0].core;
}

const float *servers_latest(simulation *s)
{
    if (s->servers == 1)
        return s->hosts[0].slots[server_core_latest_slot(s->hosts[0].core)];
    for (unsigned i = 0; i < s->servers; i++) {
        const struct host *h = &s->hosts[i];
        memcpy(s->whole + h->begin, h->slots[server_core_latest_slot(h->core)],
               h->count * sizeof(float));
    }
    return s->whole;
}

status servers_states(simulation *s, float **out, size_t *out_count)
{
    status result = OK;
    size_t count = 0;
    *out_count = 0;
    for (unsigned i = 0; i < s->servers; i++) {
        server_core_optimizer_state(s->hosts[i].core, &count);
        *out_count += count;
    }
    TRY(memory_new(out, *out_count + 1, sizeof **out, "a checkpoint's optimizer state"));
    for (unsigned i = 0; i < s->servers; i++) {
        const struct host *h = &s->hosts[i];
        const float *state = server_core_optimizer_state(h->core, &count);
        for (size_t k = 0; k < count / h->count; k++)
            memcpy(*out + k * s->count + h->begin, state + k * h->count, h->count * sizeof(float));
    }
done:
    return result;
}

status servers_diverged(const simulation *s, unsigned server, const struct push_record *culprit)
{
    status result = OK;
    char why[WIRE_TEXT_BYTES];
    const struct host *h = &s->hosts[server];
    const struct diverged_where here = {s->servers, server, h->begin, h->count, s->tally.skips};
    diverged_describe(culprit, &here, why);
    FAIL(ERROR_DIVERGED, "%s", why);
done:
    return result;
}
