/*
 * cuda_device.h — the interface of the CUDA backend to a GPU: memory, copies, kernels, matrix
 * products and graphs. cuda_device.c implements it with the CUDA runtime and cublasLt, in builds
 * with nvcc. In other builds cuda_absent.c replaces it and returns ERROR_USAGE. Tests run
 * cuda_device.c without a GPU on a stand-in for CUDA's functions
 * (tests/worker/cuda/cuda_stand_in.h).
 *
 * Copies, clear, launch, product_run and graph_launch are queued: they return before the work is
 * done. Work on one stream runs in order. Work on two streams runs in no order, except by `wait`.
 * Memory of queued work must stay valid until it is done. Errors of queued work appear at a later
 * call, at the latest at `synchronize`, and they are permanent: after a fault only `close` may be
 * called.
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
    char pci[32]; /* "0000:1b:00.0" */
};

/* ---- matrix products ---------------------------------------------------------------------------
 * Row-major D[rows][columns] = epilogue(op(A)·op(B)); op(A) is rows × inner, op(B) inner × columns.
 * D and the bias are float32; sums are always in float32. Operands must be aligned to their
 * element; operands aligned to 16 bytes are faster. */

enum cuda_arithmetic {
    CUDA_FP32, /* float32 operands and products */
    CUDA_TF32, /* float32 operands, rounded to tf32 (10 bits of mantissa) as they are read */
    CUDA_BF16, /* bf16 operands in memory */
};

enum cuda_epilogue {
    CUDA_PLAIN,
    CUDA_BIAS,      /* D + bias[columns] */
    CUDA_BIAS_RELU, /* max(0, D + bias[columns]) */
    /* max(0, D + bias[columns]), and mask[rows][columns], one bit each: 1 for positive (cublasLt:
     * for not negative). Only CUDA_MASKED may read the bits; their layout is the library's. */
    CUDA_BIAS_RELU_MASK,
    CUDA_MASKED,      /* D where the mask is 1, else 0 */
    CUDA_COLUMN_SUMS, /* D, and bias[rows] = Σ over inner of op(A) as the product reads it (rounded
                         or not) */
};

struct cuda_product_shape {
    uint32_t rows, columns, inner;
    bool a_transposed, b_transposed; /* true: A is [inner][rows] in memory; B is [columns][inner] */
    enum cuda_arithmetic arithmetic;
    enum cuda_epilogue epilogue;
    bool accumulate; /* D += …; only with CUDA_PLAIN */
};

struct cuda_product_call {
    const void *a, *b;
    float *d;
    float *bias; /* input; CUDA_COLUMN_SUMS: output */
    void *mask;  /* cuda_mask_bytes(rows, columns), aligned to 16 bytes */
};

static inline size_t cuda_mask_bytes(uint32_t rows, uint32_t columns)
{
    return (size_t)rows * (((size_t)columns + 127) / 128 * 16);
}

/* ---- the device --------------------------------------------------------------------------------
 */

struct cuda_options {
    unsigned index; /* number among the visible devices */
    bool may_spin;  /* a waiting thread may spin on its processor */
};

struct cuda_kind {
    struct about about;
    /* Number of visible devices. ERROR_USAGE: CUDA cannot be used; the message gives the reason. */
    status (*count)(unsigned *out);
    status (*describe)(unsigned index, struct cuda_properties *out);

    status (*open)(cuda_device **out, const struct cuda_options *o);
    void (*close)(cuda_device **d);

    /* Device memory, not zeroed, 256-byte aligned. ERROR_OTHER names `what`, and the bytes wanted,
     * free and in total. */
    status (*memory_new)(cuda_device *d, void *out, size_t bytes, const char *what);
    void (*memory_free)(cuda_device *d, void *at);
    /* Pinned host memory, for copies at full speed. */
    status (*host_new)(cuda_device *d, void *out, size_t bytes, const char *what);
    void (*host_free)(cuda_device *d, void *at);
    /* Pins memory of another owner (a shared-memory payload), if possible. False: copies work, but
     * more slowly. The caller must unpin it before it unmaps it. No copy may write to memory that
     * is pinned `read_only`. */
    bool (*pin)(cuda_device *d, const void *at, size_t bytes, bool read_only);
    void (*unpin)(cuda_device *d, const void *at);

    status (*copy_up)(cuda_device *d, enum cuda_stream s, void *to_device, const void *from_host,
                      size_t bytes);
    status (*copy_down)(cuda_device *d, enum cuda_stream s, void *to_host, const void *from_device,
                        size_t bytes);
    status (*copy_within)(cuda_device *d, enum cuda_stream s, void *to, const void *from,
                          size_t bytes);
    status (*clear)(cuda_device *d, enum cuda_stream s, void *at, size_t bytes); /* to zero bytes */
    /* Work queued on `s` from now on starts after all work queued on `other` so far. */
    status (*wait)(cuda_device *d, enum cuda_stream s, enum cuda_stream other);
    /* `arguments`: the argument struct of the kernel; copied before return. */
    status (*launch)(cuda_device *d, enum cuda_stream s, enum cuda_kernel k, struct cuda_grid g,
                     const void *arguments);

    status (*product_open)(cuda_device *d, const struct cuda_product_shape *shape,
                           cuda_product **out);
    void (*product_close)(cuda_device *d, cuda_product *p);
    /* Runs on CUDA_COMPUTE, because products share one workspace. */
    status (*product_run)(cuda_device *d, cuda_product *p, const struct cuda_product_call *call);

    /* Between these two calls, copies, clear, wait, launch and product_run on both streams are
     * recorded instead of run; no other call is allowed. A capture begins and ends on CUDA_COMPUTE.
     * CUDA_COPY joins by waiting for CUDA_COMPUTE, and CUDA_COMPUTE must wait for it before the
     * end. Host memory of copies must be pinned (pin, host_new); CUDA may refuse other memory. */
    status (*capture_begin)(cuda_device *d);
    status (*capture_end)(cuda_device *d, cuda_graph **out);
    status (*graph_launch)(cuda_device *d, cuda_graph *g); /* runs on CUDA_COMPUTE */
    void (*graph_close)(cuda_device *d, cuda_graph *g);

    /* Waits until both streams are empty. */
    status (*synchronize)(cuda_device *d);

    /* The cudaStream_t, for a library that also queues work there. */
    void *(*native_stream)(const cuda_device *d, enum cuda_stream s);

    /* Times on the device: CUDA_COMPUTE passes `mark` i. Call elapsed after synchronize. */
    status (*mark)(cuda_device *d, unsigned i); /* i < CUDA_MARKS */
    status (*elapsed)(cuda_device *d, unsigned from, unsigned to, double *milliseconds);

    /* A named range for a profiler (NVTX). Ranges may nest. */
    void (*range_begin)(const char *name);
    void (*range_end)(void);
};
enum { CUDA_MARKS = 8 };

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of the GPU. ERROR_USAGE: a build without CUDA. */
status cuda_kind_get(const struct cuda_kind **out) MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
