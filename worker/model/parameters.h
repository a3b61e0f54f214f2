/*
 * parameters.h — the flat parameter vector of a model: its layers and named slices.
 *
 * The discovery pass of a model (tape.h, TAPE_DISCOVER) adds the layers in the order of their first
 * calls. A layer has a slice NAME.weight and, if it has a bias, a slice NAME.bias.
 */
#ifndef GRADLAG_WORKER_MODEL_PARAMETERS_H
#define GRADLAG_WORKER_MODEL_PARAMETERS_H

#include "worker/backend.h"
#include "worker/worker.h"

#define NO_SLICE ((size_t)-1)

enum { PARAMETER_NAME_BYTES = 128 };

struct layer {
    char name[48];
    enum op_kind kind;
    uint32_t weight_rank, weight_shape[4];
    uint32_t fan_in;     /* inputs of one output */
    bool last;           /* computes the logits: initialised with a smaller variance */
    float deviation;     /* standard deviation of the initial weights; 0: by fan_in and `last` */
    size_t weight, bias; /* slice numbers; bias may be NO_SLICE */
    size_t weight_at, bias_at; /* their offsets in the flat vector */
};

typedef struct parameter_table parameter_table;

status parameter_table_open(parameter_table **out) MUST_CHECK;
void parameter_table_close(parameter_table **t);

size_t parameter_table_layers(const parameter_table *t);
struct layer *parameter_table_layer(parameter_table *t, size_t index);
/* Index of the layer with this name, searching at `guess` first; parameter_table_layers() if there
 * is none. */
size_t parameter_table_find(const parameter_table *t, const char *name, size_t guess);
/* Adds a layer. The caller sets all members except slices and offsets. */
status parameter_table_add(parameter_table *t, const struct layer *l, bool biased) MUST_CHECK;
/* Adds a bias to a layer without one (its first call had no bias). */
status parameter_table_add_bias(parameter_table *t, size_t layer) MUST_CHECK;

/* Adds a slice that belongs to no layer, for an external model, which provides its initial values.
 * `hidden`: as in parameter_table_is_hidden_matrix. ERROR_DATA: the name is taken or too long. */
status parameter_table_add_slice(parameter_table *t, const char *name, unsigned rank,
                                 const uint32_t *shape, bool hidden) MUST_CHECK;

size_t parameter_table_count(const parameter_table *t); /* elements */
size_t parameter_table_slices(const parameter_table *t);
const struct parameter_slice *parameter_table_slice(const parameter_table *t, size_t index);
/* True: the slice is the weight of a linear layer or a convolution that does not compute the logits
 * (an external model names its hidden matrices). As a matrix it has shape[0] rows. */
bool parameter_table_is_hidden_matrix(const parameter_table *t, size_t index);

/* Weights: normal, mean 0, variance deviation² or, where that is 0, 2/fan_in (He et al. 2015, eq.
 * 10), 1/fan_in in the last layer; biases 0; batch norm and layer norm γ = 1, β = 0. Stream
 * RANDOM_INITIALISATION, step = slice. */
void parameter_table_initialise(const parameter_table *t, uint64_t seed, float *out);

#endif
