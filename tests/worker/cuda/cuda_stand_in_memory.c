/* cuda_stand_in_memory.c — device memory, pinned memory and copies of the stand-in. */
#include "tests/worker/cuda/cuda_stand_in_internal.h"

#include <stdlib.h>
#include <string.h>

enum memory_kind { DEVICE, PINNED, REGISTERED, READ_ONLY };
enum { POISON = 0xff /* floats of these bytes are NaN */, DEVICE_ALIGNMENT = 256, PAGE = 4096 };
/* Fences around each piece of device memory. */
enum { FENCE_BYTES = DEVICE_ALIGNMENT, FENCE = 0xa5 };

struct range {
    struct range *next;
    char *at;
    size_t bytes;
    enum memory_kind kind;
    unsigned device;
};

static struct range *ranges;
static size_t used[STAND_IN_DEVICES];

/* The range that contains at[0] and must contain at[0..bytes). NULL: there is none. */
static const struct range *range_at(const void *at, size_t bytes)
{
    const char *from = at;
    const struct range *r = ranges;
    while (r != NULL && !(from >= r->at && from < r->at + r->bytes))
        r = r->next;
    HOLD_TO(within, r == NULL || from + bytes <= r->at + r->bytes);
    return r;
}

static void add(void *at, size_t bytes, enum memory_kind kind)
{
    struct range *r = stand_in_new(sizeof *r);
    *r = (struct range){ranges, at, bytes, kind, stand_in_device};
    ranges = r;
}

static void drop(struct range **link)
{
    struct range *r = *link;
    *link = r->next;
    if (r->kind == DEVICE)
        used[r->device] -= r->bytes;
    if (r->kind == DEVICE || r->kind == PINNED)
        free(r->at - (r->kind == DEVICE ? FENCE_BYTES : 0));
    free(r);
}

static struct range **link_to(const void *at)
{
    struct range **link = &ranges;
    while (*link != NULL && (*link)->at != at)
        link = &(*link)->next;
    return link;
}

/* ---- taking and giving back ---------------------------------------------------------------------
 */

static cudaError_t take(void **out, size_t bytes, size_t alignment, enum memory_kind kind)
{
    const size_t fence = kind == DEVICE ? FENCE_BYTES : 0, all = bytes + 2 * fence;
    char *at = aligned_alloc(alignment, (all + alignment - 1) / alignment * alignment);
    if (at == NULL)
        return cudaErrorMemoryAllocation;
    memset(at, FENCE, all);
    memset(at + fence, POISON, bytes);
    *out = at + fence;
    add(*out, bytes, kind);
    return cudaSuccess;
}

void stand_in_check_fences(const char *after)
{
    static char whole[FENCE_BYTES];
    memset(whole, FENCE, sizeof whole);
    for (const struct range *r = ranges; r != NULL; r = r->next) {
        if (r->kind == DEVICE && (memcmp(r->at - FENCE_BYTES, whole, FENCE_BYTES) != 0 ||
                                  memcmp(r->at + r->bytes, whole, FENCE_BYTES) != 0)) {
            stand_in_abort("%s wrote outside of a piece of %zu bytes of device memory", after,
                           r->bytes);
        }
    }
}

static size_t memory_bytes(void)
{
    const char *text = getenv("GRADLAG_STAND_IN_MEMORY");
    return text == NULL ? stand_in.set.memory_bytes : strtoull(text, NULL, 10);
}

static size_t free_bytes(void)
{
    const size_t all = memory_bytes(), taken = used[stand_in_device];
    return taken < all ? all - taken : 0;
}

static cudaError_t give_back(void *at, enum memory_kind kind)
{
    struct range **link = link_to(at);
    HOLD_TO(memory_in_capture, !stand_in_any_capture());
    HOLD_TO(freed_by_counterpart, *link != NULL && (*link)->kind == kind);
    stand_in_finish_all();
    drop(link);
    return stand_in_fault;
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    ENTER();
    *total = memory_bytes();
    *unused = free_bytes();
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    ENTER();
    HOLD_TO(memory_in_capture, !stand_in_any_capture());
    if (bytes > free_bytes())
        return cudaErrorMemoryAllocation;
    const cudaError_t error = take(out, bytes, DEVICE_ALIGNMENT, DEVICE);
    used[stand_in_device] += error == cudaSuccess ? bytes : 0;
    return error;
}

cudaError_t cudaFree(void *at)
{
    ENTER();
    return give_back(at, DEVICE);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    ENTER();
    (void)flags;
    HOLD_TO(memory_in_capture, !stand_in_any_capture());
    return take(out, bytes, PAGE, PINNED);
}

