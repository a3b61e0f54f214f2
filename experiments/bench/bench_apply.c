/*
 * bench_apply.c — `gradlag bench apply`: the time of one optimizer update.
 *
 * The rate counts the bytes that must move: θ, gradient and state are read, θ and state are
 * written. If the gap is measured, the parameters at which the gradient was computed are read, too.
 * The references are "copy", a memcpy of the same vector, counted as read and written; and
 * "momentum in three passes", one function for each vector operation.
 *
 * Key matrices: the time of one update of a hidden matrix with optimizer=muon.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/vector.h"
#include "experiments/bench/bench.h"
#include "experiments/config/config.h"
#include "worker/optimizer/optimizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct option bench_apply_keys[] = {
    {"counts", OPTION_TEXT, "400000,25600000", 0, 0, NULL, NULL, "vector lengths, comma-separated"},
    {"matrices", OPTION_TEXT, "64x256,256x256", 0, 0, NULL, NULL,
     "shapes of matrices that optimizer=muon updates, comma-separated"},
    {"repeats", OPTION_INTEGER, "21", 1, BENCH_REPEATS, NULL, NULL,
     "number of measurements of each case"},
    {"threads", OPTION_INTEGER, "1", 1, HELPERS_MOST + 1, NULL, NULL,
     "threads that share an update, at most one for each core"},
    {0},
};
enum { WARM_UP = 2 }; /* updates that are not measured */

struct vectors {
    size_t count;
    float *in, *out, *gradient, *read_at;
    helpers *helpers;
};

static void report(const struct bench *b, const char *what, const struct vectors *v, double streams,
                   const struct bench_series *seconds)
{
    char name[96];
    struct bench_series milliseconds = {0}, rate = {0};
    double bytes = streams * (double)(v->count * sizeof(float));

    for (unsigned i = 0; i < seconds->count; i++) {
        bench_add(&milliseconds, 1e3 * seconds->values[i]);
        bench_add(&rate, 1e-9 * bytes / seconds->values[i]);
    }
    (void)snprintf(name, sizeof name, "%s %zu floats", what, v->count);
    bench_report(b, name, "ms", &milliseconds);
    bench_report(b, name, "GB/s", &rate);
}

static void measure_copy(const struct bench *b, struct vectors *v)
{
    struct bench_series seconds = {0};
    for (unsigned i = 0; i < b->repeats; i++) {
        double began = clock_seconds();
        memcpy(v->out, v->in, v->count * sizeof(float));
        /* keeps the compiler from removing the copy */
        __asm__ volatile("" ::"r"(v->out) : "memory");
        bench_add(&seconds, clock_seconds() - began);
    }
    report(b, "copy", v, 2, &seconds);
}

/* v ← μ v, then v ← v + g, then θ ← θ − η v, in place, without checks or norms. */
VECTOR_CLONES
static void three_passes(size_t count, const float *restrict gradient, float *restrict velocity,
                         float *restrict parameters)
{
    for (size_t i = 0; i < count; i++)
        velocity[i] *= 0.9f;
    __asm__ volatile("" ::: "memory"); /* keeps the compiler from joining the passes */
    for (size_t i = 0; i < count; i++)
        velocity[i] += gradient[i];
    __asm__ volatile("" ::: "memory");
    for (size_t i = 0; i < count; i++)
        parameters[i] -= 1e-3f * velocity[i];
}

/* On one thread; ignores key `threads`. */
static void measure_three_passes(const struct bench *b, const struct vectors *v)
{
    struct bench_series seconds = {0};
    for (unsigned i = 0; i < b->repeats + WARM_UP; i++) {
        double began = clock_seconds();
        three_passes(v->count, v->gradient, v->out, v->in);
        if (i >= WARM_UP)
            bench_add(&seconds, clock_seconds() - began);
    }
    report(b, "momentum in three passes", v, 8, &seconds);
}

/* The output of the update: another vector, θ itself, or the parameters that the worker had read.
 */
enum into { INTO_OTHER, INTO_OWN, INTO_READ_AT };
static const char *const into_names[] = {"", " in place", " over it"};

static status open_optimizer(optimizer **out, const char *name, size_t count)
{
    status result = OK;
    options *o = NULL;
    char what[64];
    snprintf(what, sizeof what, "optimizer=%s", name);
    TRY(config_compose_texts(&o, (const char *const[]){what, NULL}, NULL, "bench"));
    TRY(optimizer_open(out, o, count));
done:
    options_close(&o);
    return result;
}

static status measure(const struct bench *b, const char *name, bool gap, enum into into,
                      struct vectors *v)
{
    status result = OK;
    optimizer *p = NULL;
    struct bench_series seconds = {0};
    struct optimizer_pass pass;
    char what[64];

    TRY(open_optimizer(&p, name, v->count));
    optimizer_share(p, v->helpers);
    for (unsigned i = 0; i < b->repeats + WARM_UP; i++) {
        double began = clock_seconds();
        float *out = into == INTO_OWN ? v->in : into == INTO_READ_AT ? v->read_at : v->out;
        optimizer_apply(p, v->in, v->gradient, 1, 1e-3, gap ? v->read_at : NULL, out, &pass);
        if (i >= WARM_UP)
            bench_add(&seconds, clock_seconds() - began);
        REQUIRE(pass.finite);
        *(into == INTO_READ_AT ? &v->read_at : &v->out) = into == INTO_OWN ? v->out : v->in;
        v->in = out;
    }
    (void)snprintf(what, sizeof what, "%s%s%s", name, gap ? "+gap" : "", into_names[into]);
    const double states = (double)(optimizer_state_count(p) / v->count);
    report(b, what, v, 3 + 2 * states + gap, &seconds);
done:
    optimizer_close(&p);
    return result;
}

