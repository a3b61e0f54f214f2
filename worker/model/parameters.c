#include "worker/model/parameters.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

#define NO_LAYER        ((size_t)-1)
#define PARAMETERS_MOST ((size_t)1 << 36)

struct slice {
    struct parameter_slice public;
    char name[PARAMETER_NAME_BYTES];
    size_t layer; /* NO_LAYER: of parameter_table_add_slice() */
    bool is_bias;
    bool hidden; /* only slices without a layer: the caller's `hidden` */
};

struct parameter_table {
    struct layer *layers;
    size_t layer_count, layer_capacity;
    struct slice *slices;
    size_t slice_count, slice_capacity;
    size_t count;
};

status parameter_table_open(parameter_table **out)
{
    return memory_new(out, 1, sizeof **out, "the parameter table");
}

void parameter_table_close(parameter_table **t)
{
    if (*t != NULL) {
        memory_free((*t)->layers);
        memory_free((*t)->slices);
        memory_free(*t);
        *t = NULL;
    }
}

size_t parameter_table_layers(const parameter_table *t)
{
    return t->layer_count;
}

struct layer *parameter_table_layer(parameter_table *t, size_t index)
{
    REQUIRE(index < t->layer_count);
    return &t->layers[index];
}

size_t parameter_table_find(const parameter_table *t, const char *name, size_t guess)
{
    if (guess < t->layer_count && strcmp(t->layers[guess].name, name) == 0)
        return guess;
    size_t i = 0;
    while (i < t->layer_count && strcmp(t->layers[i].name, name) != 0)
        ++i;
    return i;
}

static status grow(void *array, size_t count, size_t *capacity, size_t size)
{
    status result = OK;
    if (count == *capacity) {
        const size_t more = *capacity == 0 ? 16 : *capacity * 2;
        TRY(memory_grow(array, count, more, size, "the parameter table"));
        *capacity = more;
    }
done:
    return result;
}

static status add_slice(parameter_table *t, size_t layer, bool is_bias)
{
    status result = OK;
    TRY(grow(&t->slices, t->slice_count, &t->slice_capacity, sizeof *t->slices));
    struct layer *l = &t->layers[layer];
    struct slice *s = &t->slices[t->slice_count];
    s->layer = layer;
    s->is_bias = is_bias;
    snprintf(s->name, sizeof s->name, "%s.%s", l->name, is_bias ? "bias" : "weight");
    struct parameter_slice *p = &s->public;
    p->offset = t->count;
    p->rank = is_bias ? 1 : l->weight_rank;
    p->count = 1;
    for (unsigned i = 0; i < p->rank; ++i) {
        p->shape[i] = l->weight_shape[i];
        p->count *= p->shape[i];
    }
    t->count += p->count;
    *(is_bias ? &l->bias : &l->weight) = t->slice_count;
    *(is_bias ? &l->bias_at : &l->weight_at) = p->offset;
    t->slice_count++;
done:
    return result;
}

status parameter_table_add(parameter_table *t, const struct layer *l, bool biased)
{
    status result = OK;
    TRY(grow(&t->layers, t->layer_count, &t->layer_capacity, sizeof *t->layers));
    t->layers[t->layer_count] = *l;
    t->layers[t->layer_count].bias = NO_SLICE;
    t->layer_count++;
    TRY(add_slice(t, t->layer_count - 1, false));
    if (biased)
        TRY(add_slice(t, t->layer_count - 1, true));
done:
    return result;
}

status parameter_table_add_bias(parameter_table *t, size_t layer)
{
    REQUIRE(t->layers[layer].bias == NO_SLICE);
    return add_slice(t, layer, true);
}

status parameter_table_add_slice(parameter_table *t, const char *name, unsigned rank,
                                 const uint32_t *shape, bool hidden)
{
    status result = OK;
    if (strlen(name) >= PARAMETER_NAME_BYTES) {
        FAIL(ERROR_DATA, "the name of parameter '%s' is longer than %d bytes", name,
             PARAMETER_NAME_BYTES - 1);
    }
    for (size_t i = 0; i < t->slice_count; i++)
        if (strcmp(t->slices[i].name, name) == 0)
            FAIL(ERROR_DATA, "two parameters have the name '%s'", name);
    TRY(grow(&t->slices, t->slice_count, &t->slice_capacity, sizeof *t->slices));
    struct slice *s = &t->slices[t->slice_count++];
    *s = (struct slice){.public = {.offset = t->count, .count = 1, .rank = rank},
                        .layer = NO_LAYER,
                        .hidden = hidden};
    snprintf(s->name, sizeof s->name, "%s", name);
    for (unsigned i = 0; i < rank; i++) {
        if (shape[i] > PARAMETERS_MOST / s->public.count)
            FAIL(ERROR_DATA, "parameter '%s' has more than %zu elements", name, PARAMETERS_MOST);
        s->public.shape[i] = shape[i];
        s->public.count *= shape[i];
    }
    t->count += s->public.count;
done:
    return result;
}

size_t parameter_table_count(const parameter_table *t)
{
    return t->count;
}

size_t parameter_table_slices(const parameter_table *t)
{
    return t->slice_count;
}

const struct parameter_slice *parameter_table_slice(const parameter_table *t, size_t index)
{
    REQUIRE(index < t->slice_count);
    /* Set the name here, because the array moves when it grows. */
    struct slice *s = &t->slices[index];
    s->public.name = s->name;
    return &s->public;
}

bool parameter_table_is_hidden_matrix(const parameter_table *t, size_t index)
{
    REQUIRE(index < t->slice_count);
    const struct slice *s = &t->slices[index];
    if (s->layer == NO_LAYER)
        return s->hidden && s->public.rank > 1;
    const struct layer *l = &t->layers[s->layer];
    return !s->is_bias && !l->last && (l->kind == OP_LINEAR || l->kind == OP_CONVOLUTION);
}

void parameter_table_initialise(const parameter_table *t, uint64_t seed, float *out)
{
    for (size_t i = 0; i < t->slice_count; ++i) {
        const struct slice *s = &t->slices[i];
        REQUIRE(s->layer != NO_LAYER);
        const struct layer *l = &t->layers[s->layer];
        float *at = out + s->public.offset;
        double he = sqrt((l->last ? 1.0 : 2.0) / l->fan_in);
        double spread = l->deviation > 0 ? (double)l->deviation : he;
        struct random_stream r;
        random_open(&r, RANDOM_INITIALISATION, seed, 0, i);
        for (size_t k = 0; k < s->public.count; ++k)
            if (s->is_bias)
                at[k] = 0;
            else if (l->kind == OP_BATCH_NORM || l->kind == OP_LAYER_NORM)
                at[k] = 1;
            else
                at[k] = (float)(spread * random_normal(&r));
    }
}
