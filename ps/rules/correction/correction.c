/* correction.c — the registry of corrections, calling the chosen rule, and its state. */
#include "ps/rules/correction/correction.h"

#include "base/memory.h"
#include "ps/rules/outer/outer.h"
#include "worker/optimizer/optimizer.h"

#include <string.h>

#define CORRECTION(name) extern const struct correction_rule correction_##name;
#include "ps/rules/correction/correction.def"
#undef CORRECTION

static const struct about *const entries[] = {
#define CORRECTION(name) &correction_##name.about,
#include "ps/rules/correction/correction.def"
#undef CORRECTION
};
const struct registry correction_registry = {"correction", entries, COUNT_OF(entries)};

static status check_no_other_momentum(const options *o, const char *name,
                                      const struct optimizer_rule *update)
{
    status result = OK;
    if (strcmp(options_text(o, "optimizer"), "sgd") != 0) {
        FAIL(ERROR_USAGE,
             "correction=%s has its own momentum (correction.momentum) and excludes optimizer=%s; "
             "set optimizer=sgd",
             name, options_text(o, "optimizer"));
    }
    if (update->form != OPTIMIZER_SGD) {
        const char *key = optimizer_rule_key(update);
        FAIL(ERROR_USAGE,
             "%s: with correction=%s the update is the momentum, not a gradient, so %s has another "
             "meaning; leave it out",
             options_origin(o, key), name, key);
    }
done:
    return result;
}

static status find(const options *o, const struct correction_rule **out)
{
    status result = OK;
    const struct about *about = NULL;
    struct optimizer_rule update;
    bool has_momentum;
    TRY(registry_require(&correction_registry, options_text(o, "correction"), &about));
    *out = (const struct correction_rule *)about;
    TRY(optimizer_rule_of(o, &update));
    if ((*out)->own_momentum)
        TRY(check_no_other_momentum(o, about->name, &update));
    TRY(optimizer_has_momentum(o, &has_momentum));
    if ((*out)->momentum != NULL && !has_momentum) {
        FAIL(ERROR_USAGE,
             "correction=%s changes the momentum, but optimizer=%s has none; set "
             "optimizer=momentum or optimizer=nesterov",
             about->name, options_text(o, "optimizer"));
    }
    if ((*out)->adjust != NULL && (strcmp(options_text(o, "optimizer"), "momentum") != 0 ||
                                   options_real(o, "clip_norm") > 0)) {
        FAIL(ERROR_USAGE,
             "correction=%s measures the momentum of optimizer=momentum without clip_norm: other "
             "updates scale the gradient by more than lr; set optimizer=momentum clip_norm=0",
             about->name);
    }
done:
    return result;
}

status correction_check(const options *o)
{
    const struct correction_rule *rule;
    return find(o, &rule);
}

status correction_check_sums(const struct correction_rule *rule)
{
    status result = OK;
    if (rule->single_gradient) {
        FAIL(ERROR_USAGE,
             "correction=%s requires that every update has one gradient; set consistency=asp, or "
             "another correction",
             rule->about.name);
    }
done:
    return result;
}

status correction_open(struct correction *out, const options *o)
{
    status result = OK;
    struct outer outer;
    *out = (struct correction){0};
    TRY(find(o, &out->rule));
    TRY(outer_open(&outer, o, 1));
    if (outer.rule != NULL && outer.rule->as_step != NULL)
        out->rule = outer.rule->as_step; /* outer_open() requires correction=none */
    registry_parameters(&out->rule->about, o, out->parameters, CORRECTION_PARAMETERS);
    TRY(optimizer_added_decay(o, &out->decay));
    out->scales = out->rule->scales || (out->rule->scales_decay && out->decay > 0);
done:
    return result;
}

