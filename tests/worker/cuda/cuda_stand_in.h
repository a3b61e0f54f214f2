/*
 * cuda_stand_in.h — the CUDA runtime and cublasLt without a GPU. The whole CUDA backend runs on it
 * unchanged: backend_cuda*.c, cuda_device.c, cuda_errors.c, cuda_cublas.c and the kernels' source.
 *
 * A program that is linked with it (ON_STAND_IN in the Makefile) has these cuda* functions in place
 * of libcudart's, the kernels compiled for the host (cuda_stand_in_block.c), and a libcublasLt of
 * the tests, which cuda_cublas.c finds as it finds NVIDIA's.
 *
 * Queued work does not run until the host waits. A wait then runs other streams as late as possible
 * (only the work this wait needs) or as early as possible (as far as their events allow), each of
 * them about every other time. The streams of a graph go first in turns. Fresh memory holds NaN.
 * After each kernel and product the fences of 256 bytes around every piece of device memory are
 * checked.
 *
 * After the first call, each call in a copy of the process (fork()) fails with
 * cudaErrorInitializationError ("CUDA C++ Programming Guide", "Initialization").
 *
 * Code that breaks a rule of CUDA's documentation (stand_in_rules.def) or writes over a fence ends
 * the program with a line on stderr, where CUDA would return an error or do something undefined.
 *
 * The stand-in cannot show what only a GPU does: nvcc's code, races within a block and between
 * blocks, cublasLt's choices, rounding and speed, the driver's own behaviour. Its knowledge of CUDA
 * comes from the documentation.
 *
 * Any host thread may call it; calls run one at a time.
 *
 * Environment, read at each call, stronger than struct stand_in_settings:
 *   GRADLAG_STAND_IN_DEVICES=N      N devices (1). With several, CUDA_VISIBLE_DEVICES selects some
 *                                   of them, by number or as GPU-number
 *   GRADLAG_STAND_IN_MEMORY=BYTES   the memory of each device
 *   GRADLAG_STAND_IN_FAULT=KERNEL   this kernel faults when it runs
 */
#ifndef GRADLAG_TESTS_WORKER_CUDA_CUDA_STAND_IN_H
#define GRADLAG_TESTS_WORKER_CUDA_CUDA_STAND_IN_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { STAND_IN_DEVICES = 16 };

/* Settings that a test may change. */
struct stand_in_settings {
    unsigned devices;     /* at most STAND_IN_DEVICES */
    size_t memory_bytes;  /* of each device */
    bool refuses_pinning; /* cudaHostRegister: cudaErrorNotSupported */
    bool refuses_graphs;  /* cudaGraphInstantiate: cudaErrorNotSupported */
    bool fails_captured;  /* cublasLtMatmul while its stream captures: EXECUTION_FAILED */
    int refused_epilogue; /* a cublasLtEpilogue_t that has no algorithm; 0: none */
    bool refuses_late;    /* it has an algorithm, but cublasLtMatmul refuses it */
    const char *
        faulty_kernel; /* its launch fails with cudaErrorIllegalAddress, and every later call too */
    unsigned faulty_after; /* launches of it that succeed first */
};

/* Counts since the last reset. */
struct stand_in_seen {
    size_t kernels[STAND_IN_DEVICES];
    size_t products, fused, refused;
    size_t captures, graph_launches;
    size_t pinned,
        read_only; /* calls of cudaHostRegister; those with the flag for read-only memory */
    size_t ahead;  /* work that streams of a graph did before the first stream had finished */
};

struct stand_in {
    struct stand_in_settings set;
    struct stand_in_seen seen;
};
extern struct stand_in stand_in;

/* Restores the state of a new process: one device, no objects, no queued work, no fault. */
void stand_in_reset(void);
/* Number of streams, events, graphs, pieces of memory and descriptions that are not freed. */
size_t stand_in_left(void);

#endif
