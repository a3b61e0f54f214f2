#include "base/registry.h"

#include "base/suggestion.h"

#include <string.h>

const struct about *registry_find(const struct registry *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->entries[i]->name, name) == 0)
            return r->entries[i];
    return NULL;
}

status registry_require(const struct registry *r, const char *name, const struct about **out)
{
    struct suggestion known = {.wanted = name};
    *out = registry_find(r, name);
    if (*out != NULL)
        return OK;
    for (size_t i = 0; i < r->count; i++)
        suggestion_add(&known, r->entries[i]->name);
    return suggestion_fail(&known, NULL, "%s: there is no %s", r->kind, r->kind);
}

void registry_parameters(const struct about *about, const options *o, double *out, size_t capacity)
{
    size_t count = 0;
    for (const struct option *its = about->options; its != NULL && its->key != NULL; its++) {
        REQUIRE(count < capacity);
        out[count++] =
            its->type == OPTION_FLAG ? options_flag(o, its->key) : options_real(o, its->key);
    }
    while (count < capacity)
        out[count++] = 0;
}
