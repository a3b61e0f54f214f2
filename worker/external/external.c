/* external.c — the requests and answers of an external model; see external.h. */
#include "worker/external/external.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/shared_memory.h"
#include "base/text.h"
#include "worker/checkpoint.h"
#include "worker/external/external_process.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PROTOCOL = 2, ALIGNMENT = 4096, MOST_SECONDS = 1 << 30, REGIONS = 256 };

struct external {
    external_process *process;
    struct shared_memory memory;  /* for vectors that the program cannot map */
    float *parameters, *gradient; /* [count] each, in `memory` */
    size_t count;
    bool in_place;             /* the program can take vectors at any place */
    uint64_t regions[REGIONS]; /* areas (shared_memory.h) that the program has mapped */
    unsigned region_count;
    uint64_t copied, used_in_place; /* vectors so far */
    uint32_t classes;               /* 0: predictions are not counted */
    char description[160];
    char *program; /* JSON text; NULL: none */
};

static status ask(external *e, const char *type, json_t *request, json_t **answer)
{
    json_object_set_new(request, "type", json_string(type));
    status result = external_process_ask(e->process, type, request, answer);
    json_decref(request);
    return result;
}

/* ---- open: the program's parameters and data ---- */

static status model_options(const options *o, json_t **out)
{
    status result = OK;
    static const char prefix[] = "model.";
    json_t *all = *out = json_object();
    for (size_t i = 0; i < options_count(o); i++) {
        const char *key = options_at(o, i)->key;
        if (strncmp(key, prefix, sizeof prefix - 1) == 0 && strcmp(key, "model.command") != 0) {
            json_t *value = json_string(options_value(o, key));
            if (value == NULL)
                FAIL(ERROR_USAGE, "%s: the value of %s is not UTF-8", options_origin(o, key), key);
            json_object_set_new(all, key + sizeof prefix - 1, value);
        }
    }
done:
    return result;
}

/* *out ← member `key`, a whole number from `least` to `most`. If it is missing, *out ← `absent`;
 * −1: it is required. */
static status get_number(external *e, const json_t *from, const char *key, int64_t least,
                         int64_t most, int64_t absent, int64_t *out)
{
    const json_t *value = json_object_get(from, key);
    *out = json_is_integer(value) ? json_integer_value(value) : -1;
    if (value == NULL && absent >= 0)
        *out = absent;
    if (*out < least || *out > most)
        return external_process_fail(e->process,
                                     "its answer to 'open' must hold '%s', a whole number from "
                                     "%lld to %lld",
                                     key, (long long)least, (long long)most);
    return OK;
}

static status take_parameter(external *e, const json_t *from, parameter_table *table)
{
    const char *name = json_string_value(json_object_get(from, "name"));
    const json_t *shape = json_object_get(from, "shape"), *hidden = json_object_get(from, "hidden");
    const size_t rank = json_array_size(shape);
    uint32_t sizes[4] = {0};
    bool fits = name != NULL && name[0] != '\0' && rank >= 1 && rank <= COUNT_OF(sizes);
    for (size_t i = 0; fits && i < rank; i++) {
        const json_int_t size = json_integer_value(json_array_get(shape, i));
        fits = size >= 1 && size <= UINT32_MAX;
        sizes[i] = (uint32_t)size;
    }
    if (!fits) {
        return external_process_fail(e->process,
                                     "each of its 'parameters' must have a 'name' and a 'shape' of "
                                     "one to four sizes of at least 1, but '%s' has not",
                                     name != NULL ? name : "one");
    }
    if (checkpoint_name_is_reserved(name)) {
        return external_process_fail(e->process,
                                     "checkpoints use the name of its parameter '%s' for other "
                                     "data; rename the parameter",
                                     name);
    }
    if (hidden != NULL && !json_is_boolean(hidden)) {
        return external_process_fail(e->process,
                                     "'hidden' of its parameter '%s' must be true or false", name);
    }
    return parameter_table_add_slice(table, name, (unsigned)rank, sizes,
                                     hidden == NULL || json_is_true(hidden));
}

