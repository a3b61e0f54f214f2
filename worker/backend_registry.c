#include "worker/backend.h"

#include <stdlib.h>
#include <string.h>

#define BACKEND(name) extern const struct backend_kind name;
#include "worker/backend.def"
#undef BACKEND

static const struct about *const entries[] = {
#define BACKEND(name) &name.about,
#include "worker/backend.def"
#undef BACKEND
};

const struct registry backend_registry = {"device", entries, COUNT_OF(entries)};

status backend_open(backend **out, const options *o, unsigned index, unsigned count)
{
    status result = OK;
    *out = NULL;
    struct backend_options chosen = {.threads = 1, .deterministic = true};
    const char *device = "cpu";
    if (options_declared(o, "device")) {
        device = options_text(o, "device");
    }
    if (options_declared(o, "threads")) {
        chosen.threads = (uint32_t)options_integer(o, "threads");
    }
    if (options_declared(o, "precision")) {
        const char *precision = options_text(o, "precision");
        chosen.precision = strcmp(precision, "bf16") == 0   ? PRECISION_BF16
                           : strcmp(precision, "tf32") == 0 ? PRECISION_TF32
                                                            : PRECISION_FP32;
    }
    if (options_declared(o, "deterministic")) {
        chosen.deterministic = options_flag(o, "deterministic");
    }
    chosen.place = placement_of(getenv, index, count, o);
    chosen.may_spin = placement_may_spin(&chosen.place, chosen.threads, processor_count());
    const struct about *about;
    TRY(registry_require(&backend_registry, device, &about));
    const struct backend_kind *kind = (const struct backend_kind *)about;
    TRY(kind->open(out, &chosen));
done:
    return result;
}

void backend_close(backend **b)
{
    if (*b != NULL) {
        (*b)->kind->close(*b);
        *b = NULL;
    }
}
