/*
 * bench_training.c — `gradlag bench training`: runs of the whole program.
 *
 *   modes        asynchronous and synchronous runs in turn: samples per second of training time
 *   evaluation   evaluations of an asynchronous run. With a pause of training: their total seconds,
 *                on all cores of this process and on one. Without a pause: the samples per second
 *                of training, compared with a run without evaluations
 *
 * Rates are those that the runs recorded, on data that each process generates.
 */
#include "experiments/bench/bench.h"
#include "experiments/bench/bench_runs.h"

#include <stdio.h>
#include <string.h>

const struct option bench_training_keys[] = {
    {"cases", OPTION_TEXT, "modes,evaluation", 0, 0, NULL, NULL, "what to measure"},
    {"models", OPTION_TEXT, "mlp", 0, 0, NULL, NULL, "models of the modes, comma-separated"},
    {"workers", OPTION_TEXT, "1,2", 0, 0, NULL, NULL,
     "workers or ranks of the modes, comma-separated"},
    {"evaluated", OPTION_TEXT, "cnn", 0, 0, NULL, NULL, "the model of the evaluations"},
    {"batch", OPTION_INTEGER, "64", 1, 65536, NULL, NULL, "samples per gradient of one worker"},
    {"samples", OPTION_INTEGER, "2048", 64, 10000000, NULL, NULL,
     "training samples; an evaluation has half as many"},
    {"epochs", OPTION_REAL, "50", 0.01, 1e6, NULL, NULL,
     "length of a run of the modes; a run with evaluations has one epoch"},
    {"repeats", OPTION_INTEGER, "3", 1, BENCH_REPEATS, NULL, NULL,
     "number of runs of each case, in turn"},
    {0},
};

struct training_subject {
    const struct bench *b;
    struct bench_runs runs;
    struct text batch, samples, epochs;
};

/* One run; *value is the result of `sql` on it. */
static status run_once(struct training_subject *s, const char *const *more, const cpu_set_t *cores,
                       const char *sql, double *value)
{
    status result = OK;
    const char *settings[16] = {"dataset=gaussian", s->batch.at, s->samples.at};
    double seconds;
    size_t n = 3;
    for (size_t i = 0; more[i] != NULL; i++) {
        REQUIRE(n + 1 < COUNT_OF(settings));
        settings[n++] = more[i];
    }
    TRY(bench_runs_gradlag(&s->runs, "run", settings, cores, &seconds));
    TRY(bench_runs_value(&s->runs, sql, value));
done:
    return result;
}

#define LAST_RUN   "(SELECT max(id) FROM run)"
#define RATE       "SELECT samples_per_second FROM run WHERE id = " LAST_RUN
#define EVALUATING "SELECT sum(took_seconds) FROM evaluation WHERE run_id = " LAST_RUN

/* ---- modes --------------------------------------------------------------------------------------
 */

static status compare_modes(struct training_subject *s, const char *model, const char *workers)
{
    status result = OK;
    static const char *const modes[2] = {"mode=async", "mode=sync"};
    struct bench_series rates[2] = {{.count = 0}};
    char chosen[2][96], what[192];
    snprintf(chosen[0], sizeof chosen[0], "model=%s", model);
    snprintf(chosen[1], sizeof chosen[1], "workers=%s", workers);
    for (unsigned i = 0; i <= s->b->repeats; i++) {
        for (int m = 0; m < 2; m++) {
            double rate;
            const char *const more[] = {modes[m],     chosen[0],          chosen[1],
                                        s->epochs.at, "evaluate_every=0", NULL};
            TRY(run_once(s, more, NULL, RATE, &rate));
            if (i > 0)
                bench_add(&rates[m], rate);
        }
    }
    for (int m = 0; m < 2; m++) {
        snprintf(what, sizeof what, "%s workers=%s %s", model, workers, modes[m]);
        bench_report(s->b, what, "samples/s", &rates[m]);
    }
    snprintf(what, sizeof what, "%s workers=%s asynchronous / synchronous", model, workers);
    bench_report_value(s->b, what, "×", bench_median(&rates[0]) / bench_median(&rates[1]));
done:
    return result;
}

