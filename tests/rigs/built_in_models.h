/* built_in_models.h — the models that gradlag itself computes: first those that read images, then
 * those that read tokens. The last entry of the registry is the model of another program. */
#ifndef GRADLAG_TESTS_RIGS_BUILT_IN_MODELS_H
#define GRADLAG_TESTS_RIGS_BUILT_IN_MODELS_H

#include "worker/model/model.h"

/* The number of models on images: model_registry.entries[0 .. built_in_models()). */
static inline size_t built_in_models(void)
{
    size_t count = 0;
    const struct model_kind *kind;
    do {
        kind = (const struct model_kind *)model_registry.entries[count++];
    } while (!kind->external && !kind->reads_tokens);
    for (size_t i = count; i < model_registry.count; i++) {
        kind = (const struct model_kind *)model_registry.entries[i];
        REQUIRE(kind->external || kind->reads_tokens);
    }
    return count - 1;
}

/* The number on images and on tokens: model_registry.entries[0 .. all_built_in_models()). */
static inline size_t all_built_in_models(void)
{
    const size_t last = model_registry.count - 1;
    REQUIRE(((const struct model_kind *)model_registry.entries[last])->external);
    return last;
}

#endif
