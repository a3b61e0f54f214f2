/* cuda_device.c — the GPU through the CUDA runtime. The runtime is linked statically, so that the
 * program starts without a driver. Built if nvcc is found. Two non-blocking streams; graphs by
 * capturing both; ranges for a profiler by NVTX, whose header does nothing without a profiler. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/cuda/cuda_real.h"

#include <nvtx3/nvToolsExt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPIN_NS = 2000000
}; /* how long a wait spins before it sleeps; a wake-up takes about 50 µs */

struct cuda_piece {
    struct cuda_piece *next;
    void *at;
    size_t bytes;
};

struct cuda_graph {
    cudaGraphExec_t exec;
};

const char *const cuda_kernel_names[CUDA_KERNELS] = {
#define KERNEL(name)      #name,
#define KERNEL_SYNC(name) #name,
#include "worker/cuda/kernels/cuda_kernels.def"
#undef KERNEL
#undef KERNEL_SYNC
};

status cuda_use(const cuda_device *d)
{
    status result = OK;
    TRY_CUDA(d, "choosing the GPU", cudaSetDevice((int)d->options.index));
done:
    return result;
}

/* ---- which there are ----------------------------------------------------------------------------
 */

static status device_count(unsigned *out)
{
    status result = OK;
    int count = 0;
    *out = 0;
    TRY_CUDA(NULL, "looking for GPUs", cudaGetDeviceCount(&count));
    if (count == 0) {
        result = cuda_failed(NULL, "looking for GPUs", cudaErrorNoDevice);
        goto done;
    }
    *out = (unsigned)count;
done:
    return result;
}

static status check_index(unsigned index)
{
    status result = OK;
    unsigned count;
    TRY(device_count(&count));
    if (index >= count) {
        FAIL(ERROR_USAGE,
             "device=cuda: there is no GPU %u; %u are visible; run `gradlag check` and check "
             "CUDA_VISIBLE_DEVICES",
             index, count);
    }
done:
    return result;
}

static void describe_libraries(char *out, size_t bytes)
{
    int driver = 0, runtime = 0;
    char name[32];
    const size_t blas = cuda_blas_version();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    cuda_driver_name(name);
    int length =
        snprintf(out, bytes, "CUDA %d.%d, driver %s%s%d.%d", runtime / 1000, runtime % 1000 / 10,
                 name, name[0] == '\0' ? "" : " for ", driver / 1000, driver % 1000 / 10);
    if (blas != 0 && length > 0 && (size_t)length < bytes) {
        snprintf(out + length, bytes - (size_t)length, ", cuBLAS %zu.%zu.%zu", blas / 10000,
                 blas % 10000 / 100, blas % 100);
    }
}

/* Does not restore the previous device. Restoring device 0 would create an unused context of half a
 * GiB there. Every call selects its device. */
static status device_describe(unsigned index, struct cuda_properties *out)
{
    status result = OK;
    struct cudaDeviceProp p;
    *out = (struct cuda_properties){0};
    TRY(check_index(index));
    TRY_CUDA(NULL, "describing a GPU", cudaGetDeviceProperties(&p, (int)index));
    snprintf(out->name, sizeof out->name, "%s", p.name);
    out->capability = (unsigned)(10 * p.major + p.minor);
    out->multiprocessors = (unsigned)p.multiProcessorCount;
    describe_libraries(out->libraries, sizeof out->libraries);
    TRY_CUDA(NULL, "describing a GPU",
             cudaDeviceGetPCIBusId(out->pci, (int)sizeof out->pci, (int)index));
    TRY_CUDA(NULL, "opening a GPU", cudaSetDevice((int)index));
    TRY_CUDA(NULL, "asking for a GPU's memory",
             cudaMemGetInfo(&out->free_bytes, &out->memory_bytes));
done:
    return result;
}

/* ---- opening and closing ------------------------------------------------------------------------
 */

static void device_close(cuda_device **device)
{
    cuda_device *d = *device;
    if (d == NULL)
        return;
    /* Continues after an error: after a fault, every call fails. */
    (void)cudaSetDevice((int)d->options.index);
    for (unsigned s = 0; s < CUDA_STREAMS; s++) {
        if (d->streams[s] != NULL) {
            (void)cudaStreamSynchronize(d->streams[s]);
            (void)cudaStreamDestroy(d->streams[s]);
        }
        if (d->passed[s] != NULL)
            (void)cudaEventDestroy(d->passed[s]);
        if (d->done[s] != NULL)
            (void)cudaEventDestroy(d->done[s]);
    }
    for (unsigned i = 0; i < CUDA_MARKS; i++)
        if (d->marks[i] != NULL)
            (void)cudaEventDestroy(d->marks[i]);
    cuda_blas_close(d);
    while (d->pieces != NULL)
        cuda_memory_free(d, d->pieces->at);
    memory_free(d);
    *device = NULL;
}

