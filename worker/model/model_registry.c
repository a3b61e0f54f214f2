#include "worker/model/model.h"

#include <string.h>

#define MODEL(name) extern const struct model_kind name;
#include "worker/model/model.def"
#undef MODEL

static const struct about *const entries[] = {
#define MODEL(name) &name.about,
#include "worker/model/model.def"
#undef MODEL
};

const struct registry model_registry = {"model", entries, COUNT_OF(entries)};

bool model_is_external(const options *o)
{
    return ((const struct model_kind *)registry_find(&model_registry, options_text(o, "model")))
        ->external;
}

static status reads(const struct model_kind *kind, const options *o, const struct dataset *d)
{
    status result = OK;
    if (kind->reads_tokens != d->tokens) {
        FAIL(
            ERROR_USAGE,
            "%s: model=%s reads %s, but dataset=%s has %s; set dataset=%s, or choose another model "
            "(`gradlag list models`)",
            options_origin(o, options_was_set(o, "model") ? "model" : "dataset"), kind->about.name,
            kind->reads_tokens ? "tokens" : "images", options_text(o, "dataset"),
            d->tokens ? "tokens" : "images", kind->reads_tokens ? "text" : "fashion-mnist");
    }
done:
    return result;
}

status model_open(struct model *out, const options *o, const struct dataset *d)
{
    status result = OK;
    const struct about *about;
    TRY(registry_require(&model_registry, options_text(o, "model"), &about));
    *out = (struct model){.kind = (const struct model_kind *)about, .classes = d->classes};
    TRY(reads(out->kind, o, d));
    if (out->kind->configure != NULL)
        TRY(out->kind->configure(out, o));
done:
    return result;
}

status model_check(const options *o, bool tokens)
{
    struct model unused;
    return model_open(&unused, o, &(struct dataset){.tokens = tokens});
}

/* The shape of the logits for inputs of this shape. */
static struct shape logits_of(const struct model *m, struct shape input)
{
    return m->kind->reads_tokens ? (struct shape){input.height, 1, m->classes}
                                 : (struct shape){m->classes, 1, 1};
}

status model_discover(const struct model *m, struct shape input, parameter_table *parameters)
{
    status result = OK;
    tape *t = NULL;
    TRY(tape_open(&t, NULL, parameters, TAPE_DISCOVER, input, 1));
    tensor *x = tape_begin(t, NULL, NULL);
    tensor *logits = m->kind->forward(t, x, m);
    tape_mark_last(t, logits);
    struct shape s = tensor_shape(logits), wanted = logits_of(m, input);
    if (m->kind->declare != NULL)
        m->kind->declare(t, x, m);
    TRY(tape_finish(t, NULL, 0, NULL));
    if (memcmp(&s, &wanted, sizeof s) != 0) {
        FAIL(ERROR_USAGE,
             "the output of model %s has shape %u×%u×%u for %u classes; it must be %u×%u×%u",
             m->kind->about.name, s.channels, s.height, s.width, m->classes, wanted.channels,
             wanted.height, wanted.width);
    }
done:
    tape_close(&t);
    if (result != OK) {
        error_add_context(result, "model %s with %s of %u×%u×%u", m->kind->about.name,
                          m->kind->reads_tokens ? "tokens" : "images", input.channels, input.height,
                          input.width);
    }
    return result;
}
