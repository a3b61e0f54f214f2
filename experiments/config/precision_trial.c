#include "experiments/config/precision_trial.h"

#include "base/clock.h"
#include "base/forked_call.h"
#include "base/memory.h"
#include "experiments/config/config.h"
#include "worker/worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROUNDS = 99, FEW_ROUNDS = 3, SIDES = 2 };
static const double GAIN = 1.05;
/* A turn repeats steps until TURN_S has passed; a round is one turn of each side. Rounds end after
 * SHORT_S and FEW_ROUNDS rounds, or after LONG_S. The first turns create primitives and do not
 * count, unless their steps take longer than LONG_S: then no others follow. */
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
    double seconds; /* of one step: the mean of the fastest turn */
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

static status turn(struct measured_steps *m, struct side *s)
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
    s->seconds = fmin(s->seconds, took / steps);
done:
    return result;
}

/* Measures after the first turn of each side. The sides alternate in going first: on a busy machine
 * the scheduler's period may be about as long as two turns, and it would interrupt the same side
 * each time. */
static status measure_both(struct measured_steps *m, struct precision_trial *out)
{
    status result = OK;
    const double began = clock_seconds();
    struct side *sides = m->sides;
    const bool first_only = sides[0].seconds + sides[1].seconds > LONG_S;
    unsigned rounds = 0;
    if (!first_only)
        sides[0].seconds = sides[1].seconds = INFINITY;
    for (double took = 0; !first_only && rounds < ROUNDS; took = clock_seconds() - began) {
        if (took > LONG_S || (took > SHORT_S && rounds >= FEW_ROUNDS))
            break;
        TRY(turn(m, &sides[rounds % 2]));
        TRY(turn(m, &sides[(rounds + 1) % 2]));
        rounds++;
    }
    out->fp32_s = sides[0].seconds;
    out->bf16_s = sides[1].seconds;
done:
    return result;
}

static status measure(const options *o, struct precision_trial *out)
{
    status result = OK;
    struct measured_steps *m = NULL;
    *out = (struct precision_trial){0};
    TRY(memory_new(&m, 1, sizeof *m, "a trial"));
    m->sides[0].seconds = m->sides[1].seconds = INFINITY;
    TRY(open_side(&m->sides[0], o, "fp32"));
    TRY(open_vectors(m));
    TRY(turn(m, &m->sides[0]));
    if (open_side(&m->sides[1], o, "bf16") != OK || turn(m, &m->sides[1]) != OK)
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
