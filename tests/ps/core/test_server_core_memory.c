/*
 * Resources of the core, under every rule of the registries. After open no event allocates memory
 * or reads the clock. The memory is that of ps/core/README.md. The core's object files reference no
 * function that could do I/O: no clock, socket, file or thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/ps/core/core_rig.h"
#include "tests/ps/rules/rule_combinations.h"
#include "worker/optimizer/optimizer.h"

#ifndef GRADLAG_SANITIZE
enum { WORKERS = 5, EVENTS = 300 };

/* ---- counted calls ----------------------------------------------------------------------------
 */

static volatile size_t allocated_bytes, allocations, clocks;

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static void *count(void *p, size_t bytes)
{
    allocated_bytes += bytes;
    allocations++;
    return p;
}

/* These replace the C library's functions in the whole program. */
void *malloc(size_t bytes)
{
    return count(__libc_malloc(bytes), bytes);
}

void *calloc(size_t n, size_t size)
{
    return count(__libc_calloc(n, size), n * size);
}

void *realloc(void *old, size_t bytes)
{
    return count(__libc_realloc(old, bytes), bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return count(__libc_memalign(alignment, bytes), bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    *out = aligned_alloc(alignment, bytes);
    return *out == NULL;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    clocks++;
    return (int)syscall(SYS_clock_gettime, clock, out);
}

/* ---- combinations of rules --------------------------------------------------------------------
 */

typedef void check_combination(const struct combination *c, const char *kind);

/* With `dampings` every combination of rules; otherwise one damping rule for each policy and third
 * rule. Then every optimizer. */
static void for_each_combination(check_combination *try, bool dampings)
{
    size_t each = dampings ? damping_registry.count : 1;
    for (size_t i = 0; i < consistency_registry.count * third_rule_count() * each; i++) {
        size_t rest = i / each, policy = rest % consistency_registry.count;
        struct combination c =
            combination_at(policy, i % each + rest, rest / consistency_registry.count);
        if (combination_is_valid(&c))
            try(&c, optimizer_for(&c));
    }
    for (size_t i = 0; i < optimizer_registry.count; i++) {
        struct combination plain = combination_at(0, 0, 0);
        try(&plain, optimizer_registry.entries[i]->name);
    }
}

static void open_rig(struct core_rig *rig, const struct combination *c, const char *kind,
                     size_t parameters)
{
    struct combination_settings s = settings_of(c);
    snprintf(s.text[COMBINATION_SETTINGS - 1], sizeof s.text[0], "optimizer=%s", kind);
    core_rig_open(
        rig,
        (struct server_core_options){.workers = WORKERS, .count = parameters, .evaluate_every = 70},
        RIG(s.text[0], s.text[1], s.text[2], s.text[3], s.text[4]));
}

static _Noreturn void fail_with(const struct combination *c, const char *kind, const char *format,
                                ...) PRINTF_LIKE(3, 4);
static void fail_with(const struct combination *c, const char *kind, const char *format, ...)
{
    char why[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    fail_msg("%s %s %s outer=%s optimizer=%s: %s", c->policy->about.name, c->damping->about.name,
             c->correction->about.name, c->outer != NULL ? c->outer->about.name : "none", kind,
             why);
    abort();
}

/* ---- no allocation by events ------------------------------------------------------------------
 */

/* A core under random events, and the state of its workers. */
struct random_run {
    struct core_rig rig;
    uint64_t random, version[WORKERS], next[WORKERS];
    bool computing[WORKERS], evaluates;
    unsigned applied;
    float gradient[WORKERS][33];
};

static void follow(struct random_run *f, struct server_actions actions)
{
    f->evaluates = false;
    for (size_t i = 0; i < actions.count; i++) {
        const struct server_action *a = &actions.at[i];
        if (a->kind == SERVER_RELEASE) {
            f->computing[a->worker] = true;
            f->version[a->worker] = a->version;
        }
        f->evaluates |= a->kind == SERVER_EVALUATE;
        f->applied += a->kind == SERVER_APPLIED;
    }
}

static void random_event(struct random_run *f)
{
    server_core *core = f->rig.core;
    unsigned w = (unsigned)(core_rig_random(&f->random) % WORKERS);
    uint64_t random_number = core_rig_random(&f->random) % 40;
    if (f->evaluates) {
        follow(f, server_core_evaluated(core));
    } else if (random_number == 0) {
        f->computing[w] = false;
        follow(f, server_core_lost(core, w));
        f->next[w] = 0;
    } else if (random_number == 1 || random_number == 2) {
        follow(f, server_core_hello(core, w));
    } else if (f->computing[w]) {
        struct server_push push = {.worker = w,
                                   .sequence = f->next[w]++,
                                   .read_version = f->version[w],
                                   .gradient = f->gradient[w],
                                   .samples = 1,
                                   .compute_us = 100 + w};
        struct server_actions actions;
        f->computing[w] = false;
        core_rig_fill(f->gradient[w], 33, f->random);
        struct server_push wrong = push;
        wrong.sequence += 7;
        assert_int_equal(server_core_push(core, &wrong, &actions), ERROR_PROTOCOL);
        assert_int_equal(server_core_push(core, &push, &actions), OK);
        follow(f, actions);
    }
}

static void expect_events_without_allocation(const struct combination *c, const char *kind)
{
    static struct random_run f;
    memset(&f, 0, sizeof f);
    open_rig(&f.rig, c, kind, 33);
    for (unsigned w = 0; w < WORKERS; w++)
        follow(&f, server_core_hello(f.rig.core, w));
    size_t before = allocations, clocks_before = clocks;
    for (unsigned i = 0; i < EVENTS; i++)
        random_event(&f);
    follow(&f, server_core_end(f.rig.core));
    size_t allocated = allocations - before, clock_reads = clocks - clocks_before;
    if (allocated > 0 || clock_reads > 0 || f.applied < 5) {
        fail_with(c, kind, "%zu allocations, %zu clock reads in %u updates", allocated, clock_reads,
                  f.applied);
    }
    core_rig_close(&f.rig);
}

static void no_event_allocates_memory_or_reads_the_clock(void **state)
{
    (void)state;
    size_t before = allocations;
    struct timespec now;
    free(malloc(1));
    clock_gettime(CLOCK_MONOTONIC, &now);
    assert_true(allocations > before && clocks > 0); /* the counters work */
    for_each_combination(expect_events_without_allocation, true);
}

/* ---- memory -----------------------------------------------------------------------------------
 */

static size_t bytes_of_open(const struct combination *c, const char *kind, size_t parameters)
{
    struct core_rig rig;
    server_core *again = NULL;
    open_rig(&rig, c, kind, parameters);
    size_t before = allocated_bytes;
    assert_int_equal(server_core_open(&again, &rig.options), OK);
    size_t bytes = allocated_bytes - before;
    server_core_close(&again);
    core_rig_close(&rig);
    return bytes;
}

/* In vectors of the parameters' size, from "Cost of one update" in ps/core/README.md. */
static size_t documented_vectors(const struct combination *c, const char *kind)
{
    static const struct {
        const char *name;
        size_t states;
    } kept[] = {{"sgd", 0},
                {"momentum", 1},
                {"nesterov", 1},
                {"lars", 1},
                {"adamw", 2},
                {"rmsprop-warmup", 2},
                {"delayed-nesterov", 1},
                {"lion", 1},
                {"muon", 2},
                {"nadamw", 2},
                {"adam", 2},
                {"heloco", 1}};
    const char *name = c->outer == NULL ? kind : c->outer->about.name;
    size_t states = 0;
    for (size_t i = 0; i < COUNT_OF(kept); i++)
        states = strcmp(kept[i].name, name) == 0 ? kept[i].states : states;
    bool as_step = c->outer != NULL && c->outer->as_step != NULL;
    size_t mean = has_sums(c) || as_step || c->correction->block != NULL;
    size_t own = c->correction->own ? WORKERS + (has_sums(c) ? WORKERS : 1) : 0;
    return 2 * states + mean + 2 * c->correction->shared + own;
}

/* Vectors stay below half a MiB, so that none is rounded up to huge pages. BESIDE bounds the rest:
 * members, records, actions and histories. */
static void expect_documented_memory(const struct combination *c, const char *kind)
{
    enum { SMALL = 20000, LARGE = 60000, BESIDE = 56 * 1024 + 16 * DAMPING_AGES };
    size_t small = bytes_of_open(c, kind, SMALL);
    size_t large = bytes_of_open(c, kind, LARGE);
    double vectors = (double)(large - small) / ((LARGE - SMALL) * sizeof(float));
    double stated = (double)documented_vectors(c, kind);
    if (!(vectors >= stated && vectors < stated + 0.01) ||
        (double)small > stated * SMALL * sizeof(float) + BESIDE) {
        fail_with(c, kind, "%.4f vectors, %.0f stated; %zu bytes beside", vectors, stated,
                  small - (size_t)(stated * SMALL * sizeof(float)));
    }
}

static void the_core_allocates_the_documented_memory(void **state)
{
    (void)state;
    for_each_combination(expect_documented_memory, false);
}

/* ---- referenced functions ---------------------------------------------------------------------
 */

/* build/NAME/tests/test_… → build/NAME */
static void build_folder(char *out, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", out, size - 1);
    assert_true(length > 0);
    out[length] = '\0';
    *strrchr(out, '/') = '\0';
    *strrchr(out, '/') = '\0';
}

/* Functions of the core and of its parts of worker/ and base/; C functions for memory and numbers.
 */
static bool is_allowed(const char *symbol)
{
    static const char *const beginnings[] = {
        "server_core_", "core_",     "aggregate_", "consistency_", "correction_",
        "damping_",     "vector_",   "options_",   "registry_",    "optimizer_",
        "schedule_",    "reduce_",   "memory_",    "total_",       "crew_keep_off",
        "error_set",    "contract_", "__cpu_",     "_GLOBAL_",     "__stack_chk_fail",
        "outer_"};
    static const char *const library[] = {"memcpy", "memset", "memmove", "strcmp",    "sqrt",
                                          "sqrtf",  "pow",    "exp",     "nearbyint", "fmax",
                                          "fmin",   "fabs",   "log",     "floor",     "log1p"};
    for (size_t i = 0; i < COUNT_OF(beginnings); i++)
        if (strncmp(symbol, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    for (size_t i = 0; i < COUNT_OF(library); i++)
        if (strcmp(symbol, library[i]) == 0)
            return true;
    return false;
}

static void the_objects_of_the_core_call_no_clock_socket_or_thread(void **state)
{
    (void)state;
    char folder[4096], command[8192], line[512];
    build_folder(folder, sizeof folder);
    snprintf(command, sizeof command,
             "cd '%s/ps' && nm -u core/server_core*.o core/aggregate.o core/arithmetic.o "
             "core/total_momentum.o rules/*/*.o",
             folder);
    FILE *symbols = popen(command, "r");
    assert_non_null(symbols);
    unsigned seen = 0;
    while (fgets(line, sizeof line, symbols) != NULL) {
        char symbol[256];
        if (sscanf(line, " U %255s", symbol) == 1) {
            seen++;
            if (!is_allowed(symbol))
                fail_msg("the core calls %s", symbol);
        }
    }
    assert_int_equal(pclose(symbols), 0);
    assert_true(seen > 50);
}

#else
static void the_sanitizers_count_memory_themselves(void **state)
{
    (void)state;
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef GRADLAG_SANITIZE
        cmocka_unit_test(no_event_allocates_memory_or_reads_the_clock),
        cmocka_unit_test(the_core_allocates_the_documented_memory),
        cmocka_unit_test(the_objects_of_the_core_call_no_clock_socket_or_thread),
#else
        cmocka_unit_test(the_sanitizers_count_memory_themselves),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
