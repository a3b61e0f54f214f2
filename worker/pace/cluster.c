#include "worker/pace/cluster.h"

#include "base/random.h"

#include <math.h>
#include <string.h>

static double ns_per_byte(double gbps)
{
    return gbps > 0 ? 8 / gbps : 0;
}

static bool is(const options *o, const char *key, const char *value)
{
    return strcmp(options_text(o, key), value) == 0;
}

static uint64_t exponential_ns(struct random_stream *r, double mean_ns)
{
    return pace_whole_ns(-mean_ns * log1p(-random_uniform(r)));
}

static unsigned most_workers(const options *o)
{
    const int64_t workers = options_integer(o, "workers"), most = options_integer(o, "workers.max");
    return (unsigned)(most > workers ? most : workers);
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
                          .down_ns = 1e9 * options_real(o, "crash.down_s"),
                          .uplink_ns_per_byte = ns_per_byte(options_real(o, "network.uplink_gbps")),
                          .joins_ns = 1e9 * options_real(o, "join.after_s"),
                          .workers = most_workers(o),
                          .racks = (unsigned)options_integer(o, "network.racks"),
                          .hierarchical = is(o, "network.allreduce", "hierarchical"),
                          .rack_servers = options_flag(o, "network.rack_servers"),
                          .window_ns = 1e9 * options_real(o, "pace.window_s"),
                          .window_share = options_real(o, "pace.window_share"),
                          .window_factor = options_real(o, "pace.window_factor"),
                          .window_of_rack = is(o, "pace.window_of", "rack")};
}

unsigned cluster_rack_of(unsigned worker, unsigned workers, unsigned racks)
{
    REQUIRE(worker < workers && racks > 0);
    return (unsigned)((uint64_t)worker * racks / workers);
}

/* ---- steps --------------------------------------------------------------------------------- */

/* The factor on a step that begins at this time. */
static double window_factor(const struct cluster *c, unsigned worker, uint64_t begins_ns)
{
    struct random_stream r;
    if (c->window_ns <= 0)
        return 1;
    const unsigned group = c->window_of_rack ? cluster_rack_of(worker, c->workers, c->racks) : 0;
    random_open(&r, RANDOM_SLOWDOWN, c->seed, group, (uint64_t)((double)begins_ns / c->window_ns));
    return random_uniform(&r) < c->window_share ? c->window_factor : 1;
}

uint64_t cluster_step_ns(const struct cluster *c, unsigned worker, uint64_t step,
                         uint64_t begins_ns)
{
    const uint64_t ns = pace_duration_of(c->pace, worker, step, 0);
    const double factor = window_factor(c, worker, begins_ns);
    return factor > 1 ? pace_whole_ns(factor * (double)ns) : ns;
}

/* ---- messages ------------------------------------------------------------------------------ */

uint64_t cluster_latency_ns(const struct cluster *c)
{
    return pace_whole_ns(c->latency_ns);
}

double cluster_share(const struct cluster *c, unsigned worker, uint64_t message)
{
    struct random_stream r;
    random_open(&r, RANDOM_SHARE, c->seed, worker, message);
    return fmax(PACE_SHARE_LEAST, -log1p(-random_uniform(&r)));
}

uint64_t cluster_jitter_ns(const struct cluster *c, unsigned worker, uint64_t message)
{
    struct random_stream r;
    if (c->jitter_ns <= 0)
        return 0;
    random_open(&r, RANDOM_JITTER, c->seed, worker, message);
    return exponential_ns(&r, c->jitter_ns);
}

/* 2 (n − 1) rounds of a ring of n ranks, each with an n-th of the bytes. */
static double rounds_ns(const struct cluster *c, unsigned n, double bytes, double per_byte)
{
    return 2.0 * (n - 1) * (c->latency_ns + per_byte * bytes / n);
}

uint64_t cluster_allreduce_ns(const struct cluster *c, unsigned ranks, size_t bytes)
{
    const unsigned racks = c->racks > 0 ? c->racks : 1, largest = (ranks + racks - 1) / racks;
    const double uplink = racks > 1 ? c->uplink_ns_per_byte : 0;
    if (c->hierarchical) {
        const double part = (double)bytes / largest;
        return pace_whole_ns(rounds_ns(c, largest, (double)bytes, c->ns_per_byte) +
                             rounds_ns(c, racks, part, fmax(c->ns_per_byte, largest * uplink)));
    }
    return pace_whole_ns(rounds_ns(c, ranks, (double)bytes, fmax(c->ns_per_byte, uplink)));
}

bool cluster_life_ns(const struct cluster *c, unsigned worker, uint64_t life, uint64_t *lives,
                     uint64_t *away)
{
    struct random_stream r;
    if (c->lives_ns <= 0)
        return false;
    random_open(&r, RANDOM_CRASH, c->seed, worker, life);
    *lives = exponential_ns(&r, c->lives_ns);
    *away = exponential_ns(&r, c->down_ns);
    return true;
}

uint64_t cluster_join_ns(const struct cluster *c, unsigned worker)
{
    struct random_stream r;
    random_open(&r, RANDOM_JOIN, c->seed, worker, 0);
    return exponential_ns(&r, c->joins_ns);
}

/* ---- contradictions ------------------------------------------------------------------------ */

