/* Evaluates the value of a claim. */
#include "base/memory.h"
#include "base/text.h"
#include "experiments/claims/expression.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <string.h>

static status measure(void *context UNUSED, const char *name, const char *arm, int64_t workers,
                      double number UNUSED, double *out)
{
    REQUIRE(strlen(name) < 64 && strlen(arm) < 64);
    *out = workers == 3 ? NAN : (double)workers;
    return name[0] == 'x' ? ERROR_USAGE : OK;
}

static status find_column(void *context UNUSED, const char (*names)[64], int64_t *out)
{
    return text_to_integer(names[0], out) ? OK : ERROR_USAGE;
}

static bool is_level(void *context UNUSED, const char *name)
{
    int64_t number;
    return text_to_integer(name, &number);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct measures measures = {
        .measure = measure, .levels = 1, .column = find_column, .is_level = is_level};
    double value = 0;
    char *text = fuzz_text(data, size);
    status code = expression_value(text, &measures, &value);
    REQUIRE(code == OK || code == ERROR_USAGE);
    memory_free(text);
    return 0;
}