static status take_samples(external *e, const json_t *from, struct dataset *data)
{
    static const char *const names[SPLIT_COUNT] = {"train", "validation", "test"};
    status result = OK;
    int64_t count;
    for (unsigned i = 0; i < SPLIT_COUNT; i++) {
        TRY(get_number(e, json_object_get(from, "samples"), names[i], i == SPLIT_TRAIN ? 1 : 0,
                       UINT32_MAX, i == SPLIT_TRAIN ? -1 : 0, &count));
        data->count[i] = (uint32_t)count;
    }
    TRY(get_number(e, from, "classes", 0, 1 << 20, 0, &count));
    e->classes = (uint32_t)count;
    data->classes = count > 0 ? (uint32_t)count : 1;
    data->targets = 1;
    data->numeric = count == 0;
done:
    return result;
}

/* Copies the description. If it is too long, the copy ends after a whole character. */
static void take_description(external *e, const char *about)
{
    size_t length = (size_t)snprintf(e->description, sizeof e->description, "external: ");
    while (*about != '\0') {
        const size_t next = text_utf8_length(about);
        if (next == 0 || length + next >= sizeof e->description)
            break;
        memcpy(e->description + length, about, next);
        about += next;
        length += next;
    }
    e->description[length] = '\0';
}

static status take_model(external *e, const json_t *from, parameter_table *table,
                         struct dataset *data)
{
    status result = OK;
    const json_t *parameters = json_object_get(from, "parameters");
    const char *about = json_string_value(json_object_get(from, "description"));
    if (json_array_size(parameters) == 0) {
        result = external_process_fail(e->process, "its answer to 'open' has no 'parameters'");
        goto done;
    }
    for (size_t i = 0; i < json_array_size(parameters); i++)
        TRY(take_parameter(e, json_array_get(parameters, i), table));
    TRY(take_samples(e, from, data));
    e->count = parameter_table_count(table);
    e->in_place = !json_is_true(json_object_get(from, "copy"));
    take_description(e, about != NULL ? about : "a program");
    if (json_is_object(json_object_get(from, "program")))
        e->program = json_dumps(json_object_get(from, "program"), JSON_COMPACT | JSON_SORT_KEYS);
done:
    return result;
}

static status open_model(external *e, const options *o, unsigned workers, parameter_table *table,
                         struct dataset *data)
{
    status result = OK;
    json_t *answer = NULL, *own = NULL;
    TRY(model_options(o, &own));
    TRY(ask(e, "open",
            json_pack("{s:i, s:I, s:i, s:I, s:I, s:o}", "protocol", PROTOCOL, "seed",
                      (json_int_t)options_integer(o, "seed"), "workers", (int)workers, "batch",
                      (json_int_t)options_integer(o, "batch"), "threads",
                      (json_int_t)options_integer(o, "threads"), "options", json_incref(own)),
            &answer));
    TRY(take_model(e, answer, table, data));
done:
    json_decref(own);
    json_decref(answer);
    return result;
}

/* ---- the memory that both processes map ---- */

/* Makes the program map the place's area, if it has not done so. *region ← the area's number;
 * REGIONS: there are too many areas.
 */
static status map_region(external *e, const struct shared_memory_place *place, unsigned *region)
{
    status result = OK;
    json_t *answer = NULL;
    char path[64];
    for (*region = 0; *region < e->region_count; ++*region)
        if (e->regions[*region] == place->area)
            return OK;
    if (*region == REGIONS)
        return OK;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), place->fd);
    TRY(ask(e, "map",
            json_pack("{s:i, s:s, s:I, s:I, s:b}", "region", (int)*region, "path", path, "offset",
                      (json_int_t)place->file_offset, "bytes", (json_int_t)place->bytes, "writable",
                      place->use == OTHERS_WRITE),
            &answer));
    e->regions[e->region_count++] = place->area;
done:
    json_decref(answer);
    return result;
}

