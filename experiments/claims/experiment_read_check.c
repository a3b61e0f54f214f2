/* experiment_read_check.c — checks of a whole experiment file: settings without effect, and seeds
 * of trials. */
#include "experiments/claims/experiment_read.h"

#include "experiments/config/config_effect.h"

#include <stdlib.h>
#include <string.h>

bool experiment_is_of_run(const char *key)
{
    return strcmp(key, "seed") == 0 || strcmp(key, "experiment") == 0 || strcmp(key, "arm") == 0;
}

/* Whether the columns set the key, or another length of training if it is one. */
static bool columns_set(const struct experiment *e, const char *key, bool or_length)
{
    const bool length = or_length && config_is_length(key);
    bool any =
        e->axis != NULL && (strcmp(e->axis, key) == 0 || (length && config_is_length(e->axis)));
    for (const struct experiment_axis *a = e->axes; a < e->axes + e->axis_count; a++)
        any = any ||
              (!a->named && (strcmp(a->name, key) == 0 || (length && config_is_length(a->name))));
    return any;
}

bool experiment_sets_itself(const struct experiment *e, const char *key)
{
    return experiment_is_of_run(key) || columns_set(e, key, true);
}

/* A length that all arms share may be replaced by that of the columns; an arm's own may not. */
static status check_settings(const struct experiment *e, const struct settings *s, bool own)
{
    status result = OK;
    for (size_t i = 0; i < s->count; i++) {
        const char *key = s->at[i].key;
        if (experiment_is_of_run(key) || columns_set(e, key, own)) {
            FAIL(ERROR_USAGE,
                 "%s: %s=%s would have no effect: the experiment sets the seed, its name, the arm "
                 "and the keys of its columns itself; remove the setting",
                 s->at[i].origin, key, s->at[i].value);
        }
    }
done:
    return result;
}

static status check_at(const struct experiment *e, const struct at_column *at, size_t count,
                       bool own)
{
    status result = OK;
    for (size_t i = 0; i < count; i++)
        TRY(check_settings(e, &at[i].settings, own));
done:
    return result;
}

/* Two named axes that set the same key: in a column only one of the two has an effect. */
static status check_levels(const struct experiment *e, size_t axis, const struct settings *s)
{
    status result = OK;
    for (size_t i = 0; i < s->count; i++) {
        for (size_t other = 0; other < axis; other++) {
            const struct experiment_axis *a = &e->axes[other];
            for (size_t l = 0; l < a->count; l++) {
                if (settings_find(&a->levels[l].settings, s->at[i].key) != NULL) {
                    FAIL(ERROR_USAGE,
                         "%s: axes '%s' and '%s' both set %s, so one of them would have no effect; "
                         "set it in one of them",
                         s->at[i].origin, a->name, e->axes[axis].name, s->at[i].key);
                }
            }
        }
    }
done:
    return result;
}

status experiment_check_settings(const struct experiment *e)
{
    status result = OK;
    TRY(check_settings(e, &e->settings, false));
    TRY(check_settings(e, &e->quick_settings, false));
    TRY(check_at(e, e->at, e->at_count, false));
    for (size_t i = 0; i < e->arm_count; i++) {
        TRY(check_settings(e, &e->arms[i].settings, true));
        TRY(check_at(e, e->arms[i].at, e->arms[i].at_count, true));
    }
    for (size_t i = 0; i < e->axis_count; i++) {
        for (size_t l = 0; l < e->axes[i].count; l++) {
            TRY(check_settings(e, &e->axes[i].levels[l].settings, true));
            TRY(check_levels(e, i, &e->axes[i].levels[l].settings));
        }
    }
done:
    return result;
}

/* Whether a run may have the seed: it is in a list, or one of the map's further seeds, which follow
 * `last`, the largest seed of the experiment. */
static bool may_have_seed(const struct experiment *e, const struct int_list *own,
                          const struct int_list *quick, int64_t seed, int64_t last)
{
    bool has = e->map_seeds > own->count && seed > last &&
               seed <= last + (int64_t)(e->map_seeds - own->count);
    for (size_t i = 0; i < own->count; i++)
        has = has || own->at[i] == seed;
    for (size_t i = 0; i < quick->count; i++)
        has = has || quick->at[i] == seed;
    return has;
}

status experiment_check_trial_seeds(const struct yaml_tree *d, const struct experiment *e)
{
    status result = OK;
    struct int_list own, quick;
    const struct node *arms = node_child(&d->root, "arms");
    experiment_seeds(e, false, &own);
    experiment_seeds(e, true, &quick);
    int64_t last = own.at[0];
    for (size_t i = 1; i < own.count; i++)
        last = own.at[i] > last ? own.at[i] : last;
    for (size_t a = 0; a < 2 * e->arm_count; a++) {
        const struct arm *arm = &e->arms[a / 2];
        const struct int_list *trials = a % 2 == 0 ? &arm->tune.seeds : &arm->quick_tune.seeds;
        for (size_t i = 0; i < trials->count; i++) {
            if (may_have_seed(e, &own, &quick, trials->at[i], last)) {
                FAIL(ERROR_USAGE,
                     "%s:%u: trials of arm '%s' cannot have seed %lld, because runs of the "
                     "experiment may have it, further seeds of its map included; give other "
                     "tune.seeds, for example [%lld]",
                     d->name, node_child(node_child(arms, arm->name), "tune")->line, arm->name,
                     (long long)trials->at[i], (long long)experiment_trial_seed(e));
            }
        }
    }
done:
    free(own.at);
    free(quick.at);
    return result;
}
