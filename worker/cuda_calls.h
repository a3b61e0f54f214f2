/*
 * cuda_calls.h — the arguments of every kernel: struct NAME_call for kernel NAME of
 * cuda_kernels.def. All pointers are device memory.
 */
#ifndef GRADLAG_WORKER_CUDA_CALLS_H
#define GRADLAG_WORKER_CUDA_CALLS_H

#include "worker/cuda_device.h"

/* to[i] += from[i] */
struct add_into_call {
    float *to;
    const float *from;
    size_t count;
};

struct test_where_call {
    uint32_t *out; /* [blocks][threads][4] */
};

struct test_tree_sum_call {
    const float *x; /* [count] */
    float *sums;    /* [blocks] */
    size_t count;
};

struct test_part_ways_call {
    uint32_t from;
    bool other_sync; /* or none */
};

#endif