/* *out ← the place of vector `at`, as requests name it. If the program cannot map that place, *out
 * ← the place of `own`, and *copies is set: the caller must copy the vector. */
static status place_of(external *e, const float *at, const float *own, enum shared_memory_use use,
                       json_t **out, bool *copies)
{
    status result = OK;
    struct shared_memory_place place;
    unsigned region = REGIONS;
    if (e->in_place && shared_memory_find(at, e->count * sizeof *at, &place) && place.use >= use)
        TRY(map_region(e, &place, &region));
    *copies = region == REGIONS;
    if (*copies) {
        region = 0;
        REQUIRE(shared_memory_find(own, e->count * sizeof *own, &place));
    }
    *(*copies ? &e->copied : &e->used_in_place) += 1;
    *out = json_pack("[i, I]", (int)region, (json_int_t)place.offset);
done:
    return result;
}

/* Sets member `parameters` of a request, and copies them if need be. */
static status give_parameters(external *e, const float *parameters, json_t *request)
{
    status result = OK;
    json_t *place = NULL;
    bool copies;
    TRY(place_of(e, parameters, e->parameters, OTHERS_READ, &place, &copies));
    if (copies)
        memcpy(e->parameters, parameters, e->count * sizeof *parameters);
    json_object_set_new(request, "parameters", place);
done:
    return result;
}

static status open_memory(external *e)
{
    status result = OK;
    struct shared_memory_place place;
    unsigned region;
    const size_t bytes = (e->count * sizeof(float) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    TRY(shared_memory_open(&e->memory, "model=external", 2 * bytes, OTHERS_WRITE));
    if (!shared_memory_find(e->memory.at, e->memory.bytes, &place)) {
        FAIL(ERROR_OTHER, "no shared memory of %zu bytes for model=external: %s", 2 * bytes,
             strerror(errno));
    }
    e->parameters = (float *)(void *)e->memory.at;
    e->gradient = (float *)(void *)(e->memory.at + bytes);
    TRY(map_region(e, &place, &region));
    shared_memory_want();
done:
    return result;
}

status external_open(external **out, const options *settings, unsigned workers,
                     const volatile sig_atomic_t *stop, parameter_table *table,
                     struct dataset *data)
{
    status result = OK;
    external *e = NULL;
    const char *command = options_text(settings, "model.command");
    *out = NULL;
    TRY(memory_new(&e, 1, sizeof *e, "an external model"));
    if (command[0] == '\0')
        FAIL(ERROR_USAGE, "model=external requires the command that starts your program; set for "
                          "example model.command='python3 my_model.py'");
    TRY(external_process_start(&e->process, command, (unsigned)options_integer(settings, "threads"),
                               options_real(settings, "timeout_s"), stop));
    TRY(open_model(e, settings, workers, table, data));
    TRY(open_memory(e));
    *out = e;
    e = NULL;
done:
    external_close(&e);
    return result;
}

void external_close(external **out)
{
    external *e = *out;
    if (e == NULL)
        return;
    log_debug("model=external: %llu vectors in place, %llu copied",
              (unsigned long long)e->used_in_place, (unsigned long long)e->copied);
    external_process_end(&e->process);
    shared_memory_close(&e->memory);
    free(e->program);
    memory_free(e);
    *out = NULL;
}

const char *external_description(const external *e)
{
    return e->description;
}

const char *external_program(const external *e)
{
    return e->program;
}

/* ---- requests ---- */

/* Member `key`; NULL: it is missing or null. */
static const json_t *present(const json_t *from, const char *key)
{
    const json_t *value = json_object_get(from, key);
    return json_is_null(value) ? NULL : value;
}

/* "loss": the mean over n samples, null if it is not finite; "correct": may be absent only if there
 * are no classes. */
static status take_loss(external *e, const char *type, const json_t *from, uint32_t n,
                        struct op_loss *out)
{
    const json_t *loss = json_object_get(from, "loss");
    const json_t *value = present(from, "correct");
    const json_int_t correct = json_is_integer(value) ? json_integer_value(value) : -1;
    if (!json_is_number(loss) && !json_is_null(loss))
        return external_process_fail(e->process, "its answer to '%s' has no number 'loss'", type);
    if (value != NULL && (correct < 0 || correct > n)) {
        return external_process_fail(
            e->process,
            "its answer to '%s' must have 'correct', a whole number from 0 "
            "to %u",
            type, n);
    }
    if (value == NULL && e->classes > 0) {
        return external_process_fail(
            e->process,
            "its answer to '%s' has no 'correct', but there are %u classes; answer the number of "
            "correct predictions, or name 0 classes in the answer to 'open' (no accuracy)",
            type, e->classes);
    }
    out->sum = json_is_null(loss) ? NAN : json_number_value(loss) * n;
    out->correct = value != NULL ? (uint32_t)correct : 0;
    return OK;
}

status external_initial(external *e, float *out)
{
    status result = OK;
    json_t *answer = NULL, *request = json_object();
    TRY(give_parameters(e, e->parameters, request));
    TRY(ask(e, "initial", json_incref(request), &answer));
    memcpy(out, e->parameters, e->count * sizeof(float));
done:
    json_decref(request);
    json_decref(answer);
    return result;
}

status external_gradient(external *e, const float *parameters, unsigned index, uint64_t batch,
                         const uint32_t *samples, uint32_t n, float *gradient, struct op_loss *out,
                         uint64_t *own_ns)
{
    status result = OK;
    json_t *answer = NULL, *place, *list = json_array();
    json_t *request = json_pack("{s:i, s:I, s:o}", "worker", (int)index, "batch", (json_int_t)batch,
                                "samples", list);
    bool copies;
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(samples[i]));
    TRY(give_parameters(e, parameters, request));
    TRY(place_of(e, gradient, e->gradient, OTHERS_WRITE, &place, &copies));
    json_object_set_new(request, "gradient", place);
    TRY(ask(e, "gradient", json_incref(request), &answer));
    TRY(take_loss(e, "gradient", answer, n, out));
    const double seconds = json_number_value(json_object_get(answer, "seconds"));
    *own_ns = seconds > 0 && seconds < MOST_SECONDS ? (uint64_t)(seconds * 1e9) : 0;
    if (copies)
        memcpy(gradient, e->gradient, e->count * sizeof *gradient);
done:
    json_decref(request);
    json_decref(answer);
    return result;
}

