/* consistency.c — the registry of consistency policies; see consistency.h. */
#include "ps/rules/consistency/consistency.h"

#define CONSISTENCY(name) extern const struct consistency_policy consistency_##name;
#include "ps/rules/consistency/consistency.def"
#undef CONSISTENCY

static const struct about *const entries[] = {
#define CONSISTENCY(name) &consistency_##name.about,
#include "ps/rules/consistency/consistency.def"
#undef CONSISTENCY
};
const struct registry consistency_registry = {"consistency", entries, COUNT_OF(entries)};

status consistency_open(struct consistency *out, const options *o)
{
    status result = OK;
    const struct about *about = NULL;
    TRY(registry_require(&consistency_registry, options_text(o, "consistency"), &about));
    out->policy = (const struct consistency_policy *)about;
    registry_parameters(about, o, out->parameters, CONSISTENCY_PARAMETERS);
done:
    return result;
}

status consistency_per_update(const struct consistency *c, unsigned workers, unsigned *out)
{
    status result = OK;
    const struct about *about = &c->policy->about;
    *out = c->policy->per_update == NULL ? 1 : c->policy->per_update(c->parameters, workers);
    if (*out == 0) {
        FAIL(ERROR_USAGE,
             "consistency=%s: %s=%g leaves no gradient for an update, because workers=%u; set it "
             "below the number of workers",
             about->name, about->options[0].key, c->parameters[0], workers);
    }
done:
    return result;
}

status consistency_mean_gradients(const struct consistency *c, unsigned workers, double *out)
{
    status result = OK;
    unsigned largest;
    TRY(consistency_per_update(c, workers, &largest));
    *out = c->policy->groups == NULL ? (double)largest
                                     : (double)workers / consistency_groups_of(c, workers);
done:
    return result;
}

unsigned consistency_groups_of(const struct consistency *c, unsigned workers)
{
    return c->policy->groups == NULL ? 1 : c->policy->groups(c->parameters, workers);
}

bool consistency_applies_now(const struct consistency *c, const struct consistency_view *view)
{
    return c->policy->apply_now == NULL || c->policy->apply_now(c->parameters, view);
}

bool consistency_immediate(const struct consistency *c)
{
    const struct consistency_policy *p = c->policy;
    return p->arrive == NULL && p->apply_now == NULL && p->may_go == NULL;
}
