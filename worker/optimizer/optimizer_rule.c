/* optimizer_rule.c — the registry of optimizers, and what the settings say about the update. */
#include "worker/optimizer/optimizer.h"

#include <string.h>

#define OPTIMIZER(name) extern const struct optimizer_kind optimizer_##name;
#include "worker/optimizer/optimizer.def"
#undef OPTIMIZER

static const struct about *const entries[] = {
#define OPTIMIZER(name) &optimizer_##name.about,
#include "worker/optimizer/optimizer.def"
#undef OPTIMIZER
};
const struct registry optimizer_registry = {"optimizer", entries, COUNT_OF(entries)};

const struct option optimizer_momentum_options[] = {
    {"optimizer.momentum_correction", OPTION_FLAG, "true", 0, 0, NULL, NULL,
     "true: v = momentum v + g, step lr v; false: v = momentum v + lr g, step v, so each gradient "
     "keeps the learning rate of its own update"},
    {0},
};

status optimizer_kind_of(const options *o, const struct optimizer_kind **out)
{
    status result = OK;
    const struct about *about = NULL;
    TRY(registry_require(&optimizer_registry, options_text(o, "optimizer"), &about));
    *out = (const struct optimizer_kind *)about;
done:
    return result;
}

status optimizer_rule_of(const options *o, struct optimizer_rule *out)
{
    status result = OK;
    const struct optimizer_kind *kind;
    double parameters[OPTIMIZER_PARAMETERS];
    TRY(optimizer_kind_of(o, &kind));
    const bool matrices = strcmp(options_text(o, "weight_decay_of"), "matrices") == 0 &&
                          options_real(o, "weight_decay") > 0;
    const float clip = (float)options_real(o, "clip_norm");
    const bool by_layer = kind->layer_factor != NULL || kind->matrix != NULL || matrices;
    registry_parameters(&kind->about, o, parameters, OPTIMIZER_PARAMETERS);
    *out = (struct optimizer_rule){.form = matrices || clip > 0 ? OPTIMIZER_HOST_ONLY : kind->form,
                                   .states = kind->states,
                                   .momentum = (float)options_real(o, "momentum"),
                                   .weight_decay = (float)options_real(o, "weight_decay"),
                                   .rate_inside = kind->layer_factor != NULL ||
                                                  (kind->momentum_correction && parameters[0] == 0),
                                   .decay_matrices = matrices,
                                   .clip_norm = clip,
                                   .by_layer = by_layer,
                                   .local_steps =
                                       !by_layer && clip == 0 &&
                                       (kind->form != OPTIMIZER_HOST_ONLY || kind->local_steps)};
done:
    return result;
}

const char *optimizer_rule_key(const struct optimizer_rule *rule)
{
    return rule->clip_norm > 0    ? "clip_norm"
           : rule->decay_matrices ? "weight_decay_of"
                                  : "optimizer";
}

status optimizer_has_momentum(const options *o, bool *out)
{
    status result = OK;
    const struct optimizer_kind *kind;
    TRY(optimizer_kind_of(o, &kind));
    *out = kind->has_momentum;
done:
    return result;
}

status optimizer_added_decay(const options *o, double *out)
{
    status result = OK;
    struct optimizer_rule rule;
    const struct optimizer_kind *kind;
    TRY(optimizer_kind_of(o, &kind));
    TRY(optimizer_rule_of(o, &rule));
    bool added = !kind->decay_apart && kind->layer_factor == NULL && !rule.decay_matrices;
    *out = added ? options_real(o, "weight_decay") : 0;
done:
    return result;
}

struct optimizer_rates optimizer_rule_rates(const struct optimizer_rule *rule, double scale,
                                            double lr)
{
    if (!rule->rate_inside) {
        return (struct optimizer_rates){
            (float)scale, (float)lr, rule->momentum, rule->weight_decay, {0}};
    }
    return (struct optimizer_rates){
        (float)(scale * lr), 1, rule->momentum, (float)((double)rule->weight_decay * lr), {0}};
}