static status make_streams(cuda_device *d)
{
    status result = OK;
    for (unsigned s = 0; s < CUDA_STREAMS; s++) {
        TRY_CUDA(d, "making a stream",
                 cudaStreamCreateWithFlags(&d->streams[s], cudaStreamNonBlocking));
        TRY_CUDA(d, "making an event",
                 cudaEventCreateWithFlags(&d->passed[s], cudaEventDisableTiming));
        TRY_CUDA(
            d, "making an event",
            cudaEventCreateWithFlags(&d->done[s], cudaEventDisableTiming | cudaEventBlockingSync));
    }
    for (unsigned i = 0; i < CUDA_MARKS; i++)
        TRY_CUDA(d, "making an event", cudaEventCreate(&d->marks[i]));
done:
    return result;
}

/* Loads every kernel now, because a capture does not allow loading. */
static status load_kernels(cuda_device *d)
{
    status result = OK;
    struct cudaFuncAttributes attributes;
    for (unsigned k = 0; k < CUDA_KERNELS; k++) {
        TRY_CUDA(d, cuda_kernel_names[k],
                 cudaFuncGetAttributes(&attributes, cuda_kernel_entries[k].function));
    }
done:
    return result;
}

static status device_open(cuda_device **out, const struct cuda_options *o)
{
    status result = OK;
    cuda_device *d = NULL;
    int major = 0, minor = 0;
    *out = NULL;
    TRY(check_index(o->index));
    TRY(memory_new(&d, 1, sizeof *d, "GPU"));
    d->options = *o;
    TRY(cuda_use(d));
    TRY_CUDA(d, "describing a GPU",
             cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)o->index));
    TRY_CUDA(d, "describing a GPU",
             cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, (int)o->index));
    d->capability = (unsigned)(10 * major + minor);
    TRY(make_streams(d));
    TRY(load_kernels(d));
    *out = d;
    d = NULL;
done:
    device_close(&d);
    return result;
}

/* ---- memory -------------------------------------------------------------------------------------
 */

status cuda_memory_new(cuda_device *d, void *out, size_t bytes, const char *what)
{
    status result = OK;
    struct cuda_piece *p = NULL;
    struct cuda_shortage s = {.what = what, .wanted = bytes, .mine = d->bytes};
    TRY(cuda_use(d));
    TRY(memory_new(&p, 1, sizeof *p, what));
    const cudaError_t error = cudaMalloc(&p->at, bytes);
    if (error == cudaErrorMemoryAllocation && cudaMemGetInfo(&s.free, &s.total) == cudaSuccess) {
        (void)cudaGetLastError(); /* clears the error */
        result = cuda_out_of_memory(&s);
        goto done;
    }
    TRY_CUDA(d, what, error);
    p->bytes = bytes;
    p->next = d->pieces;
    d->pieces = p;
    d->bytes += bytes;
    *(void **)out = p->at;
    p = NULL;
done:
    memory_free(p);
    return result;
}

void cuda_memory_free(cuda_device *d, void *at)
{
    for (struct cuda_piece **link = &d->pieces; at != NULL && *link != NULL;
         link = &(*link)->next) {
        struct cuda_piece *p = *link;
        if (p->at == at) {
            *link = p->next;
            d->bytes -= p->bytes;
            (void)cudaSetDevice((int)d->options.index);
            (void)cudaFree(at);
            memory_free(p);
            return;
        }
    }
    REQUIRE(at == NULL);
}

static status host_new(cuda_device *d, void *out, size_t bytes, const char *what)
{
    status result = OK;
    TRY(cuda_use(d));
    const cudaError_t error = cudaHostAlloc((void **)out, bytes, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        FAIL(ERROR_OTHER,
             "%s: %zu bytes of page-locked host memory are not available; use a smaller batch, or "
             "raise the limit on locked memory (ulimit -l)",
             what, bytes);
    }
    TRY_CUDA(d, what, error);
done:
    return result;
}

static void host_free(cuda_device *d, void *at)
{
    if (at != NULL) {
        (void)cudaSetDevice((int)d->options.index);
        (void)cudaFreeHost(at);
    }
}

static bool pin(cuda_device *d, const void *at, size_t bytes, bool read_only)
{
    unsigned flags = cudaHostRegisterPortable;
    int can_read_only = 0;
    if (cudaSetDevice((int)d->options.index) != cudaSuccess)
        return false;
    if (read_only &&
        cudaDeviceGetAttribute(&can_read_only, cudaDevAttrHostRegisterReadOnlySupported,
                               (int)d->options.index) == cudaSuccess &&
        can_read_only != 0)
        flags |= cudaHostRegisterReadOnly;
    const cudaError_t error = cudaHostRegister((void *)at, bytes, flags);
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* clears the error: pinning is best effort */
        log_debug("%zu bytes of host memory are copied without being page-locked: %s", bytes,
                  cudaGetErrorString(error));
    }
    return error == cudaSuccess;
}