cudaError_t cudaFreeHost(void *at)
{
    ENTER();
    return give_back(at, PINNED);
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
    ENTER();
    HOLD_TO(memory_in_capture, !stand_in_any_capture());
    if (stand_in.set.refuses_pinning)
        return cudaErrorNotSupported;
    for (const struct range *r = ranges; r != NULL; r = r->next)
        if ((char *)at < r->at + r->bytes && r->at < (char *)at + bytes)
            return cudaErrorHostMemoryAlreadyRegistered;
    add(at, bytes, (flags & cudaHostRegisterReadOnly) != 0 ? READ_ONLY : REGISTERED);
    stand_in.seen.pinned++;
    stand_in.seen.read_only += (flags & cudaHostRegisterReadOnly) != 0;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at)
{
    ENTER();
    struct range **link = link_to(at);
    HOLD_TO(memory_in_capture, !stand_in_any_capture());
    if (*link == NULL || (*link)->kind == DEVICE || (*link)->kind == PINNED)
        return cudaErrorHostMemoryNotRegistered;
    HOLD_TO(unpinned_idle, stand_in_idle((*link)->device));
    drop(link);
    return cudaSuccess;
}

/* ---- copies -------------------------------------------------------------------------------------
 */

struct copy {
    void *to;
    const void *from; /* NULL: `own` follows */
    size_t bytes;
    int value; /* from NULL: the value of every byte; −1: none */
    char own[];
};

static void run_copy(void *data)
{
    const struct copy *c = data;
    if (c->from == NULL && c->value >= 0)
        memset(c->to, c->value, c->bytes);
    else
        memcpy(c->to, c->from == NULL ? c->own : c->from, c->bytes);
}

static cudaError_t queue_copy(cudaStream_t s, const struct copy *c)
{
    struct copy *own = stand_in_new(sizeof *own);
    *own = *c;
    return stand_in_queue(s, run_copy, own);
}

/* Memory that is not pinned is read before the call returns. */
static cudaError_t queue_staged(cudaStream_t s, const struct copy *c)
{
    struct copy *own = stand_in_new(sizeof *own + c->bytes);
    *own = (struct copy){c->to, NULL, c->bytes, -1};
    memcpy(own->own, c->from, c->bytes);
    return stand_in_queue(s, run_copy, own);
}

void stand_in_on_device(const void *at, size_t bytes, unsigned device)
{
    const struct range *r = range_at(at, bytes);
    HOLD_TO(device_side, r != NULL && r->kind == DEVICE);
    HOLD_TO(same_device, r->device == device);
}

static const struct range *host_side(const void *at, size_t bytes, bool is_captured)
{
    const struct range *r = range_at(at, bytes);
    HOLD_TO(host_side, r == NULL || r->kind != DEVICE);
    HOLD_TO(pinned_in_capture, r != NULL || !is_captured);
    return r;
}

static cudaError_t copy_up(cudaStream_t s, const struct copy *c)
{
    stand_in_on_device(c->to, c->bytes, stand_in_device_of(s));
    const bool staged = host_side(c->from, c->bytes, stand_in_capturing(s)) == NULL;
    return staged ? queue_staged(s, c) : queue_copy(s, c);
}

/* A copy to memory that is not pinned is complete when the call returns. */
static cudaError_t copy_down(cudaStream_t s, const struct copy *c)
{
    stand_in_on_device(c->from, c->bytes, stand_in_device_of(s));
    const struct range *r = host_side(c->to, c->bytes, stand_in_capturing(s));
    HOLD_TO(read_only, r == NULL || r->kind != READ_ONLY);
    const cudaError_t error = queue_copy(s, c);
    if (r == NULL)
        stand_in_finish(s);
    return stand_in_fault != cudaSuccess ? stand_in_fault : error;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    ENTER();
    const struct copy c = {to, from, bytes, -1};
    HOLD_TO(own_stream, s != NULL);
    if (kind == cudaMemcpyHostToDevice)
        return copy_up(s, &c);
    if (kind == cudaMemcpyDeviceToHost)
        return copy_down(s, &c);
    stand_in_on_device(to, bytes, stand_in_device_of(s));
    stand_in_on_device(from, bytes, stand_in_device_of(s));
    return queue_copy(s, &c);
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t s)
{
    ENTER();
    HOLD_TO(own_stream, s != NULL);
    stand_in_on_device(at, bytes, stand_in_device_of(s));
    return queue_copy(s, &(struct copy){at, NULL, bytes, value});
}

/* ---- as new -------------------------------------------------------------------------------------
 */

size_t stand_in_memory_left(void)
{
    size_t count = 0;
    for (const struct range *r = ranges; r != NULL; r = r->next)
        count++;
    return count;
}

void stand_in_memory_reset(void)
{
    while (ranges != NULL)
        drop(&ranges);
}
