/* communicator_nccl_library.c — NCCL's calls and errors. Built if nccl.h is found. */
#include "base/memory.h"
#include "sync/communicator/communicator_nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(ncclUniqueId) == NCCL_ID_BYTES, "NCCL changed the size of its id");

#define FUNCTIONS(of)                                                                              \
    of(ncclGetVersion);                                                                            \
    of(ncclGetUniqueId);                                                                           \
    of(ncclGetErrorString);                                                                        \
    of(ncclGetLastError);                                                                          \
    of(ncclCommInitRank);                                                                          \
    of(ncclCommDestroy);                                                                           \
    of(ncclCommAbort);                                                                             \
    of(ncclCommGetAsyncError);                                                                     \
    of(ncclAllReduce)

#define DECLARE(name) __typeof__(&(name)) name##_
static struct {
    bool loaded;
    char load_error[512];
    FUNCTIONS(DECLARE);
} library;

struct nccl {
    ncclComm_t comm;
    unsigned device;
};

static void load_once(void)
{
    static const char *const places[] = {"libnccl.so.2", GRADLAG_NCCL_LIBRARIES "libnccl.so.2"};
    void *at = NULL;
    for (size_t i = 0; at == NULL && i < COUNT_OF(places); i++) {
        at = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
        if (at == NULL && i == 0)
            snprintf(library.load_error, sizeof library.load_error, "%s", dlerror());
    }
    if (at == NULL)
        return;
#define LOOK_UP(name)                                                                              \
    do {                                                                                           \
        void *function_ = dlsym(at, #name);                                                        \
        if (function_ == NULL) {                                                                   \
            snprintf(library.load_error, sizeof library.load_error,                                \
                     "the library lacks the function %s", #name);                                  \
            return;                                                                                \
        }                                                                                          \
        memcpy(&library.name##_, &function_, sizeof function_);                                    \
    } while (0)
    FUNCTIONS(LOOK_UP);
    library.loaded = true;
}

status nccl_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    status result = OK;
    pthread_once(&once, load_once);
    if (!library.loaded) {
        FAIL(ERROR_USAGE,
             "communicator=nccl: cannot load NCCL: %s; install libnccl2, or add its directory to "
             "LD_LIBRARY_PATH, or use communicator=auto",
             library.load_error);
    }
done:
    return result;
}

int nccl_version(void)
{
    int version = 0;
    (void)library.ncclGetVersion_(&version);
    return version;
}

static status check(const nccl *n, ncclResult_t code, const char *what)
{
    status result = OK;
    if (code != ncclSuccess && code != ncclInProgress) {
        const char *more = library.ncclGetLastError_(n != NULL ? n->comm : NULL);
        FAIL(
            ERROR_PEER,
            "NCCL, %s: %s (%s). Another rank may have died. Set NCCL_DEBUG=INFO in the environment "
            "for details",
            what, library.ncclGetErrorString_(code), more != NULL ? more : "no details");
    }
done:
    return result;
}

static status check_cuda(cudaError_t error, const char *what)
{
    status result = OK;
    if (error != cudaSuccess)
        FAIL(ERROR_OTHER, "%s: CUDA failed: %s", what, cudaGetErrorString(error));
done:
    return result;
}

status nccl_make_id(uint8_t id[NCCL_ID_BYTES])
{
    status result = OK;
    ncclUniqueId created;
    TRY(check(NULL, library.ncclGetUniqueId_(&created), "making an address for the ranks"));
    memcpy(id, &created, sizeof created);
done:
    return result;
}

status nccl_join(nccl **out, const uint8_t id[NCCL_ID_BYTES], unsigned rank, unsigned size,
                 unsigned device)
{
    status result = OK;
    ncclUniqueId known;
    nccl *n = NULL;
    *out = NULL;
    memcpy(&known, id, sizeof known);
    TRY(memory_new(&n, 1, sizeof *n, "NCCL"));
    n->device = device;
    TRY(check_cuda(cudaSetDevice((int)device), "choosing the GPU"));
    TRY(check(NULL, library.ncclCommInitRank_(&n->comm, (int)size, known, (int)rank),
              "opening the ranks' communicator"));
    *out = n;
    n = NULL;
done:
    memory_free(n);
    return result;
}

/* Errors are ignored: the process ends soon and frees everything. */
void nccl_leave(nccl **n, bool abandon)
{
    if (*n == NULL)
        return;
    (void)cudaSetDevice((int)(*n)->device);
    (void)(abandon ? library.ncclCommAbort_((*n)->comm) : library.ncclCommDestroy_((*n)->comm));
    memory_free(*n);
    *n = NULL;
}

status nccl_sum(nccl *n, float *data, size_t count, void *stream)
{
    status result = OK;
    const char *what = "the sum of the gradients";
    TRY(check_cuda(cudaSetDevice((int)n->device), what));
    TRY(check(n, library.ncclAllReduce_(data, data, count, ncclFloat32, ncclSum, n->comm, stream),
              what));
done:
    return result;
}

status nccl_done(nccl *n, void *stream, bool *done)
{
    status result = OK;
    ncclResult_t code = ncclSuccess;
    *done = false;
    cudaError_t error = cudaStreamQuery(stream);
    if (error == cudaErrorNotReady) {
        TRY(check(n, library.ncclCommGetAsyncError_(n->comm, &code), "asking for errors"));
        TRY(check(n, code, "the sum of the gradients"));
        goto done;
    }
    TRY(check_cuda(error, "the sum of the gradients"));
    *done = true;
done:
    return result;
}