static void unpin(cuda_device *d, const void *at)
{
    (void)cudaSetDevice((int)d->options.index);
    for (unsigned s = 0; s < CUDA_STREAMS; s++)
        (void)cudaStreamSynchronize(d->streams[s]);
    if (cudaHostUnregister((void *)at) != cudaSuccess)
        (void)cudaGetLastError();
}

/* ---- queueing -----------------------------------------------------------------------------------
 */

static status copy(cuda_device *d, enum cuda_stream s, void *to, const void *from, size_t bytes,
                   enum cudaMemcpyKind kind, const char *what)
{
    status result = OK;
    if (bytes != 0) {
        TRY(cuda_use(d));
        TRY_CUDA(d, what, cudaMemcpyAsync(to, from, bytes, kind, d->streams[s]));
    }
done:
    return result;
}

static status copy_up(cuda_device *d, enum cuda_stream s, void *to_device, const void *from_host,
                      size_t bytes)
{
    return copy(d, s, to_device, from_host, bytes, cudaMemcpyHostToDevice, "copying to the GPU");
}

static status copy_down(cuda_device *d, enum cuda_stream s, void *to_host, const void *from_device,
                        size_t bytes)
{
    return copy(d, s, to_host, from_device, bytes, cudaMemcpyDeviceToHost, "copying from the GPU");
}

static status copy_within(cuda_device *d, enum cuda_stream s, void *to, const void *from,
                          size_t bytes)
{
    return copy(d, s, to, from, bytes, cudaMemcpyDeviceToDevice, "copying on the GPU");
}

static status clear(cuda_device *d, enum cuda_stream s, void *at, size_t bytes)
{
    status result = OK;
    if (bytes != 0) {
        TRY(cuda_use(d));
        TRY_CUDA(d, "clearing memory", cudaMemsetAsync(at, 0, bytes, d->streams[s]));
    }
done:
    return result;
}

/* In a capture this adds CUDA_COPY to the capture and joins it again. */
static status stream_wait(cuda_device *d, enum cuda_stream s, enum cuda_stream other)
{
    status result = OK;
    REQUIRE(s != other);
    TRY(cuda_use(d));
    TRY_CUDA(d, "ordering streams", cudaEventRecord(d->passed[other], d->streams[other]));
    TRY_CUDA(d, "ordering streams", cudaStreamWaitEvent(d->streams[s], d->passed[other], 0));
done:
    return result;
}

/* ERROR_OTHER: no GPU accepts this grid. */
static status check_grid(enum cuda_kernel k, const struct cuda_grid *g)
{
    status result = OK;
    REQUIRE((unsigned)k < CUDA_KERNELS);
    if (g->x == 0 || g->x > INT32_MAX || g->y == 0 || g->y > CUDA_GRID_YZ || g->z == 0 ||
        g->z > CUDA_GRID_YZ || g->threads == 0 || g->threads > CUDA_BLOCK_THREADS) {
        FAIL(ERROR_OTHER,
             "kernel %s: no GPU takes a grid of %u×%u×%u blocks of %u threads; this is a bug in "
             "gradlag, please report it with the command line that led here",
             cuda_kernel_names[k], g->x, g->y, g->z, g->threads);
    }
done:
    return result;
}

status cuda_launch(cuda_device *d, enum cuda_stream s, enum cuda_kernel k, struct cuda_grid g,
                   const void *arguments)
{
    status result = OK;
    void *pointers[] = {(void *)arguments};
    TRY(check_grid(k, &g));
    TRY(cuda_use(d));
    if (!d->capturing)
        d->last_work = cuda_kernel_names[k];
    TRY_CUDA(d, cuda_kernel_names[k],
             cudaLaunchKernel(cuda_kernel_entries[k].function, (dim3){g.x, g.y, g.z},
                              (dim3){g.threads, 1, 1}, pointers, 0, d->streams[s]));
done:
    return result;
}

/* ---- graphs -------------------------------------------------------------------------------------
 */

static status capture_begin(cuda_device *d)
{
    status result = OK;
    TRY(cuda_use(d));
    /* Relaxed, because cublasLt may load kernels during the capture. */
    TRY_CUDA(d, "capturing a step",
             cudaStreamBeginCapture(d->streams[CUDA_COMPUTE], cudaStreamCaptureModeRelaxed));
    d->capturing = true;
done:
    return result;
}

