/*
 * first_contact.c — the first messages between ranks. MPI_Init opens no connections: whether two
 * hosts reach each other shows only when one sends to the other. So each rank sends one byte to the
 * others before it loads data, and logs early from which ranks it has no message.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "sync/communicator/host_networks.h"
#include "sync/communicator/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG = 30002, HOST = 64, NAMED_MOST = 8, LOG_AFTER_S = 5, ALL_WITH_ALL = 64 };

static const char BYTE = 1; /* static: sends may still read it after a timeout */

struct first_contact {
    unsigned rank, size;
    char host[HOST];       /* of this rank */
    char *bytes;           /* [size]: received from each; the value is not used */
    MPI_Request *requests; /* [2 × size]: receives from each rank, then sends to each */
};

/* More than ALL_WITH_ALL ranks: only pairs whose numbers differ by a power of two, and pairs with
 * rank 0. */
static bool exchanges_with(const struct first_contact *m, unsigned other)
{
    const unsigned distance = other > m->rank ? other - m->rank : m->rank - other;
    return distance > 0 && (m->size <= ALL_WITH_ALL || m->rank == 0 || other == 0 ||
                            (distance & (distance - 1)) == 0);
}

/* One rank of each host logs: its first, as the launcher numbers them. */
static bool logs_for_host(const struct first_contact *m)
{
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    local = local != NULL ? local : getenv("SLURM_LOCALID");
    return local != NULL ? strcmp(local, "0") == 0 : m->rank < 2;
}

static void add_missing(const struct first_contact *m, struct text *out)
{
    unsigned count = 0;
    for (unsigned i = 0; i < m->size; i++) {
        if (m->requests[i] == MPI_REQUEST_NULL && m->requests[m->size + i] == MPI_REQUEST_NULL)
            continue;
        if (count++ < NAMED_MOST)
            text_add(out, "%srank %u", count == 1 ? "" : ", ", i);
    }
    if (count > NAMED_MOST)
        text_add(out, " and %u more", count - NAMED_MOST);
}

static void add_advice(struct text *out)
{
    if (sync_on_one_host()) {
        text_add(out, "It may have died, hang, or wait for a processor; see its messages");
        return;
    }
    text_add(out,
             "If it is alive, the two hosts cannot reach each other by the addresses that Open MPI "
             "chose: a bridge may have the same address on both. This host has ");
    host_networks_add_interfaces(out);
    text_add(out, ". Set network.interface=NAME (Open MPI's btl_tcp_if_include) to the network "
                  "that connects the hosts");
}

static status begin(struct first_contact *m)
{
    status result = OK;
    for (unsigned i = 0; i < m->size; i++) {
        m->requests[i] = m->requests[m->size + i] = MPI_REQUEST_NULL;
        if (!exchanges_with(m, i))
            continue;
        TRY(ranks_check(
            MPI_Irecv(&m->bytes[i], 1, MPI_CHAR, (int)i, TAG, MPI_COMM_WORLD, &m->requests[i]),
            "the first messages of the ranks"));
        TRY(ranks_check(
            MPI_Isend(&BYTE, 1, MPI_CHAR, (int)i, TAG, MPI_COMM_WORLD, &m->requests[m->size + i]),
            "the first messages of the ranks"));
    }
done:
    return result;
}

/* Number of messages, received or sent, that are not complete. */
static unsigned count_pending(struct first_contact *m)
{
    unsigned pending = 0;
    for (unsigned i = 0; i < 2 * m->size; i++) {
        int complete = 1;
        if (m->requests[i] != MPI_REQUEST_NULL &&
            MPI_Test(&m->requests[i], &complete, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            complete = 0;
        pending += complete == 0;
    }
    return pending;
}

static status wait_for_all(struct first_contact *m, double limit_s)
{
    status result = OK;
    struct text missing = {0}, advice = {0};
    const uint64_t begun = clock_ns();
    bool logged = false;
    while (count_pending(m) > 0) {
        const double waited_s = (double)(clock_ns() - begun) * 1e-9;
        if (waited_s > limit_s || (waited_s > LOG_AFTER_S && !logged && logs_for_host(m))) {
            add_missing(m, &missing);
            add_advice(&advice);
        }
        if (waited_s > limit_s)
            FAIL(ERROR_PEER,
                 "rank %u on %s waited %.1f s for %s (the first messages of the ranks). %s",
                 m->rank, m->host, waited_s, missing.at, advice.at);
        if (missing.length > 0)
            log_warning(
                "this rank, on %s, has waited %.0f s for %s (the first messages of the ranks); the "
                "limit is %.0f s. %s",
                m->host, waited_s, missing.at, limit_s, advice.at);
        logged |= missing.length > 0;
        text_free(&missing);
        text_free(&advice);
        clock_sleep_until_ns(clock_ns() + 1000000);
    }
done:
    text_free(&missing);
    text_free(&advice);
    return result;
}

status sync_first_contact(double timeout_s)
{
    status result = OK;
    int rank, size;
    struct first_contact m = {0};
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    m.rank = (unsigned)rank;
    m.size = (unsigned)size;
    (void)gethostname(m.host, sizeof m.host - 1);
    TRY(memory_new(&m.bytes, m.size, 1, "the first messages of the ranks"));
    TRY(memory_new(&m.requests, 2 * (size_t)m.size, sizeof(MPI_Request),
                   "the first messages of the ranks"));
    TRY(begin(&m));
    TRY(wait_for_all(&m, FIRST_CONTACT_TIMEOUTS * timeout_s));
done:
    if (result == OK) { /* else messages may still arrive there until the process ends */
        memory_free(m.bytes);
        memory_free(m.requests);
    }
    return result;
}