static status measure_modes(struct training_subject *s)
{
    status result = OK;
    const char *models = options_text(s->b->settings, "models");
    char model[64], workers[64];
    while (bench_next_item(&models, model)) {
        const char *list = options_text(s->b->settings, "workers");
        while (bench_next_item(&list, workers))
            TRY(compare_modes(s, model, workers));
    }
done:
    return result;
}

/* ---- evaluation ---------------------------------------------------------------------------------
 */

static status measure_evaluation(struct training_subject *s)
{
    enum { PAUSED, ONE_CORE, BESIDE, WITHOUT, FORMS };
    static const char *const names[FORMS] = {
        [PAUSED] = "evaluations with a pause",
        [ONE_CORE] = "evaluations with a pause, one core",
        [BESIDE] = "training, evaluations without a pause",
        [WITHOUT] = "training without evaluations",
    };
    status result = OK;
    struct bench_series series[FORMS] = {{.count = 0}};
    char model[96];
    cpu_set_t cores, one;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        FAIL(ERROR_OTHER, "bench training: the cores of this process cannot be read");
    CPU_ZERO(&one);
    for (size_t core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; core++)
        if (CPU_ISSET(core, &cores))
            CPU_SET(core, &one);
    snprintf(model, sizeof model, "model=%s", options_text(s->b->settings, "evaluated"));
    for (unsigned i = 0; i <= s->b->repeats; i++) {
        for (int form = 0; form < FORMS; form++) {
            double value;
            const bool paused = form == PAUSED || form == ONE_CORE;
            const char *const more[] = {"mode=async",
                                        "workers=1",
                                        "epochs=1",
                                        model,
                                        form == WITHOUT ? "evaluate_every=0"
                                                        : "evaluate_every=0.25",
                                        paused ? "evaluation_pause=yes" : "evaluation_pause=no",
                                        NULL};
            TRY(run_once(s, more, form == ONE_CORE ? &one : NULL, paused ? EVALUATING : RATE,
                         &value));
            if (i > 0)
                bench_add(&series[form], value);
        }
    }
    for (int form = 0; form < FORMS; form++)
        bench_report(s->b, names[form], form < BESIDE ? "s" : "samples/s", &series[form]);
    bench_report_value(s->b, "evaluations with a pause / on one core", "×",
                       bench_median(&series[PAUSED]) / bench_median(&series[ONE_CORE]));
    bench_report_value(s->b, "training, evaluations without a pause / without evaluations", "×",
                       bench_median(&series[BESIDE]) / bench_median(&series[WITHOUT]));
done:
    return result;
}

/* ---- command ------------------------------------------------------------------------------------
 */

static status measure(struct training_subject *s)
{
    status result = OK;
    const char *list = options_text(s->b->settings, "cases");
    char item[64];
    while (bench_next_item(&list, item)) {
        if (strcmp(item, "modes") == 0)
            TRY(measure_modes(s));
        else if (strcmp(item, "evaluation") == 0)
            TRY(measure_evaluation(s));
        else
            FAIL(ERROR_USAGE,
                 "bench training: there is no case %s in cases=; use modes, evaluation", item);
    }
done:
    return result;
}

status bench_training(int argc, char **argv)
{
    status result = OK;
    struct bench b;
    struct training_subject s = {.b = &b, .runs = BENCH_RUNS_NONE};
    TRY(bench_open(&b, "training", bench_training_keys, argc, argv));
    text_add(&s.batch, "batch=%lld", (long long)options_integer(b.settings, "batch"));
    text_add(&s.samples, "dataset.samples=%lld", (long long)options_integer(b.settings, "samples"));
    text_add(&s.epochs, "epochs=%.17g", options_real(b.settings, "epochs"));
    result = bench_runs_open(&s.runs, "training");
    if (result == OK)
        result = measure(&s);
    bench_runs_close(&s.runs);
    text_free(&s.batch);
    text_free(&s.samples);
    text_free(&s.epochs);
    bench_close(&b);
done:
    return result;
}
