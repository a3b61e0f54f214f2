#include "experiments/save.h"

#include "experiments/config.h"
#include "experiments/recall.h"
#include "worker/checkpoint.h"
#include "worker/optimizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status hash_file(const char *path, char hex[65])
{
    status result = OK;
    struct sha256 hash;
    uint8_t bytes[65536];
    size_t got;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        FAIL(ERROR_DATA, "%s was written but cannot be read again: %s", path, strerror(errno));
    }
    sha256_begin(&hash);
    while ((got = fread(bytes, 1, sizeof bytes, file)) > 0) {
        sha256_add(&hash, bytes, got);
    }
    sha256_end(&hash, hex);
done:
    if (file != NULL) {
        fclose(file);
    }
    return result;
}

/* Tensors "conv1.weight" of the parameters, then "optimizer0.conv1.weight" of the first state. */
static void name_tensors(const worker *w, float *parameters, float *optimizer_state, size_t states,
                         struct checkpoint_tensor *tensors, struct text *names)
{
    size_t slices = worker_slice_count(w), count = worker_parameter_count(w);
    for (size_t state = 0; state <= states; state++) {
        float *from = state == 0 ? parameters : optimizer_state + (state - 1) * count;
        for (size_t i = 0; i < slices; i++) {
            const struct parameter_slice *slice = worker_slice(w, i);
            size_t at = state * slices + i;
            if (state > 0) {
                text_add(&names[at], "optimizer%zu.", state - 1);
            }
            text_add(&names[at], "%s", slice->name);
            tensors[at] = (struct checkpoint_tensor){
                .name = names[at].at, .rank = slice->rank, .data = from + slice->offset};
            memcpy(tensors[at].shape, slice->shape, sizeof slice->shape);
        }
    }
}

void save_path(const char *pattern, int64_t run_id, uint64_t version, struct text *out)
{
    static const char run[] = "{run}", ver[] = "{version}";
    while (*pattern != '\0') {
        if (strncmp(pattern, run, strlen(run)) == 0) {
            text_add(out, "%lld", (long long)run_id);
            pattern += strlen(run);
        } else if (strncmp(pattern, ver, strlen(ver)) == 0) {
            text_add(out, "%llu", (unsigned long long)version);
            pattern += strlen(ver);
        } else {
            text_add_bytes(out, pattern++, 1);
        }
    }
}

/* The tensors of parameters and `states` states; both lists are the caller's to give to
 * free_tensors. */
static status open_tensors(const worker *w, const float *parameters, const float *optimizer_state,
                           size_t states, struct checkpoint_tensor **tensors, struct text **names,
                           size_t *count)
{
    status result = OK;
    *count = worker_slice_count(w) * (1 + states);
    TRY(memory_new(tensors, *count, sizeof **tensors, "a checkpoint's tensors"));
    TRY(memory_new(names, *count, sizeof **names, "a checkpoint's names"));
    /* checkpoint_write leaves the data alone, and checkpoint_read has our own. */
    name_tensors(w, (float *)(uintptr_t)parameters, (float *)(uintptr_t)optimizer_state, states,
                 *tensors, *names);
done:
    return result;
}

static void free_tensors(struct checkpoint_tensor *tensors, struct text *names, size_t count)
{
    for (size_t i = 0; names != NULL && i < count; i++) {
        text_free(&names[i]);
    }
    memory_free(names);
    memory_free(tensors);
}

status save_checkpoint(const struct save *s, recorder *r)
{
    status result = OK;
    struct checkpoint_tensor *tensors = NULL;
    struct text *names = NULL, config = {0}, path = {0};
    const struct training_state *now = s->now;
    char version[32], samples[32], skipped[32], seconds[40], sha256[65];
    size_t count = 0, states = now->optimizer_state == NULL
                                   ? 0
                                   : now->optimizer_state_count / worker_parameter_count(s->worker);
    save_path(options_text(s->settings, "checkpoint"), s->run_id, now->updates, &path);
    TRY(open_tensors(s->worker, now->parameters, now->optimizer_state, states, &tensors, &names,
                     &count));
    snprintf(version, sizeof version, "%llu", (unsigned long long)now->updates);
    snprintf(samples, sizeof samples, "%llu", (unsigned long long)now->samples);
    snprintf(skipped, sizeof skipped, "%llu", (unsigned long long)now->skipped);
    snprintf(seconds, sizeof seconds, "%.9f", now->seconds);
    config_json(s->settings, &config);
    const struct checkpoint_note notes[] = {{"format", "pt"},     {"version", version},
                                            {"samples", samples}, {"skipped", skipped},
                                            {"seconds", seconds}, {"config", config.at}};
    TRY(checkpoint_write(path.at, tensors, count, notes, COUNT_OF(notes)));
    TRY(hash_file(path.at, sha256));
    if (r != NULL) {
        recorder_checkpoint(r, now->updates, path.at, sha256);
    }
done:
    free_tensors(tensors, names, count);
    text_free(&config);
    text_free(&path);
    return result;
}

