/* external.c — the requests and answers of an external model; see external.h. */
#include "worker/external/external.h"

#include "base/memory.h"
#include "worker/external/external_process.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROTOCOL = 1, ALIGNMENT = 4096, MOST_SECONDS = 1 << 30 };

struct external {
    external_process *process;
    int memory_fd;
    float *memory; /* [2 × stride]: the parameters, then the gradient; NULL: not mapped yet */
    size_t count, stride; /* elements */
    uint32_t classes;     /* 0: predictions are not counted */
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

/* A whole number within [least, most], or the default if it is absent and optional (≥ 0). */
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
    snprintf(e->description, sizeof e->description, "external: %s",
             about != NULL ? about : "a program");
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

static status map_memory(external *e)
{
    status result = OK;
    json_t *answer = NULL;
    const size_t page = ALIGNMENT / sizeof(float);
    e->stride = (e->count + page - 1) / page * page;
    const size_t bytes = 2 * e->stride * sizeof(float);
    if (ftruncate(e->memory_fd, (off_t)bytes) != 0) {
        FAIL(ERROR_OTHER, "no shared memory of %zu bytes for model=external: %s", bytes,
             strerror(errno));
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, e->memory_fd, 0);
    if (memory == MAP_FAILED)
        FAIL(ERROR_OTHER, "cannot map %zu bytes for model=external: %s", bytes, strerror(errno));
    e->memory = memory;
    TRY(ask(e, "map",
            json_pack("{s:I, s:i, s:I}", "bytes", (json_int_t)bytes, "parameters", 0, "gradient",
                      (json_int_t)(e->stride * sizeof(float))),
            &answer));
done:
    json_decref(answer);
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
    e->memory_fd = -1;
    if (command[0] == '\0')
        FAIL(ERROR_USAGE, "model=external requires the command that starts your program; set for "
                          "example model.command='python3 my_model.py'");
    e->memory_fd = memfd_create("gradlag model", MFD_CLOEXEC);
    if (e->memory_fd < 0)
        FAIL(ERROR_OTHER, "no shared memory for model=external: %s", strerror(errno));
    TRY(external_process_start(&e->process, command, e->memory_fd,
                               (unsigned)options_integer(settings, "threads"),
                               options_real(settings, "timeout_s"), stop));
    TRY(open_model(e, settings, workers, table, data));
    TRY(map_memory(e));
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
    external_process_end(&e->process);
    if (e->memory != NULL)
        munmap(e->memory, 2 * e->stride * sizeof(float));
    if (e->memory_fd >= 0)
        close(e->memory_fd);
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

/* "loss": the mean over n samples, null if it is not finite; "correct": absent means 0. */
static status take_loss(external *e, const char *type, const json_t *from, uint32_t n,
                        struct op_loss *out)
{
    const json_t *loss = json_object_get(from, "loss");
    const json_t *value = json_object_get(from, "correct");
    const json_int_t correct = json_is_integer(value) ? json_integer_value(value) : -1;
    if (!json_is_number(loss) && !json_is_null(loss))
        return external_process_fail(e->process, "its answer to '%s' has no number 'loss'", type);
    if (value != NULL && (correct < 0 || correct > n)) {
        return external_process_fail(
            e->process,
            "its answer to '%s' must have 'correct', a whole number from 0 "
            "to %u, or leave it out",
            type, n);
    }
    out->sum = json_is_null(loss) ? NAN : json_number_value(loss) * n;
    out->correct = value != NULL ? (uint32_t)correct : 0;
    return OK;
}

status external_initial(external *e, float *out)
{
    status result = OK;
    json_t *answer = NULL;
    TRY(ask(e, "initial", json_object(), &answer));
    memcpy(out, e->memory, e->count * sizeof(float));
done:
    json_decref(answer);
    return result;
}

status external_gradient(external *e, const float *parameters, unsigned index, uint64_t batch,
                         const uint32_t *samples, uint32_t n, float *gradient, struct op_loss *out,
                         uint64_t *own_ns)
{
    status result = OK;
    json_t *answer = NULL, *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(samples[i]));
    memcpy(e->memory, parameters, e->count * sizeof(float));
    TRY(ask(e, "gradient",
            json_pack("{s:i, s:I, s:o}", "worker", (int)index, "batch", (json_int_t)batch,
                      "samples", list),
            &answer));
    TRY(take_loss(e, "gradient", answer, n, out));
    const double seconds = json_number_value(json_object_get(answer, "seconds"));
    *own_ns = seconds > 0 && seconds < MOST_SECONDS ? (uint64_t)(seconds * 1e9) : 0;
    memcpy(gradient, e->memory + e->stride, e->count * sizeof(float));
done:
    json_decref(answer);
    return result;
}

status external_prepare_evaluation(external *e, const float *parameters)
{
    status result = OK;
    json_t *answer = NULL;
    memcpy(e->memory, parameters, e->count * sizeof(float));
    TRY(ask(e, "prepare", json_object(), &answer));
done:
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
    const json_t *counts = json_object_get(answer, "predicted");
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
