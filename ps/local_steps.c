/* local_steps.c — see local_steps.h. */
#include "ps/local_steps.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/vector.h"
#include "ps/core/arithmetic.h"

#include <string.h>

enum { ALIGNED = 16 }; /* floats of a cache line; each vector in the scratch starts on one */

/* ---- the plan ------------------------------------------------------------------------------ */

status local_steps_plan_open(struct local_steps_plan *out, const options *o, unsigned workers,
                             size_t count, uint64_t total_samples, uint64_t epoch_samples)
{
    status result = OK;
    const struct about *about = NULL;
    *out = (struct local_steps_plan){.workers = workers, .count = count, .pull = pull_code_of(o)};
    TRY(outer_open(&out->outer, o, workers));
    if (out->outer.rule == NULL)
        goto done;
    TRY(registry_require(&optimizer_registry, options_text(o, "optimizer"), &about));
    out->kind = (const struct optimizer_kind *)about;
    out->momentum_ahead = out->outer.rule->elastic && out->kind->has_momentum;
    TRY(optimizer_rule_of(o, &out->rule));
    registry_parameters(about, o, out->parameters, OPTIMIZER_PARAMETERS);
    TRY(schedule_open(&out->schedule, o, workers, total_samples, epoch_samples));
    out->batch = (uint64_t)options_integer(o, "batch");
done:
    return result;
}

bool local_steps_enabled(const struct local_steps_plan *p)
{
    return p->outer.rule != NULL;
}

status local_steps_check(const options *o)
{
    status result = OK;
    const struct outer_rule *rule =
        (const struct outer_rule *)registry_find(&outer_registry, options_text(o, "outer"));
    if (rule != NULL && rule->elastic && compression_of(o) != NULL) {
        FAIL(ERROR_USAGE,
             "%s: compression=%s adds what a code loses to the next push, but with outer=%s the "
             "next push contains it already; set compression=none or another outer",
             options_origin(o, "compression"), options_text(o, "compression"), rule->about.name);
    }
    if (rule != NULL && rule->elastic && pull_code_of(o).kind != NULL) {
        FAIL(ERROR_USAGE,
             "%s: pull_precision=%s rounds what a worker reads, and with outer=%s this rounding "
             "would be pushed back to the server; set pull_precision=fp32 or another outer",
             options_origin(o, "pull_precision"), options_text(o, "pull_precision"),
             rule->about.name);
    }
done:
    return result;
}

static size_t stride(const struct local_steps_plan *p)
{
    return (p->count + ALIGNED - 1) / ALIGNED * ALIGNED;
}

/* Vectors that take_steps() needs. */
static unsigned step_vectors(const struct local_steps_plan *p)
{
    return p->outer.rule == NULL    ? 0
           : p->outer.rule->elastic ? p->momentum_ahead
                                    : 2 + p->kind->states;
}

/* With pull_precision the last vector is θ_read, rounded. */
size_t local_steps_scratch(const struct local_steps_plan *p)
{
    return (step_vectors(p) + (p->pull.kind != NULL)) * stride(p);
}

static double rate_of(const struct local_steps_plan *p, uint64_t samples, unsigned step)
{
    uint64_t per_step = p->workers * p->batch; /* samples, if all workers advance at one speed */
    uint64_t before = samples + step * per_step;
    return schedule_rate(&p->schedule, before, before + per_step);
}

/* ---- one worker ---------------------------------------------------------------------------- */

status local_steps_open(struct local_steps *l, const struct local_steps_plan *plan)
{
    status result = OK;
    *l = (struct local_steps){.plan = plan};
    if (plan->outer.rule != NULL && plan->outer.rule->elastic)
        TRY(memory_new(&l->parameters, plan->count, sizeof(float),
                       "parameters of an elastic worker"));
    if (plan->momentum_ahead)
        TRY(memory_new(&l->velocity, plan->count, sizeof(float), "velocity of an elastic worker"));
done:
    return result;
}

