#include "sync/communicator/link_benchmark.h"

#include "base/clock.h"
#include "base/memory.h"
#include "sync/communicator/host_networks.h"
#include "sync/communicator/ranks.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG = 30003, ROUND_TRIPS = 200, FIRST_BYTES = 64 << 10, MOST_BYTES = 64 << 20, MEANS = 3 };
#define LONG_ENOUGH_S 0.25 /* a switch's buffers distort the rate of a shorter message */

static const char WHAT[] = "a message over the link";

status link_benchmark_find(communicator *c, struct link_end **ends, unsigned *count)
{
    status result = OK;
    struct link_end own = {.rank = c->rank, .nominal_gbps = host_networks_nominal_gbps()},
                    *all = NULL;
    unsigned n = 0;
    (void)gethostname(own.host, sizeof own.host - 1);
    TRY(memory_new(&all, c->size, sizeof *all, "the hosts of ranks"));
    TRY(communicator_gather_all(c, &own, sizeof own, all));
    for (unsigned i = 0; i < c->size; i++) {
        bool known = false;
        for (unsigned k = 0; k < n && !known; k++)
            known = strcmp(all[k].host, all[i].host) == 0;
        if (!known)
            all[n++] = all[i];
    }
    *ends = all;
    *count = n;
done:
    if (result != OK)
        memory_free(all);
    return result;
}

/* ---- one message, with a limit ------------------------------------------------------------------
 */

static status send_to(communicator *c, unsigned peer, const void *bytes, size_t size)
{
    status result = OK;
    MPI_Request request;
    TRY(ranks_check(
        MPI_Isend(bytes, (int)size, MPI_BYTE, (int)peer, TAG, c->ranks->world, &request), WHAT));
    TRY(ranks_wait(c, &request, 1, WHAT));
done:
    return result;
}

static status receive_from(communicator *c, unsigned peer, void *bytes, size_t size)
{
    status result = OK;
    MPI_Request request;
    TRY(ranks_check(
        MPI_Irecv(bytes, (int)size, MPI_BYTE, (int)peer, TAG, c->ranks->world, &request), WHAT));
    TRY(ranks_wait(c, &request, 1, WHAT));
done:
    return result;
}

/* ---- the two ranks ------------------------------------------------------------------------------
 */

/* The first rank asks the second to receive `bytes` bytes, or to send them if `back`. 0: end. */
struct link_benchmark_order {
    uint64_t bytes;
    bool back;
};

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static status one_way(communicator *c, unsigned peer, const struct link_benchmark_order *o,
                      uint8_t *bytes, double *seconds)
{
    status result = OK;
    uint8_t answer;
    TRY(send_to(c, peer, o, sizeof *o));
    const uint64_t begun = clock_ns();
    if (o->back) {
        TRY(receive_from(c, peer, bytes, o->bytes));
    } else {
        TRY(send_to(c, peer, bytes, o->bytes));
        TRY(receive_from(c, peer, &answer, sizeof answer));
    }
    *seconds = (double)(clock_ns() - begun) * 1e-9;
done:
    return result;
}

/* Doubles the message until it takes LONG_ENOUGH_S; the rate is that of the last one. */
static status measure_rate(communicator *c, unsigned peer, bool back, uint8_t *bytes, double *rate)
{
    status result = OK;
    struct link_benchmark_order o = {.bytes = FIRST_BYTES, .back = back};
    double seconds = 0;
    for (;; o.bytes *= 2) {
        TRY(one_way(c, peer, &o, bytes, &seconds));
        if (seconds >= LONG_ENOUGH_S || o.bytes == MOST_BYTES)
            break;
    }
    *rate = (double)o.bytes / seconds;
done:
    return result;
}

static status lead(communicator *c, unsigned peer, uint8_t *bytes, struct link_rates *out)
{
    status result = OK;
    double trips[ROUND_TRIPS];
    const struct link_benchmark_order over = {0};
    uint64_t word = 0;
    for (unsigned i = 0; i < ROUND_TRIPS; i++) {
        const uint64_t begun = clock_ns();
        TRY(send_to(c, peer, &word, sizeof word));
        TRY(receive_from(c, peer, &word, sizeof word));
        trips[i] = (double)(clock_ns() - begun) * 1e-9;
    }
    qsort(trips, ROUND_TRIPS, sizeof *trips, ascending);
    out->latency_s = trips[ROUND_TRIPS / 2] / 2;
    TRY(measure_rate(c, peer, false, bytes, &out->forward));
    TRY(measure_rate(c, peer, true, bytes, &out->backward));
    TRY(send_to(c, peer, &over, sizeof over));
done:
    return result;
}

static status follow(communicator *c, unsigned peer, uint8_t *bytes)
{
    status result = OK;
    struct link_benchmark_order o = {0};
    uint64_t word;
    const uint8_t answer = 1;
    for (unsigned i = 0; i < ROUND_TRIPS; i++) {
        TRY(receive_from(c, peer, &word, sizeof word));
        TRY(send_to(c, peer, &word, sizeof word));
    }
    for (;;) {
        TRY(receive_from(c, peer, &o, sizeof o));
        if (o.bytes == 0)
            break;
        REQUIRE(o.bytes <= MOST_BYTES);
        if (o.back) {
            TRY(send_to(c, peer, bytes, o.bytes));
        } else {
            TRY(receive_from(c, peer, bytes, o.bytes));
            TRY(send_to(c, peer, &answer, sizeof answer));
        }
    }
done:
    return result;
}

status link_benchmark_measure(communicator *c, unsigned first, unsigned second,
                              struct link_rates *out)
{
    status result = OK;
    uint8_t *bytes = NULL;
    *out = (struct link_rates){0};
    if (c->rank == first || c->rank == second) {
        TRY(memory_new(&bytes, MOST_BYTES, 1, "a large message"));
        memset(bytes, 1, MOST_BYTES); /* maps its pages */
        TRY(c->rank == first ? lead(c, second, bytes, out) : follow(c, first, bytes));
    }
    TRY(communicator_barrier_long(c, "the measured link"));
done:
    if (result == OK) /* else MPI may still read or write it */
        memory_free(bytes);
    return result;
}

status link_benchmark_mean_seconds(communicator *c, size_t count, double *out)
{
    status result = OK;
    float *data = communicator_buffer(c);
    memset(data, 0, count * sizeof *data);
    for (unsigned i = 0; i <= MEANS; i++) {
        TRY(communicator_barrier(c));
        const uint64_t begun = clock_ns();
        TRY(communicator_allreduce_mean(c, data, count));
        const double seconds = (double)(clock_ns() - begun) * 1e-9;
        if (i == 1 || (i > 1 && seconds < *out)) /* the first mean does not count: it maps memory */
            *out = seconds;
    }
done:
    return result;
}
