/*
 * cuda_device.h — what the CUDA backend asks of a GPU: memory, copies, kernels, matrix products,
 * and graphs of them. cuda_device.c implements it with the CUDA runtime and cublasLt; it is built
 * where nvcc is found. Elsewhere cuda_absent.c takes its place and refuses. Tests run cuda_device.c
 * without a GPU on a stand-in for CUDA's functions (tests/worker/cuda/cuda_stand_in.h).
 *
 * Copies, clear, launch, product_run and graph_launch are queued: calls return before the work is
 * done, in the order given on one stream, in no order between the two streams unless `wait` says
 * so. What they read and write must stay until then. Errors of queued work show at a later call, at
 * the latest at `synchronize`, and stay: after a fault the device object is good for `close` alone.
 *
 * One thread per device object. Errors: ERROR_USAGE (no such device, driver too old, no library),
 * ERROR_OTHER (out of memory, a fault in a kernel).
 */
#ifndef GRADLAG_WORKER_CUDA_CUDA_DEVICE_H
#define GRADLAG_WORKER_CUDA_CUDA_DEVICE_H

#include "base/memory.h"
#include "worker/cuda/kernels/cuda_kernel.h"
#include "base/registry.h"

typedef struct cuda_device cuda_device;
typedef struct cuda_product cuda_product;
typedef struct cuda_graph cuda_graph;

enum cuda_stream { CUDA_COMPUTE, CUDA_COPY, CUDA_STREAMS };

struct cuda_properties {
    char name[128];      /* "NVIDIA H200" */
    char libraries[64];  /* "CUDA 13.0, driver 13.0, cuBLAS 13.1.0" */
    unsigned capability; /* 10 × major + minor: 90 */
    unsigned multiprocessors;
    size_t memory_bytes, free_bytes;
    size_t shared_bytes; /* shared memory a block may have without asking for more */
    char pci[32];        /* "0000:1b:00.0" */
};

/* ---- matrix products ---------------------------------------------------------------------------
 * Row-major D[rows][columns] = epilogue(op(A)·op(B)); op(A) is rows × inner, op(B) inner × columns.
 * D and the bias are float32; the sum is in float32 whatever the operands are. Operands may lie at
 * any multiple of their element; from 16 bytes on they are faster. */

enum cuda_arithmetic {
    CUDA_FP32, /* float32 operands and products */
    CUDA_TF32, /* float32 operands, rounded to tf32 (10 bits of mantissa) as they are read */
    CUDA_BF16, /* bf16 operands in memory */
};

enum cuda_epilogue {
    CUDA_PLAIN,
    CUDA_BIAS,      /* D + bias[columns] */
    CUDA_BIAS_RELU, /* max(0, D + bias[columns]) */
    /* max(0, D + bias[columns]), and mask[rows][columns] as one bit each: what was positive, or,
     * in cublasLt's own, not negative. The bits are the library's; only CUDA_MASKED reads them. */
    CUDA_BIAS_RELU_MASK,
    CUDA_MASKED,      /* D where the mask has a one, else 0 */
    CUDA_COLUMN_SUMS, /* D, and bias[rows] = Σ over inner of op(A), as it is read: of rounded
                         operands */
};

struct cuda_product_shape {
    uint32_t rows, columns, inner;
    bool a_transposed, b_transposed; /* in memory: A is [inner][rows], B is [columns][inner] */
    enum cuda_arithmetic arithmetic;
    enum cuda_epilogue epilogue;
    bool accumulate; /* D += …; with CUDA_PLAIN only */
};

struct cuda_product_call {
    const void *a, *b;
    float *d;
    float *bias; /* read, or written by CUDA_COLUMN_SUMS */
    void *mask;  /* cuda_mask_bytes(rows, columns), aligned to 16 bytes */
};

static inline size_t cuda_mask_bytes(uint32_t rows, uint32_t columns)
{
    return (size_t)rows * (((size_t)columns + 127) / 128 * 16);
}

/* ---- the device --------------------------------------------------------------------------------
 */

