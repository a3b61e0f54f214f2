/* core_model_begin.c — the settings of the naive model; see core_model.h. */
#include "tests/ps/core/core_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "worker/optimizer/optimizer.h"

static void read_optimizer(struct model_optimizer *o, const options *settings,
                           const struct optimizer_kind *kind)
{
    snprintf(o->kind, sizeof o->kind, "%s", kind->about.name);
    size_t i = 0;
    for (const struct option *its = kind->about.options; its != NULL && its->key != NULL; its++) {
        o->option[i++] = its->type == OPTION_FLAG ? options_flag(settings, its->key)
                                                  : options_real(settings, its->key);
    }
    o->momentum = (float)options_real(settings, "momentum");
    o->weight_decay = (float)options_real(settings, "weight_decay");
    o->rate_inside = kind->layer_factor != NULL || (kind->momentum_correction && o->option[0] == 0);
}

/* With an outer rule key optimizer describes the local steps. */
static void read_outer(struct core_model *m, const options *settings,
                       const struct outer_rule *outer)
{
    enum { STEPS, RATE, MOMENTUM, EVERY, WEIGHT = 8 };
    const char *name = outer->about.name;
    struct model_optimizer *o = &m->optimizer;
    double option[OUTER_PARAMETERS] = {0};
    registry_parameters(&outer->about, settings, option, OUTER_PARAMETERS);
    m->outer = true;
    m->from_now = outer->elastic || strcmp(name, "fedasync") == 0;
    m->outer_rate = outer->elastic && option[RATE] == 0 ? 0.9 / m->workers : option[RATE];
    bool plain = m->from_now || strcmp(name, "sgd") == 0;
    bool nesterov = strstr(name, "nesterov") != NULL;
    snprintf(o->kind, sizeof o->kind,
             plain                       ? "sgd"
             : strcmp(name, "adam") == 0 ? "outer-adam"
             : nesterov                  ? "delayed-nesterov"
                                         : name);
    memcpy(o->option, option + MOMENTUM, (OUTER_PARAMETERS - MOMENTUM) * sizeof *option);
    if (nesterov) {
        bool delayed = strcmp(name, "nesterov") != 0;
        o->option[1] = !delayed ? 1 : option[EVERY] > 0 ? option[EVERY] : m->workers;
    } else if (option[WEIGHT] == 0) {
        o->option[WEIGHT - MOMENTUM] = 1 / sqrt(m->workers);
    }
    o->momentum = o->weight_decay = 0;
    o->rate_inside = false;
}

static const struct about *chosen(const struct registry *r, const options *o, const char *key)
{
    const struct about *about = registry_find(r, options_text(o, key));
    assert_non_null(about);
    return about;
}

void model_begin(struct core_model *m, const options *o, const float *initial,
                 uint64_t epoch_samples)
{
    const struct about *policy = chosen(&consistency_registry, o, "consistency");
    const struct about *damping = chosen(&damping_registry, o, "damping");
    const struct about *correction = chosen(&correction_registry, o, "correction");
    const struct about *outer = chosen(&outer_registry, o, "outer");
    m->workers_max = m->workers_max > 0 ? m->workers_max : m->workers;
    m->policy = (const struct consistency_policy *)policy;
    m->damping = (const struct damping_rule *)damping;
    m->correction = (const struct correction_rule *)correction;
    registry_parameters(policy, o, m->policy_parameters, CONSISTENCY_PARAMETERS);
    registry_parameters(damping, o, m->damping_parameters, DAMPING_PARAMETERS);
    registry_parameters(correction, o, m->correction_parameters, CORRECTION_PARAMETERS);
    read_optimizer(&m->optimizer, o,
                   (const struct optimizer_kind *)chosen(&optimizer_registry, o, "optimizer"));
    bool apart = strcmp(options_text(o, "optimizer"), "adamw") == 0 ||
                 strcmp(options_text(o, "optimizer"), "lion") == 0 ||
                 strcmp(options_text(o, "optimizer"), "nadamw") == 0 ||
                 strcmp(options_text(o, "optimizer"), "muon") == 0 ||
                 strcmp(options_text(o, "optimizer"), "lars") == 0;
    m->decay = apart ? 0 : options_real(o, "weight_decay");
    m->correction_scales =
        m->correction->scales || (strcmp(correction->name, "gap-aware") == 0 && m->decay > 0);
    if (strcmp(outer->name, "none") != 0)
        read_outer(m, o, (const struct outer_rule *)outer);
    m->momentum_set = m->momentum_now = options_real(o, "momentum");
    if (m->correction->momentum != NULL) {
        const unsigned independent = m->policy->groups != NULL ? model_groups(m) : m->workers;
        m->momentum_now =
            m->correction->momentum(m->correction_parameters, independent, m->momentum_set);
        m->optimizer.momentum = (float)m->momentum_now;
    }
    assert_int_equal(schedule_open(&m->schedule, o, m->workers, m->total, epoch_samples), OK);
    memcpy(m->theta, initial, m->count * sizeof(float));
    memcpy(m->past[0], m->theta, sizeof m->theta);
}
