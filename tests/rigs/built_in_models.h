/* built_in_models.h — the models that gradlag itself computes, on images. Those that read tokens
 * follow them in the registry, and the model of another program is the last one. */
#ifndef GRADLAG_TESTS_RIGS_BUILT_IN_MODELS_H
#define GRADLAG_TESTS_RIGS_BUILT_IN_MODELS_H

#include "worker/model/model.h"

/* model_registry.entries[0 .. built_in_models()). */
static inline size_t built_in_models(void)
{
    size_t count = 0;
    const struct model_kind *kind;
    do {
        kind = (const struct model_kind *)model_registry.entries[count++];
    } while (!kind->external && !kind->reads_tokens);
    return count - 1;
}

#endif
