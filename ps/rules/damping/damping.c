/* damping.c — the registry of damping rules; calling the chosen rule. */
#include "ps/rules/damping/damping.h"

#include "base/memory.h"

#include <math.h>

#define DAMPING(name) extern const struct damping_rule damping_##name;
#include "ps/rules/damping/damping.def"
#undef DAMPING

static const struct about *const entries[] = {
#define DAMPING(name) &damping_##name.about,
#include "ps/rules/damping/damping.def"
#undef DAMPING
};
const struct registry damping_registry = {"damping", entries, COUNT_OF(entries)};

status damping_open(struct damping *out, const options *o)
{
    status result = OK;
    const struct about *about = NULL;
    *out = (struct damping){0};
    TRY(registry_require(&damping_registry, options_text(o, "damping"), &about));
    out->rule = (const struct damping_rule *)about;
    registry_parameters(about, o, out->parameters, DAMPING_PARAMETERS);
done:
    return result;
}

status damping_allocate(struct damping *d, unsigned workers)
{
    status result = OK;
    struct damping_history *h = &d->history;
    if (d->rule->needs_history) {
        h->workers = workers;
        TRY(memory_new(&h->ages, DAMPING_AGES, sizeof *h->ages, "staleness counts"));
        TRY(memory_new(&h->computed, workers, sizeof *h->computed, "gradients per worker"));
        TRY(memory_new(&h->compute_us, workers, sizeof *h->compute_us, "times per worker"));
    }
done:
    return result;
}

void damping_close(struct damping *d)
{
    memory_free(d->history.ages);
    memory_free(d->history.computed);
    memory_free(d->history.compute_us);
    *d = (struct damping){0};
}

/* Rounds as the results file does. The time comes from a worker: it may be NaN, negative or so
 * large that the sum would overflow. A checkpoint keeps sums up to 2⁵³. */
static uint64_t whole_us(double us)
{
    static const double most = (double)(UINT64_C(1) << 36); /* 19 hours */
    return us >= 0 ? (uint64_t)nearbyint(fmin(us, most)) : 0;
}

void damping_observe(struct damping *d, unsigned worker, uint64_t staleness, double compute_us)
{
    struct damping_history *h = &d->history;
    if (h->ages != NULL) {
        REQUIRE(worker < h->workers);
        h->count++;
        h->ages[staleness < DAMPING_AGES ? staleness : DAMPING_AGES - 1]++;
        h->computed[worker]++;
        h->compute_us[worker] += whole_us(compute_us);
    }
}

bool damping_drops(const struct damping *d)
{
    return d->rule->drops != NULL && d->rule->drops(d->parameters);
}

double damping_scale(const struct damping *d, const struct damping_input *input, bool *drop)
{
    struct damping_input seen = *input;
    seen.history = d->history.ages != NULL ? &d->history : NULL;
    *drop = false;
    double scale = d->rule->scale == NULL ? 1 : d->rule->scale(d->parameters, &seen, drop);
    REQUIRE(isfinite(scale) && scale >= 0);
    REQUIRE(!*drop || damping_drops(d));
    return *drop ? 0 : scale;
}
