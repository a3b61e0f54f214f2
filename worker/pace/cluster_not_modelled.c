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
    IF_NO_LIMIT, /* if no link of a worker or server has a limit */
};

/* Names are stable: queries look for them. docs/virtual-cluster.md explains each. */
static const struct {
    const char *name;
    enum left_out when;
    const char *key;
} parts[] = {
    {"latency", IF_ZERO, "network.latency_ms"},
    {"latency_variation", IF_ZERO_OR_SYNC, "network.jitter_ms"},
    {"bandwidth", IF_NO_LIMIT, NULL},
    {"shared_uplinks", IF_ZERO, "network.uplink_gbps"},
    {"core_network", ALWAYS, NULL},
    {"packet_loss", ALWAYS, NULL},
    {"tcp", ALWAYS, NULL},
    {"encryption", ALWAYS, NULL},
    {"memory_contention", ALWAYS, NULL},
    {"correlated_slowdowns", IF_ZERO, "pace.window_s"},
    {"update_time", IF_ZERO_OR_SYNC, "server.apply_ms"},
    {"evaluation_time", ALWAYS, NULL},
    {"startup", ALWAYS, NULL},
    {"worker_crashes", IF_ZERO_OR_SYNC, "crash.mtbf_s"},
    {"server_crashes", IN_ASYNC, NULL},
    {"new_workers", IF_ZERO_OR_SYNC, "join.after_s"},
    {"overlap", IN_ASYNC, NULL},
    {"server_tree", IN_ASYNC_IF_OFF, "network.rack_servers"},
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
    case IF_NO_LIMIT:
        return options_real(o, "network.gbps") == 0 &&
               options_real(o, "network.server_gbps") == 0 &&
               options_real(o, "network.server_in_gbps") == 0;
    }
    return true;
}

void cluster_not_modelled(const options *o, struct text *out)
{
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (is_left_out(o, i))
            text_add(out, "%s%s", out->length > 0 ? " " : "", parts[i].name);
}
