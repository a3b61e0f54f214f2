/*
 * bench_external.c — `gradlag bench external`: what a step of model=external costs beside the
 * program's own computation.
 *
 *   step       worker_gradient: draws the samples and waits for the program's answer. Parameters
 *              and gradient are in shared memory, which the program maps
 *   own        the computation alone, as the program measures it in the same steps
 *   overhead   the median of step time / own time − 1, over the repeats
 */
#include "base/clock.h"
#include "base/shared_memory.h"
#include "experiments/bench/bench.h"
#include "experiments/config/config.h"
#include "worker/model/model.h"
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>

extern const struct model_kind model_external;
static const struct about *const external[] = {&model_external.about};
static const struct registry only_external = {"model", external, COUNT_OF(external)};

const struct option bench_external_keys[] = {
    {"model", OPTION_NAME, "external", 0, 0, NULL, &only_external, "the model"},
    {"batch", OPTION_INTEGER, "32", 1, 1 << 20, NULL, NULL, "samples of a batch"},
    {"threads", OPTION_INTEGER, "1", 1, 256, NULL, NULL, "threads of the program"},
    {"seconds", OPTION_REAL, "0.5", 0.001, 60, NULL, NULL, "how long each repeat lasts"},
    {"repeats", OPTION_INTEGER, "9", 1, BENCH_REPEATS, NULL, NULL,
     "number of measurements of each case"},
    {0},
};

struct bench_external_subject {
    options *settings;
    worker *worker;
    float *parameters, *gradient;
    size_t count;
    uint64_t batch;
};

static status open_subject(struct bench_external_subject *s, const struct bench *b)
{
    status result = OK;
    TRY(config_compose_texts(&s->settings, (const char *const[]){"model=external", NULL}, NULL,
                             "bench"));
    for (size_t i = 0; i < options_count(b->settings); i++) {
        const char *key = options_at(b->settings, i)->key;
        if (strncmp(key, "model.", 6) == 0 || strcmp(key, "batch") == 0 ||
            strcmp(key, "threads") == 0)
            TRY(bench_pass_on(b, s->settings, key, key));
    }
    TRY(worker_open(&s->worker, &(struct worker_options){.settings = s->settings, .count = 1}));
    s->count = worker_parameter_count(s->worker);
    TRY(shared_memory_new(&s->parameters, s->count, "parameters", OTHERS_READ));
    TRY(shared_memory_new(&s->gradient, s->count, "a gradient", OTHERS_WRITE));
    TRY(worker_initial_parameters(s->worker, s->parameters, s->count));
done:
    return result;
}

static void close_subject(struct bench_external_subject *s)
{
    worker_close(&s->worker);
    options_close(&s->settings);
    shared_memory_free(s->parameters);
    shared_memory_free(s->gradient);
}

/* Makes steps for the time of key `seconds`. *step_s and *own_s: mean times of one step, in
 * seconds. */
static status repeat(const struct bench *b, struct bench_external_subject *s, double *step_s,
                     double *own_s)
{
    status result = OK;
    struct step_stats stats, sum = {0};
    const double began_s = clock_seconds(), lasting_s = options_real(b->settings, "seconds");
    unsigned steps = 0;
    do {
        TRY(worker_gradient(s->worker, s->parameters, s->batch++, s->gradient, &stats));
        step_stats_add(&sum, &stats);
        steps++;
    } while (clock_seconds() - began_s < lasting_s);
    *step_s = (double)(sum.data_ns + sum.compute_ns) * 1e-9 / steps;
    *own_s = (double)sum.backward_ns * 1e-9 / steps;
    if (*own_s == 0)
        FAIL(ERROR_DATA, "the program's answers have no 'seconds', so there is nothing to compare "
                         "a step with; see docs/external-models.md");
done:
    return result;
}

status bench_external(int argc, char **argv)
{
    status result = OK;
    struct bench b;
    struct bench_external_subject s = {0};
    struct bench_series steps = {0}, own = {0}, ratio = {0};
    char line[64];
    TRY(bench_open(&b, "external", bench_external_keys, argc, argv));
    TRY(open_subject(&s, &b));
    for (unsigned i = 0; i <= b.repeats; i++) { /* the first one warms up */
        double step_s, own_s;
        TRY(repeat(&b, &s, &step_s, &own_s));
        if (i == 0)
            continue;
        bench_add(&steps, step_s * 1e3);
        bench_add(&own, own_s * 1e3);
        bench_add(&ratio, 100 * (step_s / own_s - 1));
    }
    snprintf(line, sizeof line, "%zu parameters", s.count);
    bench_report(&b, line, "ms step", &steps);
    bench_report(&b, line, "ms own", &own);
    bench_report(&b, "overhead", "%", &ratio);
done:
    close_subject(&s);
    bench_close(&b);
    return result;
}