static status capture_end(cuda_device *d, cuda_graph **out)
{
    status result = OK;
    cudaGraph_t captured = NULL;
    cuda_graph *g = NULL;
    *out = NULL;
    d->capturing = false;
    TRY(cuda_use(d));
    TRY_CUDA(d, "capturing a step", cudaStreamEndCapture(d->streams[CUDA_COMPUTE], &captured));
    TRY(memory_new(&g, 1, sizeof *g, "captured step"));
    TRY_CUDA(d, "making a graph", cudaGraphInstantiate(&g->exec, captured, 0));
    TRY_CUDA(d, "making a graph", cudaGraphUpload(g->exec, d->streams[CUDA_COMPUTE]));
    *out = g;
    g = NULL;
done:
    if (captured != NULL)
        (void)cudaGraphDestroy(captured);
    if (g != NULL && g->exec != NULL)
        (void)cudaGraphExecDestroy(g->exec);
    memory_free(g);
    return result;
}

static status graph_launch(cuda_device *d, cuda_graph *g)
{
    status result = OK;
    TRY(cuda_use(d));
    d->last_work = "the captured step";
    TRY_CUDA(d, "launching a captured step", cudaGraphLaunch(g->exec, d->streams[CUDA_COMPUTE]));
done:
    return result;
}

static void graph_close(cuda_device *d, cuda_graph *g)
{
    if (g != NULL) {
        (void)cudaSetDevice((int)d->options.index);
        (void)cudaStreamSynchronize(d->streams[CUDA_COMPUTE]);
        (void)cudaGraphExecDestroy(g->exec);
        memory_free(g);
    }
}

/* ---- waiting and time ---------------------------------------------------------------------------
 */

static cudaError_t spin(const cuda_device *d)
{
    const uint64_t until = clock_ns() + SPIN_NS;
    cudaError_t error = cudaErrorNotReady;
    unsigned s = 0;
    while (s < CUDA_STREAMS) {
        error = cudaStreamQuery(d->streams[s]);
        if (error == cudaSuccess)
            s++;
        else if (error != cudaErrorNotReady || clock_ns() > until)
            break;
    }
    return error;
}

static status synchronize(cuda_device *d)
{
    status result = OK;
    cudaError_t error = cudaErrorNotReady;
    TRY(cuda_use(d));
    if (d->options.may_spin)
        error = spin(d);
    if (error == cudaErrorNotReady) {
        for (unsigned s = 0; s < CUDA_STREAMS; s++)
            TRY_CUDA(d, "waiting for the GPU", cudaEventRecord(d->done[s], d->streams[s]));
        for (unsigned s = 0; s < CUDA_STREAMS; s++)
            TRY_CUDA(d, "waiting for the GPU", cudaEventSynchronize(d->done[s]));
        error = cudaSuccess;
    }
    TRY_CUDA(d, "waiting for the GPU", error);
done:
    return result;
}

static void *native_stream(const cuda_device *d, enum cuda_stream s)
{
    void *stream = d->streams[s];
    return stream;
}

static status mark(cuda_device *d, unsigned i)
{
    status result = OK;
    REQUIRE(i < CUDA_MARKS && !d->capturing);
    TRY(cuda_use(d));
    TRY_CUDA(d, "taking the time", cudaEventRecord(d->marks[i], d->streams[CUDA_COMPUTE]));
done:
    return result;
}

static status elapsed(cuda_device *d, unsigned from, unsigned to, double *milliseconds)
{
    status result = OK;
    float time = 0;
    REQUIRE(from < CUDA_MARKS && to < CUDA_MARKS);
    TRY(cuda_use(d));
    TRY_CUDA(d, "taking the time", cudaEventElapsedTime(&time, d->marks[from], d->marks[to]));
    *milliseconds = (double)time;
done:
    return result;
}

static void range_begin(const char *name)
{
    nvtxRangePushA(name);
}

static void range_end(void)
{
    nvtxRangePop();
}

const struct cuda_kind cuda_real = {
    .about = {"cuda", "NVIDIA GPUs through CUDA and cuBLAS", NULL, NULL},
    .count = device_count,
    .describe = device_describe,
    .open = device_open,
    .close = device_close,
    .memory_new = cuda_memory_new,
    .memory_free = cuda_memory_free,
    .host_new = host_new,
    .host_free = host_free,
    .pin = pin,
    .unpin = unpin,
    .copy_up = copy_up,
    .copy_down = copy_down,
    .copy_within = copy_within,
    .clear = clear,
    .wait = stream_wait,
    .launch = cuda_launch,
    .product_open = cuda_product_open,
    .product_close = cuda_product_close,
    .product_run = cuda_product_run,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_close = graph_close,
    .synchronize = synchronize,
    .native_stream = native_stream,
    .mark = mark,
    .elapsed = elapsed,
    .range_begin = range_begin,
    .range_end = range_end,
};

status cuda_kind_get(const struct cuda_kind **out)
{
    *out = &cuda_real;
    return OK;
}
