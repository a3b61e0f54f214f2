/*
 * communicator_nccl.c — NCCL sums the gradients on the GPUs; MPI connects the ranks. One GPU per
 * rank.
 *
 * Cost. NCCL cuts the vector into pieces and sends one piece while it receives the next, by ring or
 * tree: each GPU sends and receives about 2·(P − 1)/P × bytes, without the host. The sums of the
 * parts of a gradient run on a stream of their own while the backward pass computes the rest;
 * events order the streams (worker/cuda/backend_cuda_gradient.c).
 *
 * Waiting. Before some steps are queued, ranks wait at the gate, which knows the missing ranks.
 * Then the rank polls the stream for completion and NCCL for errors. After the limit it aborts the
 * NCCL communicator and waits at the gate once more, to find the missing rank.
 *
 * It ran on one GPU with one rank. Two ranks need two GPUs and were never tested.
 */
#include "sync/communicator/communicator_nccl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "sync/communicator/ranks.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- which GPU each rank has --------------------------------------------------------------------
 */

/* One rank. */
struct nccl_member {
    char host[64]; /* for messages */
    char boot[64]; /* identifies the machine, whose containers have different host names */
    char pci[32];  /* of its GPU */
    int32_t ready; /* NCCL was found */
};

/* Finds the first two ranks that share a GPU; false: each rank has its own. */
static bool find_shared_gpu(const struct nccl_member *members, unsigned size, unsigned *first,
                            unsigned *second)
{
    for (*second = 1; *second < size; ++*second) {
        for (*first = 0; *first < *second; ++*first)
            if (strcmp(members[*first].boot, members[*second].boot) == 0 &&
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

/* All ranks have arrived (ranks_open). The caller frees *out. */
static status gather_members(communicator *c, struct nccl_member **out)
{
    status result = OK;
    struct nccl_member own = {.ready = library_is_there()};
    if (gethostname(own.host, sizeof own.host - 1) != 0)
        FAIL(ERROR_OTHER, "gethostname failed: cannot name this host");
    text_first_line("/proc/sys/kernel/random/boot_id", own.boot, sizeof own.boot);
    if (own.boot[0] == '\0')
        memcpy(own.boot, own.host, sizeof own.boot);
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

/* NCCL reports this error later and less clearly. All ranks get the same result. */
static status check_gpus(communicator *c)
{
    status result = OK;
    struct nccl_member *members = NULL;
    unsigned first, second;
    TRY(gather_members(c, &members));
    for (unsigned i = 0; i < c->size; i++)
        if (i != c->rank && !members[i].ready && members[c->rank].ready)
            FAIL(ERROR_USAGE,
                 "communicator=nccl: rank %u on %s has no NCCL library (see its message); install "
                 "it on all hosts, or use communicator=auto",
                 i, members[i].host);
    if (find_shared_gpu(members, c->size, &first, &second)) {
        FAIL(ERROR_USAGE,
             "communicator=nccl: ranks %u and %u are both on GPU %s of %s; NCCL needs one GPU per "
             "rank. Use fewer workers, or communicator=auto (see `gradlag check`)",
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
        FAIL(ERROR_USAGE, "communicator=nccl exchanges gradients between GPUs; set device=cuda, or "
                          "use communicator=auto");
    if (c->ordered)
        FAIL(ERROR_USAGE, "communicator=nccl cannot sum in rank order, which reduction=ordered "
                          "requires; use communicator=auto, mpi or shared");
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
        FAIL(ERROR_PEER, "rank 0 failed to create an NCCL id; see the error message of rank 0");
done:
    return result;
}

static status nccl_open(communicator *c, const options *o UNUSED, size_t count UNUSED)
{
    status result = OK;
    struct address address;
    nccl *n = NULL;
    TRY(check_settings(c));
    TRY(check_gpus(c));
    TRY(nccl_load());
    TRY(agree_on_address(c, &address));
    watchdog_arm(c->timeout_s * COMMUNICATOR_PATIENCE, "opening NCCL");
    TRY(nccl_join(&n, address.id, c->rank, c->size, c->place->index));
    c->state = n;
done:
    return result;
}

/* `abandon`: aborts the work that NCCL has queued on the GPU. nccl_leave can block, so the watchdog
 * limits it. */
static void leave(communicator *c, bool abandon)
{
    nccl *n = c->state;
    watchdog_arm(c->timeout_s, "closing NCCL");
    nccl_leave(&n, abandon);
    watchdog_disarm();
    c->state = NULL;
}

static void nccl_close(communicator *c)
{
    leave(c, c->failed);
}

/* ---- the sum ------------------------------------------------------------------------------------
 */

/* After an error of NCCL its kernels may never end, so each later wait for the GPU would not end
 * either. */
static status abandon_if_failed(communicator *c, status result)
{
    if (result != OK) {
        const struct error why = error_save();
        leave(c, true);
        error_restore(&why);
    }
    return result;
}

/* The other live ranks come to the gate at about this time, because their limit has passed too. */
static status handle_timeout(communicator *c, double waited_s)
{
    status result = OK;
    const double timeout_s = c->timeout_s, look_s = timeout_s < 2 ? timeout_s : 2;
    leave(c, true);
    c->timeout_s = look_s;
    result = ranks_gate(c, WHAT);
    c->timeout_s = timeout_s;
    TRY(result);
    FAIL(ERROR_PEER,
         "rank %u: %s did not end within %.0f s, but all ranks are alive: a link between GPUs may "
         "hang. Set NCCL_DEBUG=INFO in the environment for details, or raise timeout_s",
         c->rank, WHAT, waited_s);
done:
    return result;
}

static status nccl_device_end(communicator *c, unsigned steps)
{
    enum { SPIN_NS = 2000000, SLEEP_NS = 20000 };
    status result = OK;
    const uint64_t since = clock_ns();
    bool done = false, warned = false;
    watchdog_disarm();
    for (;;) {
        TRY(abandon_if_failed(c, nccl_done(c->state, c->place->stream, &done)));
        if (done)
            break;
        const uint64_t waited_ns = clock_ns() - since;
        const double waited_s = (double)waited_ns * 1e-9;
        if (waited_s > c->timeout_s * steps)
            TRY(handle_timeout(c, waited_s));
        if (waited_s > c->warn_after_s && !warned) {
            log_warning("%s has taken %.0f s; the limit is %.0f s", WHAT, waited_s,
                        c->timeout_s * steps);
            warned = true;
        }
        if (c->ranks->crowded || waited_ns > SPIN_NS)
            clock_sleep_until_ns(clock_ns() + SLEEP_NS);
    }
done:
    return result;
}

/* Calls of CUDA and NCCL block if too much work is queued, for example behind a rank that hangs. So
 * the watchdog limits them until nccl_device_end. */
static status nccl_device_begin(communicator *c, unsigned steps)
{
    status result = OK;
    TRY(ranks_gate(c, WHAT));
    watchdog_arm(c->timeout_s * steps, WHAT);
done:
    return result;
}

static status nccl_device_sum(communicator *c, float *data, size_t count, void *stream)
{
    return abandon_if_failed(c, nccl_sum(c->state, data, count, stream));
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
    FAIL(ERROR_USAGE, "communicator=nccl: this program was built without NCCL; install NCCL's "
                      "header (libnccl-dev) and the CUDA toolkit and run make again, or use "
                      "communicator=auto");
done:
    return result;
}

static void nccl_close(communicator *c UNUSED) {}

static status nccl_device_begin(communicator *c UNUSED, unsigned steps UNUSED)
{
    UNREACHABLE("this communicator cannot be opened");
}

static status nccl_device_sum(communicator *c UNUSED, float *data UNUSED, size_t count UNUSED,
                              void *stream UNUSED)
{
    UNREACHABLE("this communicator cannot be opened");
}

static status nccl_device_end(communicator *c UNUSED, unsigned steps UNUSED)
{
    UNREACHABLE("this communicator cannot be opened");
}

const char *sync_nccl_version(void)
{
    return "built without NCCL";
}

#endif

const struct communicator_kind communicator_nccl = {
    .about = {.name = "nccl",
              .description = "NCCL between GPUs; gradients stay on the GPU; one GPU per rank",
              .source = "NCCL 2, ncclAllReduce"},
    .on_device = true,
    .open = nccl_open,
    .close = nccl_close,
    .device_begin = nccl_device_begin,
    .device_sum = nccl_device_sum,
    .device_end = nccl_device_end,
    .sent_bytes = ranks_ring_bytes,
};
