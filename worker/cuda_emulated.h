/*
 * cuda_emulated.h — the parts of the emulated GPU: its queues, kernels block by block, matrix
 * products. */
#ifndef GRADLAG_WORKER_CUDA_EMULATED_H
#define GRADLAG_WORKER_CUDA_EMULATED_H

#include "worker/cuda_device.h"

enum { CUDA_POISON = 0xff /* floats of these bytes are NaN */ };
#define CUDA_OUR_BUG                                                                               \
    "this is a bug in gradlag, please report it with the command line that led here"

/* Room for the arguments of any kernel. */
enum { CUDA_ARGUMENTS_BYTES = 1024, CUDA_FAULT_BYTES = 512 };
size_t cuda_emulated_argument_bytes(enum cuda_kernel k);

/* Stacks for the threads of one block. One host thread at a time. */
typedef struct cuda_block cuda_block;
status cuda_block_open(cuda_block **out) MUST_CHECK;
void cuda_block_close(cuda_block **b);
/* Runs all blocks of a grid, one after another. ERROR_OTHER: threads of a block that do not all
 * come to the same SYNC. */
status cuda_block_run(cuda_block *b, enum cuda_kernel k, const struct cuda_grid *g,
                      const void *arguments) MUST_CHECK;

status cuda_emulated_product(const struct cuda_product_shape *shape,
                             const struct cuda_product_call *call) MUST_CHECK;

/* ---- what is queued -----------------------------------------------------------------------------
 */

enum work_kind {
    WORK_COPY,
    WORK_CLEAR,
    WORK_WAIT,
    WORK_LAUNCH,
    WORK_PRODUCT,
    WORK_GRAPH,
    WORK_MARK
};

struct work {
    enum work_kind kind;
    union {
        struct {
            void *to;
            const void *from;
            size_t bytes;
        } copy;            /* and clear */
        size_t wait_until; /* that much of the other stream's work must be done */
        struct {
            enum cuda_kernel kernel;
            struct cuda_grid grid;
        } launch;
        struct {
            const cuda_product *product;
            struct cuda_product_call call;
        } product;
        const cuda_graph *graph;
        unsigned mark;
    };
    _Alignas(16) uint8_t arguments[]; /* launch */
};

/* Items of work one after another, each of its own size. */
struct work_list {
    uint8_t *at;
    size_t bytes, capacity, count;
};

struct work_queue {
    struct work_list streams[CUDA_STREAMS];
};

struct cuda_graph {
    struct work_queue queue;
};

struct cuda_product {
    struct cuda_product_shape shape;
};

/* A piece of device memory: this, a fence that fills it up to ALIGNMENT, the memory, a fence. */
struct piece {
    struct piece *next;
    size_t bytes;
    char what[64];
};

/* Host memory that is pinned, by pin or host_new. */
struct pinned {
    struct pinned *next;
    const uint8_t *at;
    size_t bytes;
    bool read_only;
};

struct cuda_device {
    struct cuda_options options;
    struct work_queue queue, captured;
    bool capturing, copy_joined;  /* CUDA_COPY is part of the capture */
    size_t copy_waited_for;       /* that much of its captured work */
    bool copy_first;              /* next time */
    char fault[CUDA_FAULT_BYTES]; /* the first one, or "" */
    cuda_block *block;
    struct piece *pieces;
    size_t bytes;
    struct pinned *pinned;
    uint64_t marks[CUDA_MARKS]; /* clock_ns, 0: not passed */
};

status cuda_queue_add(struct work_queue *q, enum cuda_stream s, const struct work *w,
                      const void *arguments) MUST_CHECK;
void cuda_queue_empty(struct work_queue *q);
void cuda_queue_free(struct work_queue *q);
/* All the work of both streams: one as early as it may, the other as late (`copy_first`). */
status cuda_queue_run(cuda_device *d, const struct work_queue *q) MUST_CHECK;

/* Device memory, filled with CUDA_POISON; no limit. */
status cuda_piece_new(cuda_device *d, void *out, size_t bytes, const char *what) MUST_CHECK;
size_t cuda_piece_free(cuda_device *d, const void *at); /* the bytes it had */
void cuda_pieces_close(cuda_device *d);                 /* all of it, and what is pinned */
/* ERROR_OTHER: something was written outside of a piece. */
status cuda_pieces_check(const cuda_device *d) MUST_CHECK;
status cuda_pinned_add(cuda_device *d, const void *at, size_t bytes, bool read_only) MUST_CHECK;
void cuda_pinned_drop(cuda_device *d, const void *at);
/* ERROR_OTHER: part of at[0..bytes) is pinned to be read only. */
status cuda_may_write(const cuda_device *d, const void *at, size_t bytes) MUST_CHECK;
/* ERROR_OTHER: at[0..bytes) is not device memory, or it is where host memory is wanted. */
status cuda_side_check(const cuda_device *d, const char *call, const void *at, size_t bytes,
                       bool on_device) MUST_CHECK;

#endif