struct cuda_options {
    unsigned index;     /* among the visible devices */
    bool deterministic; /* the same bits in every run on this device: key deterministic */
    bool may_spin;      /* waiting may burn a processor core */
};

struct cuda_kind {
    struct about about;
    /* Visible devices; ERROR_USAGE with the reason where there can be none (no driver, …). */
    status (*count)(unsigned *out);
    status (*describe)(unsigned index, struct cuda_properties *out);

    status (*open)(cuda_device **out, const struct cuda_options *o);
    void (*close)(cuda_device **d);

    /* Device memory, not zeroed, 256-byte aligned. ERROR_OTHER: `what`, wanted, free, total. */
    status (*memory_new)(cuda_device *d, void *out, size_t bytes, const char *what);
    void (*memory_free)(cuda_device *d, void *at);
    /* Host memory that copies run at full speed from and to. */
    status (*host_new)(cuda_device *d, void *out, size_t bytes, const char *what);
    void (*host_free)(cuda_device *d, void *at);
    /* The same for memory that somebody else owns (a shared-memory payload): best effort. False:
     * copies work nevertheless, more slowly. Must be unpinned before it is unmapped. Nothing may be
     * copied down to what is pinned `read_only`. */
    bool (*pin)(cuda_device *d, const void *at, size_t bytes, bool read_only);
    void (*unpin)(cuda_device *d, const void *at);

    status (*copy_up)(cuda_device *d, enum cuda_stream s, void *to_device, const void *from_host,
                      size_t bytes);
    status (*copy_down)(cuda_device *d, enum cuda_stream s, void *to_host, const void *from_device,
                        size_t bytes);
    status (*copy_within)(cuda_device *d, enum cuda_stream s, void *to, const void *from,
                          size_t bytes);
    status (*clear)(cuda_device *d, enum cuda_stream s, void *at, size_t bytes); /* to zero bytes */
    /* What `s` is given from now on starts after all that `other` was given up to now. */
    status (*wait)(cuda_device *d, enum cuda_stream s, enum cuda_stream other);
    /* `arguments`: the kernel's argument struct; copied before this returns. */
    status (*launch)(cuda_device *d, enum cuda_stream s, enum cuda_kernel k, struct cuda_grid g,
                     const void *arguments);

    status (*product_open)(cuda_device *d, const struct cuda_product_shape *shape,
                           cuda_product **out);
    void (*product_close)(cuda_device *d, cuda_product *p);
    /* On CUDA_COMPUTE: products share one workspace. */
    status (*product_run)(cuda_device *d, cuda_product *p, const struct cuda_product_call *call);

    /* Between these two, queued work of both streams is written down instead of done: copies,
     * clear, wait, launch and product_run, nothing else. A capture begins and ends on CUDA_COMPUTE;
     * CUDA_COPY joins it by waiting for CUDA_COMPUTE, and must have been waited for before its end.
     * Host memory that is copied from or to is pinned (pin, host_new): other may be refused. */
    status (*capture_begin)(cuda_device *d);
    status (*capture_end)(cuda_device *d, cuda_graph **out);
    status (*graph_launch)(cuda_device *d, cuda_graph *g); /* on CUDA_COMPUTE */
    void (*graph_close)(cuda_device *d, cuda_graph *g);

    /* Waits until both streams are empty. */
    status (*synchronize)(cuda_device *d);

    /* The cudaStream_t, for a library that queues work there too. */
    void *(*native_stream)(const cuda_device *d, enum cuda_stream s);

    /* Timing on the device: `mark` i is passed by stream CUDA_COMPUTE; elapsed after synchronize.
     */
    status (*mark)(cuda_device *d, unsigned i); /* i < CUDA_MARKS */
    status (*elapsed)(cuda_device *d, unsigned from, unsigned to, double *milliseconds);

    /* A named range on the profiler's timeline (NVTX); nests. */
    void (*range_begin)(const char *name);
    void (*range_end)(void);
};
enum { CUDA_MARKS = 8 };

#ifdef __cplusplus
extern "C" {
#endif

/* The GPU's functions. ERROR_USAGE: this gradlag was built without CUDA. */
status cuda_kind_get(const struct cuda_kind **out) MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
