/* cuda_stand_in.c — the stand-in for the CUDA runtime: devices, errors, the lock. */
#include "tests/worker/cuda/cuda_stand_in_internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ONE_DEVICE                                                                                 \
    {                                                                                              \
        .set = {.devices = 1, .memory_bytes = (size_t)1 << 32 }                                    \
    }

struct stand_in stand_in = ONE_DEVICE;
cudaError_t stand_in_fault;
_Thread_local unsigned stand_in_device;
size_t stand_in_descriptions;
static pid_t first_process; /* made the first call; 0: no call so far */

static const char *const rules[STAND_IN_RULES] = {
#define RULE(name, text) text,
#include "tests/worker/cuda/stand_in_rules.def"
#undef RULE
};

_Noreturn void stand_in_abort(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("stand-in for CUDA: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    abort();
}

_Noreturn void stand_in_refuse(enum stand_in_rule rule, const char *call)
{
    stand_in_abort("%s: %s", call, rules[rule]);
}

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void stand_in_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void stand_in_unlock(const int *unused)
{
    (void)unused;
    pthread_mutex_unlock(&mutex);
}

cudaError_t stand_in_enter(void)
{
    if (first_process == 0)
        first_process = getpid();
    return first_process != getpid() ? cudaErrorInitializationError : stand_in_fault;
}

void *stand_in_new(size_t bytes)
{
    void *at = calloc(1, bytes);
    if (at == NULL)
        stand_in_abort("out of host memory: %zu bytes", bytes);
    return at;
}

void stand_in_reset(void)
{
    stand_in_fault = cudaSuccess;
    stand_in_streams_reset();
    stand_in_memory_reset();
    stand_in_kernels_reset();
    stand_in_device = 0;
    first_process = 0;
    stand_in_descriptions = 0; /* the stand-in has no list of them */
    stand_in = (struct stand_in)ONE_DEVICE;
}

size_t stand_in_left(void)
{
    return stand_in_streams_left() + stand_in_memory_left() + stand_in_descriptions;
}

/* ---- devices ------------------------------------------------------------------------------------
 */

static unsigned device_count(void)
{
    const char *text = getenv("GRADLAG_STAND_IN_DEVICES");
    const unsigned long count = text == NULL ? stand_in.set.devices : strtoul(text, NULL, 10);
    return count > STAND_IN_DEVICES ? STAND_IN_DEVICES : (unsigned)count;
}

/* Writes the numbers of the devices that CUDA_VISIBLE_DEVICES selects, up to the first invalid one.
 * Returns how many there are. */
static unsigned visible_devices(unsigned out[STAND_IN_DEVICES])
{
    const unsigned all = device_count();
    const char *list = all > 1 ? getenv("CUDA_VISIBLE_DEVICES") : NULL;
    unsigned count = 0;
    for (; list == NULL && count < all; count++)
        out[count] = count;
    while (list != NULL && count < STAND_IN_DEVICES) {
        char *end;
        list += strncmp(list, "GPU-", 4) == 0 ? 4 : 0;
        const unsigned long number = strtoul(list, &end, 10);
        if (*list < '0' || *list > '9' || number >= all)
            break;
        out[count++] = (unsigned)number;
        list = *end == ',' ? end + 1 : NULL;
    }
    return count;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    unsigned unused[STAND_IN_DEVICES];
    ENTER();
    *count = (int)visible_devices(unused);
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    ENTER();
    unsigned unused[STAND_IN_DEVICES];
    if (device < 0 || (unsigned)device >= visible_devices(unused))
        return cudaErrorInvalidDevice;
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
    unsigned unused[STAND_IN_DEVICES];
    ENTER();
    HOLD_TO(known, (unsigned)device < visible_devices(unused));
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "stand-in");
    out->major = 9;
    out->multiProcessorCount = 4;
    out->sharedMemPerBlock = 48 << 10;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device)
{
    unsigned numbers[STAND_IN_DEVICES];
    ENTER();
    HOLD_TO(known, (unsigned)device < visible_devices(numbers));
    snprintf(out, (size_t)bytes, "0000:%02x:00.0", numbers[device]);
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

/* A fault is permanent: cudaGetLastError does not clear it. */
cudaError_t cudaGetLastError(void)
{
    return stand_in_fault;
}
