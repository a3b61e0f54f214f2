/*
 * bench_recorder.c — `gradlag bench recorder`: the processor time of recording.
 *
 * This thread records pushes at a given rate, in bursts every 10 ms, into a temporary results file.
 * The time of recorder_push in this thread delays training. The rest of the process is the writer
 * thread. Both are processor times, so that other programs do not count. At full speed (rate 0) the
 * writer falls behind: its memory grows up to the limit, and the calls then wait.
 */
#include "base/clock.h"
#include "base/text.h"
#include "experiments/bench/bench.h"
#include "experiments/run/child_process.h"
#include "results/store/recorder.h"

#include <stdio.h>
#include <sys/resource.h>

const struct option bench_recorder_keys[] = {
    {"rates", OPTION_TEXT, "1000,5000,20000,0", 0, 0, NULL, NULL,
     "rows per second, comma-separated; 0: full speed"},
    {"seconds", OPTION_REAL, "2", 0.1, 600, NULL, NULL, "how long each repeat lasts"},
    {"rows", OPTION_INTEGER, "4000000", 1, 1e9, NULL, NULL, "maximum number of rows at full speed"},
    {"repeats", OPTION_INTEGER, "3", 1, BENCH_REPEATS, NULL, NULL,
     "number of measurements of each case"},
    {0},
};

enum { BURSTS_PER_SECOND = 100, BURST_AT_FULL_SPEED = 10000 };

static double peak_mib(void)
{
    struct rusage use;
    (void)getrusage(RUSAGE_SELF, &use);
    return (double)use.ru_maxrss / 1024;
}

static struct push_record row_of(uint64_t i)
{
    return (struct push_record){.arrival = i,
                                .update_version = i + 1,
                                .worker = (uint32_t)(i % 16),
                                .waited_for = NO_WORKER,
                                .batch = i / 16,
                                .sequence = i / 16,
                                .read_version = i < 15 ? 0 : i - 15,
                                .staleness = i < 15 ? i : 15,
                                .scale = 1.0 / 15,
                                .rate = 0.1 / 15,
                                .gap = 1e-4 * (double)(i % 97),
                                .gradient_norm = 0.5 + 1e-3 * (double)(i % 89),
                                .loss = 2.3 - 1e-3 * (double)(i % 83),
                                .pull_us = 100 + (double)(i % 79),
                                .compute_us = 1000 + (double)(i % 73),
                                .queue_us = (double)(i % 7),
                                .apply_us = 80 + (double)(i % 71),
                                .at_seconds = 1e-3 * (double)i,
                                .cosine = NOT_MEASURED,
                                .momentum = NOT_MEASURED,
                                .total_momentum = NOT_MEASURED};
}

struct recording_cost {
    double push_ns, writer_us; /* processor time of one row */
};

/* Records for `seconds` of real time; returns the processor seconds of the calls. */
static double push_rows(recorder *r, uint64_t rate, double seconds, uint64_t most, uint64_t *rows)
{
    uint64_t burst =
        rate > 0 ? (rate + BURSTS_PER_SECOND - 1) / BURSTS_PER_SECOND : BURST_AT_FULL_SPEED;
    uint64_t begun = clock_ns(), until = begun + (uint64_t)(seconds * 1e9);
    double taken = 0;
    *rows = 0;
    while (clock_ns() < until && *rows < most) {
        double before = clock_thread_cpu_seconds();
        for (uint64_t i = 0; i < burst; i++, ++*rows) {
            struct push_record row = row_of(*rows);
            recorder_push(r, &row);
        }
        taken += clock_thread_cpu_seconds() - before;
        if (rate > 0)
            clock_sleep_until_ns(begun + *rows * UINT64_C(1000000000) / rate);
    }
    return taken;
}

static status measure(const struct bench *b, const char *path, uint64_t rate,
                      struct recording_cost *out)
{
    status result = OK;
    recorder *r = NULL;
    int64_t id;
    struct run_description run = {.mode = "async", .workers = 16, .model = "bench recorder"};
    uint64_t rows, most = (uint64_t)options_integer(b->settings, "rows");
    TRY(recorder_open(&r, path));
    TRY(recorder_begin(r, &run, "running", &id));
    double all = clock_process_cpu_seconds();
    double own = clock_thread_cpu_seconds();
    double pushes = push_rows(r, rate, options_real(b->settings, "seconds"), most, &rows);
    own = clock_thread_cpu_seconds() - own;
    /* Closing writes the last rows. The summary of the run (recorder_settle) does not count. */
    recorder_close(&r);
    all = clock_process_cpu_seconds() - all;
    out->push_ns = 1e9 * pushes / (double)rows;
    out->writer_us = 1e6 * (all - own) / (double)rows;
    TRY(recorder_settle(path, id, "finished", NULL, NULL));
done:
    recorder_close(&r);
    return result;
}

static status measure_rate(const struct bench *b, const char *path, const char *rate)
{
    status result = OK;
    struct bench_series push = {.count = 0}, writer = {.count = 0};
    char what[64];
    int64_t per_second;
    if (!text_to_integer(rate, &per_second) || per_second < 0 || per_second > 100000000)
        FAIL(ERROR_USAGE,
             "bench recorder: rates: '%s' is not a number of rows per second (0 to 1e8)", rate);
    for (unsigned i = 0; i < b->repeats; i++) {
        struct recording_cost cost;
        TRY(measure(b, path, (uint64_t)per_second, &cost));
        bench_add(&push, cost.push_ns);
        bench_add(&writer, cost.writer_us);
    }
    const char *at = per_second > 0 ? " rows/s" : "full speed";
    snprintf(what, sizeof what, "push, %s%s", per_second > 0 ? rate : "", at);
    bench_report(b, what, "ns/row", &push);
    snprintf(what, sizeof what, "writer thread, %s%s", per_second > 0 ? rate : "", at);
    bench_report(b, what, "us/row", &writer);
    snprintf(what, sizeof what, "memory of the process, %s%s", per_second > 0 ? rate : "", at);
    bench_report_value(b, what, "MiB", peak_mib());
done:
    return result;
}

status bench_recorder(int argc, char **argv)
{
    status result = OK;
    struct bench b;
    struct folder folder = {0};
    char path[128], rate[64];
    TRY(bench_open(&b, "recorder", bench_recorder_keys, argc, argv));
    TRY(folder_make(&folder, NULL));
    snprintf(path, sizeof path, "%s/results.db", folder.path);
    const char *rates = options_text(b.settings, "rates");
    while (bench_next_item(&rates, rate))
        TRY(measure_rate(&b, path, rate));
done:
    folder_remove(&folder);
    bench_close(&b);
    return result;
}