status correction_allocate(struct correction *c, unsigned workers, unsigned together, size_t count)
{
    status result = OK;
    c->count = count;
    c->workers = workers;
    REQUIRE(c->rule->shared <= CORRECTION_SHARED);
    for (unsigned i = 0; i < c->rule->shared; i++)
        for (int copy = 0; copy < 2; copy++)
            TRY(memory_new(&c->shared[i][copy], count, sizeof(float), "correction state"));
    if (c->rule->own) {
        c->spares = together;
        TRY(memory_new(&c->owner, together, sizeof *c->owner, "correction owners"));
        TRY(memory_new(&c->own, workers + together, sizeof *c->own, "correction states"));
        for (unsigned i = 0; i < workers + together; i++)
            TRY(memory_new(&c->own[i], count, sizeof(float), "correction state of a worker"));
    }
done:
    return result;
}

double correction_momentum(const struct correction *c, unsigned workers, const options *o)
{
    double set = options_real(o, "momentum");
    return c->rule->momentum != NULL ? c->rule->momentum(c->parameters, workers, set) : set;
}

void correction_close(struct correction *c)
{
    for (unsigned i = 0; c->own != NULL && i < c->workers + c->spares; i++)
        memory_free(c->own[i]);
    memory_free(c->own);
    memory_free(c->owner);
    for (unsigned i = 0; i < CORRECTION_SHARED; i++) {
        memory_free(c->shared[i][0]);
        memory_free(c->shared[i][1]);
    }
    *c = (struct correction){0};
}

void correction_begin(struct correction *c, const struct correction_context *context,
                      const float *gradient, const float *now, const float *read_at,
                      struct correction_call *call)
{
    *call = (struct correction_call){
        .parameters = c->parameters,
        .context = *context,
        .decay = c->decay,
        .parameters_changed = c->started && context->version > c->version,
        .rate = c->rate,
        .largest_rate = c->largest_rate,
        .whole = {.gradient = gradient, .now = now, .read_at = read_at},
    };
    /* The first gradient after a commit reads the valid copy; later ones read the new copy. */
    unsigned from = c->pending == 0 ? c->current : !c->current;
    for (unsigned i = 0; i < c->rule->shared; i++) {
        call->whole.shared_in[i] = c->shared[i][from];
        call->whole.shared_out[i] = c->shared[i][!c->current];
    }
    if (c->rule->own) {
        REQUIRE(context->worker < c->workers && c->pending < c->spares);
        c->owner[c->pending] = context->worker;
        call->whole.own_in = c->own[context->worker];
        call->whole.own_out = c->own[c->workers + c->pending];
    }
    c->pending++;
    c->started = true;
    c->version = context->version;
}

static const float *from(const float *vector, size_t at)
{
    return vector != NULL ? vector + at : NULL;
}

static float *into(float *vector, size_t at)
{
    return vector != NULL ? vector + at : NULL;
}

const float *correction_block(const struct correction *c, const struct correction_call *call,
                              size_t at, size_t count, float *scratch)
{
    const struct correction_vectors *w = &call->whole;
    if (c->rule->block == NULL)
        return w->gradient + at;
    struct correction_vectors v = {.gradient = w->gradient + at,
                                   .now = w->now + at,
                                   .read_at = w->read_at + at,
                                   .own_in = from(w->own_in, at),
                                   .own_out = into(w->own_out, at),
                                   .out = scratch};
    for (unsigned i = 0; i < CORRECTION_SHARED; i++) {
        v.shared_in[i] = from(w->shared_in[i], at);
        v.shared_out[i] = into(w->shared_out[i], at);
    }
    c->rule->block(call, count, &v);
    return scratch;
}

void correction_commit(struct correction *c)
{
    c->current = c->pending > 0 ? !c->current : c->current;
    for (unsigned i = 0; c->rule->own && i < c->pending; i++) {
        float *before = c->own[c->owner[i]];
        c->own[c->owner[i]] = c->own[c->workers + i];
        c->own[c->workers + i] = before;
    }
    c->pending = 0;
}

unsigned correction_state_vectors(const struct correction *c, float **out)
{
    unsigned count = 0;
    for (unsigned i = 0; i < c->rule->shared; i++)
        out[count++] = c->shared[i][c->current];
    for (unsigned w = 0; c->rule->own && w < c->workers; w++)
        out[count++] = c->own[w];
    return count;
}

void correction_updated(struct correction *c, double rate)
{
    c->rate = rate;
    c->largest_rate = rate > c->largest_rate ? rate : c->largest_rate;
}
