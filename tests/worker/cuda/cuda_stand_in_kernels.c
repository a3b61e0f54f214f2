/* cuda_stand_in_kernels.c — launches of kernels on the stand-in, and their faults. */
#include "tests/worker/cuda/cuda_stand_in_internal.h"
#include "worker/cuda/kernels/cuda_calls.h"

#include <stdlib.h>
#include <string.h>

static const char functions[CUDA_KERNELS]; /* the handle of kernel k is &functions[k] */
static unsigned launches_of_the_faulty;

struct kernels_launch {
    unsigned kernel, device;
    struct cuda_grid grid;
    _Alignas(16) char arguments[STAND_IN_ARGUMENT_BYTES];
};

const struct cuda_kernel_entry cuda_kernel_entries[CUDA_KERNELS] = {
#define KERNEL(name)      {&functions[CUDA_##name], sizeof(struct name##_call)},
#define KERNEL_SYNC(name) KERNEL(name)
#include "worker/cuda/kernels/cuda_kernels.def"
#undef KERNEL
#undef KERNEL_SYNC
};

static bool is_faulty(unsigned kernel)
{
    const char *asked = getenv("GRADLAG_STAND_IN_FAULT");
    const char *faulty = asked != NULL ? asked : stand_in.set.faulty_kernel;
    return faulty != NULL && strcmp(faulty, cuda_kernel_names[kernel]) == 0 &&
           launches_of_the_faulty++ >= stand_in.set.faulty_after;
}

static void run_launch(void *launch)
{
    const struct kernels_launch *l = launch;
    if (is_faulty(l->kernel)) {
        stand_in_fault = cudaErrorIllegalAddress;
        return;
    }
    stand_in.seen.kernels[l->device]++;
    stand_in_run_grid(l->kernel, &l->grid, l->arguments);
    stand_in_check_fences(cuda_kernel_names[l->kernel]);
}

void stand_in_kernels_reset(void)
{
    launches_of_the_faulty = 0;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function)
{
    ENTER();
    HOLD_TO(known, (const char *)function >= functions &&
                       (const char *)function < functions + CUDA_KERNELS);
    memset(out, 0, sizeof *out);
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 g, dim3 b, void **arguments, size_t shared,
                             cudaStream_t s)
{
    ENTER();
    HOLD_TO(known, (const char *)function >= functions &&
                       (const char *)function < functions + CUDA_KERNELS && shared == 0);
    HOLD_TO(own_stream, s != NULL);
    HOLD_TO(same_device, stand_in_device_of(s) == stand_in_device);
    HOLD_TO(grid, g.x != 0 && g.x <= INT32_MAX && g.y != 0 && g.y <= CUDA_GRID_YZ && g.z != 0 &&
                      g.z <= CUDA_GRID_YZ && b.x != 0 && b.x <= CUDA_BLOCK_THREADS && b.y == 1 &&
                      b.z == 1);
    struct kernels_launch *l = aligned_alloc(16, sizeof *l);
    if (l == NULL)
        return cudaErrorMemoryAllocation;
    l->kernel = (unsigned)((const char *)function - functions);
    l->grid = (struct cuda_grid){g.x, g.y, g.z, b.x};
    l->device = stand_in_device;
    memcpy(l->arguments, arguments[0], stand_in_argument_bytes(l->kernel));
    return stand_in_queue(s, run_launch, l);
}
