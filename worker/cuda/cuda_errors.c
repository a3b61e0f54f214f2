/* cuda_errors.c — messages for CUDA's errors: the likely cause and what to do next. */
#include "worker/cuda/cuda_real.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUR_BUG                                                                                    \
    "this is a bug in gradlag, please report it with the command line that led here; this "        \
    "process can compute nothing more on this GPU"

void cuda_driver_name(char out[32])
{
    char line[256];
    out[0] = '\0';
    FILE *f = fopen("/proc/driver/nvidia/version", "r");
    if (f == NULL)
        return;
    if (fgets(line, sizeof line, f) != NULL) {
        /* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  …" */
        const char *at = strpbrk(line, "0123456789");
        while (at != NULL && sscanf(at, "%31[0-9.]", out) == 1 && strchr(out, '.') == NULL) {
            at = strpbrk(at + strlen(out), "0123456789");
            out[0] = '\0';
        }
    }
    fclose(f);
}

static status no_device(void)
{
    status result = OK;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    FAIL(ERROR_USAGE,
         "device=cuda: the driver shows no GPU; check the output of nvidia-smi%s%s, or use "
         "device=cpu",
         visible == NULL ? "" : ", change CUDA_VISIBLE_DEVICES=", visible == NULL ? "" : visible);
done:
    return result;
}

/* The driver is missing, or older than the runtime of this build. */
static status driver_too_old(void)
{
    status result = OK;
    int can = 0, built = CUDART_VERSION;
    char name[32];
    cuda_driver_name(name);
    if (cudaDriverGetVersion(&can) != cudaSuccess || can == 0) {
        FAIL(ERROR_USAGE,
             "device=cuda: libcuda.so.1, a part of the NVIDIA driver, is not found%s%s; install "
             "the driver (in a container: start it with --gpus all), or use device=cpu",
             name[0] == '\0' ? "" : ", but the kernel has driver ", name);
    }
    FAIL(ERROR_USAGE,
         "device=cuda: driver %s is too old: it supports CUDA %d.%d, but this gradlag was built "
         "with %d.%d; update the driver or rebuild with an older toolkit",
         name[0] == '\0' ? "on this machine" : name, can / 1000, can % 1000 / 10, built / 1000,
         built % 1000 / 10);
done:
    return result;
}

static status no_code(const cuda_device *d)
{
    status result = OK;
    struct cuda_properties p = {0};
    const bool known = d != NULL && cuda_real.describe(d->options.index, &p) == OK;
    FAIL(ERROR_USAGE,
         "device=cuda: this gradlag has no code for %s (compute capability %u.%u); rebuild it "
         "on this machine, or with make CUDA_ARCHS=%u",
         known ? p.name : "this GPU", p.capability / 10, p.capability % 10, p.capability);
done:
    return result;
}

static status kernel_fault(const cuda_device *d, const char *what, cudaError_t error)
{
    status result = OK;
    const char *last = d == NULL || d->last_work == NULL ? "a kernel" : d->last_work;
    FAIL(ERROR_OTHER, "%s: a fault on the GPU in %s or in earlier work: %s (%s); " OUR_BUG, what,
         last, cudaGetErrorString(error), cudaGetErrorName(error));
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
    if (s->wanted != 0) /* 0: CUDA's own memory, of unknown size */
        snprintf(wanted, sizeof wanted, "%.1f MiB wanted, ", mib(s->wanted));
    FAIL(ERROR_OTHER,
         "%s: out of GPU memory: %s%.1f of %.1f MiB free; this worker uses %.1f MiB, other threads "
         "and processes, the driver and its context use %.1f MiB; " CUDA_MEMORY_ADVICE,
         s->what, wanted, mib(s->free), mib(s->total), mib(s->mine), mib(others));
done:
    return result;
}

static status memory_is_out(const cuda_device *d, const char *what)
{
    struct cuda_shortage s = {.what = what, .mine = d == NULL ? 0 : d->bytes};
    if (cudaMemGetInfo(&s.free, &s.total) != cudaSuccess)
        s.free = s.total = 0;
    return cuda_out_of_memory(&s);
}

status cuda_failed(const cuda_device *d, const char *what, cudaError_t error)
{
    status result = OK;
    switch (error) {
    case cudaErrorNoDevice:
        return no_device();
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorCallRequiresNewerDriver:
        return driver_too_old();
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction: /* returned by a query of kernel attributes */
    case cudaErrorInvalidKernelImage:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
        return no_code(d);
    case cudaErrorMemoryAllocation:
        return memory_is_out(d, what);
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
        return kernel_fault(d, what, error);
    case cudaErrorInvalidDevice:
        FAIL(ERROR_USAGE, "%s: there is no such GPU; `gradlag check` lists the visible ones", what);
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorSystemNotReady:
    case cudaErrorDevicesUnavailable:
        FAIL(ERROR_USAGE,
             "%s: the GPU cannot be used now: %s; check its driver, compute mode and processes "
             "with nvidia-smi",
             what, cudaGetErrorString(error));
    case cudaErrorECCUncorrectable:
        FAIL(ERROR_OTHER, "%s: the GPU reports damaged memory (ECC error); use another GPU", what);
    default:
        FAIL(ERROR_OTHER, "%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
    }
done:
    return result;
}