/* ---- going on -----------------------------------------------------------------------------------
 */

static status read_number(const char *path, const char *key, const char *text, double *out)
{
    status result = OK;
    char *end = NULL;
    if (text == NULL) {
        FAIL(ERROR_DATA,
             "%s does not say '%s': no checkpoint of a run, or an older version's; initial= takes "
             "its parameters alone",
             path, key);
    }
    *out = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(*out >= 0 && *out < 9e15)) {
        FAIL(ERROR_DATA, "%s: '%s' is '%s', which is no number of a run", path, key, text);
    }
done:
    return result;
}

/* ERROR_USAGE for the first setting that decides what is computed and was another one then. */
static status check_settings(const char *path, const char *then, const options *now)
{
    status result = OK;
    struct text differing = {0};
    if (then == NULL) {
        FAIL(ERROR_DATA, "%s does not say which settings it comes from", path);
    }
    TRY(recall_differing(then, now, &differing));
    if (differing.length > 0) {
        FAIL(ERROR_USAGE,
             "%s is of a run with other settings (%s): going on would not end where that run would "
             "have; use the same ones, or initial= for its parameters alone",
             path, differing.at);
    }
done:
    text_free(&differing);
    return result;
}

enum { VERSION, SAMPLES, SKIPPED, SECONDS, NUMBERS };

static status read_notes(const char *path, const options *settings, double numbers[NUMBERS])
{
    status result = OK;
    struct checkpoint_note notes[] = {{"version", NULL},
                                      {"samples", NULL},
                                      {"skipped", NULL},
                                      {"seconds", NULL},
                                      {"config", NULL}};
    TRY(checkpoint_read(path, NULL, 0, notes, COUNT_OF(notes)));
    for (size_t i = 0; i < NUMBERS; i++) {
        TRY(read_number(path, notes[i].key, notes[i].value, &numbers[i]));
    }
    TRY(check_settings(path, notes[NUMBERS].value, settings));
done:
    for (size_t i = 0; i < COUNT_OF(notes); i++) {
        memory_free((void *)(uintptr_t)notes[i].value);
    }
    return result;
}

status saved_check(const char *path, const options *settings)
{
    double numbers[NUMBERS];
    return read_notes(path, settings, numbers);
}

status saved_open(struct saved *out, const char *path, const options *settings, const worker *w)
{
    status result = OK;
    struct checkpoint_tensor *tensors = NULL;
    struct text *names = NULL;
    double numbers[NUMBERS];
    size_t count = 0, parameters = worker_parameter_count(w);
    struct optimizer_rule rule;
    *out = (struct saved){0};
    TRY(optimizer_rule_of(settings, &rule));
    TRY(memory_new(&out->parameters, parameters, sizeof(float), "parameters"));
    TRY(memory_new(&out->optimizer_state, rule.states * parameters + 1, sizeof(float),
                   "optimizer state"));
    /* The settings first: with another optimizer its state would only be said to be missing. */
    TRY(read_notes(path, settings, numbers));
    TRY(open_tensors(w, out->parameters, out->optimizer_state, rule.states, &tensors, &names,
                     &count));
    TRY(checkpoint_read(path, tensors, count, NULL, 0));
    out->state =
        (struct training_state){.updates = (uint64_t)numbers[VERSION],
                                .samples = (uint64_t)numbers[SAMPLES],
                                .skipped = (uint64_t)numbers[SKIPPED],
                                .seconds = numbers[SECONDS],
                                .parameters = out->parameters,
                                .optimizer_state = rule.states > 0 ? out->optimizer_state : NULL,
                                .optimizer_state_count = rule.states * parameters};
done:
    free_tensors(tensors, names, count);
    if (result != OK) {
        saved_close(out);
    }
    return result;
}

void saved_close(struct saved *s)
{
    memory_free(s->parameters);
    memory_free(s->optimizer_state);
    *s = (struct saved){0};
}
