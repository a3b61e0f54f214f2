#include "base/forked_call.h"
#include "base/thread.h"
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

const char *op_name(enum op_kind kind)
{
    static const char *const names[] = {
        [OP_LINEAR] = "a linear layer",       [OP_CONVOLUTION] = "a convolution",
        [OP_MAX_POOL] = "a max pool",         [OP_AVERAGE_POOL] = "an average pool",
        [OP_ACTIVATION] = "an activation",    [OP_ADD] = "a sum",
        [OP_RESHAPE] = "a change of shape",   [OP_BATCH_NORM] = "batch norm",
        [OP_CROSS_ENTROPY] = "cross-entropy", [OP_SQUARED_ERROR] = "squared error",
        [OP_EMBEDDING] = "an embedding",      [OP_POSITION_EMBEDDING] = "a position embedding",
        [OP_LAYER_NORM] = "layer norm",       [OP_ATTENTION] = "causal attention",
    };
    REQUIRE((size_t)kind < COUNT_OF(names));
    return names[kind];
}

static status choose(const options *o, unsigned index, unsigned count,
                     const struct backend_kind **kind, struct backend_options *out)
{
    status result = OK;
    const char *precision = options_text(o, "precision");
    struct backend_options chosen = {
        .threads = (uint32_t)options_integer(o, "threads"),
        .precision = strcmp(precision, "bf16") == 0   ? PRECISION_BF16
                     : strcmp(precision, "tf32") == 0 ? PRECISION_TF32
                                                      : PRECISION_FP32,
    };
    chosen.place = placement_of(getenv, index, count, o);
    chosen.may_spin = placement_may_spin(&chosen.place, chosen.threads, processor_count());
    const struct about *about;
    TRY(registry_require(&backend_registry, options_text(o, "device"), &about));
    *kind = (const struct backend_kind *)about;
    *out = chosen;
done:
    return result;
}

status backend_open(backend **out, const options *o, unsigned index, unsigned count)
{
    status result = OK;
    const struct backend_kind *kind;
    struct backend_options chosen;
    *out = NULL;
    TRY(choose(o, index, count, &kind, &chosen));
    TRY(kind->open(out, &chosen));
done:
    return result;
}

struct chosen_backend {
    const struct backend_kind *kind;
    struct backend_options options;
};

static status check_chosen(const void *argument, void *out UNUSED)
{
    const struct chosen_backend *c = argument;
    return c->kind->check(&c->options);
}

status backend_check(const options *o)
{
    status result = OK;
    struct chosen_backend c;
    backend *b = NULL;
    const struct forked_call check = {
        .call = check_chosen,
        .argument = &c,
        .what = "the check of the device",
        .work = "initialises its driver",
        .advice = "check that the device's own tools (nvidia-smi) answer",
        .timeout_s = options_real(o, "timeout_s"),
    };
    TRY(choose(o, 0, 1, &c.kind, &c.options));
    TRY(c.kind->check != NULL ? forked_call(&check, NULL, 0) : c.kind->open(&b, &c.options));
done:
    backend_close(&b);
    return result;
}

void backend_close(backend **b)
{
    if (*b != NULL) {
        (*b)->kind->close(*b);
        *b = NULL;
    }
}
