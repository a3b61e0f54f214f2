/*
 * communicator_nccl.c — NCCL adds up the gradients where they are, on the GPUs; MPI only brings the
 * ranks together. One GPU per rank.
 *
 * Cost. NCCL cuts the vector up itself and sends each piece on while it receives the next, by ring
 * or tree: about 2·(P − 1)/P × bytes sent and received by each GPU, past the host. It begins when
 * every rank has computed (README.md, invariant 3), so there are no buckets here.
 *
 * Waiting. Ranks meet at the gate first, which knows who is missing. After it the stream is asked
 * whether it is done, and NCCL whether it saw an error; past the limit the communicator is aborted
 * and the gate is asked once more who is not there.
 *
 * Built and linked; not yet run on a GPU, with two ranks never.
 */
#include "sync/communicator/communicator_nccl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "sync/communicator/ranks.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- who sits where -----------------------------------------------------------------------------
 */

/* Where a rank computes. */
struct nccl_member {
    char host[64];
    char pci[32];
    int32_t ready; /* NCCL was found */
};

/* The first two ranks of one GPU; false: each has its own. */
static bool find_shared_gpu(const struct nccl_member *members, unsigned size, unsigned *first,
                            unsigned *second)
{
    for (*second = 1; *second < size; ++*second) {
        for (*first = 0; *first < *second; ++*first)
            if (strcmp(members[*first].host, members[*second].host) == 0 &&
                strcmp(members[*first].pci, members[*second].pci) == 0)
                return true;
    }
    return false;
}

static bool library_is_there(void)
{
#ifdef GRADLAG_NCCL
    return nccl_load() == OK;
#else
    return false;
#endif
}

/* Every rank's seat; the caller frees *out. All ranks are known to be here. */
static status gather_members(communicator *c, struct nccl_member **out)
{
    status result = OK;
    struct nccl_member own = {.ready = library_is_there()};
    if (gethostname(own.host, sizeof own.host - 1) != 0)
        FAIL(ERROR_OTHER, "this host's name is not to be had");
    memcpy(own.pci, c->place->pci, sizeof own.pci);
    TRY(memory_new(out, c->size, sizeof own, "the ranks' GPUs"));
    TRY(ranks_check(MPI_Allgather(&own, (int)sizeof own, MPI_BYTE, *out, (int)sizeof own, MPI_BYTE,
                                  c->ranks->world),
                    "the ranks' GPUs"));
done:
    return result;
}

status nccl_fits(communicator *c, bool *out)
{
    status result = OK;
    struct nccl_member *members = NULL;
    unsigned first, second;
    *out = false;
    if (c->size == 1 || c->ordered || c->place == NULL)
        goto done;
    TRY(gather_members(c, &members));
    *out = !find_shared_gpu(members, c->size, &first, &second);
    for (unsigned i = 0; i < c->size; i++)
        *out = *out && members[i].ready;
done:
    memory_free(members);
    return result;
}

/* What NCCL itself would say later, and less clearly. Every rank comes to the same. */
static status check_gpus(communicator *c)
{
    status result = OK;
    struct nccl_member *members = NULL;
    unsigned first, second;
    TRY(gather_members(c, &members));
    if (find_shared_gpu(members, c->size, &first, &second)) {
        FAIL(ERROR_USAGE,
             "communicator=nccl: ranks %u and %u are both on GPU %s of %s, and NCCL wants a GPU "
             "for every rank; use fewer workers, or communicator=auto (see `gradlag check`)",
             first, second, members[first].pci, members[first].host);
    }
done:
    memory_free(members);
    return result;
}

static status check_settings(const communicator *c)
{
    status result = OK;
    if (c->place == NULL)
        FAIL(ERROR_USAGE, "communicator=nccl exchanges gradients between GPUs: set device=cuda, or "
                          "use communicator=auto");
    if (c->ordered)
        FAIL(ERROR_USAGE, "communicator=nccl adds up in NCCL's order, not in that of the ranks: "
                          "reduction=ordered goes with communicator=auto, mpi or shared");
done:
    return result;
}

#ifdef GRADLAG_NCCL

static const char WHAT[] = "the sum of the gradients (NCCL)";

/* ---- opening ------------------------------------------------------------------------------------
 */

struct address {
    uint8_t id[NCCL_ID_BYTES];
    int32_t failed;
};

