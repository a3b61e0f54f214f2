/*
 * check_links.c — `mpirun --host A,B gradlag check --links`: measures each pair of hosts over MPI,
 * one after the other, then one allreduce over all ranks.
 */
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/command.h"
#include "experiments/run/role.h"
#include "experiments/cli/check.h"
#include "sync/communicator/link_benchmark.h"
#include "sync/communicator/host_networks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEAN_COUNT = 4 << 20, NETWORK_BYTES = 96 };
/* A link is slow if its rate is below SLOW_SHARE of the median of all links, or below NOMINAL_SHARE
 * of the nominal rate of the slower interface of the two hosts. */
#define SLOW_SHARE    0.5
#define NOMINAL_SHARE 0.25

struct measured {
    unsigned first, second; /* of ends */
    struct link_rates rates;
};

struct links {
    struct check *c;
    communicator *ranks;
    struct link_end *ends;
    unsigned count; /* of ends */
    struct measured *pairs;
    unsigned pair_count;
};

bool check_is_rank(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    size = size != NULL ? size : getenv("SLURM_STEP_NUM_TASKS");
    return size != NULL && atoi(size) > 1;
}

static void add_name(const struct links *l, const struct measured *m, const char *arrow,
                     struct text *out)
{
    const struct link_end *a = &l->ends[m->first], *b = &l->ends[m->second];
    text_add(out, "%s %s %s", a->host, arrow, b->host);
}

static void print_rate(const struct links *l, const struct measured *m, const char *arrow,
                       double bytes_per_s)
{
    struct text name = {0};
    add_name(l, m, arrow, &name);
    check_number(l->c, "bandwidth", name.at, 8e-9 * bytes_per_s, "Gbit/s");
    text_free(&name);
}

static void print_pair(const struct links *l, const struct measured *m)
{
    struct text name = {0};
    add_name(l, m, "-", &name);
    check_number(l->c, "latency", name.at, m->rates.latency_s * 1e6, "us");
    print_rate(l, m, "->", m->rates.forward);
    print_rate(l, m, "<-", m->rates.backward);
    text_free(&name);
}

static status measure_pair(struct links *l, struct measured *m, unsigned of)
{
    status result = OK;
    const struct link_end *a = &l->ends[m->first], *b = &l->ends[m->second];
    if (l->ranks->rank == 0)
        log_info("link %u of %u: %s - %s", (unsigned)(m - l->pairs) + 1, of, a->host, b->host);
    TRY(link_benchmark_measure(l->ranks, a->rank, b->rank, &m->rates));
    TRY(communicator_broadcast(l->ranks, &m->rates, sizeof m->rates, a->rank));
    if (l->ranks->rank == 0)
        print_pair(l, m);
done:
    return result;
}

static status measure_pairs(struct links *l)
{
    status result = OK;
    const unsigned of = l->count * (l->count - 1) / 2;
    TRY(memory_new(&l->pairs, of, sizeof *l->pairs, "links"));
    for (unsigned a = 0; a < l->count; a++) {
        for (unsigned b = a + 1; b < l->count; b++) {
            l->pairs[l->pair_count] = (struct measured){.first = a, .second = b};
            TRY(measure_pair(l, &l->pairs[l->pair_count], of));
            l->pair_count++;
        }
    }
done:
    return result;
}

/* ---- slow links -------------------------------------------------------------------------------
 */

/* The median rate of all links in bytes/s, each direction counted; 0 for fewer than three links. */
static status median_rate(const struct links *l, double *out)
{
    status result = OK;
    double *all = NULL;
    *out = 0;
    if (l->pair_count < 3)
        return OK;
    TRY(memory_new(&all, 2 * (size_t)l->pair_count, sizeof *all, "links"));
    for (unsigned i = 0; i < l->pair_count; i++) {
        all[2 * i] = l->pairs[i].rates.forward;
        all[2 * i + 1] = l->pairs[i].rates.backward;
    }
    qsort(all, 2 * (size_t)l->pair_count, sizeof *all, check_ascending);
    *out = all[l->pair_count];
done:
    memory_free(all);
    return result;
}

