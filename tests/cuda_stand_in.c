/* cuda_stand_in.c — the stand-in for CUDA's runtime: devices, errors, kernels' launches. */
#include "tests/cuda_stand_in_inside.h"
#include "worker/cuda_calls.h"
#include "worker/cuda_real.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ONE_DEVICE                                                                                 \
    {                                                                                              \
        .set = {.devices = 1, .memory_bytes = (size_t)1 << 32 }                                    \
    }

struct stand_in stand_in = ONE_DEVICE;
cudaError_t stand_in_fault;
unsigned stand_in_device;
size_t stand_in_descriptions;

const char *const stand_in_rules[STAND_IN_RULES] = {
#define RULE(name, text) text,
#include "tests/stand_in_rules.def"
#undef RULE
};

const struct cuda_kernel_entry cuda_kernel_entries[CUDA_KERNELS] = {
#define KERNEL(name)      {&stand_in_functions[CUDA_##name], sizeof(struct name##_call)},
#define KERNEL_SYNC(name) KERNEL(name)
#include "worker/cuda_kernels.def"
#undef KERNEL
#undef KERNEL_SYNC
};

/* Programs that are linked with it have a GPU to test. */
__attribute__((constructor)) static void offer_a_gpu(void)
{
    unsetenv("GRADLAG_CUDA_EMULATED");
    setenv("GRADLAG_TEST_GPU", "1", 1);
}

_Noreturn void stand_in_refuse(enum stand_in_rule rule, const char *call)
{
    fprintf(stderr, "stand-in for CUDA: %s: %s\n", call, stand_in_rules[rule]);
    abort();
}

void *stand_in_new(size_t bytes)
{
    void *at = calloc(1, bytes);
    if (at == NULL) {
        fprintf(stderr, "stand-in for CUDA: the host's memory is out (%zu bytes)\n", bytes);
        abort();
    }
    return at;
}

void stand_in_reset(void)
{
    stand_in_fault = cudaSuccess;
    stand_in_streams_reset();
    stand_in_memory_reset();
    stand_in_kernels_reset();
    stand_in_device = 0;
    stand_in_descriptions = 0; /* nobody knows where they are */
    stand_in = (struct stand_in)ONE_DEVICE;
}

size_t stand_in_left(void)
{
    return stand_in_streams_left() + stand_in_memory_left() + stand_in_descriptions;
}

/* ---- devices ------------------------------------------------------------------------------------
 */

cudaError_t cudaGetDeviceCount(int *count)
{
    ENTER();
    *count = (int)stand_in.set.devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    ENTER();
    if (device < 0 || (unsigned)device >= stand_in.set.devices) {
        return cudaErrorInvalidDevice;
    }
    stand_in_device = (unsigned)device;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    ENTER();
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "stand-in %d", device);
    out->major = 9;
    out->multiProcessorCount = 4;
    out->sharedMemPerBlock = 48 << 10;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device)
{
    ENTER();
    snprintf(out, (size_t)bytes, "0000:%02x:00.0", device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    ENTER();
    (void)device;
    *value = attribute == cudaDevAttrComputeCapabilityMajor          ? 9
             : attribute == cudaDevAttrHostRegisterReadOnlySupported ? 1
                                                                     : 0;
    return cudaSuccess;
}

/* ---- errors -------------------------------------------------------------------------------------
 */

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                            : cudaGetErrorName(error);
}

const char *cudaGetErrorName(cudaError_t error)
{
    static char name[32];
    snprintf(name, sizeof name, "error %d", (int)error);
    return name;
}

/* A fault is none of those that asking makes forgotten. */
cudaError_t cudaGetLastError(void)
{
    return stand_in_fault;
}

/* ---- kernels ------------------------------------------------------------------------------------
 */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function)
{
    ENTER();
    HOLD_TO(known, (const char *)function >= stand_in_functions &&
                       (const char *)function < stand_in_functions + CUDA_KERNELS);
    memset(out, 0, sizeof *out);
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 g, dim3 b, void **arguments, size_t shared,
                             cudaStream_t s)
{
    ENTER();
    HOLD_TO(known, (const char *)function >= stand_in_functions &&
                       (const char *)function < stand_in_functions + CUDA_KERNELS && shared == 0);
    HOLD_TO(own_stream, s != NULL);
    HOLD_TO(same_device, stand_in_device_of(s) == stand_in_device);
    HOLD_TO(grid, g.x != 0 && g.x <= INT32_MAX && g.y != 0 && g.y <= CUDA_GRID_YZ && g.z != 0 &&
                      g.z <= CUDA_GRID_YZ && b.x != 0 && b.x <= CUDA_BLOCK_THREADS && b.y == 1 &&
                      b.z == 1);
    struct stand_in_launch *l = aligned_alloc(16, sizeof *l);
    if (l == NULL) {
        return cudaErrorMemoryAllocation;
    }
    l->kernel = (unsigned)((const char *)function - stand_in_functions);
    l->x = g.x;
    l->y = g.y;
    l->z = g.z;
    l->threads = b.x;
    l->device = stand_in_device;
    memcpy(l->arguments, arguments[0], stand_in_argument_bytes(l->kernel));
    return stand_in_queue(s, stand_in_launch_run, l);
}
