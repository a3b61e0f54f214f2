#include "worker/pace/cluster.h"

#include "base/random.h"

#include <math.h>

static const double LEAST_SHARE = 1e-3;

static double ns_per_byte(double gbps)
{
    return gbps > 0 ? 8 / gbps : 0;
}

void cluster_open(struct cluster *c, const options *o, const pace *steps)
{
    double gbps = options_real(o, "network.gbps"), server = options_real(o, "network.server_gbps"),
           server_in = options_real(o, "network.server_in_gbps");
    server = server > 0 ? server : gbps;
    server_in = server_in > 0 ? server_in : server;
    *c = (struct cluster){.pace = steps,
                          .seed = (uint64_t)options_integer(o, "seed"),
                          .latency_ns = 1e6 * options_real(o, "network.latency_ms"),
                          .ns_per_byte = ns_per_byte(gbps),
                          .server_out_ns_per_byte = ns_per_byte(server),
                          .server_in_ns_per_byte = ns_per_byte(server_in),
                          .apply_ns = 1e6 * options_real(o, "server.apply_ms"),
                          .lives_ns = 1e9 * options_real(o, "crash.mtbf_s"),
                          .jitter_ns = 1e6 * options_real(o, "network.jitter_ms"),
                          .down_ns = 1e9 * options_real(o, "crash.down_s")};
}

uint64_t cluster_step_ns(const struct cluster *c, unsigned worker, uint64_t step)
{
    return pace_duration_of(c->pace, worker, step, 0);
}

uint64_t cluster_latency_ns(const struct cluster *c)
{
    return pace_whole_ns(c->latency_ns);
}

double cluster_share(const struct cluster *c, unsigned worker, uint64_t message)
{
    struct random_stream r;
    random_open(&r, RANDOM_SHARE, c->seed, worker, message);
    return fmax(LEAST_SHARE, -log1p(-random_uniform(&r)));
}

uint64_t cluster_jitter_ns(const struct cluster *c, unsigned worker, uint64_t message)
{
    struct random_stream r;
    if (c->jitter_ns <= 0)
        return 0;
    random_open(&r, RANDOM_JITTER, c->seed, worker, message);
    return pace_whole_ns(-c->jitter_ns * log1p(-random_uniform(&r)));
}

uint64_t cluster_allreduce_ns(const struct cluster *c, unsigned ranks, size_t bytes)
{
    double rounds = 2.0 * (ranks - 1);
    return pace_whole_ns(rounds * (c->latency_ns + c->ns_per_byte * (double)bytes / ranks));
}

bool cluster_life_ns(const struct cluster *c, unsigned worker, uint64_t life, uint64_t *lives,
                     uint64_t *away)
{
    struct random_stream r;
    if (c->lives_ns <= 0)
        return false;
    random_open(&r, RANDOM_CRASH, c->seed, worker, life);
    *lives = pace_whole_ns(-c->lives_ns * log1p(-random_uniform(&r)));
    *away = pace_whole_ns(-c->down_ns * log1p(-random_uniform(&r)));
    return true;
}
