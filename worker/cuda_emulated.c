/*
 * cuda_emulated.c — a GPU played by the host's processor, with the promises of cuda_device.h and
 * not one more, so that a backend that leans on something else fails here already:
 *
 *   - Queued work runs at `synchronize`. Of two streams that nothing orders, every other time the
 *     one and then the other runs as early as it may.
 *   - Fresh memory is all NaN. Around each piece lie 256 bytes that nobody may write.
 *   - Copies check that one side is device memory and the other is not; in a capture, that host
 *     memory is pinned.
 *
 * Environment, for tests: GRADLAG_CUDA_EMULATED=N has N devices. If there are several,
 * CUDA_VISIBLE_DEVICES shows some of them, as it does for the driver: by number, or I by its name
 * GPU-I, up to the first that is not there. GRADLAG_CUDA_EMULATED_MEMORY=BYTES is the memory of
 * each; GRADLAG_CUDA_EMULATED_FAULT=KERNEL makes launches of that kernel fail;
 * GRADLAG_CUDA_EMULATED_PIN=no makes `pin` fail.
 */
#include "worker/cuda_emulated.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 16 };

static _Atomic size_t used_bytes[MAX_DEVICES];

/* Remembers the first fault; all that is queued is dropped with it. */
static status keep_fault(cuda_device *d, status s)
{
    if (s != OK && d->fault[0] == '\0') {
        snprintf(d->fault, sizeof d->fault, "%s", error_message());
    }
    return s;
}

static status usable(const cuda_device *d)
{
    status result = OK;
    if (d->fault[0] != '\0') {
        FAIL(ERROR_OTHER, "%s", d->fault);
    }
done:
    return result;
}

static status drain(cuda_device *d)
{
    status result = OK;
    TRY(usable(d));
    TRY(cuda_queue_run(d, &d->queue));
    TRY(cuda_pieces_check(d));
done:
    cuda_queue_empty(&d->queue);
    d->copy_first = !d->copy_first;
    return keep_fault(d, result);
}

/* Before what the queue may point to goes away. A fault shows at the next call that can fail. */
static void drain_quietly(cuda_device *d)
{
    const status ignored = drain(d);
    (void)ignored;
}

/* ---- devices ------------------------------------------------------------------------------------
 */

static size_t memory_limit(void)
{
    const char *text = getenv("GRADLAG_CUDA_EMULATED_MEMORY");
    const unsigned long long bytes = text == NULL ? 0 : strtoull(text, NULL, 10);
    return bytes == 0 ? (size_t)4 << 30 : (size_t)bytes;
}

static unsigned device_count(void)
{
    const char *text = getenv("GRADLAG_CUDA_EMULATED");
    const long count = text == NULL ? 1 : strtol(text, NULL, 10);
    return count < 1 ? 1 : count > MAX_DEVICES ? MAX_DEVICES : (unsigned)count;
}

/* Their numbers among all; how many there are. */
static unsigned visible_devices(unsigned out[MAX_DEVICES])
{
    const unsigned all = device_count();
    const char *list = all > 1 ? getenv("CUDA_VISIBLE_DEVICES") : NULL;
    unsigned count = 0;
    for (; list == NULL && count < all; count++) {
        out[count] = count;
    }
    while (list != NULL && count < MAX_DEVICES) {
        char *end;
        list += strncmp(list, "GPU-", 4) == 0 ? 4 : 0;
        const unsigned long number = strtoul(list, &end, 10);
        if (*list < '0' || *list > '9' || number >= all) {
            break;
        }
        out[count++] = (unsigned)number;
        list = *end == ',' ? end + 1 : NULL;
    }
    return count;
}

static status emulated_count(unsigned *out)
{
    status result = OK;
    unsigned visible[MAX_DEVICES];
    *out = visible_devices(visible);
    if (*out == 0) {
        FAIL(ERROR_USAGE,
             "device=cuda: no GPU is visible: CUDA_VISIBLE_DEVICES begins with none of the %u "
             "emulated ones (GRADLAG_CUDA_EMULATED)",
             device_count());
    }
done:
    return result;
}

static status check_index(unsigned index)
{
    status result = OK;
    unsigned count;
    TRY(emulated_count(&count));
    if (index >= count) {
        FAIL(ERROR_USAGE, "there is no GPU %u: %u emulated (GRADLAG_CUDA_EMULATED)", index, count);
    }
done:
    return result;
}

