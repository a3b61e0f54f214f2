/*
 * model.h — the models and their registry. A model is a C function on a tape (tape.h).
 *
 * Adding a model: worker/model/model_NAME.c with a `struct model_kind`, and one line in model.def.
 */
#ifndef GRADLAG_WORKER_MODEL_MODEL_H
#define GRADLAG_WORKER_MODEL_MODEL_H

#include "worker/model/tape.h"

struct model;

/* One model: an entry of model_registry. */
struct model_kind {
    struct about about;
    /* Reads the model's options, which about.options declares, into m->settings; NULL: no options.
     */
    status (*configure)(struct model *m, const options *o);
    /* Maps images to logits or predicted numbers (m->classes×1×1), or tokens (1×T×1) to the logits
     * of the next token at each position (T×1×m->classes). A pure function of its arguments. */
    tensor *(*forward)(tape *t, tensor *x, const struct model *m);
    /* Calls the layers that `forward` may not reach in the discovery pass; NULL: no such layers. */
    void (*declare)(tape *t, tensor *x, const struct model *m);
    bool reads_tokens; /* the input is tokens; else images */
    bool external; /* another program computes it (worker/external/), and the functions are NULL */
};
extern const struct registry model_registry;

struct model {
    const struct model_kind *kind;
    uint32_t classes;
    int64_t settings[8];
};

/* True: another program computes the model that key `model` names. */
bool model_is_external(const options *o);
/* ERROR_USAGE: the model reads tokens and the dataset has images (`tokens` false), or the reverse;
 * or the model's options contradict each other. */
status model_check(const options *o, bool tokens) MUST_CHECK;
/* The model named by key `model`, with its options, for this dataset's classes. ERROR_USAGE:
 * as model_check. */
status model_open(struct model *out, const options *o, const struct dataset *d) MUST_CHECK;
/* Finds the model's layers for images of this shape and adds them to `parameters`. */
status model_discover(const struct model *m, struct shape input,
                      parameter_table *parameters) MUST_CHECK;

#endif