static status check_racks(const options *o)
{
    status result = OK;
    const int64_t racks = options_integer(o, "network.racks");
    const bool sync = is(o, "mode", "sync"),
               hierarchical = is(o, "network.allreduce", "hierarchical");
    if (racks > options_integer(o, "workers")) {
        FAIL(ERROR_USAGE,
             "%s: network.racks=%s is more than workers=%s, so some racks would be empty; set at "
             "most one rack for each worker",
             options_origin(o, "network.racks"), options_value(o, "network.racks"),
             options_value(o, "workers"));
    }
    if (options_real(o, "network.uplink_gbps") > 0 && (racks == 0 || (sync && racks == 1))) {
        FAIL(ERROR_USAGE,
             "%s: network.uplink_gbps=%s has no effect with network.racks=%s%s; set network.racks "
             "to the number of racks",
             options_origin(o, "network.uplink_gbps"), options_value(o, "network.uplink_gbps"),
             options_value(o, "network.racks"),
             racks == 1 ? ", because ranks in one rack use no uplink" : "");
    }
    if (hierarchical && racks < 2) {
        FAIL(ERROR_USAGE,
             "%s: network.allreduce=hierarchical has two levels, ranks and racks, but "
             "network.racks=%s; set network.racks=2 or more",
             options_origin(o, "network.allreduce"), options_value(o, "network.racks"));
    }
done:
    return result;
}

/* A rack server passes on complete sums of its rack, so the server must apply all gradients of a
 * rack in one update, and every worker of the rack must take part in each. */
static status check_rack_servers(const options *o)
{
    status result = OK;
    const bool groups = is(o, "consistency", "groups");
    const struct {
        bool wrong;
        const char *key, *because, *instead;
    } cases[] = {
        {options_integer(o, "network.racks") == 0, "network.racks", "there are no racks",
         "set it to the number of racks"},
        {!groups && !is(o, "consistency", "bsp"), "consistency",
         "a rack server sends one sum for its rack",
         "set consistency=groups and consistency.groups to the number of racks, or "
         "consistency=bsp"},
        {groups && options_integer(o, "consistency.groups") != options_integer(o, "network.racks"),
         "consistency.groups", "each rack must be a group", "set it to the number of racks"},
        {options_real(o, "crash.mtbf_s") > 0, "crash.mtbf_s",
         "a crashed worker would leave the sum of its rack incomplete", "leave one of them out"},
        {!is(o, "compression", "none"), "compression",
         "a rack server cannot add compressed gradients", "set compression=none"},
        {is(o, "on_nonfinite", "skip"), "on_nonfinite",
         "a worker whose gradient is skipped continues without its rack", "set on_nonfinite=stop"},
        {is(o, "correction", "dc-asgd-c") || is(o, "correction", "dc-asgd-a"), "correction",
         "it squares single gradients, which a sum does not contain", "set another correction"},
        {is(o, "damping", "rescaled") || is(o, "damping", "trim"), "damping",
         "it scales single gradients, which a sum does not contain", "set another damping"},
    };
    for (size_t i = 0; i < COUNT_OF(cases) && options_flag(o, "network.rack_servers"); i++) {
        if (cases[i].wrong) {
            FAIL(ERROR_USAGE, "%s: network.rack_servers=true does not fit %s=%s: %s; %s",
                 options_origin(o, "network.rack_servers"), cases[i].key,
                 options_value(o, cases[i].key), cases[i].because, cases[i].instead);
        }
    }
done:
    return result;
}

static status check_windows(const options *o)
{
    status result = OK;
    static const char *const together[] = {"pace.window_s", "pace.window_share"};
    const bool any = options_real(o, "pace.window_s") > 0 ||
                     options_real(o, "pace.window_share") > 0 ||
                     options_real(o, "pace.window_factor") > 1 || is(o, "pace.window_of", "rack");
    for (size_t i = 0; i < COUNT_OF(together) && any; i++) {
        if (options_real(o, together[i]) == 0) {
            FAIL(ERROR_USAGE,
                 "correlated slow-downs need %s, but it is 0; set for example pace.window_s=10 "
                 "pace.window_share=0.1 pace.window_factor=3, or leave out all keys pace.window_*",
                 together[i]);
        }
    }
    if (any && options_real(o, "pace.window_factor") == 1) {
        FAIL(ERROR_USAGE, "correlated slow-downs have no effect with pace.window_factor=1; set for "
                          "example pace.window_factor=3, or leave out all keys pace.window_*");
    }
    if (is(o, "pace.window_of", "rack") && options_integer(o, "network.racks") == 0) {
        FAIL(ERROR_USAGE,
             "%s: pace.window_of=rack needs racks, but network.racks=0; set network.racks, or "
             "pace.window_of=all",
             options_origin(o, "pace.window_of"));
    }
done:
    return result;
}

status cluster_check(const options *o)
{
    status result = OK;
    TRY(check_racks(o));
    TRY(check_windows(o));
    TRY(check_rack_servers(o));
    if (options_integer(o, "network.racks") > 0 && options_real(o, "network.uplink_gbps") == 0 &&
        !options_flag(o, "network.rack_servers") && !is(o, "network.allreduce", "hierarchical") &&
        !is(o, "pace.window_of", "rack")) {
        FAIL(ERROR_USAGE,
             "%s: network.racks=%s has no effect without network.uplink_gbps, "
             "network.rack_servers, network.allreduce=hierarchical or pace.window_of=rack; set one "
             "of them",
             options_origin(o, "network.racks"), options_value(o, "network.racks"));
    }
done:
    return result;
}