static status measure_matrix(const struct bench *b, struct vectors *v, uint32_t rows,
                             uint32_t columns)
{
    status result = OK;
    optimizer *p = NULL;
    struct bench_series milliseconds = {0};
    struct optimizer_pass pass;
    const struct optimizer_layer layer = {.count = v->count, .rows = rows, .columns = columns};
    char what[64];

    TRY(open_optimizer(&p, "muon", v->count));
    TRY(optimizer_set_layers(p, &(struct optimizer_layers){&layer, 1}));
    optimizer_share(p, v->helpers);
    for (unsigned i = 0; i < b->repeats + WARM_UP; i++) {
        double began = clock_seconds();
        optimizer_apply(p, v->in, v->gradient, 1, 1e-3, NULL, v->in, &pass);
        if (i >= WARM_UP)
            bench_add(&milliseconds, 1e3 * (clock_seconds() - began));
        REQUIRE(pass.finite);
    }
    (void)snprintf(what, sizeof what, "muon %ux%u", rows, columns);
    bench_report(b, what, "ms", &milliseconds);
done:
    optimizer_close(&p);
    return result;
}

static void close_vectors(struct vectors *v)
{
    float **all[] = {&v->in, &v->out, &v->gradient, &v->read_at};
    helpers_close(&v->helpers);
    for (size_t i = 0; i < COUNT_OF(all); i++)
        memory_free(*all[i]);
}

static status open_vectors(struct vectors *out, const struct bench *b, size_t count)
{
    status result = OK;
    struct vectors v = {.count = count};
    float **all[] = {&v.in, &v.out, &v.gradient, &v.read_at};

    for (size_t i = 0; i < COUNT_OF(all); i++)
        TRY(memory_new(all[i], count, sizeof(float), "benchmark vectors"));
    for (size_t i = 0; i < count; i++) {
        v.in[i] = v.read_at[i] = (float)(i % 1000) * 1e-3f;
        v.gradient[i] = (float)(i % 77) * 1e-3f - 0.03f;
    }
    const unsigned cores = processor_count();
    const unsigned threads = (unsigned)options_integer(b->settings, "threads");
    TRY(helpers_open_for_cores(&v.helpers));
    helpers_keep_off(v.helpers, cores > threads ? cores - threads : 0);
    *out = v;
    v = (struct vectors){0};
done:
    close_vectors(&v);
    return result;
}

static status measure_count(const struct bench *b, size_t count)
{
    status result = OK;
    struct vectors v = {0};
    TRY(open_vectors(&v, b, count));
    measure_copy(b, &v);
    TRY(measure(b, "sgd", false, INTO_OTHER, &v));
    TRY(measure(b, "momentum", false, INTO_OTHER, &v));
    measure_three_passes(b, &v);
    TRY(measure(b, "momentum", true, INTO_OTHER, &v));
    TRY(measure(b, "momentum", true, INTO_READ_AT, &v));
    TRY(measure(b, "momentum", false, INTO_OWN, &v));
    TRY(measure(b, "nesterov", true, INTO_READ_AT, &v));
    TRY(measure(b, "lion", false, INTO_OTHER, &v));
    TRY(measure(b, "lion", true, INTO_READ_AT, &v));
    TRY(measure(b, "adamw", false, INTO_OTHER, &v));
    TRY(measure(b, "adamw", true, INTO_READ_AT, &v));
done:
    close_vectors(&v);
    return result;
}

static status measure_shape(const struct bench *b, const char *text)
{
    status result = OK;
    struct vectors v = {0};
    unsigned rows = 0, columns = 0;
    char rest;
    if (sscanf(text, "%5ux%5u%c", &rows, &columns, &rest) != 2 || rows == 0 || columns == 0) {
        FAIL(ERROR_USAGE,
             "bench apply: matrices: '%s' is not a shape; write for example 64x256, with at most "
             "99999 rows and columns",
             text);
    }
    TRY(open_vectors(&v, b, (size_t)rows * columns));
    TRY(measure_matrix(b, &v, rows, columns));
done:
    close_vectors(&v);
    return result;
}

status bench_apply(int argc, char **argv)
{
    status result = OK;
    struct bench b = {0};
    char item[64];

    TRY(bench_open(&b, "apply", bench_apply_keys, argc, argv));
    const char *list = options_text(b.settings, "counts");
    while (bench_next_item(&list, item)) {
        double count;
        if (!text_to_real(item, &count) || count < 1 || count > 1e10) {
            FAIL(ERROR_USAGE, "bench apply: counts: '%s' is not a vector length from 1 to 1e10",
                 item);
        }
        TRY(measure_count(&b, (size_t)count));
    }
    list = options_text(b.settings, "matrices");
    while (bench_next_item(&list, item))
        TRY(measure_shape(&b, item));
done:
    bench_close(&b);
    return result;
}
