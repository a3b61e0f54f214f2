/*
 * cuda_stand_in_misuses.h — what test_stand_in_rules.c breaks rules with. Each break_RULE is run in
 * a process of its own, which it should end.
 */
#ifndef GRADLAG_TESTS_CUDA_STAND_IN_MISUSES_H
#define GRADLAG_TESTS_CUDA_STAND_IN_MISUSES_H

#include "tests/cuda_stand_in_inside.h"

#include <stdio.h>
#include <unistd.h>

enum { EARLIER = 3, LATER = 4 /* exits of a child whose misuse had another end */ };

/* What leads to a misuse must work. */
static inline void must(int error)
{
    if (error != 0) {
        fprintf(stderr, "what leads to it failed: %d\n", error);
        _exit(EARLIER);
    }
}

/* The misuse itself: its answer is nobody's. */
static inline void misuse(int error)
{
    (void)error;
}

static inline cudaStream_t new_stream(void)
{
    cudaStream_t s;
    must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static inline void *on_device(size_t bytes)
{
    void *at;
    must(cudaMalloc(&at, bytes));
    return at;
}

/* cublasLt's rules */
void break_attribute(void);
void break_leading(void);
void break_shapes(void);
void break_types(void);
void break_in_place(void);
void break_alignment(void);
void break_workspace(void);
void break_algorithm(void);
void break_mask(void);
void break_bias(void);
void break_single_term(void);
/* One that keeps to them. */
void multiply_right(void);

#endif
