/*
 * cuda_stand_in_block.c — the kernels of worker/cuda/kernels, compiled for the host and run on it.
 *
 * A kernel without SYNC is a plain loop over the threads of each block. A kernel with SYNC runs
 * each thread as a coroutine on its own stack: from one SYNC to the next, one thread after
 * another. Every other stretch runs the threads in reverse order, so that a missing SYNC changes
 * the result. Threads of a block that do not all reach the same SYNC end the program.
 */
#include "tests/worker/cuda/cuda_stand_in_internal.h"
#include "worker/cuda/kernels/cuda_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- the words of cuda_kernel.h, for the host
 * -----------------------------------------------------
 */

/* Position of the running thread. */
static _Thread_local struct {
    uint32_t block[3], blocks[3], thread, threads;
} running_at;
static void sync_threads(uint32_t line);

#define CUDA_KERNEL(name) static void kernel_##name(const struct name##_call c)
#define CUDA_FUNCTION     static inline
#define CUDA_UNROLL
#define BLOCK_X  running_at.block[0]
#define BLOCK_Y  running_at.block[1]
#define BLOCK_Z  running_at.block[2]
#define BLOCKS_X running_at.blocks[0]
#define BLOCKS_Y running_at.blocks[1]
#define BLOCKS_Z running_at.blocks[2]
#define THREAD   running_at.thread
#define THREADS  running_at.threads
/* All threads of a block run on one host thread, one after another between two SYNCs. */
#define SHARED(type, name, count) static _Thread_local type name[count]
#define SYNC()                    sync_threads(__LINE__)

#include "worker/cuda/kernels/cuda_kernels.h"

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

enum { PAGE_BYTES = 4 << 10, CACHE_LINE = 64, STACK_BYTES = 64 << 10, GUARD_BYTES = PAGE_BYTES };

/* ---- switching stacks --------------------------------------------------------------------------
 * A switch saves the callee-saved registers and changes the stack pointer. It takes about 2 ns;
 * swapcontext takes 300, because it calls the kernel for the signal mask. */

#if defined __x86_64__ && !defined GRADLAG_UCONTEXT

typedef void *context;

void stand_in_switch(void **save, void *to) __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".p2align 4\n"
        ".globl stand_in_switch\n"
        ".hidden stand_in_switch\n"
        ".type stand_in_switch, @function\n"
        "stand_in_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size stand_in_switch, . - stand_in_switch\n");

static void context_switch(context *save, const context *to)
{
    stand_in_switch(save, *to);
}

/* `bytes`: the size of the stack, a multiple of 16. */
static void context_prepare(context *c, uint8_t *stack, size_t bytes, void (*entry)(void))
{
    /* The stack for the first switch: six registers and the address to continue at; then the return
     * address of `entry`. The stack is aligned as after a call. */
    enum { REGISTERS = 6, WORDS = REGISTERS + 2 };
    uintptr_t words[WORDS] = {0};
    words[REGISTERS] = (uintptr_t)entry;
    *c = stack + bytes - sizeof words;
    memcpy(*c, words, sizeof words);
}

#else

#include <ucontext.h>

typedef ucontext_t context;

static void context_switch(context *save, const context *to)
{
    swapcontext(save, to);
}

static void context_prepare(context *c, uint8_t *stack, size_t bytes, void (*entry)(void))
{
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = bytes;
    c->uc_link = NULL;
    makecontext(c, entry, 0);
}

#endif

/* ---- the kernels --------------------------------------------------------------------------------
 */

struct kernel {
    size_t argument_bytes;
    void (*block)(const void *arguments,
                  uint32_t threads);       /* runs all threads; NULL for kernels with SYNC */
    void (*thread)(const void *arguments); /* runs one thread; NULL for kernels without SYNC */
};

