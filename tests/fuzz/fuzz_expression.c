/* Evaluates the value of a claim. */
#include "base/memory.h"
#include "experiments/claims/expression.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <string.h>

static status measure(void *context UNUSED, const char *name, const char *arm, int64_t workers,
                      double *out)
{
    REQUIRE(strlen(name) < 64 && strlen(arm) < 64);
    *out = workers == 3 ? NAN : (double)workers;
    return name[0] == 'x' ? ERROR_USAGE : OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct measures measures = {.measure = measure};
    double value = 0;
    char *text = fuzz_text(data, size);
    status code = expression_value(text, &measures, &value);
    REQUIRE(code == OK || code == ERROR_USAGE);
    memory_free(text);
    return 0;
}
