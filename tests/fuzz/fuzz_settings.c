/* Composes settings from a command line, one per line. If they compose, their written form must
 * compose to the same settings. */
#include "base/memory.h"
#include "base/text.h"
#include "experiments/config/config.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

enum { SETTINGS = 32 };

static size_t cut(char *text, char *lines[SETTINGS])
{
    size_t count = 0;
    for (char *at = text; at != NULL && count < SETTINGS; count++) {
        lines[count] = at;
        at = strchr(at, '\n');
        if (at != NULL)
            *at++ = '\0';
    }
    return count;
}

static void assert_composes_to_the_same(const options *o)
{
    struct settings again = {0};
    struct text before = {0}, after = {0};
    options *twin = NULL;
    config_arguments(o, &again);
    REQUIRE(config_compose(&twin, &again) == OK);
    config_json(o, &before);
    config_json(twin, &after);
    REQUIRE(strcmp(before.at, after.at) == 0);
    text_free(&before);
    text_free(&after);
    options_close(&twin);
    settings_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct settings all = {0};
    options *o = NULL;
    char *lines[SETTINGS], other[] = "lr=1";
    char *text = fuzz_text(data, size);
    size_t count = cut(text, lines);
    for (size_t i = 0; i < count; i++)
        if (strchr(lines[i], '=') == NULL) /* would be a file name */
            lines[i] = other;
    status code = settings_read_arguments(&all, (int)count, lines);
    REQUIRE(code == OK || code == ERROR_USAGE);
    if (code == OK) {
        code = config_compose(&o, &all);
        REQUIRE(code == OK || code == ERROR_USAGE);
    }
    if (code == OK)
        assert_composes_to_the_same(o);
    options_close(&o);
    settings_free(&all);
    memory_free(text);
    return 0;
}
