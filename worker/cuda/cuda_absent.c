/* cuda_absent.c — replaces cuda_device.c in a build without CUDA. */
#include "worker/cuda/cuda_device.h"

status cuda_kind_get(const struct cuda_kind **out)
{
    *out = NULL;
    return error_set(ERROR_USAGE, __FILE__, __LINE__,
                     "device=cuda: this gradlag was built without CUDA; install the CUDA toolkit "
                     "(nvcc), then run make again, or use device=cpu");
}