static bool judge(const struct links *l, const struct measured *m, const char *arrow, double rate,
                  double median)
{
    struct text name = {0}, why = {0};
    const double a = l->ends[m->first].nominal_gbps, b = l->ends[m->second].nominal_gbps;
    const double nominal = a < b ? a : b, gbps = 8e-9 * rate;
    if (rate < SLOW_SHARE * median) {
        text_add(&why, "%.3g Gbit/s; the median of all links is %.3g", gbps, 8e-9 * median);
    } else if (gbps < NOMINAL_SHARE * nominal) {
        text_add(&why, "%.3g Gbit/s; the slower interface of the two hosts has %.3g nominally",
                 gbps, nominal);
    }
    const bool slow = why.length > 0;
    if (slow) {
        add_name(l, m, arrow, &name);
        check_text(l->c, "SLOW", name.at, why.at);
    }
    text_free(&name);
    text_free(&why);
    return slow;
}

static status print_slow_links(const struct links *l)
{
    status result = OK;
    double median;
    bool any = false;
    TRY(median_rate(l, &median));
    for (unsigned i = 0; i < l->pair_count; i++) {
        const struct measured *m = &l->pairs[i];
        any |= judge(l, m, "->", m->rates.forward, median);
        any |= judge(l, m, "<-", m->rates.backward, median);
    }
    if (!any)
        check_text(l->c, "slow links", "", "none");
done:
    return result;
}

/* ---- the command --------------------------------------------------------------------------------
 */

/* Prints the network that the first rank of each host has used so far. */
static status print_networks(const struct links *l)
{
    status result = OK;
    char own[NETWORK_BYTES] = "", (*all)[NETWORK_BYTES] = NULL;
    struct text used = {0};
    communicator_add_network(l->ranks, &used);
    snprintf(own, sizeof own, "%s", used.at);
    TRY(memory_new(&all, l->ranks->size, sizeof *all, "the networks of hosts"));
    TRY(communicator_gather_all(l->ranks, own, sizeof own, all));
    for (unsigned i = 0; i < l->count && l->ranks->rank == 0; i++)
        check_text(l->c, "network", l->ends[i].host, all[l->ends[i].rank]);
done:
    text_free(&used);
    memory_free(all);
    return result;
}

static status print_mean(const struct links *l)
{
    status result = OK;
    char what[96];
    double seconds;
    const unsigned ranks = l->ranks->size;
    TRY(link_benchmark_mean_seconds(l->ranks, MEAN_COUNT, &seconds));
    if (ranks > 1 && l->ranks->rank == 0) {
        snprintf(what, sizeof what, "%u ranks, %s", ranks, communicator_name(l->ranks));
        check_number(l->c, "allreduce", what,
                     8e-9 * MEAN_COUNT * sizeof(float) / seconds * 2 * (ranks - 1) / ranks,
                     "Gbit/s of each rank (busbw)");
    }
done:
    return result;
}

/* All ranks are on one host: measures between the first two ranks. */
static status use_two_ranks_of_one_host(struct links *l)
{
    status result = OK;
    struct link_end *two = NULL;
    TRY(memory_new(&two, 2, sizeof *two, "links"));
    for (unsigned i = 0; i < 2; i++) {
        two[i].rank = i;
        snprintf(two[i].host, sizeof two[i].host, "rank %u", i);
    }
    memory_free(l->ends);
    l->ends = two;
    l->count = 2;
done:
    return result;
}

static status measure(struct links *l, const options *o)
{
    status result = OK;
    TRY(sync_first_contact(options_real(o, "timeout_s")));
    TRY(communicator_open(&l->ranks, o, MEAN_COUNT, NULL));
    TRY(link_benchmark_find(l->ranks, &l->ends, &l->count));
    if (l->count == 1)
        TRY(use_two_ranks_of_one_host(l));
    else
        TRY(print_networks(l));
    TRY(measure_pairs(l));
    TRY(print_mean(l));
    if (l->ranks->rank == 0)
        TRY(print_slow_links(l));
done:
    return result;
}

status check_between_ranks(struct check *c, const options *o)
{
    status result = OK;
    struct links l = {.c = c};
    unsigned rank, size;
    if (!sync_on_one_host())
        TRY(host_networks_choose(options_text(o, "network.interface")));
    role_ignore_leaks_of_mpi();
    const char *own = getenv("OMPI_COMM_WORLD_RANK");
    if (own != NULL && strcmp(own, "0") == 0)
        TRY(check_encryption(c));
    TRY(sync_start(&rank, &size));
    char name[32];
    snprintf(name, sizeof name, "rank %u", rank);
    log_set_name(name);
    result = measure(&l, o);
    if (result == OK) {
        communicator_close(&l.ranks);
    } else {
        log_error("%s", error_message()); /* sync_end may not return, so print it now */
        command_error_is_reported();
    }
    sync_end(result);
done:
    memory_free(l.ends);
    memory_free(l.pairs);
    return result;
}
