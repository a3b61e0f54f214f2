/* Reads an experiment file and composes the settings of each arm. */
#include "experiments/claims/experiment.h"
#include "experiments/claims/expression.h"
#include "tests/fuzz/fuzz.h"

static status measure(void *context UNUSED, const char *name UNUSED, const char *arm UNUSED,
                      int64_t column, double number UNUSED, double *out)
{
    *out = (double)column;
    return OK;
}

static status find_column(void *context, const char (*names)[64], int64_t *out)
{
    return experiment_find_column(context, names, out);
}

static bool is_level(void *context, const char *name)
{
    const struct experiment *e = context;
    return experiment_axis_of_level(e, name) < experiment_level_count(e);
}

static void compose(const struct experiment *e, const struct arm *arm, bool quick)
{
    const struct settings none = {0};
    struct settings all = {0};
    options *o = NULL;
    const int64_t column = arm->columns.count > 0 ? arm->columns.at[0] : e->columns.at[0];
    experiment_settings(e, arm, column, e->seeds.at[0], quick, &none, &all);
    status code = config_compose(&o, &all);
    REQUIRE(code == OK || code == ERROR_USAGE);
    REQUIRE((code == OK) == (o != NULL));
    options_close(&o);
    settings_free(&all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct experiment e;
    struct measures measures = {
        .context = &e, .measure = measure, .column = find_column, .is_level = is_level};
    double value;
    status code = experiment_open(&e, fuzz_file(data, size));
    REQUIRE(code == OK || code == ERROR_USAGE);
    for (size_t i = 0; code == OK && i < e.arm_count && i < 8; i++) {
        compose(&e, &e.arms[i], false);
        compose(&e, &e.arms[i], true);
    }
    measures.levels = code == OK ? experiment_level_count(&e) : 1;
    for (size_t i = 0; code == OK && i < e.claim_count; i++) {
        if (e.claims[i].value != NULL) {
            status its = expression_value(e.claims[i].value, &measures, &value);
            REQUIRE(its == OK || its == ERROR_USAGE);
        }
    }
    experiment_close(&e);
    return 0;
}