status external_prepare_evaluation(external *e, const float *parameters)
{
    status result = OK;
    json_t *answer = NULL, *request = json_object();
    TRY(give_parameters(e, parameters, request));
    TRY(ask(e, "prepare", json_incref(request), &answer));
done:
    json_decref(request);
    json_decref(answer);
    return result;
}

status external_evaluate(external *e, enum dataset_split split, uint32_t first, uint32_t n,
                         struct op_loss *out, uint32_t *predicted)
{
    status result = OK;
    json_t *answer = NULL;
    TRY(ask(e, "evaluate",
            json_pack("{s:s, s:I, s:I}", "split", split == SPLIT_TEST ? "test" : "validation",
                      "first", (json_int_t)first, "count", (json_int_t)n),
            &answer));
    TRY(take_loss(e, "evaluate", answer, n, out));
    const json_t *counts = present(answer, "predicted");
    if (counts != NULL && json_array_size(counts) != e->classes) {
        result = external_process_fail(e->process,
                                       "its answer to 'evaluate' has %zu numbers in 'predicted', "
                                       "for %u classes",
                                       json_array_size(counts), e->classes);
        goto done;
    }
    for (size_t k = 0; predicted != NULL && k < json_array_size(counts); k++) {
        const json_t *number = json_array_get(counts, k);
        const json_int_t samples = json_is_integer(number) ? json_integer_value(number) : -1;
        if (samples < 0 || samples > UINT32_MAX) {
            result = external_process_fail(
                e->process, "its answer to 'evaluate' must have whole numbers in 'predicted'");
            goto done;
        }
        predicted[k] += (uint32_t)samples;
    }
done:
    json_decref(answer);
    return result;
}
