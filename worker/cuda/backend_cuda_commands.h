/*
 * backend_cuda_commands.h — the lists of commands: what backend_cuda_commands.c (writing and
 * running them) and backend_cuda_gradient.c (the gradient's way down, pinned memory) share.
 */
#ifndef GRADLAG_WORKER_CUDA_BACKEND_CUDA_COMMANDS_H
#define GRADLAG_WORKER_CUDA_BACKEND_CUDA_COMMANDS_H

#include "worker/cuda/backend_cuda.h"

enum {
    PLANS = 12,         /* lists kept */
    STRANGERS = 16,     /* new lists in a row before it is said that graphs do not help */
    BUCKET = 256 << 10, /* elements of the gradient that go down together: 1 MiB */
};

enum command_kind { COMMAND_LAUNCH, COMMAND_PRODUCT, COMMAND_UP, COMMAND_DOWN, COMMAND_WAIT };

struct command {
    enum command_kind kind;
    enum cuda_stream stream; /* that waits, or copies */
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
            const void *from;
            size_t bytes;
        } copy;
    };
};

struct command_list {
    struct command *at;
    size_t count, capacity;
};

struct command_plan {
    struct command_list list;
    uint64_t hash, used;
    cuda_graph *graph; /* NULL: seen once */
};

/* A part of the gradient and the command that writes it last. */
struct part {
    size_t offset, count, command;
};

struct delivery {
    void *to;
    const void *from;
    size_t bytes; /* 0: of a cuda_loss to an op_loss */
};

struct retired {
    void *device, *pinned;
};

struct pinned {
    const void *at;
    size_t bytes;
    bool read_only; /* the device must not write to it */
    bool done;      /* or refused */
};

struct cuda_commands {
    struct command_list list, with_copies;
    struct part *parts;
    size_t part_count, part_capacity;
    struct delivery *deliveries;
    size_t delivery_count, delivery_capacity;
    struct retired *retired;
    size_t retired_count, retired_capacity;
    bool interrupted, downs; /* of this step: run so far; something went to CUDA_COPY */
    bool in_phase;
    struct command_plan plans[PLANS];
    uint64_t clock;
    unsigned strangers;
    bool told, no_graphs;
    struct cuda_command_statistics statistics;
    bool hold;
    struct pinned *pinned; /* two for each worker that this process computes for, and more */
    size_t pinned_count, pinned_capacity;
    void *bounce; /* pinned memory for a gradient whose own is not */
    size_t bounce_bytes;
};

struct cuda_known_product {
    struct cuda_product_shape shape;
    cuda_product *product;
    struct cuda_known_product *next;
};

/* Room for one more element of *array. */
status cuda_grow(void *array, size_t count, size_t *capacity, size_t size) MUST_CHECK;
/* A new command at the end, all zero but for these. */
status cuda_command_add(struct command_list *l, enum command_kind kind, enum cuda_stream stream,
                        struct command **out) MUST_CHECK;
/* After what is in the list so far, beside what follows. */
status cuda_command_add_down(struct command_list *l, void *to, const void *from,
                             size_t bytes) MUST_CHECK;
void cuda_plan_forget(struct cuda *c, struct command_plan *p);
/* The step's list with the gradient's way down between, into with_copies. */
status cuda_add_downs(struct cuda *c) MUST_CHECK;

#endif
