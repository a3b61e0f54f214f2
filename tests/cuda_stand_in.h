/*
 * cuda_stand_in.h — the CUDA runtime and cublasLt without a GPU, for tests of what calls them:
 * worker/cuda_device.c, cuda_errors.c and cuda_cublas.c run on it unchanged. (The emulated GPU,
 * worker/cuda_emulated.c, takes the place of those three files.)
 *
 * A test program that is linked with it (STAND_IN in the Makefile) has these cuda* functions in
 * place of libcudart's, kernels that the emulated GPU's blocks run, and a libcublasLt of ours,
 * which cuda_cublas.c finds as it finds NVIDIA's.
 *
 * Nothing is done when it is queued. Work is done when somebody waits, and then by turns as late
 * as it may be (only what the wait needs) or with all other streams as far ahead as their events
 * let them; the streams of a graph take the lead by turns, too. Fresh memory is not a number.
 *
 * What breaks a rule that CUDA documents (stand_in_rules.def) aborts the program, after a line on
 * stderr, where CUDA itself would return an error, or worse: do something undefined.
 *
 * It cannot show what only a GPU does: the kernels' compiled code, their races within a block and
 * between blocks, cublasLt's choices, rounding and speed, the driver's own behaviour. What it
 * believes about CUDA is what was read in its documentation. Where a kernel's pointers point it
 * does not look: the emulated GPU's fences and AddressSanitizer do.
 * One host thread at a time.
 */
#ifndef GRADLAG_TESTS_CUDA_STAND_IN_H
#define GRADLAG_TESTS_CUDA_STAND_IN_H

#include <stdbool.h>
#include <stddef.h>

enum { STAND_IN_DEVICES = 4 };

enum stand_in_rule {
#define RULE(name, text) STAND_IN_##name,
#include "tests/stand_in_rules.def"
#undef RULE
    STAND_IN_RULES
};
extern const char *const stand_in_rules[STAND_IN_RULES];

/* What a test may choose. */
struct stand_in_settings {
    unsigned devices;          /* at most STAND_IN_DEVICES */
    size_t memory_bytes;       /* of each */
    bool refuses_pinning;      /* cudaHostRegister: cudaErrorNotSupported */
    bool refuses_graphs;       /* cudaGraphInstantiate: cudaErrorNotSupported */
    int refused_epilogue;      /* a cublasLtEpilogue_t that has no algorithm; 0: none */
    bool refuses_late;         /* it has one, and cublasLtMatmul refuses it */
    const char *faulty_kernel; /* cudaErrorIllegalAddress when it runs, and from then on */
    unsigned faulty_after;     /* that many of its launches are right */
};

/* What was seen since the last reset. */
struct stand_in_seen {
    size_t kernels[STAND_IN_DEVICES];
    size_t products, fused, refused;
    size_t captures, graph_launches;
    size_t pinned, read_only; /* cudaHostRegister; read_only: of them with that flag */
    size_t ahead; /* work of graphs' other streams, done before all of the first one's */
};

struct stand_in {
    struct stand_in_settings set;
    struct stand_in_seen seen;
};
extern struct stand_in stand_in;

/* As a new process: one device, nothing made, nothing queued, no fault. */
void stand_in_reset(void);
/* Streams, events, graphs, memory and descriptions that were made and not given back. */
size_t stand_in_left(void);

#endif
