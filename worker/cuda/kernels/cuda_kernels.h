/* cuda_kernels.h — includes every kernel, for cuda_kernels.cu and for the tests on the host. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_H

#include "worker/cuda/kernels/cuda_kernels_attention.h"
#include "worker/cuda/kernels/cuda_kernels_conv.h"
#include "worker/cuda/kernels/cuda_kernels_loss.h"
#include "worker/cuda/kernels/cuda_kernels_norm.h"
#include "worker/cuda/kernels/cuda_kernels_pool.h"
#include "worker/cuda/kernels/cuda_kernels_product.h"
#include "worker/cuda/kernels/cuda_kernels_sequence.h"
#include "worker/cuda/kernels/cuda_kernels_simple.h"
#include "worker/cuda/kernels/cuda_kernels_test.h"
#include "worker/cuda/kernels/cuda_kernels_update.h"

#endif
