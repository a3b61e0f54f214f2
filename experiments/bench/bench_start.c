/*
 * bench_start.c — `gradlag bench start`: the wall time of runs that train almost nothing.
 *
 *   async   one asynchronous run, from the start of `gradlag run` to its end
 *   sync    one synchronous run, in turn with its peer: mpirun with the same arguments, whose ranks
 *           call MPI_Init and MPI_Finalize alone
 *   sweep   asynchronous runs of one `gradlag sweep`, one at a time
 *
 * The results files are in $TMPDIR or /tmp, so the times include what the disk takes to sync them.
 */
#include "base/text.h"
#include "experiments/bench/bench.h"
#include "experiments/bench/bench_runs.h"
#include "experiments/run/mpirun.h"
#include "experiments/run/role.h"
#include "sync/communicator/communicator.h"

#include <stdlib.h>
#include <string.h>

const struct option bench_start_keys[] = {
    {"cases", OPTION_TEXT, "async,sync,sweep", 0, 0, NULL, NULL, "what to measure"},
    {"workers", OPTION_INTEGER, "2", 1, 4096, NULL, NULL, "workers, or ranks, of a run"},
    {"size", OPTION_INTEGER, "28", 1, 1024, NULL, NULL, "height and width of an image, in pixels"},
    {"runs", OPTION_INTEGER, "20", 1, 1000, NULL, NULL, "runs of the sweep"},
    {0},
};

enum { WORDS = 64 };

struct start_subject {
    const struct bench *b;
    struct bench_runs runs;
    struct text size, workers, seeds;
};

/* `gradlag run` or `gradlag sweep`. */
static status time_gradlag(struct start_subject *s, const char *command, const char *mode,
                           const char *more, double *seconds)
{
    const char *const settings[] = {
        mode, "dataset=gaussian", "model=softmax", "epochs=0.1", s->size.at, s->workers.at, more,
        NULL};
    return bench_runs_gradlag(&s->runs, command, settings, NULL, seconds);
}

/* Starts mpirun with this benchmark as ranks, which only call MPI_Init and MPI_Finalize
 * (start_mpi_alone). */
static status time_mpi(struct start_subject *s, double *seconds)
{
    status result = OK;
    struct mpirun m = {0};
    const char *words[WORDS] = {NULL};
    size_t n = 0;
    TRY(mpirun_open(&m, (unsigned)options_integer(s->b->settings, "workers"), s->runs.folder.path,
                    s->runs.shared.path));
    for (; m.words[n] != NULL; n++)
        words[n] = m.words[n];
    words[n++] = role_program();
    words[n++] = "bench";
    words[n++] = "start";
    REQUIRE(n < WORDS);
    TRY(bench_runs_command(&s->runs, words, m.environment, NULL, seconds));
done:
    mpirun_close(&m);
    return result;
}

/* ---- cases --------------------------------------------------------------------------------------
 */

static status measure_async(struct start_subject *s)
{
    status result = OK;
    struct bench_series times = {0};
    for (unsigned i = 0; i <= s->b->repeats; i++) {
        double seconds;
        TRY(time_gradlag(s, "run", "mode=async", "seed=1", &seconds));
        if (i > 0)
            bench_add(&times, 1e3 * seconds);
    }
    bench_report(s->b, "asynchronous run", "ms", &times);
done:
    return result;
}

static status measure_sync(struct start_subject *s)
{
    status result = OK;
    struct bench_series times = {0}, alone = {0};
    for (unsigned i = 0; i <= s->b->repeats; i++) {
        double run_s, mpi_s;
        TRY(time_gradlag(s, "run", "mode=sync", "seed=1", &run_s));
        TRY(time_mpi(s, &mpi_s));
        if (i == 0)
            continue;
        bench_add(&times, 1e3 * run_s);
        bench_add(&alone, 1e3 * mpi_s);
    }
    bench_report(s->b, "synchronous run", "ms", &times);
    bench_report(s->b, "MPI_Init and MPI_Finalize alone", "ms", &alone);
    bench_report_value(s->b, "synchronous run / MPI alone", "×",
                       bench_median(&times) / bench_median(&alone));
done:
    return result;
}

static status measure_sweep(struct start_subject *s)
{
    status result = OK;
    struct bench_series rates = {0};
    const int64_t runs = options_integer(s->b->settings, "runs");
    for (unsigned i = 0; i <= s->b->repeats; i++) {
        double seconds;
        s->seeds.length = 0;
        for (int64_t n = 0; n < runs; n++) /* new runs in each sweep */
            text_add(&s->seeds, "%s%lld", n == 0 ? "seed=" : ",", (long long)(i * runs + n));
        TRY(time_gradlag(s, "sweep", "mode=async", s->seeds.at, &seconds));
        if (i > 0)
            bench_add(&rates, 60 * (double)runs / seconds);
    }
    bench_report(s->b, "asynchronous runs of a sweep", "runs/min", &rates);
done:
    return result;
}

static status measure(struct start_subject *s)
{
    static const struct {
        const char *name;
        status (*measure)(struct start_subject *s);
    } known[] = {{"async", measure_async}, {"sync", measure_sync}, {"sweep", measure_sweep}};
    status result = OK;
    const char *list = options_text(s->b->settings, "cases");
    char item[64];
    while (bench_next_item(&list, item)) {
        size_t i = 0;
        while (i < COUNT_OF(known) && strcmp(known[i].name, item) != 0)
            i++;
        if (i == COUNT_OF(known))
            FAIL(ERROR_USAGE, "bench start: there is no case %s in cases=; use async, sync, sweep",
                 item);
        TRY(known[i].measure(s));
    }
done:
    return result;
}

static status open_subject(struct start_subject *s)
{
    status result = OK;
    const options *o = s->b->settings;
    TRY(bench_runs_open(&s->runs, "start"));
    text_add(&s->size, "dataset.size=%lld", (long long)options_integer(o, "size"));
    text_add(&s->workers, "workers=%lld", (long long)options_integer(o, "workers"));
done:
    return result;
}

static void close_subject(struct start_subject *s)
{
    struct text *const texts[] = {&s->size, &s->workers, &s->seeds};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        text_free(texts[i]);
    bench_runs_close(&s->runs);
}

/* One rank of time_mpi. */
static status start_mpi_alone(void)
{
    unsigned rank, size;
    role_ignore_leaks_of_mpi();
    const status result = sync_start(&rank, &size);
    sync_end(result);
    return result;
}

status bench_start(int argc, char **argv)
{
    status result = OK;
    struct bench b;
    struct start_subject s = {.b = &b, .runs = BENCH_RUNS_NONE};
    if (getenv("OMPI_COMM_WORLD_RANK") != NULL)
        return start_mpi_alone();
    TRY(bench_open(&b, "start", bench_start_keys, argc, argv));
    result = open_subject(&s);
    if (result == OK)
        result = measure(&s);
    close_subject(&s);
    bench_close(&b);
done:
    return result;
}
