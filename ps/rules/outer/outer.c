/* outer.c — the registry of outer rules, their checks, and the optimizer of the server. */
#include "ps/rules/outer/outer.h"
#include "base/vector.h"
#include "ps/rules/consistency/consistency.h"
#include "ps/rules/damping/damping.h"

#include <string.h>

#define OUTER(name) extern const struct outer_rule outer_##name;
#include "ps/rules/outer/outer.def"
#undef OUTER

static const struct about *const entries[] = {
#define OUTER(name) &outer_##name.about,
#include "ps/rules/outer/outer.def"
#undef OUTER
};
const struct registry outer_registry = {"outer", entries, COUNT_OF(entries)};

/* ---- differences to the current parameters -------------------------------------------------- */

VECTOR_CLONES
static void from_now(size_t count, const struct correction_vectors *v)
{
    for (size_t i = 0; i < count; i++)
        v->out[i] = v->gradient[i] + (v->now[i] - v->read_at[i]);
}

static void block(const struct correction_call *call UNUSED, size_t count,
                  const struct correction_vectors *v)
{
    from_now(count, v);
}

const struct correction_rule outer_from_now = {
    .about = {"from-now", "the difference to the current parameters", NULL, NULL},
    .block = block,
};

/* ---- settings ------------------------------------------------------------------------------ */

/* An elastic exchange moves worker and server by the same amount in one event. */
static status check_elastic(const options *o, const char *name, const struct optimizer_rule *local)
{
    status result = OK;
    struct consistency consistency;
    struct damping damping;
    TRY(consistency_open(&consistency, o));
    if (!consistency_immediate(&consistency)) {
        FAIL(ERROR_USAGE,
             "outer=%s moves worker and server in one exchange, but consistency=%s may hold or "
             "drop a push; set consistency=asp",
             name, options_text(o, "consistency"));
    }
    TRY(damping_open(&damping, o));
    if (damping.rule->scale != NULL) {
        FAIL(ERROR_USAGE,
             "outer=%s moves worker and server by the same amount, but damping=%s would scale "
             "only the server's; set damping=none and lower outer.moving_rate",
             name, options_text(o, "damping"));
    }
    if (strcmp(options_text(o, "on_nonfinite"), "skip") == 0) {
        FAIL(ERROR_USAGE,
             "with outer=%s a worker keeps its own parameters: once they are not finite, all its "
             "pushes would be skipped; set on_nonfinite=stop",
             name);
    }
    if (local->form != OPTIMIZER_SGD && local->form != OPTIMIZER_NESTEROV) {
        FAIL(ERROR_USAGE,
             "outer=%s does not support optimizer=%s, which its paper does not define; set "
             "optimizer=sgd (EASGD) or optimizer=nesterov (EAMSGD)",
             name, options_text(o, "optimizer"));
    }
    if (local->rate_inside) {
        FAIL(ERROR_USAGE,
             "with outer=%s the learning rate is always inside the velocity, as in its paper, so "
             "optimizer.momentum_correction=false has no effect; leave it out",
             name);
    }
done:
    return result;
}

static status check(const options *o, const struct outer_rule *rule)
{
    status result = OK;
    const char *name = rule->about.name;
    struct optimizer_rule local;
    TRY(optimizer_rule_of(o, &local));
    if (!local.local_steps) {
        const char *key = optimizer_rule_key(&local);
        FAIL(ERROR_USAGE,
             "outer=%s does not support %s=%s for local steps; leave %s out, or set outer=none",
             name, key, options_value(o, key), key);
    }
    if (options_integer(o, "probe_every") > 0) {
        FAIL(ERROR_USAGE,
             "outer=%s excludes probe_every=%s: a probe compares gradients of one batch, but "
             "workers push the sum of several steps; set probe_every=0 or outer=none",
             name, options_value(o, "probe_every"));
    }
    if (strcmp(options_text(o, "correction"), "none") != 0) {
        FAIL(ERROR_USAGE,
             "outer=%s excludes correction=%s: a correction needs gradients, but workers push "
             "differences of parameters; set correction=none or outer=none",
             name, options_text(o, "correction"));
    }
    if (rule->elastic)
        TRY(check_elastic(o, name, &local));
done:
    return result;
}

status outer_open(struct outer *out, const options *o, unsigned workers)
{
    status result = OK;
    const struct about *about = NULL;
    double parameters[OUTER_PARAMETERS];
    *out = (struct outer){.steps = 1};
    TRY(registry_require(&outer_registry, options_text(o, "outer"), &about));
    const struct outer_rule *rule = (const struct outer_rule *)about;
    if (rule->read == NULL)
        goto done;
    TRY(check(o, rule));
    registry_parameters(about, o, parameters, OUTER_PARAMETERS);
    out->rule = rule;
    out->steps = (unsigned)parameters[0];
    rule->read(parameters, workers, out);
done:
    return result;
}

status outer_optimizer(optimizer **out, const struct outer *outer, size_t count)
{
    return optimizer_open_outer(out, outer->update, outer->parameters, count);
}
