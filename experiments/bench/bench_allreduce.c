/*
 * bench_allreduce.c — `gradlag bench allreduce`: the mean gradient over ranks by every
 * communicator, and by MPI in rank order. Restarts itself under mpirun. Exchanges of
 * communicator=mpi take turns with plain MPI_Allreduce calls on the same vector.
 *
 * algbw = bytes / time. busbw = algbw × 2·(P − 1)/P, the rate on each rank's link in a ring. Both
 * are defined as in nccl-tests (docs/benchmarks.md).
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/bench/bench.h"
#include "experiments/config/config.h"
#include "sync/communicator/ranks.h"
#include "sync/compression/compression_exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

const struct option bench_allreduce_keys[] = {
    {"repeats", OPTION_INTEGER, "11", 1, BENCH_REPEATS, NULL, NULL,
     "number of measurements of each case"},
    {"ranks", OPTION_INTEGER, "2", 1, 256, NULL, NULL, "processes, started by mpirun"},
    {"sizes", OPTION_TEXT, "400000,25600000", 0, 0, NULL, NULL,
     "floats, comma-separated; 'curve' for 1 k to 25.6 M"},
    {"variants", OPTION_TEXT, "mpi,ordered,ring,shared,hierarchical,naive", 0, 0, NULL, NULL,
     "comma-separated: names of communicators and compressions, and ordered (communicator=mpi with "
     "reduction=ordered)"},
    {"communicator.nodes", OPTION_INTEGER, "0", 0, 256, NULL, NULL,
     "simulated nodes on this host for communicator=hierarchical (0: one)"},
    {"compression.ratio", OPTION_REAL, "0.01", 1e-9, 1, NULL, NULL,
     "share of the floats that compression=topk sends"},
    {0},
};

struct variant {
    const char *name, *communicator, *reduction, *compression;
};

/* ---- one rank -----------------------------------------------------------------------------------
 */

static double processor_ms(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-3;
}

/* z NULL: no compression. The result may then lack a factor by which the update multiplies in
 * training. */
static status exchange(communicator *c, compression *z, float *data, size_t count)
{
    float notes[COMMUNICATOR_NOTES] = {0};
    double factor;
    return z != NULL ? compression_mean(z, c, data, notes)
                     : communicator_allreduce_scaled(c, data, count - COMMUNICATOR_NOTES, &factor);
}

struct taken {
    struct bench_series ms; /* of one exchange, for each repeat */
    double cpu_ms;          /* of this rank, in all repeats */
};

static void report(const struct bench *b, const communicator *c, const char *name, size_t count,
                   const struct taken *t, double sent_mb)
{
    char what[96];
    double megabytes = (double)count * sizeof(float) * 1e-6,
           algbw = megabytes / bench_median(&t->ms);
    const struct {
        const char *what, *unit;
        double value;
    } values[] = {{" algbw", "GB/s", algbw},
                  {" busbw", "GB/s", algbw * 2 * (c->size - 1) / c->size},
                  {" cpu of all ranks", "ms", t->cpu_ms},
                  {" sent by all ranks", "MB", sent_mb}};
    snprintf(what, sizeof what, "%s ranks=%u %.4g MB", name, c->size, megabytes);
    bench_report(b, what, "ms", &t->ms);
    size_t length = strlen(what);
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        snprintf(what + length, sizeof what - length, "%s", values[i].what);
        bench_report_value(b, what, values[i].unit, values[i].value);
    }
}

static void report_plain(const struct bench *b, const communicator *c, const char *name,
                         size_t count, const struct taken *t, const struct taken *plain)
{
    char what[96];
    const double megabytes = (double)count * sizeof(float) * 1e-6;
    snprintf(what, sizeof what, "%s ranks=%u %.4g MB plain MPI_Allreduce", name, c->size,
             megabytes);
    bench_report(b, what, "ms", &plain->ms);
    snprintf(what, sizeof what, "%s ranks=%u %.4g MB of the plain call", name, c->size, megabytes);
    bench_report_value(b, what, "×", bench_median(&t->ms) / bench_median(&plain->ms));
    snprintf(what, sizeof what, "%s ranks=%u %.4g MB of the plain call, cpu", name, c->size,
             megabytes);
    bench_report_value(b, what, "×", t->cpu_ms / plain->cpu_ms);
}