status local_steps_compress(struct local_steps *l, const options *o,
                            const struct optimizer_layers *layers, uint64_t epoch_samples)
{
    return push_codes_open(&l->codes, o, layers, l->plan->count, epoch_samples);
}

bool local_steps_needed(const struct local_steps *l)
{
    return local_steps_enabled(l->plan) || push_codes_enabled(&l->codes) ||
           l->plan->pull.kind != NULL;
}

void local_steps_close(struct local_steps *l)
{
    push_codes_close(&l->codes);
    memory_free(l->parameters);
    memory_free(l->velocity);
    *l = (struct local_steps){0};
}

void local_steps_reset(struct local_steps *l)
{
    l->started = false;
    push_codes_reset(&l->codes);
}

/* Computes gradients and adds their statistics to those of the push. */
struct source {
    local_gradient *gradient;
    void *context;
    struct local_steps_push *push;
    double losses;
};

static status step_gradient(struct source *s, uint64_t batch, const float *at, float *gradient)
{
    status result = OK;
    struct step_stats one;
    TRY(s->gradient(s->context, at, batch, gradient, &one));
    s->losses += (double)one.loss;
    step_stats_add(&s->push->stats, &one);
done:
    return result;
}

/* ---- steps from the parameters read -------------------------------------------------------- */

VECTOR_CLONES
static void add(size_t count, const float *a, const float *b, float *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}

/* One step from x = `from`, with local step number j. `displacement` is x − θ_read; the optimizer
 * updates it from 0. Therefore weight decay of x and the proximal term ρ · displacement are applied
 * here, not left to the optimizer. */
static void step(const struct local_steps_plan *p, struct optimizer_call *call, unsigned j,
                 double lr, const float *from, float *gradient)
{
    struct optimizer_rule undecayed = p->rule;
    const float decay = p->rule.weight_decay;
    undecayed.weight_decay = 0;
    if (decay > 0 && !p->kind->decay_apart)
        vector_add_weighted(p->count, decay, from, false, gradient);
    if (p->outer.proximal > 0 && j > 0)
        vector_add_weighted(p->count, (float)p->outer.proximal, call->in, false, gradient);
    call->rates = optimizer_rule_rates(&undecayed, 1, lr);
    if (p->kind->constants != NULL) {
        const struct optimizer_moment now = {
            .parameters = p->parameters, .number = j + 1, .lr = lr, .scale = 1};
        p->kind->constants(&now, call->rates.own);
    }
    p->kind->update(call);
    if (decay > 0 && p->kind->decay_apart)
        vector_add_weighted(p->count, (float)(-lr * (double)decay), from, false, call->out);
}

static status run_from_read(const struct local_steps_plan *p, struct source *s)
{
    status result = OK;
    struct local_steps_push *push = s->push;
    float *displacement = push->difference, *gradient = push->scratch, *at = gradient + stride(p);
    struct optimizer_call call = {.count = p->count,
                                  .in = displacement,
                                  .out = displacement,
                                  .gradient = gradient,
                                  .stride = stride(p)};
    const float *from = push->parameters;
    call.state_in = call.state_out = p->kind->states > 0 ? at + stride(p) : NULL;
    if (p->kind->states > 0)
        memset(call.state_out, 0, p->kind->states * stride(p) * sizeof(float));
    memset(displacement, 0, p->count * sizeof(float));
    for (unsigned j = 0; j < p->outer.steps; j++) {
        TRY(step_gradient(s, push->number * p->outer.steps + j, from, gradient));
        step(p, &call, j, rate_of(p, push->samples, j), from, gradient);
        if (j + 1 < p->outer.steps) {
            add(p->count, push->parameters, displacement, at);
            from = at;
        }
    }
    vector_multiply(p->count, -1, displacement, displacement);
done:
    return result;
}

/* ---- elastic ------------------------------------------------------------------------------- */

VECTOR_CLONES
static void look_ahead(size_t count, float momentum, const float *x, const float *v, float *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = x[i] + momentum * v[i];
}