static status emulated_describe(unsigned index, struct cuda_properties *out)
{
    status result = OK;
    unsigned visible[MAX_DEVICES];
    TRY(check_index(index));
    visible_devices(visible);
    *out = (struct cuda_properties){
        .name = "emulated GPU",
        .libraries = "no CUDA: kernels run by the host's processor",
        .capability = 90,
        .multiprocessors = 4,
        .memory_bytes = memory_limit(),
        .shared_bytes = 48 << 10,
    };
    const size_t used = atomic_load(&used_bytes[index]);
    out->free_bytes = used < out->memory_bytes ? out->memory_bytes - used : 0;
    snprintf(out->pci, sizeof out->pci, "emulated:%02x:00.0", visible[index]);
done:
    return result;
}

static void emulated_close(cuda_device **device)
{
    cuda_device *d = *device;
    if (d == NULL) {
        return;
    }
    drain_quietly(d);
    atomic_fetch_sub(&used_bytes[d->options.index], d->bytes);
    cuda_pieces_close(d);
    cuda_queue_free(&d->queue);
    cuda_queue_free(&d->captured);
    cuda_block_close(&d->block);
    memory_free(d);
    *device = NULL;
}

static status emulated_open(cuda_device **out, const struct cuda_options *o)
{
    status result = OK;
    cuda_device *d = NULL;
    *out = NULL;
    TRY(check_index(o->index));
    TRY(memory_new(&d, 1, sizeof *d, "emulated GPU"));
    d->options = *o;
    TRY(cuda_block_open(&d->block));
    *out = d;
    d = NULL;
done:
    if (d != NULL) {
        emulated_close(&d);
    }
    return result;
}

/* ---- memory -------------------------------------------------------------------------------------
 */

static status not_capturing(const cuda_device *d, const char *what)
{
    status result = OK;
    TRY(usable(d));
    if (d->capturing) {
        FAIL(ERROR_OTHER, "%s is not possible while a graph is captured; " CUDA_OUR_BUG, what);
    }
done:
    return result;
}

static status emulated_memory_new(cuda_device *d, void *out, size_t bytes, const char *what)
{
    status result = OK;
    struct cuda_properties properties;
    TRY(not_capturing(d, "making memory"));
    TRY(emulated_describe(d->options.index, &properties));
    if (bytes > properties.free_bytes) {
        result = cuda_out_of_memory(&(struct cuda_shortage){what, bytes, properties.free_bytes,
                                                            properties.memory_bytes, d->bytes});
        goto done;
    }
    TRY(cuda_piece_new(d, out, bytes, what));
    atomic_fetch_add(&used_bytes[d->options.index], bytes);
done:
    return result;
}

static void emulated_memory_free(cuda_device *d, void *at)
{
    if (at != NULL) {
        drain_quietly(d);
        atomic_fetch_sub(&used_bytes[d->options.index], cuda_piece_free(d, at));
    }
}

static status emulated_host_new(cuda_device *d, void *out, size_t bytes, const char *what)
{
    status result = OK;
    void *at = NULL;
    TRY(not_capturing(d, "making host memory"));
    TRY(memory_new(&at, 1, bytes, what));
    TRY(cuda_pinned_add(d, at, bytes, false));
    memset(at, CUDA_POISON, bytes);
    *(void **)out = at;
    at = NULL;
done:
    memory_free(at);
    return result;
}

static void emulated_host_free(cuda_device *d, void *at)
{
    if (at != NULL) {
        drain_quietly(d);
        cuda_pinned_drop(d, at);
        memory_free(at);
    }
}

static bool emulated_pin(cuda_device *d, const void *at, size_t bytes, bool read_only)
{
    const char *can = getenv("GRADLAG_CUDA_EMULATED_PIN");
    return (can == NULL || strcmp(can, "no") != 0) && !d->capturing &&
           cuda_pinned_add(d, at, bytes, read_only) == OK;
}

static void emulated_unpin(cuda_device *d, const void *at)
{
    drain_quietly(d);
    cuda_pinned_drop(d, at);
}

/* ---- queueing -----------------------------------------------------------------------------------
 */

static status enqueue(cuda_device *d, enum cuda_stream s, const struct work *w,
                      const void *arguments)
{
    status result = OK;
    TRY(usable(d));
    if (d->capturing && s == CUDA_COPY && !d->copy_joined) {
        FAIL(ERROR_OTHER,
             "CUDA_COPY is given work in a capture it has not joined by waiting; " CUDA_OUR_BUG);
    }
    TRY(cuda_queue_add(d->capturing ? &d->captured : &d->queue, s, w, arguments));
done:
    return result;
}

