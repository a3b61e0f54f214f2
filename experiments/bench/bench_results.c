/*
 * bench_results.c — `gradlag bench results`: the size of a results file with many runs, and the
 * time of queries on it.
 *
 * The runs are synthetic; the file is written by the same code as in training: settings are
 * composed as in `gradlag run`, and the recorder writes the rows. The numbers have realistic
 * distributions: staleness of W equal workers, falling float32 losses, random norms and gaps, rates
 * of a schedule and scales of a rule.
 */
#include "base/clock.h"
#include "base/log.h"
#include "experiments/bench/bench.h"
#include "experiments/run/child_process.h"
#include "experiments/config/config.h"
#include "experiments/run/provenance.h"
#include "results/query/query.h"
#include "results/store/recorder.h"
#include "base/random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct option bench_results_keys[] = {
    {"runs", OPTION_INTEGER, "1000", 1, 1e6, NULL, NULL, "runs in the file"},
    {"pushes", OPTION_INTEGER, "10000", 0, 1e9, NULL, NULL, "gradients of each run"},
    {"file", OPTION_TEXT, "", 0, 0, NULL, NULL,
     "results file to create or continue, and keep; empty: a temporary file"},
    {"repeats", OPTION_INTEGER, "3", 1, BENCH_REPEATS, NULL, NULL,
     "number of measurements of each query"},
    {0},
};

enum { SEEDS = 3, EVALUATIONS = 20, BATCH = 32 };

/* ---- synthetic runs -----------------------------------------------------------------------------
 */

static const char *const rules[] = {"none", "inverse", "polynomial"};
static const unsigned counts[] = {1, 2, 4, 8, 16, 32};

struct synthetic_run {
    unsigned workers, rule;
    uint64_t seed, pushes;
    struct random_stream random;
    uint64_t sequence[32];
};

/* The row borrows texts from *o; the caller closes *o after the row. */
#define MADE_HERE "bench results" /* tag of the runs */

static status describe(struct run_row *row, options **o, const struct synthetic_run *m,
                       unsigned variant)
{
    status result = OK;
    struct settings all = {0};
    char number[4][32];
    snprintf(number[0], sizeof number[0], "%u", m->workers);
    snprintf(number[1], sizeof number[1], "%llu", (unsigned long long)m->seed);
    snprintf(number[2], sizeof number[2], "%.4f", 0.01 * (1 + variant % 4));
    snprintf(number[3], sizeof number[3], "trial-%u", variant / 4);
    const struct {
        const char *key, *value;
    } set[] = {{"mode", "async"},         {"workers", number[0]},  {"seed", number[1]},
               {"lr", number[2]},         {"arm", rules[m->rule]}, {"damping", rules[m->rule]},
               {"experiment", number[3]}, {"tag", MADE_HERE}};
    for (size_t i = 0; i < COUNT_OF(set); i++)
        settings_add(&all, set[i].key, set[i].value, "bench results");
    TRY(config_compose(o, &all));
    run_row_open(row, *o);
done:
    settings_free(&all);
    return result;
}

static double scale_of(unsigned rule, uint64_t staleness)
{
    double age = staleness > 1 ? (double)staleness : 1;
    return rule == 0 ? 1 : rule == 1 ? 1 / age : 1 / sqrt(age);
}

