#include "experiments/config/precision_trial.h"

#include "base/clock.h"
#include "base/forked_call.h"
#include "base/memory.h"
#include "experiments/config/config.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 99, FEW_ROUNDS = 3, SIDES = 2 };
static const double GAIN = 1.05;
/* A turn is one step, or as many as fit into TURN_S. The rounds end after SHORT_S if there were
 * FEW_ROUNDS; after LONG_S one is enough. If the first turns, which create primitives, take longer
 * than LONG_S, they are the only ones. */
static const double TURN_S = 2e-3, SHORT_S = 0.4, LONG_S = 2;

bool precision_is_auto(const options *o)
{
    return strcmp(options_text(o, "precision"), "auto") == 0;
}

status precision_check_chosen(const options *o, const char *what)
{
    status result = OK;
    if (precision_is_auto(o)) {
        FAIL(ERROR_USAGE,
             "%s: precision=auto: %s makes no trial, because all processes of a run need the same "
             "format; set precision=fp32 or precision=bf16. `gradlag check precision=auto` with "
             "the same settings shows the faster one, `gradlag bench step precision=bf16` a rate",
             options_origin(o, "precision"), what);
    }
done:
    return result;
}

bool precision_prefers_bf16(const struct precision_trial *t)
{
    return t->why[0] == '\0' && t->fp32_s >= GAIN * t->bf16_s;
}

/* ---- measuring ----------------------------------------------------------------------------------
 */

struct side {
    options *settings;
    worker *worker;
    uint64_t batch;
    double seconds[ROUNDS]; /* of one step */
};

struct measured_steps {
    struct side sides[SIDES]; /* fp32, bf16 */
    float *parameters, *gradient;
};

static void close_steps(struct measured_steps *m)
{
    for (int i = 0; i < SIDES; i++) {
        worker_close(&m->sides[i].worker);
        options_close(&m->sides[i].settings);
    }
    memory_free(m->parameters);
    memory_free(m->gradient);
}

/* Without pace, because a delayed step would hide the computation. */
static status open_side(struct side *s, const options *o, const char *precision)
{
    status result = OK;
    struct settings all = {0};
    config_arguments(o, &all);
    settings_add(&all, "precision", precision, "precision=auto");
    settings_add(&all, "pace", "none", "precision=auto");
    TRY(config_compose_unchecked(&s->settings, &all));
    TRY(worker_open(&s->worker,
                    &(struct worker_options){.settings = s->settings,
                                             .count = (unsigned)options_integer(o, "workers")}));
    worker_hold_memory(s->worker);
done:
    settings_free(&all);
    return result;
}

static status open_vectors(struct measured_steps *m)
{
    status result = OK;
    worker *w = m->sides[0].worker;
    const size_t count = worker_parameter_count(w);
    TRY(memory_new(&m->parameters, count, sizeof(float), "parameters"));
    TRY(memory_new(&m->gradient, count, sizeof(float), "a gradient"));
    TRY(worker_initial_parameters(w, m->parameters, count));
done:
    return result;
}

static status turn(struct measured_steps *m, struct side *s, unsigned round)
{
    status result = OK;
    const double began = clock_seconds();
    double took = 0;
    unsigned steps = 0;
    for (; took < TURN_S; took = clock_seconds() - began) {
        struct step_stats stats;
        TRY(worker_gradient(s->worker, m->parameters, s->batch++, m->gradient, &stats));
        steps++;
    }
    s->seconds[round] = took / steps;
done:
    return result;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, unsigned count)
{
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

/* After the first turn of each. */
static status measure_both(struct measured_steps *m, struct precision_trial *out)
{
    status result = OK;
    const double began = clock_seconds();
    struct side *fp32 = &m->sides[0], *bf16 = &m->sides[1];
    const bool first_only = fp32->seconds[0] + bf16->seconds[0] > LONG_S;
    unsigned rounds = first_only ? 1 : 0;
    for (double took = 0; !first_only && rounds < ROUNDS; took = clock_seconds() - began) {
        if (took > LONG_S || (took > SHORT_S && rounds >= FEW_ROUNDS))
            break;
        TRY(turn(m, fp32, rounds));
        TRY(turn(m, bf16, rounds));
        rounds++;
    }
    out->fp32_s = median(fp32->seconds, rounds);
    out->bf16_s = median(bf16->seconds, rounds);
done:
    return result;
}

static status measure(const options *o, struct precision_trial *out)
{
    status result = OK;
    struct measured_steps *m = NULL;
    *out = (struct precision_trial){0};
    TRY(memory_new(&m, 1, sizeof *m, "a trial"));
    TRY(open_side(&m->sides[0], o, "fp32"));
    TRY(open_vectors(m));
    TRY(turn(m, &m->sides[0], 0));
    if (open_side(&m->sides[1], o, "bf16") != OK || turn(m, &m->sides[1], 0) != OK)
        snprintf(out->why, sizeof out->why, "%s", error_message());
    else
        TRY(measure_both(m, out));
done:
    if (m != NULL)
        close_steps(m);
    memory_free(m);
    return result;
}

/* ---- the child ----------------------------------------------------------------------------------
 */

static status measure_in_child(const void *settings, void *out)
{
    return measure(settings, out);
}

status precision_trial_run(const options *o, const volatile sig_atomic_t *stop,
                           struct precision_trial *out)
{
    const struct forked_call trial = {
        .call = measure_in_child,
        .argument = o,
        .what = "the trial of precision=auto",
        .work = "loads the dataset and measures steps in fp32 and bf16",
        .advice = "set precision=fp32 or precision=bf16",
        .timeout_s = options_real(o, "timeout_s"),
        .stop = stop,
    };
    return forked_call(&trial, out, sizeof *out);
}