static status copy(cuda_device *d, enum cuda_stream s, const char *call, void *to, bool to_device,
                   const void *from, bool from_device, size_t bytes)
{
    status result = OK;
    const struct work w = {.kind = WORK_COPY, .copy = {to, from, bytes}};
    if (bytes == 0) {
        goto done;
    }
    TRY(cuda_side_check(d, call, to, bytes, to_device));
    TRY(cuda_side_check(d, call, from, bytes, from_device));
    TRY(enqueue(d, s, &w, NULL));
done:
    return result;
}

static status emulated_copy_up(cuda_device *d, enum cuda_stream s, void *to_device,
                               const void *from_host, size_t bytes)
{
    return copy(d, s, "copy_up", to_device, true, from_host, false, bytes);
}

static status emulated_copy_down(cuda_device *d, enum cuda_stream s, void *to_host,
                                 const void *from_device, size_t bytes)
{
    status result = OK;
    TRY(cuda_may_write(d, to_host, bytes));
    TRY(copy(d, s, "copy_down", to_host, false, from_device, true, bytes));
done:
    return result;
}

static status emulated_copy_within(cuda_device *d, enum cuda_stream s, void *to, const void *from,
                                   size_t bytes)
{
    return copy(d, s, "copy_within", to, true, from, true, bytes);
}

static status emulated_clear(cuda_device *d, enum cuda_stream s, void *at, size_t bytes)
{
    status result = OK;
    const struct work w = {.kind = WORK_CLEAR, .copy = {.to = at, .bytes = bytes}};
    if (bytes == 0) {
        goto done;
    }
    TRY(cuda_side_check(d, "clear", at, bytes, true));
    TRY(enqueue(d, s, &w, NULL));
done:
    return result;
}

static status emulated_wait(cuda_device *d, enum cuda_stream s, enum cuda_stream other)
{
    status result = OK;
    const struct work_queue *q = d->capturing ? &d->captured : &d->queue;
    const struct work w = {.kind = WORK_WAIT, .wait_until = q->streams[other].count};
    REQUIRE(s != other);
    if (d->capturing && s == CUDA_COPY) {
        d->copy_joined = true;
    }
    TRY(enqueue(d, s, &w, NULL));
    if (d->capturing && s == CUDA_COMPUTE) {
        d->copy_waited_for = q->streams[CUDA_COPY].count;
    }
done:
    return result;
}

static status emulated_launch(cuda_device *d, enum cuda_stream s, enum cuda_kernel k,
                              struct cuda_grid g, const void *arguments)
{
    status result = OK;
    const struct work w = {.kind = WORK_LAUNCH, .launch = {k, g}};
    TRY(cuda_grid_check(k, &g));
    TRY(enqueue(d, s, &w, arguments));
done:
    return result;
}

/* ---- products -----------------------------------------------------------------------------------
 */

static status emulated_product_open(cuda_device *d, const struct cuda_product_shape *shape,
                                    cuda_product **out)
{
    status result = OK;
    *out = NULL;
    TRY(not_capturing(d, "making a product"));
    TRY(cuda_product_check(shape));
    TRY(memory_new(out, 1, sizeof **out, "emulated product"));
    (*out)->shape = *shape;
done:
    return result;
}

static void emulated_product_close(cuda_device *d, cuda_product *p)
{
    if (p != NULL) {
        drain_quietly(d);
        memory_free(p);
    }
}

static status emulated_product_run(cuda_device *d, cuda_product *p,
                                   const struct cuda_product_call *call)
{
    status result = OK;
    const struct cuda_product_shape *s = &p->shape;
    const struct work w = {.kind = WORK_PRODUCT, .product = {p, *call}};
    const size_t rows = s->rows, columns = s->columns, inner = s->inner;
    const size_t size = s->arithmetic == CUDA_BF16 ? sizeof(uint16_t) : sizeof(float);
    TRY(cuda_side_check(d, "product's A", call->a, rows * inner * size, true));
    TRY(cuda_side_check(d, "product's B", call->b, inner * columns * size, true));
    TRY(cuda_side_check(d, "product's D", call->d, rows * columns * sizeof(float), true));
    if (s->epilogue == CUDA_BIAS || s->epilogue == CUDA_BIAS_RELU ||
        s->epilogue == CUDA_BIAS_RELU_MASK || s->epilogue == CUDA_COLUMN_SUMS) {
        const size_t count = s->epilogue == CUDA_COLUMN_SUMS ? rows : columns;
        TRY(cuda_side_check(d, "product's bias", call->bias, count * sizeof(float), true));
    }
    if (s->epilogue == CUDA_BIAS_RELU_MASK || s->epilogue == CUDA_MASKED) {
        const size_t bytes = cuda_mask_bytes(s->rows, s->columns);
        TRY(cuda_side_check(d, "product's mask", call->mask, bytes, true));
    }
    TRY(enqueue(d, CUDA_COMPUTE, &w, NULL));
done:
    return result;
}

