/* slices.c — see slices.h. */
#include "ps/core/slices.h"

#include "ps/rules/consistency/consistency.h"
#include "ps/rules/outer/outer.h"
#include "worker/optimizer/optimizer.h"

#include <stdio.h>
#include <string.h>

size_t slice_begin(size_t count, unsigned servers, unsigned server)
{
    REQUIRE(servers >= 1 && server <= servers && count >= servers);
    if (server == servers)
        return count;
    size_t unit = count / servers >= SLICE_PAGES * SLICE_PAGE ? SLICE_PAGE : 1;
    size_t units = count / unit, rest = units % servers;
    return (units / servers * server + (server < rest ? server : rest)) * unit;
}

size_t slice_count(size_t count, unsigned servers, unsigned server)
{
    return slice_begin(count, servers, server + 1) - slice_begin(count, servers, server);
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
    struct optimizer_rule rule;
    const struct consistency_policy *policy = (const struct consistency_policy *)registry_find(
        &consistency_registry, options_text(o, "consistency"));
    const struct outer_rule *outer =
        (const struct outer_rule *)registry_find(&outer_registry, options_text(o, "outer"));
    if (servers_of(o) > 1 && options_integer(o, "probe_every") > 0) {
        FAIL(ERROR_USAGE,
             "%s: probe_every=%s needs whole gradients, but with several servers each server has "
             "one slice; set servers=1 or probe_every=0",
             options_origin(o, "probe_every"), options_value(o, "probe_every"));
    }
    if (servers_of(o) > 1 && strcmp(options_text(o, "on_nonfinite"), "skip") == 0) {
        FAIL(ERROR_USAGE,
             "%s: on_nonfinite=skip must skip whole gradients, but with several servers each "
             "server sees one slice; set servers=1 or on_nonfinite=stop",
             options_origin(o, "on_nonfinite"));
    }
    if (servers_of(o) > 1 && !reads_snapshots(o) && strcmp(options_text(o, "outer"), "none") != 0) {
        FAIL(ERROR_USAGE,
             "%s: outer=%s computes learning rates from the version that a worker read, but with "
             "read=torn a worker reads several versions; set read=snapshot or servers=1",
             options_origin(o, "outer"), options_text(o, "outer"));
    }
    if (servers_of(o) > 1 && outer != NULL && outer->by_tensor) {
        FAIL(ERROR_USAGE,
             "%s: outer=%s compares whole tensors with the momentum, but several servers split "
             "them; set servers=1 or another outer",
             options_origin(o, "outer"), outer->about.name);
    }
    TRY(optimizer_rule_of(o, &rule));
    if (servers_of(o) > 1 && rule.by_layer) {
        const char *key = optimizer_rule_key(&rule);
        FAIL(ERROR_USAGE,
             "%s: %s=%s uses whole layers or the norm of the whole gradient, but several servers "
             "split both; set servers=1, or leave %s out",
             options_origin(o, key), key, options_value(o, key), key);
    }
    if (servers_of(o) > 1 && !reads_snapshots(o) && policy->drops_slowest) {
        FAIL(ERROR_USAGE,
             "%s: consistency=%s drops the slowest gradients, and with read=torn each server would "
             "drop different ones; set read=snapshot or another consistency",
             options_origin(o, "consistency"), policy->about.name);
    }
done:
    return result;
}

status slices_fit(unsigned servers, size_t count)
{
    status result = OK;
    if (servers > count) {
        FAIL(ERROR_USAGE,
             "servers=%u: the model has %zu parameters, fewer than servers; set servers=%zu or "
             "less",
             servers, count, count);
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
