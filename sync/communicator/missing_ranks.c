/*
 * missing_ranks.c — which rank is missing, among ranks of several hosts. They share no memory, so
 * this is a roll call by messages:
 *
 *   1. A rank whose wait has timed out sends a message to all others and listens for theirs.
 *      Waiting ranks time out at about the same time. A rank that hangs or has died sends nothing.
 *   2. The rank reports the silent ranks as missing and then sends a second message: it leaves.
 *   3. A rank that ends the run (MPI_Abort) first waits for the second message of every rank that
 *      answered, so that each can report its error. A rank that timed out late stops listening when
 *      it receives a second message.
 *
 * The launcher takes 3 s to end a rank that hangs. All this takes less than 5 s.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "sync/communicator/ranks.h"

#include <unistd.h>

enum { TAG = 30000, TAG_LEAVE, HOST = 64, NAMED_MOST = 8 };
enum { LISTEN_LEAST_MS = 100, LISTEN_MS = 1000 };
enum { LEAVE_MS = 1800 };              /* latest time to leave, after the roll call began */
enum { LEAVE_WITHOUT_CALL_MS = 2000 }; /* time to leave if this rank has made no roll call */

struct missing_ranks {
    unsigned rank, size;
    MPI_Comm world;
    char (*hosts)[HOST];           /* [size] */
    char byte, *bytes;             /* sent; [2 × size] received: the values are not used */
    MPI_Request *waiting, *leaves; /* [size]: receives of the first and of the second message */
    uint64_t begun_ns;
};

static struct missing_ranks *roll_call; /* NULL: there was none */

status missing_ranks_open(communicator *c)
{
    status result = OK;
    struct missing_ranks *r = NULL;
    char own[HOST] = "";
    if (c->size == 1)
        return OK;
    TRY(memory_new(&r, 1, sizeof *r, "the roll call"));
    c->ranks->missing_ranks = r;
    r->rank = c->rank;
    r->size = c->size;
    r->world = c->ranks->world;
    TRY(memory_new(&r->hosts, c->size, sizeof *r->hosts, "the roll call"));
    TRY(memory_new(&r->bytes, 2 * (size_t)c->size, 1, "the roll call"));
    TRY(memory_new(&r->waiting, c->size, sizeof *r->waiting, "the roll call"));
    TRY(memory_new(&r->leaves, c->size, sizeof *r->leaves, "the roll call"));
    (void)gethostname(own, sizeof own - 1);
    TRY(ranks_check(MPI_Allgather(own, HOST, MPI_CHAR, r->hosts, HOST, MPI_CHAR, r->world),
                    "the hosts of ranks"));
done:
    return result;
}

void missing_ranks_close(communicator *c)
{
    struct missing_ranks *r = c->ranks->missing_ranks;
    if (r != NULL) {
        memory_free(r->hosts);
        memory_free(r->bytes);
        memory_free(r->waiting);
        memory_free(r->leaves);
    }
    memory_free(r);
    c->ranks->missing_ranks = NULL;
}

static void receive_from_all(struct missing_ranks *r, int tag, char *bytes, MPI_Request *from)
{
    for (unsigned i = 0; i < r->size; i++) {
        from[i] = MPI_REQUEST_NULL;
        if (i != r->rank &&
            MPI_Irecv(&bytes[i], 1, MPI_CHAR, (int)i, tag, r->world, &from[i]) != MPI_SUCCESS)
            log_debug("cannot receive from rank %u", i);
    }
}

static void send_to_all(struct missing_ranks *r, int tag)
{
    MPI_Request unused;
    for (unsigned i = 0; i < r->size; i++)
        if (i != r->rank &&
            MPI_Isend(&r->byte, 1, MPI_CHAR, (int)i, tag, r->world, &unused) != MPI_SUCCESS)
            log_debug("cannot send to rank %u", i);
}

static bool has_arrived(MPI_Request *request)
{
    int arrived = 1;
    if (*request != MPI_REQUEST_NULL)
        (void)MPI_Test(request, &arrived, MPI_STATUS_IGNORE);
    return arrived != 0;
}

/* Number of ranks whose message `from` has not arrived. If `but` is set, ranks whose message `but`
 * has not arrived are not counted. */
static unsigned count_silent(const struct missing_ranks *r, MPI_Request *from,
                             const MPI_Request *but)
{
    unsigned silent = 0;
    for (unsigned i = 0; i < r->size; i++)
        silent += !has_arrived(&from[i]) && (but == NULL || but[i] == MPI_REQUEST_NULL);
    return silent;
}

static bool any_rank_leaves(const struct missing_ranks *r)
{
    bool leaves = false;
    for (unsigned i = 0; i < r->size; i++)
        leaves |= i != r->rank && has_arrived(&r->leaves[i]);
    return leaves;
}

static unsigned count_missing(const struct missing_ranks *r)
{
    for (;;) {
        const unsigned missing = count_silent(r, r->waiting, NULL);
        const uint64_t ms = (clock_ns() - r->begun_ns) / 1000000;
        if (missing == 0 || ms >= LISTEN_MS || (ms >= LISTEN_LEAST_MS && any_rank_leaves(r)))
            return missing;
        clock_sleep_until_ns(clock_ns() + 1000000);
    }
}

/* The requests stay open, because this process ends and frees nothing (ranks_abandon). */
void missing_ranks_add(const communicator *c, struct text *out)
{
    struct missing_ranks *r = c->ranks->missing_ranks;
    unsigned missing = 0, named = 0;

    if (r != NULL) {
        roll_call = r;
        r->begun_ns = clock_ns();
        receive_from_all(r, TAG, r->bytes, r->waiting);
        receive_from_all(r, TAG_LEAVE, r->bytes + r->size, r->leaves);
        send_to_all(r, TAG);
        missing = count_missing(r);
    }
    for (unsigned i = 0; missing > 0 && i < c->size; i++)
        if (r->waiting[i] != MPI_REQUEST_NULL && named++ < NAMED_MOST)
            text_add(out, "%srank %u on %s", named == 1 ? "" : ", ", i, r->hosts[i]);
    if (missing > NAMED_MOST)
        text_add(out, " and %u more", missing - NAMED_MOST);
    if (missing == 0)
        text_add(out, "another rank");
}

void missing_ranks_leave(void)
{
    struct missing_ranks *r = roll_call;
    if (r == NULL) {
        clock_sleep_until_ns(clock_ns() + LEAVE_WITHOUT_CALL_MS * 1000000ull);
        return;
    }
    send_to_all(r, TAG_LEAVE);
    while (count_silent(r, r->leaves, r->waiting) > 0 &&
           clock_ns() < r->begun_ns + LEAVE_MS * 1000000ull)
        clock_sleep_until_ns(clock_ns() + 1000000);
}