/* ---- graphs -------------------------------------------------------------------------------------
 */

static status emulated_capture_begin(cuda_device *d)
{
    status result = OK;
    TRY(not_capturing(d, "another capture"));
    cuda_queue_empty(&d->captured);
    d->capturing = true;
    d->copy_joined = false;
    d->copy_waited_for = 0;
done:
    return result;
}

static status emulated_capture_end(cuda_device *d, cuda_graph **out)
{
    status result = OK;
    *out = NULL;
    REQUIRE(d->capturing);
    d->capturing = false;
    TRY(usable(d));
    if (d->copy_waited_for < d->captured.streams[CUDA_COPY].count) {
        FAIL(ERROR_OTHER, "a capture ends while CUDA_COPY has not been waited for; " CUDA_OUR_BUG);
    }
    TRY(memory_new(out, 1, sizeof **out, "emulated graph"));
    (*out)->queue = d->captured;
    d->captured = (struct work_queue){0};
done:
    return result;
}

static status emulated_graph_launch(cuda_device *d, cuda_graph *g)
{
    status result = OK;
    const struct work w = {.kind = WORK_GRAPH, .graph = g};
    TRY(not_capturing(d, "launching a graph"));
    TRY(enqueue(d, CUDA_COMPUTE, &w, NULL));
done:
    return result;
}

static void emulated_graph_close(cuda_device *d, cuda_graph *g)
{
    if (g != NULL) {
        drain_quietly(d);
        cuda_queue_free(&g->queue);
        memory_free(g);
    }
}

/* ---- waiting and time ---------------------------------------------------------------------------
 */

static status emulated_synchronize(cuda_device *d)
{
    status result = OK;
    TRY(not_capturing(d, "waiting for the GPU"));
    TRY(drain(d));
done:
    return result;
}

static void *emulated_native_stream(const cuda_device *d UNUSED, enum cuda_stream s UNUSED)
{
    return NULL;
}

static status emulated_mark(cuda_device *d, unsigned i)
{
    status result = OK;
    const struct work w = {.kind = WORK_MARK, .mark = i};
    REQUIRE(i < CUDA_MARKS);
    TRY(not_capturing(d, "a mark"));
    d->marks[i] = 0;
    TRY(enqueue(d, CUDA_COMPUTE, &w, NULL));
done:
    return result;
}

static status emulated_elapsed(cuda_device *d, unsigned from, unsigned to, double *milliseconds)
{
    status result = OK;
    REQUIRE(from < CUDA_MARKS && to < CUDA_MARKS);
    if (d->marks[from] == 0 || d->marks[to] == 0) {
        FAIL(ERROR_OTHER, "marks %u and %u have not both been passed; " CUDA_OUR_BUG, from, to);
    }
    *milliseconds = ((double)d->marks[to] - (double)d->marks[from]) * 1e-6;
done:
    return result;
}

static void emulated_range_begin(const char *name)
{
    (void)name;
}

static void emulated_range_end(void) {}

const struct cuda_kind cuda_emulated = {
    .about = {"emulated", "the CUDA backend's kernels run by the host's processor, for tests", NULL,
              NULL},
    .count = emulated_count,
    .describe = emulated_describe,
    .open = emulated_open,
    .close = emulated_close,
    .memory_new = emulated_memory_new,
    .memory_free = emulated_memory_free,
    .host_new = emulated_host_new,
    .host_free = emulated_host_free,
    .pin = emulated_pin,
    .unpin = emulated_unpin,
    .copy_up = emulated_copy_up,
    .copy_down = emulated_copy_down,
    .copy_within = emulated_copy_within,
    .clear = emulated_clear,
    .wait = emulated_wait,
    .launch = emulated_launch,
    .product_open = emulated_product_open,
    .product_close = emulated_product_close,
    .product_run = emulated_product_run,
    .capture_begin = emulated_capture_begin,
    .capture_end = emulated_capture_end,
    .graph_launch = emulated_graph_launch,
    .graph_close = emulated_graph_close,
    .synchronize = emulated_synchronize,
    .native_stream = emulated_native_stream,
    .mark = emulated_mark,
    .elapsed = emulated_elapsed,
    .range_begin = emulated_range_begin,
    .range_end = emulated_range_end,
};