#define KERNEL(name)                                                                               \
    static void block_##name(const void *arguments, uint32_t threads)                              \
    {                                                                                              \
        struct name##_call c;                                                                      \
        memcpy(&c, arguments, sizeof c);                                                           \
        for (uint32_t i = 0; i < threads; i++) {                                                   \
            running_at.thread = i;                                                                 \
            kernel_##name(c);                                                                      \
        }                                                                                          \
    }                                                                                              \
    _Static_assert(sizeof(struct name##_call) <= STAND_IN_ARGUMENT_BYTES, "arguments of " #name);
#define KERNEL_SYNC(name)                                                                          \
    static void thread_##name(const void *arguments)                                               \
    {                                                                                              \
        struct name##_call c;                                                                      \
        memcpy(&c, arguments, sizeof c);                                                           \
        kernel_##name(c);                                                                          \
    }                                                                                              \
    _Static_assert(sizeof(struct name##_call) <= STAND_IN_ARGUMENT_BYTES, "arguments of " #name);
#include "worker/cuda/kernels/cuda_kernels.def"
#undef KERNEL
#undef KERNEL_SYNC

static const struct kernel kernels[CUDA_KERNELS] = {
#define KERNEL(name)      {sizeof(struct name##_call), block_##name, NULL},
#define KERNEL_SYNC(name) {sizeof(struct name##_call), NULL, thread_##name},
#include "worker/cuda/kernels/cuda_kernels.def"
#undef KERNEL
#undef KERNEL_SYNC
};

size_t stand_in_argument_bytes(unsigned k)
{
    return kernels[k].argument_bytes;
}

/* ---- one block's threads as coroutines ----------------------------------------------------------
 */

struct thread {
    context at;
    uint32_t line; /* line of the SYNC at which it waits; 0: it has ended */
#if defined __SANITIZE_ADDRESS__
    void *fake_stack;
#elif defined __SANITIZE_THREAD__
    void *fiber;
#endif
};

struct block_state {
    uint8_t *stacks;
    struct thread threads[CUDA_BLOCK_THREADS];
    context host;
    const struct kernel *kernel; /* the running kernel */
    const void *arguments;
#if defined __SANITIZE_ADDRESS__
    void *host_fake_stack;
    const void *host_stack;
    size_t host_stack_bytes;
#elif defined __SANITIZE_THREAD__
    void *host_fiber;
#endif
};

/* The block whose coroutine runs on this host thread, or NULL. */
static _Thread_local struct block_state *running;
/* Reports a SYNC outside of a coroutine. */
static _Thread_local uint32_t stray_sync;

static uint8_t *stack_of(const struct block_state *b, uint32_t i)
{
    return b->stacks + (size_t)i * (GUARD_BYTES + STACK_BYTES) + GUARD_BYTES;
}

static void to_thread(struct block_state *b, uint32_t i)
{
    struct thread *t = &b->threads[i];
    running_at.thread = i;
#if defined __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&b->host_fake_stack, stack_of(b, i), STACK_BYTES);
#elif defined __SANITIZE_THREAD__
    __tsan_switch_to_fiber(t->fiber, 0);
#endif
    context_switch(&b->host, &t->at);
#if defined __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(b->host_fake_stack, NULL, NULL);
#endif
}

static void to_host(struct block_state *b, struct thread *t)
{
#if defined __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(t->line == 0 ? NULL : &t->fake_stack, b->host_stack,
                                   b->host_stack_bytes);
#elif defined __SANITIZE_THREAD__
    __tsan_switch_to_fiber(b->host_fiber, 0);
#endif
    context_switch(&t->at, &b->host);
#if defined __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(t->fake_stack, &b->host_stack, &b->host_stack_bytes);
#endif
}

static void thread_main(void)
{
    struct block_state *b = running;
    struct thread *t = &b->threads[running_at.thread];
#if defined __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(NULL, &b->host_stack, &b->host_stack_bytes);
#endif
    b->kernel->thread(b->arguments);
    t->line = 0;
    to_host(b, t);
    UNREACHABLE("an ended thread continues");
}

static void sync_threads(uint32_t line)
{
    if (running == NULL) {
        stray_sync = line;
        return;
    }
    struct thread *t = &running->threads[running_at.thread];
    t->line = line;
    to_host(running, t);
}

static void prepare(struct block_state *b, uint32_t i)
{
    /* At equal places in their pages all stacks would share a few sets of the cache, and every
     * switch would miss. */
    const size_t unused = (size_t)(i % (PAGE_BYTES / CACHE_LINE)) * CACHE_LINE;
#if defined __SANITIZE_ADDRESS__
    /* thread_main and to_host never return: the sanitizer's marks of their frames remain. */
    __asan_unpoison_memory_region(stack_of(b, i) + STACK_BYTES - unused - PAGE_BYTES, PAGE_BYTES);
    b->threads[i].fake_stack = NULL;
#elif defined __SANITIZE_THREAD__
    if (b->threads[i].fiber == NULL)
        b->threads[i].fiber = __tsan_create_fiber(0);
#endif
    context_prepare(&b->threads[i].at, stack_of(b, i), STACK_BYTES - unused, thread_main);
}

/* Finds the first two threads that wait at different places. False: there are none. */
static bool parted(const struct block_state *b, uint32_t threads, uint32_t out[2])
{
    for (uint32_t i = 1; i < threads; i++) {
        if (b->threads[i].line != b->threads[0].line) {
            out[0] = b->threads[i].line == 0 ? 0 : i;
            out[1] = b->threads[i].line == 0 ? i : 0;
            return true;
        }
    }
    return false;
}

static void run_threads(struct block_state *b, const char *name, uint32_t threads)
{
    for (uint32_t i = 0; i < threads; i++)
        prepare(b, i);
    bool backwards = false;
    do {
        uint32_t two[2];
        for (uint32_t i = 0; i < threads; i++)
            to_thread(b, backwards ? threads - 1 - i : i);
        if (parted(b, threads, two)) {
            const uint32_t line = b->threads[two[1]].line;
            stand_in_abort("kernel %s, block %u,%u,%u: thread %u waits at the SYNC of line %u, "
                           "thread %u %s %.0u",
                           name, running_at.block[0], running_at.block[1], running_at.block[2],
                           two[0], b->threads[two[0]].line, two[1],
                           line == 0 ? "has ended" : "at line", line);
        }
        backwards = !backwards;
    } while (b->threads[0].line != 0);
}

static void run_block(struct block_state *b, unsigned k, uint32_t threads)
{
    if (kernels[k].block == NULL) {
        run_threads(b, cuda_kernel_names[k], threads);
        return;
    }
    kernels[k].block(b->arguments, threads);
    if (stray_sync != 0) {
        stand_in_abort("kernel %s has a SYNC at line %u: list it with KERNEL_SYNC in "
                       "cuda_kernels.def",
                       cuda_kernel_names[k], stray_sync);
    }
}

static struct block_state *block_open(void)
{
    const size_t bytes = (size_t)CUDA_BLOCK_THREADS * (GUARD_BYTES + STACK_BYTES);
    struct block_state *b = stand_in_new(sizeof *b);
    b->stacks = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->stacks == MAP_FAILED)
        stand_in_abort("no %zu bytes for the stacks of a block's threads", bytes);
    for (uint32_t i = 0; i < CUDA_BLOCK_THREADS; i++)
        if (mprotect(stack_of(b, i) - GUARD_BYTES, GUARD_BYTES, PROT_NONE) != 0)
            stand_in_abort("mprotect of a thread's stack failed");
    return b;
}

void stand_in_run_grid(unsigned k, const struct cuda_grid *g, const void *arguments)
{
    static struct block_state *b;
    if (b == NULL)
        b = block_open();
    running_at.blocks[0] = g->x;
    running_at.blocks[1] = g->y;
    running_at.blocks[2] = g->z;
    running_at.threads = g->threads;
    stray_sync = 0;
    b->kernel = &kernels[k];
    b->arguments = arguments;
    running = kernels[k].block == NULL ? b : NULL;
#if defined __SANITIZE_THREAD__
    b->host_fiber = __tsan_get_current_fiber();
#endif
    for (uint32_t z = 0; z < g->z; z++) {
        for (uint32_t y = 0; y < g->y; y++) {
            for (uint32_t x = 0; x < g->x; x++) {
                running_at.block[0] = x;
                running_at.block[1] = y;
                running_at.block[2] = z;
                run_block(b, k, g->threads);
            }
        }
    }
    running = NULL;
}