static void record_push(struct synthetic_run *m, recorder *r, uint64_t i)
{
    unsigned w = random_below(&m->random, m->workers);
    double spread = 0.25 * (m->workers - 1) * random_normal(&m->random);
    double mean = m->workers - 1 + spread;
    uint64_t staleness = (uint64_t)fmin(fmax(nearbyint(mean), 0), (double)i);
    double part = (double)i / (double)m->pushes, scale = scale_of(m->rule, staleness);
    struct push_record row = {
        .arrival = i,
        .update_version = i + 1,
        .worker = w,
        .waited_for = NO_WORKER,
        .batch = m->sequence[w],
        .sequence = m->sequence[w]++,
        .read_version = i - staleness,
        .staleness = staleness,
        .scale = scale,
        .rate = 0.02 * (1 - part) * scale,
        .gap = staleness > 0 ? 1e-4 * sqrt((double)staleness) * random_uniform(&m->random) : 0,
        .gradient_norm = 1 + random_uniform(&m->random),
        .loss = (float)(2.3 * exp(-3 * part) + 0.1 * random_uniform(&m->random)),
        .pull_us = 100 + 400 * random_uniform(&m->random),
        .compute_us = 500 + 100 * random_uniform(&m->random),
        .queue_us = 60 * random_uniform(&m->random),
        .apply_us = 30 + 20 * random_uniform(&m->random),
        .at_seconds = 1e-9 * nearbyint(1e9 * 1e-3 * ((double)i + random_uniform(&m->random))),
        .cosine = NOT_MEASURED,
        .momentum = NOT_MEASURED,
        .total_momentum = NOT_MEASURED,
    };
    recorder_push(r, &row);
}

static void record_evaluation(struct synthetic_run *m, recorder *r, unsigned i)
{
    double part = (i + 1.0) / EVALUATIONS, loss = 2.3 * exp(-3 * part);
    double accuracy =
        0.9 - 0.6 * exp(-5 * part) - 0.002 * m->workers + 0.005 * random_normal(&m->random);
    uint64_t updates = m->pushes * (i + 1) / EVALUATIONS;
    recorder_evaluation(r, &(struct evaluation_record){.updates = updates,
                                                       .samples = BATCH * updates,
                                                       .seconds = 1e-3 * (double)updates,
                                                       .train_loss = loss,
                                                       .validation_loss = loss,
                                                       .validation_accuracy = accuracy,
                                                       .test_loss = loss,
                                                       .test_accuracy = accuracy});
}

static status write_run(const char *path, unsigned index, uint64_t pushes)
{
    status result = OK;
    unsigned cell = index / SEEDS;
    struct synthetic_run m = {.workers = counts[cell % COUNT_OF(counts)],
                              .rule = cell / COUNT_OF(counts) % COUNT_OF(rules),
                              .seed = 1 + index % SEEDS,
                              .pushes = pushes};
    struct run_row row = {0};
    options *o = NULL;
    recorder *r = NULL;
    int64_t id;
    random_open(&m.random, RANDOM_TEST, index, 0, 0);
    TRY(describe(&row, &o, &m, cell / (unsigned)(COUNT_OF(counts) * COUNT_OF(rules))));
    TRY(recorder_open(&r, path));
    TRY(recorder_begin(r, &row.description, "running", &id));
    for (uint64_t i = 0; i < pushes; i++)
        record_push(&m, r, i);
    for (unsigned i = 0; i < EVALUATIONS; i++)
        record_evaluation(&m, r, i);
    struct run_outcome outcome = {.status = "finished",
                                  .updates = pushes,
                                  .samples_used = BATCH * pushes,
                                  .samples_computed = BATCH * pushes,
                                  .train_seconds = 1e-3 * (double)pushes + 1e-3};
    TRY(recorder_finish(r, &outcome));
done:
    recorder_close(&r);
    run_row_close(&row);
    options_close(&o);
    return result;
}

/* Adds the runs that the file does not have yet. */
static status write_file(const struct bench *b, const char *path)
{
    status result = OK;
    unsigned runs = (unsigned)options_integer(b->settings, "runs");
    uint64_t pushes = (uint64_t)options_integer(b->settings, "pushes");
    double existing = 0, others = 0, began = clock_seconds();
    bool known = false;
    recorder *r = NULL;
    TRY(recorder_open(&r, path));
    recorder_close(&r);
    TRY(query_number(path, "SELECT count(*) FROM run", NULL, 0, &existing, &known));
    TRY(query_number(path, "SELECT count(*) FROM run WHERE tag IS NOT '" MADE_HERE "'", NULL, 0,
                     &others, &known));
    if (others > 0 && existing < runs)
        FAIL(ERROR_USAGE,
             "bench results: file=%s has %.0f runs that this benchmark did not make; it would add "
             "invented ones. Name another file, or set runs=%.0f to measure this one as it is",
             path, others, existing);
    for (unsigned i = (unsigned)existing; i < runs; i++) {
        TRY(write_run(path, i, pushes));
        if (i % 100 == 99)
            log_info("%u of %u runs", i + 1, runs);
    }
    if (existing < runs)
        bench_report_value(b, "made in", "s", clock_seconds() - began);
done:
    recorder_close(&r);
    return result;
}

