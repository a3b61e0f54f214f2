/* cuda_kernels.h — every kernel. Included once by each implementation of cuda_device.h. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_H
#define GRADLAG_WORKER_CUDA_KERNELS_H

#include "worker/cuda_kernels_conv.h"
#include "worker/cuda_kernels_loss.h"
#include "worker/cuda_kernels_norm.h"
#include "worker/cuda_kernels_pool.h"
#include "worker/cuda_kernels_product.h"
#include "worker/cuda_kernels_simple.h"
#include "worker/cuda_kernels_test.h"
#include "worker/cuda_kernels_update.h"

#endif
