/*
 * backend_cuda_commands.h — lists of commands: what backend_cuda_commands.c (appends and runs them)
 * and backend_cuda_gradient.c (copies of the gradient, pinned memory) share.
 */
#ifndef GRADLAG_WORKER_CUDA_BACKEND_CUDA_COMMANDS_H
#define GRADLAG_WORKER_CUDA_BACKEND_CUDA_COMMANDS_H

#include "worker/cuda/backend_cuda.h"

enum {
    PLANS = 24,         /* lists that are kept */
    NEW_LISTS = 32,     /* consecutive new lists before the log warns that graphs do not help */
    BUCKET = 256 << 10, /* elements of the gradient in one copy: 1 MiB */
};

enum command_kind {
    COMMAND_LAUNCH,
    COMMAND_PRODUCT,
    COMMAND_UP,
    COMMAND_DOWN,
    COMMAND_CLEAR,
    COMMAND_SUM, /* over ranks, on CUDA_COPY */
    COMMAND_WAIT
};

struct command {
    enum command_kind kind;
    enum cuda_stream stream; /* the stream that waits or copies */
    union {
        struct {
            enum cuda_kernel kernel;
            struct cuda_grid grid;
            _Alignas(8) uint8_t call[CUDA_CALL_BYTES];
        } launch;
        struct {
            cuda_product *product;
            struct cuda_product_call call;
        } product;
        struct {
            void *to;
            const void *from; /* NULL: zero bytes */
            size_t bytes;
        } copy;
        struct {
            const struct device_sum *by;
            float *data;
            size_t count;
        } sum;
    };
};

struct command_list {
    struct command *at;
    size_t count, capacity;
};

struct command_plan {
    struct command_list list;
    uint64_t hash, used;
    cuda_graph *graph; /* NULL: the list has run once */
};

/* A part of the gradient and the last command that writes it. */
struct part {
    size_t offset, count, command;
};

struct delivery {
    void *to;
    const void *from;
    size_t bytes; /* 0: from a cuda_loss to an op_loss */
};

struct retired {
    void *device, *pinned;
};

struct pinned {
    const void *at;
    size_t bytes;
    bool read_only; /* the device must not write to it */
    bool done;      /* false: the driver refused to pin it */
};

struct cuda_commands {
    struct command_list list, with_copies;
    struct part *parts;
    size_t part_count, part_capacity;
    struct delivery *deliveries;
    size_t delivery_count, delivery_capacity;
    struct retired *retired;
    size_t retired_count, retired_capacity;
    bool interrupted;    /* the first commands of this step have run */
    bool copies_to_host; /* CUDA_COPY has commands of this step */
    bool in_phase;
    struct command_plan plans[PLANS];
    uint64_t clock;
    unsigned new_lists;
    bool warned;
    enum { GRAPHS_NONE, GRAPHS_WITHOUT_SUMS, GRAPHS_ALL } graphs;
    struct cuda_command_statistics statistics;
    bool hold;
    struct pinned *pinned; /* two or more for each worker that this process computes for */
    size_t pinned_count, pinned_capacity;
    void *bounce; /* pinned memory for a gradient whose memory is not pinned */
    size_t bounce_bytes;
};

struct cuda_known_product {
    struct cuda_product_shape shape;
    cuda_product *product;
    struct cuda_known_product *next;
};

/* Grows *array so that one more element fits. */
status cuda_grow(void *array, size_t count, size_t *capacity, size_t size) MUST_CHECK;
/* Appends a command. All members except kind and stream are zero. */
status cuda_command_add(struct command_list *l, enum command_kind kind, enum cuda_stream stream,
                        struct command **out) MUST_CHECK;
/* Appends a copy to the host. It starts after all commands in the list so far and runs beside the
 * following ones. */
status cuda_command_add_copy_to_host(struct command_list *l, void *to, const void *from,
                                     size_t bytes) MUST_CHECK;
/* Appends a sum over ranks, in the same way. */
status cuda_command_add_sum(struct command_list *l, const struct device_sum *by, float *data,
                            size_t count) MUST_CHECK;
void cuda_plan_forget(struct cuda *c, struct command_plan *p);
/* Writes the list of the step with the copies or sums of the gradient to with_copies. */
status cuda_add_gradient_copies(struct cuda *c) MUST_CHECK;

#endif