/* ---- size ---------------------------------------------------------------------------------------
 */

static status report_size(const struct bench *b, const char *path)
{
    status result = OK;
    double rows = 0, bytes = 0;
    bool known = false;
    TRY(query_number(path, "SELECT count(*) FROM push", NULL, 0, &rows, &known));
    bench_report_value(b, "rows in push", "", rows);
    if (query_number(path,
                     "SELECT sum(pgsize) FROM dbstat WHERE aggregate = 1 AND name IN "
                     "(SELECT name FROM sqlite_master WHERE tbl_name = 'push')",
                     NULL, 0, &bytes, &known) != OK) {
        log_info("this SQLite has no table dbstat; bytes per row are not reported");
        goto done;
    }
    if (rows > 0)
        bench_report_value(b, "bytes per row of push", "bytes", bytes / rows);
done:
    return result;
}

/* ---- queries ------------------------------------------------------------------------------------
 */

static status measure_query(const struct bench *b, const char *path, const char *what,
                            const char *question, const char *const *settings, size_t count)
{
    status result = OK;
    struct bench_series series = {.count = 0};
    FILE *null = fopen("/dev/null", "w");
    REQUIRE(null != NULL);
    struct query_request request = {.path = path,
                                    .question = question,
                                    .settings = settings,
                                    .setting_count = count,
                                    .format = QUERY_CSV};
    for (unsigned i = 0; i < b->repeats; i++) {
        double began = clock_seconds();
        TRY(query_run(&request, null, NULL));
        bench_add(&series, 1e3 * (clock_seconds() - began));
    }
    bench_report(b, what, "ms", &series);
done:
    fclose(null);
    return result;
}

static status measure_queries(const struct bench *b, const char *path)
{
    static const char *const views[] = {"run_summary", "accuracy_by_workers", "staleness_histogram",
                                        "time_to_accuracy", "where_time_goes"};
    static const char *const settings[] = {"run=1"};
    status result = OK;
    struct query_description q;
    char what[96], sql[96];
    for (size_t i = 0; i < COUNT_OF(views); i++) {
        snprintf(what, sizeof what, "view %s", views[i]);
        snprintf(sql, sizeof sql, "SELECT * FROM %s", views[i]);
        TRY(measure_query(b, path, what, sql, NULL, 0));
    }
    TRY(measure_query(b, path, "staleness_histogram of one run",
                      "SELECT * FROM staleness_histogram WHERE run_id = 1", NULL, 0));
    for (size_t i = 0; query_at(i, &q); i++) {
        const bool of_one_run = strstr(query_text(q.name), "-- :run = ") != NULL;
        snprintf(what, sizeof what, "query %s", q.name);
        TRY(measure_query(b, path, what, q.name, settings, of_one_run ? 1 : 0));
    }
done:
    return result;
}

status bench_results(int argc, char **argv)
{
    status result = OK;
    struct bench b;
    struct folder folder = {0};
    char path[4096];
    TRY(bench_open(&b, "results", bench_results_keys, argc, argv));
    snprintf(path, sizeof path, "%s", options_text(b.settings, "file"));
    if (path[0] == '\0') {
        TRY(folder_make(&folder, NULL));
        snprintf(path, sizeof path, "%s/results.db", folder.path);
    }
    TRY(write_file(&b, path));
    TRY(report_size(&b, path));
    TRY(measure_queries(&b, path));
done:
    folder_remove(&folder);
    bench_close(&b);
    return result;
}
