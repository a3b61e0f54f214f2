/* cuda_stand_in_kernels.c — kernels launched on the stand-in, run by the emulated GPU's blocks. */
#include "tests/cuda_stand_in_inside.h"
#include "worker/cuda_emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char stand_in_functions[CUDA_KERNELS];
static cuda_block *block;
static unsigned of_the_faulty;

_Static_assert(sizeof((struct stand_in_launch){0}.arguments) >= CUDA_ARGUMENTS_BYTES,
               "room for the arguments of any kernel");

size_t stand_in_argument_bytes(unsigned kernel)
{
    return cuda_emulated_argument_bytes(kernel);
}

static bool is_faulty(unsigned kernel)
{
    const char *faulty = stand_in.set.faulty_kernel;
    return faulty != NULL && strcmp(faulty, cuda_kernel_names[kernel]) == 0 &&
           of_the_faulty++ >= stand_in.set.faulty_after;
}

void stand_in_launch_run(void *launch)
{
    const struct stand_in_launch *l = launch;
    const struct cuda_grid g = {l->x, l->y, l->z, l->threads};
    if (is_faulty(l->kernel)) {
        stand_in_fault = cudaErrorIllegalAddress;
        return;
    }
    stand_in.seen.kernels[l->device]++;
    if ((block == NULL && cuda_block_open(&block) != OK) ||
        cuda_block_run(block, l->kernel, &g, l->arguments) != OK) {
        fprintf(stderr, "stand-in for CUDA: kernel %s: %s\n", cuda_kernel_names[l->kernel],
                error_message());
        abort();
    }
}

void stand_in_kernels_reset(void)
{
    cuda_block_close(&block);
    of_the_faulty = 0;
}
