/* cuda_kernels.cu — compiles the kernels for the GPU and gives cuda_device.c their addresses. It is
 * the only file for nvcc; all callers of CUDA are C. */
#define _Noreturn __attribute__((noreturn))
#include <math.h>
#include <string.h>

extern "C" {
#include "worker/cuda/cuda_real.h"
}
#include "worker/cuda/kernels/cuda_kernels.h"

extern "C" {
const struct cuda_kernel_entry cuda_kernel_entries[CUDA_KERNELS] = {
#define KERNEL(name)      {(const void *)kernel_##name, sizeof(struct name##_call)},
#define KERNEL_SYNC(name) {(const void *)kernel_##name, sizeof(struct name##_call)},
#include "worker/cuda/kernels/cuda_kernels.def"
#undef KERNEL
#undef KERNEL_SYNC
};
}