static status agree_on_address(communicator *c, struct address *out)
{
    status result = OK, own = OK;
    memset(out, 0, sizeof *out);
    if (c->rank == 0) {
        own = nccl_make_id(out->id);
        out->failed = own != OK;
    }
    TRY(ranks_check(MPI_Bcast(out, (int)sizeof *out, MPI_BYTE, 0, c->ranks->world),
                    "NCCL's address"));
    TRY(own);
    if (out->failed)
        FAIL(ERROR_PEER, "rank 0 could not begin with NCCL; its message is above");
done:
    return result;
}

static status nccl_open(communicator *c, const options *o UNUSED, size_t count UNUSED)
{
    status result = OK;
    struct address address;
    nccl *n = NULL;
    TRY(check_settings(c));
    TRY(nccl_load());
    TRY(check_gpus(c));
    TRY(agree_on_address(c, &address));
    watchdog_arm(c->timeout_s * COMMUNICATOR_PATIENCE, "opening NCCL");
    TRY(nccl_join(&n, address.id, c->rank, c->size, c->place->index));
    c->state = n;
done:
    return result;
}

static void nccl_close(communicator *c)
{
    nccl *n = c->state;
    watchdog_arm(c->timeout_s, "closing NCCL");
    nccl_leave(&n, c->failed);
    watchdog_disarm();
    c->state = NULL;
}

/* ---- the sum ------------------------------------------------------------------------------------
 */

/* The ranks that still live come to the gate about now, as their own limit has passed. */
static status give_up(communicator *c)
{
    status result = OK;
    const double timeout_s = c->timeout_s, look_s = timeout_s < 2 ? timeout_s : 2;
    nccl *n = c->state;
    nccl_leave(&n, true);
    c->state = NULL;
    c->timeout_s = look_s;
    result = ranks_gate(c, WHAT);
    c->timeout_s = timeout_s;
    TRY(result);
    FAIL(ERROR_PEER,
         "rank %u: %s did not end within %.0f s although all ranks are there: a link between GPUs "
         "may hang. NCCL_DEBUG=INFO in the environment tells more; or raise timeout_s",
         c->rank, WHAT, timeout_s);
done:
    return result;
}

static status await_sum(communicator *c)
{
    enum { SPIN_NS = 2000000, SLEEP_NS = 20000 };
    status result = OK;
    const uint64_t since = clock_ns();
    bool done = false, warned = false;
    for (;;) {
        TRY(nccl_done(c->state, c->place->stream, &done));
        if (done)
            break;
        const uint64_t waited_ns = clock_ns() - since;
        const double waited_s = (double)waited_ns * 1e-9;
        if (waited_s > c->timeout_s)
            TRY(give_up(c));
        if (waited_s > c->warn_after_s && !warned) {
            log_warning("%s has taken %.0f s; gives up after %.0f s", WHAT, waited_s, c->timeout_s);
            warned = true;
        }
        if (c->ranks->crowded || waited_ns > SPIN_NS)
            clock_sleep_until_ns(clock_ns() + SLEEP_NS);
    }
done:
    return result;
}

static status nccl_device_sum(communicator *c, float *data, size_t count)
{
    status result = OK;
    TRY(ranks_gate(c, WHAT));
    watchdog_arm(c->timeout_s, WHAT);
    TRY(nccl_sum(c->state, data, count, c->place->stream));
    watchdog_disarm();
    TRY(await_sum(c));
done:
    watchdog_disarm();
    return result;
}

const char *sync_nccl_version(void)
{
    static char text[600];
    if (nccl_load() == OK) {
        int v = nccl_version();
        snprintf(text, sizeof text, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
    } else {
        snprintf(text, sizeof text, "not found: %s", error_message());
    }
    return text;
}

#else

static status nccl_open(communicator *c, const options *o UNUSED, size_t count UNUSED)
{
    status result = OK;
    TRY(check_settings(c));
    TRY(check_gpus(c));
    FAIL(ERROR_USAGE, "communicator=nccl: this gradlag was built without NCCL; install NCCL's "
                      "header (libnccl-dev) beside the CUDA toolkit and run make again, or use "
                      "communicator=auto");
done:
    return result;
}

static void nccl_close(communicator *c UNUSED) {}

static status nccl_device_sum(communicator *c UNUSED, float *data UNUSED, size_t count UNUSED)
{
    UNREACHABLE("a communicator that cannot be opened");
}

const char *sync_nccl_version(void)
{
    return "built without NCCL";
}

#endif

const struct communicator_kind communicator_nccl = {
    .about = {.name = "nccl",
              .description = "NCCL between GPUs, gradients stay there; a GPU for every rank",
              .source = "NCCL 2, ncclAllReduce"},
    .on_device = true,
    .open = nccl_open,
    .close = nccl_close,
    .device_sum = nccl_device_sum,
    .sent_bytes = ranks_ring_bytes,
};