VECTOR_CLONES
static void elastic_pull(size_t count, float share, const float *center, float *x)
{
    for (size_t i = 0; i < count; i++)
        x[i] -= share * (x[i] - center[i]);
}

VECTOR_CLONES
static void momentum_step(size_t count, float lr, float momentum, const float *gradient, float *v,
                          float *x)
{
    for (size_t i = 0; i < count; i++) {
        float velocity = momentum * v[i] - lr * gradient[i];
        v[i] = flush_subnormal(velocity);
        x[i] += velocity;
    }
}

VECTOR_CLONES
static void subtract(size_t count, const float *a, const float *b, float *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = a[i] - b[i];
}

/* As in the paper, the first gradient after an exchange is computed at the x before it. */
static status run_elastic(struct local_steps *l, struct source *s)
{
    status result = OK;
    const struct local_steps_plan *p = l->plan;
    struct local_steps_push *push = s->push;
    float *gradient = push->difference;
    float share = (float)(p->outer.rate / (1 - p->outer.rate));
    bool exchanged = l->started;
    if (!l->started) {
        memcpy(l->parameters, push->parameters, p->count * sizeof(float));
        if (l->velocity != NULL)
            memset(l->velocity, 0, p->count * sizeof(float));
        l->started = true;
    }
    for (unsigned j = 0; j < p->outer.steps; j++) {
        float *at = l->velocity != NULL ? push->scratch : l->parameters;
        if (l->velocity != NULL)
            look_ahead(p->count, p->rule.momentum, l->parameters, l->velocity, at);
        TRY(step_gradient(s, push->number * p->outer.steps + j, at, gradient));
        if (p->rule.weight_decay > 0)
            vector_add_weighted(p->count, p->rule.weight_decay, at, false, gradient);
        if (exchanged && j == 0)
            elastic_pull(p->count, share, push->parameters, l->parameters);
        float lr = (float)rate_of(p, push->samples, j);
        if (l->velocity != NULL)
            momentum_step(p->count, lr, p->rule.momentum, gradient, l->velocity, l->parameters);
        else
            vector_add_weighted(p->count, -lr, gradient, false, l->parameters);
    }
    subtract(p->count, push->parameters, l->parameters, push->difference);
done:
    return result;
}

/* Rounding and coding count as computing: they delay the push, and no other process takes part. */
static void round_read(const struct local_steps_plan *p, struct local_steps_push *push,
                       uint64_t *ns)
{
    const uint64_t begin = clock_ns();
    float *rounded = push->scratch + step_vectors(p) * stride(p);
    pull_code_round(&p->pull, push->parameters, p->count, rounded);
    push->parameters = rounded;
    *ns += clock_ns() - begin;
}

static void compress(struct local_steps *l, struct local_steps_push *push)
{
    const uint64_t begin = clock_ns();
    push->coded = push_codes_apply(&l->codes, push->samples, push->difference, push->stats.loss);
    push->stats.compute_ns += clock_ns() - begin;
}

static status take_steps(struct local_steps *l, struct source *s)
{
    status result = OK;
    const struct local_steps_plan *p = l->plan;
    struct local_steps_push *push = s->push;
    if (p->outer.rule == NULL)
        return s->gradient(s->context, push->parameters, push->number, push->difference,
                           &push->stats);
    push->stats = (struct step_stats){0};
    TRY(p->outer.rule->elastic ? run_elastic(l, s) : run_from_read(p, s));
    push->stats.loss = (float)(s->losses / p->outer.steps);
done:
    return result;
}

status local_steps_run(struct local_steps *l, local_gradient *gradient, void *context,
                       struct local_steps_push *push)
{
    status result = OK;
    struct source s = {.gradient = gradient, .context = context, .push = push};
    uint64_t rounding_ns = 0;
    push->coded = false;
    if (l->plan->pull.kind != NULL)
        round_read(l->plan, push, &rounding_ns);
    TRY(take_steps(l, &s));
    push->stats.compute_ns += rounding_ns;
    if (push_codes_enabled(&l->codes))
        compress(l, push);
done:
    return result;
}
