/* outer.c — the registry of outer rules, what they go with, and the optimizer each one is. */
#include "ps/outer.h"
#include "worker/vector.h"

#include <string.h>

#define OUTER(name) extern const struct outer_rule outer_##name;
#include "ps/outer.def"
#undef OUTER

static const struct about *const entries[] = {
#define OUTER(name) &outer_##name.about,
#include "ps/outer.def"
#undef OUTER
};
const struct registry outer_registry = {"outer", entries, COUNT_OF(entries)};

enum { STEPS, RATE, MOMENTUM, RHO = MOMENTUM, EVERY, OUTER_PARAMETERS };

#define DEFAULT_BETA 0.9 /* of elastic averaging: α = β / workers */

/* ---- differences to the parameters of now -------------------------------------------------- */

VECTOR_CLONES
static void from_now(size_t count, const struct correction_vectors *v)
{
    for (size_t i = 0; i < count; i++) {
        v->out[i] = v->gradient[i] + (v->now[i] - v->read_at[i]);
    }
}

static void block(const struct correction_call *call UNUSED, size_t count,
                  const struct correction_vectors *v)
{
    from_now(count, v);
}

const struct correction_rule outer_from_now = {
    .about = {"from-now", "the difference to the parameters of now", NULL, NULL},
    .block = block,
};

/* ---- settings ------------------------------------------------------------------------------ */

static bool is(const options *o, const char *key, const char *value)
{
    return strcmp(options_text(o, key), value) == 0;
}

/* What one side of an elastic exchange counts on, nothing may change on the other. */
static status check_elastic(const options *o, const char *name)
{
    status result = OK;
    if (!is(o, "consistency", "asp")) {
        FAIL(ERROR_USAGE,
             "outer=%s: both sides of an exchange move at once, and consistency=%s would hold or "
             "drop one of them; use consistency=asp",
             name, options_text(o, "consistency"));
    }
    if (!is(o, "damping", "none")) {
        FAIL(ERROR_USAGE,
             "outer=%s: damping=%s would scale the server's side of an exchange alone, and the "
             "spring would not be one; leave it out, or lower outer.moving_rate",
             name, options_text(o, "damping"));
    }
    if (is(o, "optimizer", "momentum")) {
        FAIL(ERROR_USAGE,
             "outer=%s takes local steps by optimizer=sgd (EASGD) or optimizer=nesterov (EAMSGD); "
             "its paper has none by optimizer=momentum",
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
    if (local.form == OPTIMIZER_HOST_ONLY) {
        FAIL(ERROR_USAGE,
             "outer=%s takes local steps by optimizer=sgd, momentum or nesterov; with "
             "optimizer=%s only a server's own update goes",
             name, options_text(o, "optimizer"));
    }
    if (options_declared(o, "probe_every") && options_integer(o, "probe_every") > 0) {
        FAIL(ERROR_USAGE,
             "probe_every compares gradients of one batch, and with outer=%s workers send the sum "
             "of several steps; leave one of them out",
             name);
    }
    if (!is(o, "correction", "none")) {
        FAIL(ERROR_USAGE,
             "correction=%s is made of gradients, and with outer=%s workers send differences of "
             "parameters; leave one of them out",
             options_text(o, "correction"), name);
    }
    if (rule->elastic) {
        TRY(check_elastic(o, name));
    }
done:
    return result;
}

status outer_open(struct outer *out, const options *o, unsigned workers)
{
    status result = OK;
    const struct about *about = NULL;
    double parameters[OUTER_PARAMETERS];
    *out = (struct outer){.steps = 1, .every = 1};
    if (!options_declared(o, "outer")) {
        goto done;
    }
    TRY(registry_require(&outer_registry, options_text(o, "outer"), &about));
    if (about == &outer_none.about) {
        goto done;
    }
    const struct outer_rule *rule = (const struct outer_rule *)about;
    TRY(check(o, rule));
    registry_parameters(about, o, parameters, OUTER_PARAMETERS);
    bool by_workers = rule == &outer_delayed_nesterov && parameters[EVERY] == 0;
    *out = (struct outer){.rule = rule,
                          .steps = (unsigned)parameters[STEPS],
                          .rate = rule->elastic && parameters[RATE] == 0 ? DEFAULT_BETA / workers
                                                                         : parameters[RATE],
                          .momentum = rule->proximal ? 0 : parameters[MOMENTUM],
                          .proximal = rule->proximal ? parameters[RHO] : 0,
                          .every = by_workers               ? workers
                                   : parameters[EVERY] == 0 ? 1
                                                            : (unsigned)parameters[EVERY]};
done:
    return result;
}

status outer_optimizer(optimizer **out, const struct outer *outer, size_t count)
{
    bool plain = outer->rule == &outer_sgd || outer->rule->as_step == &outer_from_now;
    return optimizer_open_outer(out, outer->momentum, plain ? 0 : outer->every, count);
}
