/* cuda_real.h — what the files of the GPU implementation share: device, products, kernels. */
#ifndef GRADLAG_WORKER_CUDA_CUDA_REAL_H
#define GRADLAG_WORKER_CUDA_CUDA_REAL_H

#include "worker/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

extern const struct cuda_kind cuda_real;
extern const char *const cuda_kernel_names[CUDA_KERNELS];

/* cuda_kernels.cu */
struct cuda_kernel_entry {
    const void *function; /* for cudaLaunchKernel */
    size_t argument_bytes;
};
extern const struct cuda_kernel_entry cuda_kernel_entries[CUDA_KERNELS];

struct cuda_piece; /* of device memory */

struct cuda_device {
    struct cuda_options options;
    unsigned capability;
    cudaStream_t streams[CUDA_STREAMS];
    cudaEvent_t passed[CUDA_STREAMS]; /* for `wait` */
    cudaEvent_t done[CUDA_STREAMS];   /* for `synchronize`: the host sleeps */
    cudaEvent_t marks[CUDA_MARKS];
    struct cuda_piece *pieces;
    size_t bytes;
    bool capturing;
    const char *last_work; /* the work queued last, for example the name of a kernel; NULL: none */

    /* cuda_cublas.c */
    void *blas;      /* cublasLtHandle_t, or NULL before the first product */
    void *workspace; /* device memory */
    size_t workspace_bytes;
};

/* Selects this device for the calling thread. Every call of the runtime requires it. */
status cuda_use(const cuda_device *d) MUST_CHECK;
/* Sets the error of a failed CUDA call, according to its kind. `d` may be NULL. */
status cuda_failed(const cuda_device *d, const char *what, cudaError_t error);

#define TRY_CUDA(d, what, call)                                                                    \
    do {                                                                                           \
        const cudaError_t error_ = (call);                                                         \
        if (error_ != cudaSuccess) {                                                               \
            result = cuda_failed((d), (what), error_);                                             \
            goto done;                                                                             \
        }                                                                                          \
    } while (0)

/* What to do about a lack of GPU memory. */
#define CUDA_MEMORY_ADVICE                                                                         \
    "use a smaller batch or fewer workers per GPU (with engine=virtual: a smaller "                \
    "virtual.threads)"

struct cuda_shortage {
    const char *what;
    size_t wanted, free, total, mine; /* bytes; mine: of this device object */
};
/* Sets and returns the error for a lack of GPU memory. */
status cuda_out_of_memory(const struct cuda_shortage *s);

/* Device memory for the implementation; like `memory_new`. */
status cuda_memory_new(cuda_device *d, void *out, size_t bytes, const char *what) MUST_CHECK;
void cuda_memory_free(cuda_device *d, void *at);
status cuda_launch(cuda_device *d, enum cuda_stream s, enum cuda_kernel k, struct cuda_grid g,
                   const void *arguments) MUST_CHECK;

/* cuda_cublas.c. The version of the library, as 130100; 0: not found. */
size_t cuda_blas_version(void);
/* True if cublasLt may fuse the epilogue. NVIDIA's own code (nvmath-python) never lets it apply a
 * mask or compute column sums if `inner` is 1, nor sums of a single row. */
bool cuda_product_may_fuse(const struct cuda_product_shape *shape);
void cuda_blas_close(cuda_device *d);
status cuda_product_open(cuda_device *d, const struct cuda_product_shape *shape,
                         cuda_product **out) MUST_CHECK;
void cuda_product_close(cuda_device *d, cuda_product *p);
status cuda_product_run(cuda_device *d, cuda_product *p,
                        const struct cuda_product_call *call) MUST_CHECK;

/* cuda_errors.c: "580.95.05"; "" if the driver does not report it. */
void cuda_driver_name(char out[32]);

#endif
