/* cuda_kind.c — which implementation of cuda_device.h is used, and what both of them share. */
#include "worker/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const cuda_kernel_names[CUDA_KERNELS] = {
#define KERNEL(name)      #name,
#define KERNEL_SYNC(name) #name,
#include "worker/cuda_kernels.def"
#undef KERNEL
#undef KERNEL_SYNC
};

status cuda_kind_get(const struct cuda_kind **out)
{
    status result = OK;
    const char *emulated = getenv("GRADLAG_CUDA_EMULATED");
    *out = NULL;
    if (emulated != NULL && strcmp(emulated, "") != 0 && strcmp(emulated, "0") != 0) {
        *out = &cuda_emulated;
        goto done;
    }
#ifdef GRADLAG_CUDA
    *out = &cuda_real;
#else
    FAIL(ERROR_USAGE, "device=cuda: this gradlag was built without CUDA; install the CUDA toolkit "
                      "(nvcc), then run make again, or use device=cpu");
#endif
done:
    return result;
}

static double mib(size_t bytes)
{
    return (double)bytes / 1048576;
}

status cuda_out_of_memory(const struct cuda_shortage *s)
{
    status result = OK;
    const size_t used = s->total - s->free;
    const size_t others = used > s->mine ? used - s->mine : 0;
    char wanted[64] = "";
    if (s->wanted != 0) { /* or CUDA's own, of no known size */
        snprintf(wanted, sizeof wanted, "%.1f MiB wanted, ", mib(s->wanted));
    }
    FAIL(ERROR_OTHER,
         "%s: the GPU's memory is out: %s%.1f of %.1f MiB free; this worker holds %.1f MiB, other "
         "processes, the driver and its context %.1f MiB; use a smaller batch or fewer workers per "
         "GPU",
         s->what, wanted, mib(s->free), mib(s->total), mib(s->mine), mib(others));
done:
    return result;
}

status cuda_grid_check(enum cuda_kernel k, const struct cuda_grid *g)
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

status cuda_product_check(const struct cuda_product_shape *shape)
{
    status result = OK;
    if (shape->rows == 0 || shape->columns == 0 || shape->inner == 0 ||
        (shape->accumulate && shape->epilogue != CUDA_PLAIN)) {
        FAIL(ERROR_OTHER,
             "a product of %u×%u by %u×%u with epilogue %d%s is not possible; this is a bug in "
             "gradlag, please report it with the command line that led here",
             shape->rows, shape->inner, shape->inner, shape->columns, (int)shape->epilogue,
             shape->accumulate ? ", accumulated," : "");
    }
done:
    return result;
}

bool cuda_product_may_fuse(const struct cuda_product_shape *s)
{
    switch (s->epilogue) {
    case CUDA_BIAS:
    case CUDA_BIAS_RELU:
    case CUDA_BIAS_RELU_MASK:
        return true;
    case CUDA_MASKED:
        return s->inner > 1;
    case CUDA_COLUMN_SUMS:
        return s->inner > 1 && s->rows > 1;
    case CUDA_PLAIN:
        break;
    }
    return false;
}
