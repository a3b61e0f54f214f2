/* slices.c — see slices.h. */
#include "ps/core/slices.h"

#include "ps/rules/consistency/consistency.h"
#include "ps/rules/correction/correction.h"
#include "ps/rules/damping/damping.h"
#include "ps/rules/outer/outer.h"

#include <stdio.h>
#include <string.h>

/* First element of slice `server` if layers may be cut. */
static size_t even_cut(size_t count, unsigned servers, unsigned server)
{
    size_t unit = count / servers >= SLICE_PAGES * SLICE_PAGE ? SLICE_PAGE : 1;
    size_t units = count / unit, rest = units % servers;
    return (units / servers * server + (server < rest ? server : rest)) * unit;
}

static size_t distance(size_t a, size_t b)
{
    return a > b ? a - b : b - a;
}

/* Moves cut `server` to the nearest boundary between layers that lies after the cut before it and
 * leaves a layer for each later slice. */
static void cut_between(struct slices *s, unsigned server, const struct optimizer_layers *layers)
{
    const size_t target = s->begin[server];
    size_t layer = s->layer[server - 1] + 1;
    size_t at = s->begin[server - 1] + layers->at[layer - 1].count;
    while (layers->count - layer > s->servers - server &&
           distance(at + layers->at[layer].count, target) < distance(at, target))
        at += layers->at[layer++].count;
    s->begin[server] = at;
    s->layer[server] = layer;
}

void slices_cut(struct slices *out, unsigned servers, size_t count,
                const struct optimizer_layers *layers)
{
    REQUIRE(servers >= 1 && servers <= SERVERS_MAX && count >= servers);
    REQUIRE(layers == NULL || layers->count >= servers);
    *out = (struct slices){.servers = servers};
    for (unsigned i = 0; i < servers; i++)
        out->begin[i] = even_cut(count, servers, i);
    out->begin[servers] = count;
    if (layers == NULL)
        return;
    out->layer[servers] = layers->count;
    for (unsigned i = 1; i < servers; i++)
        cut_between(out, i, layers);
}

static const struct about *chosen(const struct registry *registry, const options *o,
                                  const char *key)
{
    return registry_find(registry, options_text(o, key));
}

/* The key whose value needs whole layers on each server; NULL: none. */
static status key_of_whole_layers(const options *o, const char **out)
{
    status result = OK;
    struct optimizer_rule rule;
    const struct outer_rule *outer = (const struct outer_rule *)chosen(&outer_registry, o, "outer");
    TRY(optimizer_rule_of(o, &rule));
    *out = outer != NULL && outer->by_tensor ? "outer"
           : rule.by_layer                   ? optimizer_rule_key(&rule)
                                             : NULL;
done:
    return result;
}

status slices_open(struct slices *out, const options *o, const struct optimizer_layers *layers,
                   size_t count)
{
    status result = OK;
    const char *key;
    const unsigned servers = servers_of(o);
    TRY(key_of_whole_layers(o, &key));
    if (servers > count) {
        FAIL(ERROR_USAGE,
             "servers=%u: the model has %zu parameters, fewer than servers; set servers=%zu or "
             "less",
             servers, count, count);
    }
    if (servers > 1 && key != NULL && servers > layers->count) {
        FAIL(ERROR_USAGE,
             "servers=%u: %s=%s needs whole layers, and the model has %zu, fewer than servers; set "
             "servers=%zu or less",
             servers, key, options_value(o, key), layers->count, layers->count);
    }
    slices_cut(out, servers, count, servers > 1 && key != NULL ? layers : NULL);
done:
    return result;
}

size_t slice_count(const struct slices *s, unsigned server)
{
    return s->begin[server + 1] - s->begin[server];
}

struct optimizer_layers slice_layers(const struct slices *s, const struct optimizer_layers *layers,
                                     unsigned server)
{
    if (s->servers == 1)
        return *layers;
    const size_t first = s->layer[server];
    return (struct optimizer_layers){layers->at + first, s->layer[server + 1] - first};
}

unsigned servers_of(const options *settings)
{
    return (unsigned)options_integer(settings, "servers");
}

bool reads_snapshots(const options *settings)
{
    return strcmp(options_text(settings, "read"), "snapshot") == 0;
}

status slices_check(const options *o)
{
    status result = OK;
    const struct consistency_policy *policy =
        (const struct consistency_policy *)chosen(&consistency_registry, o, "consistency");
    const struct correction_rule *correction =
        (const struct correction_rule *)chosen(&correction_registry, o, "correction");
    const bool torn = !reads_snapshots(o);
    struct damping damping;
    TRY(damping_open(&damping, o));
    const struct {
        bool wrong;
        const char *key, *because, *instead;
    } cases[] = {
        {options_integer(o, "probe_every") > 0, "probe_every",
         "needs whole gradients, but each server has one slice", "probe_every=0"},
        {strcmp(options_text(o, "on_nonfinite"), "skip") == 0, "on_nonfinite",
         "must skip whole gradients, but each server sees one slice", "on_nonfinite=stop"},
        {options_real(o, "clip_norm") > 0, "clip_norm",
         "needs the norm of the whole gradient, but each server has one slice", "clip_norm=0"},
        {damping.rule->needs_norm, "damping",
         "needs the norm of the whole gradient, but each server has one slice", "another damping"},
        {correction->adjust != NULL, "correction",
         "measures one momentum of all parameters, but each server has one slice",
         "another correction"},
        {torn && strcmp(options_text(o, "outer"), "none") != 0, "outer",
         "computes learning rates from the version that a worker read, but with read=torn a worker "
         "reads several versions",
         "read=snapshot"},
        {torn && policy->drops, "consistency",
         "drops stale gradients, and with read=torn each server would drop different ones",
         "read=snapshot, or another consistency"},
        {torn && damping_drops(&damping), "damping",
         "drops stale gradients, and with read=torn each server would drop different ones",
         "read=snapshot, or another damping"},
    };
    for (size_t i = 0; i < COUNT_OF(cases) && servers_of(o) > 1; i++) {
        if (cases[i].wrong) {
            FAIL(ERROR_USAGE, "%s: %s=%s with several servers: it %s; set servers=1 or %s",
                 options_origin(o, cases[i].key), cases[i].key, options_value(o, cases[i].key),
                 cases[i].because, cases[i].instead);
        }
    }
done:
    return result;
}

status servers_endpoint(const char *list, unsigned servers, unsigned server,
                        char out[SERVERS_ENDPOINT_BYTES])
{
    status result = OK;
    const char *at = list, *wanted = list;
    unsigned count = 1;
    REQUIRE(server < servers);
    for (; servers > 1 && (at = strchr(at, ',')) != NULL; at++)
        wanted = count++ == server ? at + 1 : wanted;
    size_t length = servers > 1 ? strcspn(wanted, ",") : strlen(list);
    if (count != servers) {
        FAIL(ERROR_USAGE,
             "endpoint=%s: servers=%u requires %u comma-separated endpoints, server 0 first; the "
             "list has %u",
             list, servers, servers, count);
    }
    if (length == 0 || length >= SERVERS_ENDPOINT_BYTES) {
        FAIL(ERROR_USAGE, "endpoint=%s: the endpoint of server %u is %s", list, server,
             length == 0 ? "empty" : "too long");
    }
    snprintf(out, SERVERS_ENDPOINT_BYTES, "%.*s", (int)length, wanted);
done:
    return result;
}
