/* Reads an experiment file and composes the settings of each arm. */
#include "experiments/claims/experiment.h"
#include "experiments/claims/expression.h"
#include "tests/fuzz/fuzz.h"

static status measure(void *context UNUSED, const char *name UNUSED, const char *arm UNUSED,
                      int64_t workers, double *out)
{
    *out = (double)workers;
    return OK;
}

static void compose(const struct experiment *e, const struct arm *arm, bool quick)
{
    const struct settings none = {0};
    struct settings all = {0};
    options *o = NULL;
    int64_t workers = arm->workers.count > 0 ? arm->workers.at[0] : e->workers.at[0];
    experiment_settings(e, arm, workers, e->seeds.at[0], quick, &none, &all);
    status code = config_compose(&o, &all);
    REQUIRE(code == OK || code == ERROR_USAGE);
    REQUIRE((code == OK) == (o != NULL));
    options_close(&o);
    settings_free(&all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct experiment e;
    const struct measures measures = {.measure = measure};
    double value;
    status code = experiment_open(&e, fuzz_file(data, size));
    REQUIRE(code == OK || code == ERROR_USAGE);
    for (size_t i = 0; code == OK && i < e.arm_count && i < 8; i++) {
        compose(&e, &e.arms[i], false);
        compose(&e, &e.arms[i], true);
    }
    for (size_t i = 0; code == OK && i < e.claim_count; i++) {
        if (e.claims[i].value != NULL) {
            status its = expression_value(e.claims[i].value, &measures, &value);
            REQUIRE(its == OK || its == ERROR_USAGE);
        }
    }
    experiment_close(&e);
    return 0;
}