/* As in training, each rank has written its gradient just before. */
static status write_gradient(communicator *c, float *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        data[i] = (float)c->rank;
    return communicator_barrier(c);
}

/* One call of MPI alone: the sum, not the mean. */
static status plain_call(communicator *c, float *data, size_t count)
{
    return ranks_check(
        MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, c->ranks->world),
        "the plain call");
}

/* Adds to *seconds and *cpu_ms. */
static status time_one(communicator *c, compression *z, bool plain, float *data, size_t count,
                       double *seconds, double *cpu_ms)
{
    status result = OK;
    TRY(write_gradient(c, data, count));
    const double cpu = processor_ms(), begun = clock_seconds();
    TRY(plain ? plain_call(c, data, count) : exchange(c, z, data, count));
    *seconds += clock_seconds() - begun;
    *cpu_ms += processor_ms() - cpu;
done:
    return result;
}

/* Exchanges and plain calls take turns. Each kind goes first in every second round, because ranks
 * leave the barrier in another order before the first call of a round than before the second. */
static status repeat_exchanges(const struct bench *b, communicator *c, compression *z, size_t count,
                               unsigned rounds, bool has_peer, struct taken of[2])
{
    status result = OK;
    float *data = communicator_buffer(c);
    for (unsigned repeat = 0; repeat <= b->repeats; repeat++) {
        double seconds[2] = {0}, cpu_ms[2] = {0};
        for (unsigned turn = 0; turn < rounds * (has_peer ? 2 : 1); turn++) {
            const unsigned plain = has_peer && (turn / 2 + turn) % 2 == 1;
            TRY(time_one(c, z, plain, data, count, &seconds[plain], &cpu_ms[plain]));
        }
        for (unsigned i = 0; i < 2 && repeat > 0; i++) { /* the first warms up */
            bench_add(&of[i].ms, seconds[i] * 1e3 / rounds);
            of[i].cpu_ms += cpu_ms[i] / rounds / b->repeats;
        }
    }
done:
    return result;
}

static status sum_over_ranks(communicator *c, double *value)
{
    status result = OK;
    double *all = NULL;
    TRY(memory_new(&all, c->size, sizeof *all, "the measurement"));
    TRY(communicator_gather_all(c, value, sizeof *value, all));
    *value = 0;
    for (unsigned i = 0; i < c->size; i++)
        *value += all[i];
done:
    memory_free(all);
    return result;
}

static status measure(const struct bench *b, communicator *c, compression *z, const char *name,
                      size_t count)
{
    status result = OK;
    /* Each repeat of a large vector lasts about 20 ms or more. */
    const unsigned rounds = count >= 4000000 ? 2 : (unsigned)(8000000 / (count + 20000)) + 1;
    const bool has_peer = z == NULL && c->kind->sums_by_mpi;
    const double sent = communicator_sent_bytes(c), exchanges = (double)rounds * (b->repeats + 1);
    struct taken of[2] = {0};
    TRY(repeat_exchanges(b, c, z, count, rounds, has_peer, of));
    const double sent_mb = (communicator_sent_bytes(c) - sent) * 1e-6 / exchanges;
    for (unsigned i = 0; i < 2; i++)
        TRY(sum_over_ranks(c, &of[i].cpu_ms));
    if (c->rank == 0) {
        report(b, c, name, count, &of[0], sent_mb);
        if (has_peer)
            report_plain(b, c, name, count, &of[0], &of[1]);
    }
done:
    return result;
}

/* Sets the keys of the chosen communicator or compression to the benchmark's. */
static status pass_keys_on(const struct bench *b, options *o, const struct registry *registry)
{
    status result = OK;
    const struct option *own = registry_find(registry, options_text(o, registry->kind))->options;
    for (; own != NULL && own->key != NULL; own++)
        TRY(bench_pass_on(b, o, own->key, own->key));
done:
    return result;
}

