/* built_in_models.h — the models that gradlag itself computes: all of the registry but the last. */
#ifndef GRADLAG_TESTS_RIGS_BUILT_IN_MODELS_H
#define GRADLAG_TESTS_RIGS_BUILT_IN_MODELS_H

#include "worker/model/model.h"

/* model_registry.entries[0 .. built_in_models()). */
static inline size_t built_in_models(void)
{
    const size_t last = model_registry.count - 1;
    REQUIRE(((const struct model_kind *)model_registry.entries[last])->external);
    return last;
}

#endif
