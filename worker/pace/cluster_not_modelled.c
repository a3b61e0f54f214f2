/* cluster_not_modelled.c — which parts of a real cluster a virtual run leaves out (cluster.h). */
#include "worker/pace/cluster.h"

#include <string.h>

/* When a part is left out. */
enum left_out {
    ALWAYS,
    IN_ASYNC,
    IN_ASYNC_IF_OFF, /* unless the flag `key` is set */
    IF_ZERO,         /* if the setting `key` is 0 */
    IF_ZERO_OR_SYNC,
    IF_BOTH_ZERO, /* if `key` and `other` are 0 */
};

/* Names are stable: queries look for them. docs/virtual-cluster.md explains each. */
static const struct {
    const char *name;
    enum left_out when;
    const char *key, *other;
} parts[] = {
    {"latency", IF_ZERO, "network.latency_ms", NULL},
    {"latency_variation", IF_ZERO_OR_SYNC, "network.jitter_ms", NULL},
    {"bandwidth", IF_BOTH_ZERO, "network.gbps", "network.server_gbps"},
    {"shared_uplinks", IF_ZERO, "network.uplink_gbps", NULL},
    {"core_network", ALWAYS, NULL, NULL},
    {"packet_loss", ALWAYS, NULL, NULL},
    {"tcp", ALWAYS, NULL, NULL},
    {"encryption", ALWAYS, NULL, NULL},
    {"memory_contention", ALWAYS, NULL, NULL},
    {"correlated_slowdowns", IF_ZERO, "pace.window_s", NULL},
    {"update_time", IF_ZERO_OR_SYNC, "server.apply_ms", NULL},
    {"evaluation_time", ALWAYS, NULL, NULL},
    {"startup", ALWAYS, NULL, NULL},
    {"worker_crashes", IF_ZERO_OR_SYNC, "crash.mtbf_s", NULL},
    {"server_crashes", IN_ASYNC, NULL, NULL},
    {"new_workers", IF_ZERO_OR_SYNC, "join.after_s", NULL},
    {"overlap", IN_ASYNC, NULL, NULL},
    {"server_tree", IN_ASYNC_IF_OFF, "network.rack_servers", NULL},
};

static bool is_left_out(const options *o, size_t i)
{
    const bool sync = strcmp(options_text(o, "mode"), "sync") == 0;
    const enum left_out when = parts[i].when;
    const bool zero =
        parts[i].key != NULL && when != IN_ASYNC_IF_OFF && options_real(o, parts[i].key) == 0;
    switch (when) {
    case ALWAYS:
        return true;
    case IN_ASYNC:
        return !sync;
    case IN_ASYNC_IF_OFF:
        return !sync && !options_flag(o, parts[i].key);
    case IF_ZERO:
        return zero;
    case IF_ZERO_OR_SYNC:
        return sync || zero;
    case IF_BOTH_ZERO:
        return zero && options_real(o, parts[i].other) == 0;
    }
    return true;
}

void cluster_not_modelled(const options *o, struct text *out)
{
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (is_left_out(o, i))
            text_add(out, "%s%s", out->length > 0 ? " " : "", parts[i].name);
}