static status measure_size(const struct bench *b, const options *o, communicator *c,
                           const char *name, size_t count)
{
    status result = OK;
    const struct compression_kind *kind;
    compression *z = NULL;

    TRY(compression_chosen(&kind, o, c));
    if (kind != NULL) {
        TRY(compression_open(&z, kind, o, count, NULL, 0));
        TRY(compression_join(z, c));
    }
    TRY(measure(b, c, z, name, count));
done:
    compression_leave(z);
    compression_close(&z);
    return result;
}

static status measure_variant(const struct bench *b, const struct variant *v, const char *sizes,
                              size_t largest)
{
    status result = OK;
    options *o = NULL;
    communicator *c = NULL;
    char item[64], chosen[3][80];

    snprintf(chosen[0], sizeof chosen[0], "communicator=%s", v->communicator);
    snprintf(chosen[1], sizeof chosen[1], "compression=%s", v->compression);
    snprintf(chosen[2], sizeof chosen[2], "reduction=%s", v->reduction);
    TRY(config_compose_texts(&o, (const char *const[]){chosen[0], chosen[1], chosen[2], NULL}, NULL,
                             "bench"));
    TRY(pass_keys_on(b, o, &communicator_registry));
    TRY(pass_keys_on(b, o, &compression_registry));
    TRY(communicator_open(&c, o, largest, NULL));
    while (bench_next_item(&sizes, item))
        TRY(measure_size(b, o, c, v->name, strtoul(item, NULL, 10)));
done:
    communicator_close(&c);
    options_close(&o);
    return result;
}

/* ---- arguments ----------------------------------------------------------------------------------
 */

/* false: nothing has this name, or it needs a GPU. */
static bool find_variant(const char *name, struct variant *out)
{
    const struct communicator_kind *kind =
        (const struct communicator_kind *)registry_find(&communicator_registry, name);
    if (strcmp(name, "ordered") == 0)
        *out = (struct variant){name, "mpi", "ordered", "none"};
    else if (registry_find(&compression_registry, name) != NULL)
        *out = (struct variant){name, "mpi", "fast", name};
    else if (kind != NULL && !kind->on_device)
        *out = (struct variant){kind->about.name, kind->about.name, "fast", "none"};
    else
        return false;
    return true;
}

static const char *sizes_of(const struct bench *b)
{
    const char *sizes = options_text(b->settings, "sizes");
    return strcmp(sizes, "curve") == 0 ? "1000,10000,37610,100000,400000,1000000,4000000,25600000"
                                       : sizes;
}

/* Checks the lists before a process starts. Sets *largest to the largest size. */
static status check_lists(const struct bench *b, size_t *largest)
{
    status result = OK;
    const char *sizes = sizes_of(b), *names = options_text(b->settings, "variants");
    struct variant v;
    char item[64];

    *largest = 0;
    while (bench_next_item(&sizes, item)) {
        int64_t count;
        if (!text_to_integer(item, &count) || count <= COMMUNICATOR_NOTES || count > 1L << 30)
            FAIL(ERROR_USAGE,
                 "sizes=%s: '%s' is neither a number of floats (%d to 2^30) nor 'curve'",
                 options_text(b->settings, "sizes"), item, COMMUNICATOR_NOTES + 1);
        *largest = (size_t)count > *largest ? (size_t)count : *largest;
    }
    while (bench_next_item(&names, item))
        if (!find_variant(item, &v))
            FAIL(ERROR_USAGE,
                 "variants=%s: '%s' is not ordered, a communicator that works without a GPU, "
                 "or a compression (gradlag list communicator)",
                 options_text(b->settings, "variants"), item);
done:
    return result;
}

static status measure_all(const struct bench *b, unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    const char *names = options_text(b->settings, "variants");
    struct variant v;
    char item[64];
    size_t largest;
    TRY(check_lists(b, &largest));
    while (bench_next_item(&names, item)) {
        REQUIRE(find_variant(item, &v));
        TRY(measure_variant(b, &v, sizes_of(b), largest));
    }
done:
    return result;
}

status bench_allreduce(int argc, char **argv)
{
    status result = OK;
    struct bench b = {0};
    size_t largest;
    TRY(bench_open(&b, "allreduce", bench_allreduce_keys, argc, argv));
    TRY(check_lists(&b, &largest));
    TRY(bench_on_ranks(&b, measure_all, argc, argv));
done:
    bench_close(&b);
    return result;
}
