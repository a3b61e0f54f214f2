#include "experiments/run/run_checkpoint.h"

#include "base/memory.h"
#include "base/sha256.h"
#include "base/text.h"
#include "experiments/config/config.h"
#include "experiments/run/config_from_row.h"
#include "ps/rules/correction/correction.h"
#include "ps/rules/outer/outer.h"
#include "ps/core/late_workers.h"
#include "sync/vector_queue.h"
#include "worker/checkpoint.h"
#include "worker/optimizer/optimizer.h"
#include "base/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

status run_checkpoint_hash(const char *path, char hex[65])
{
    status result = OK;
    struct sha256 hash;
    uint8_t bytes[65536];
    size_t got;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* does not block on a FIFO */
    FILE *file = fd >= 0 ? fdopen(fd, "rb") : NULL;
    if (file == NULL)
        FAIL(ERROR_DATA, "checkpoint %s cannot be read: %s; choose a file that checkpoint= wrote",
             path, strerror(errno));
    sha256_begin(&hash);
    while ((got = fread(bytes, 1, sizeof bytes, file)) > 0)
        sha256_add(&hash, bytes, got);
    if (ferror(file))
        FAIL(ERROR_DATA, "checkpoint %s cannot be read: %s; choose a file that checkpoint= wrote",
             path, strerror(errno));
    sha256_end(&hash, hex);
done:
    if (file != NULL)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    return result;
}

/* Names of tensors: "conv1.weight" for parameters, "optimizer0.conv1.weight" for the first state.
 */
static void name_tensors(const worker *w, float *parameters, float *optimizer_state, size_t states,
                         struct checkpoint_tensor *tensors, struct text *names)
{
    size_t slices = worker_slice_count(w), count = worker_parameter_count(w);
    for (size_t state = 0; state <= states; state++) {
        float *from = state == 0 ? parameters : optimizer_state + (state - 1) * count;
        for (size_t i = 0; i < slices; i++) {
            const struct parameter_slice *slice = worker_slice(w, i);
            size_t at = state * slices + i;
            if (state > 0)
                text_add(&names[at], "optimizer%zu.", state - 1);
            text_add(&names[at], "%s", slice->name);
            tensors[at] = (struct checkpoint_tensor){
                .name = names[at].at, .rank = slice->rank, .data = from + slice->offset};
            memcpy(tensors[at].shape, slice->shape, sizeof slice->shape);
        }
    }
}

void run_checkpoint_path(const char *pattern, int64_t run_id, const uint64_t *version,
                         struct text *out)
{
    static const char run[] = "{run}", ver[] = "{version}";
    while (*pattern != '\0') {
        if (strncmp(pattern, run, strlen(run)) == 0) {
            text_add(out, "%lld", (long long)run_id);
            pattern += strlen(run);
        } else if (version != NULL && strncmp(pattern, ver, strlen(ver)) == 0) {
            text_add(out, "%llu", (unsigned long long)*version);
            pattern += strlen(ver);
        } else {
            text_add_bytes(out, pattern++, 1);
        }
    }
}

static status check_path(const char *key, const char *path, const char *origin)
{
    status result = OK;
    struct stat about;
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        FAIL(ERROR_USAGE, "%s: %s=%s is a folder; name a file in it", origin, key, path);
    const char *slash = strrchr(path, '/'), *brace = strchr(path, '{');
    if ((brace == NULL || slash == NULL || brace > slash) && output_file_check(path) != OK) {
        const struct error why = error_save();
        FAIL(ERROR_USAGE,
             "%s: %s=%s cannot be written: %s; create that folder first, or name a file in another "
             "folder",
             origin, key, path, why.message);
    }
done:
    return result;
}

/* Fails unless the existing file is from a run with the same settings, which may replace it. */
static status check_replaces(const char *path, const options *settings)
{
    status result = OK;
    struct stat about;
    struct checkpoint_note config = {"config", NULL};
    struct text differing = {0};
    if (stat(path, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size == 0)
        return OK;
    if (checkpoint_read(path, NULL, 0, &config, 1) != OK || config.value == NULL) {
        FAIL(ERROR_USAGE,
             "checkpoint=%s: the file exists and is not a checkpoint of a run; name another file, "
             "or remove it",
             path);
    }
    TRY(config_from_row_differing(config.value, settings, &differing));
    if (differing.length > 0) {
        FAIL(ERROR_USAGE,
             "checkpoint=%s: the file is a checkpoint of a run with other settings (%s), and this "
             "run would overwrite it; name another file ({run} in the name becomes the run's "
             "number), or move or remove the existing one",
             path, differing.at);
    }
done:
    memory_free((void *)(uintptr_t)config.value);
    text_free(&differing);
    return result;
}

/* Makes a pattern for glob() that matches the paths of all versions. */
static void add_pattern(const char *path, struct text *out)
{
    static const char version[] = "{version}";
    while (*path != '\0') {
        if (strncmp(path, version, strlen(version)) == 0) {
            text_add(out, "[0-9]*");
            path += strlen(version);
        } else {
            text_add(out, "%s%c", strchr("*?[\\", *path) != NULL ? "\\" : "", *path);
            path++;
        }
    }
}

/* If the path has {run} and the number is not known yet, run_checkpoint_save() checks the path. */
static status check_overwrites(const options *settings, int64_t run_id)
{
    status result = OK;
    const char *checkpoint = options_text(settings, "checkpoint");
    struct text path = {0}, pattern = {0};
    glob_t found = {0};
    if (run_id == 0 && strstr(checkpoint, "{run}") != NULL)
        return OK;
    run_checkpoint_path(checkpoint, run_id, NULL, &path);
    add_pattern(path.at, &pattern);
    (void)glob(pattern.at, 0, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++)
        TRY(check_replaces(found.gl_pathv[i], settings));
done:
    globfree(&found);
    text_free(&path);
    text_free(&pattern);
    return result;
}

status run_checkpoint_check_paths(const options *settings, int64_t run_id)
{
    static const char *const keys[] = {"checkpoint", "trace"};
    status result = OK;
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        const char *path = options_text(settings, keys[i]);
        if (path[0] != '\0')
            TRY(check_path(keys[i], path, options_origin(settings, keys[i])));
    }
    if (options_text(settings, "checkpoint")[0] != '\0')
        TRY(check_overwrites(settings, run_id));
done:
    return result;
}

struct tensors {
    struct checkpoint_tensor *at;
    struct text *names;
    size_t count;
};

/* Safe: checkpoint_write does not change the data, and checkpoint_read gets vectors that we own. */
static float *without_const(const float *data)
{
    return (float *)(uintptr_t)data;
}

static void add_tensor(struct tensors *t, const char *name, unsigned rank, size_t rows,
                       size_t columns, const float *data)
{
    text_add(&t->names[t->count], "%s", name);
    t->at[t->count] = (struct checkpoint_tensor){.name = t->names[t->count].at,
                                                 .rank = rank,
                                                 .shape = {(uint32_t)rows, (uint32_t)columns},
                                                 .data = without_const(data)};
    t->count++;
}

/* Makes tensors for all vectors of `c`. The caller calls free_tensors, also after an error. */
static status open_tensors(const struct run_checkpoint *c, struct tensors *t)
{
    status result = OK;
    const worker *w = c->worker;
    const struct training_state *now = c->now;
    const size_t parameters = worker_parameter_count(w), slices = worker_slice_count(w);
    const size_t states = now->optimizer_state_count / parameters;
    const size_t most = slices * (1 + states) + 1 + now->vector_count + c->statistic_count;
    char name[32];
    TRY(memory_new(&t->at, most, sizeof *t->at, "a checkpoint's tensors"));
    TRY(memory_new(&t->names, most, sizeof *t->names, "a checkpoint's names"));
    name_tensors(w, without_const(now->parameters), without_const(now->optimizer_state), states,
                 t->at, t->names);
    t->count = slices * (1 + states);
    if (now->rank_count > 0) {
        add_tensor(t, "ranks", 2, (size_t)options_integer(c->settings, "workers"), now->rank_count,
                   now->ranks);
    }
    for (size_t i = 0; i < now->vector_count; i++) {
        const bool waits = i < now->waiting;
        snprintf(name, sizeof name, "%s%zu", waits ? "waiting" : "correction",
                 waits ? i : i - now->waiting);
        add_tensor(t, name, 1, parameters, 1, now->vectors[i]);
    }
    for (size_t i = 0; i < c->statistic_count; i++) {
        const struct worker_statistic *s = &c->statistics[i];
        add_tensor(t, s->name, 1, s->count, 1, s->values);
    }
done:
    return result;
}

static void free_tensors(struct tensors *t)
{
    for (size_t i = 0; t->names != NULL && i < t->count; i++)
        text_free(&t->names[i]);
    memory_free(t->names);
    memory_free(t->at);
}

/* Notes that are numbers. Those from OPTIONAL on may be missing in files of older versions or of
 * another mode. VECTORS counts the vectors of rules, WAITING the delayed gradients among them. */
enum number {
    VERSION,
    SAMPLES,
    SECONDS,
    SKIPPED,
    OPTIONAL,
    RANK_FLOATS = OPTIONAL,
    SKIPPED_LAST,
    LOSS_SUM,
    LOSS_COUNT,
    SENT_BYTES,
    WAITING,
    COMPUTED,
    VECTORS,
    NUMBERS
};
static const char *const number_names[NUMBERS] = {
    [VERSION] = "version",   [SAMPLES] = "samples",         [SECONDS] = "seconds",
    [SKIPPED] = "skipped",   [RANK_FLOATS] = "rank_floats", [SKIPPED_LAST] = "skipped_last",
    [LOSS_SUM] = "loss_sum", [LOSS_COUNT] = "loss_count",   [SENT_BYTES] = "sent_bytes",
    [WAITING] = "waiting",   [COMPUTED] = "computed",       [VECTORS] = "vectors",
};

/* Notes that are lists of numbers separated by spaces; only in mode=async. */
enum list { BATCHES, ACCOUNT, LISTS };
static const char *const list_names[LISTS] = {[BATCHES] = "batches", [ACCOUNT] = "account"};

static void numbers_of(const struct training_state *s, double out[NUMBERS])
{
    out[VERSION] = (double)s->updates;
    out[SAMPLES] = (double)s->samples;
    out[SECONDS] = s->seconds;
    out[SKIPPED] = (double)s->skipped;
    out[RANK_FLOATS] = (double)s->rank_count;
    out[SKIPPED_LAST] = (double)s->skipped_last;
    out[LOSS_SUM] = s->loss_sum;
    out[LOSS_COUNT] = (double)s->loss_count;
    out[SENT_BYTES] = s->sent_bytes;
    out[WAITING] = s->waiting > 0 ? (double)s->waiting : NAN;
    out[COMPUTED] = s->batches != NULL ? (double)s->computed : NAN;
    out[VECTORS] = s->vector_count > 0 ? (double)s->vector_count : NAN;
}

static void lists_of(const struct run_checkpoint *s, struct text out[LISTS])
{
    const uint64_t *batches = s->now->batches;
    const size_t workers = workers_max_of(s->settings);
    for (size_t i = 0; batches != NULL && i < workers; i++)
        text_add(&out[BATCHES], "%s%llu", i > 0 ? " " : "", (unsigned long long)batches[i]);
    for (size_t i = 0; i < s->now->account_count; i++) {
        text_add(&out[ACCOUNT], "%s", i > 0 ? " " : "");
        text_add_real(&out[ACCOUNT], s->now->account[i]);
    }
}

status run_checkpoint_save(const struct run_checkpoint *s, recorder *r)
{
    status result = OK;
    struct stat about;
    struct tensors tensors = {0};
    struct text config = {0}, path = {0}, lists[LISTS] = {0};
    struct checkpoint_note notes[NUMBERS + LISTS + 2];
    const struct training_state *now = s->now;
    double numbers[NUMBERS];
    char texts[NUMBERS][32], sha256[65];
    size_t count = 0;
    run_checkpoint_path(options_text(s->settings, "checkpoint"), s->run_id, &now->updates, &path);
    TRY(open_tensors(s, &tensors));
    config_json(s->settings, &config);
    notes[count++] = (struct checkpoint_note){"format", "pt"};
    notes[count++] = (struct checkpoint_note){"config", config.at};
    numbers_of(now, numbers);
    for (size_t i = 0; i < NUMBERS; i++) {
        if (!isnan(numbers[i])) {
            snprintf(texts[i], sizeof texts[i], "%.17g", numbers[i]);
            notes[count++] = (struct checkpoint_note){number_names[i], texts[i]};
        }
    }
    lists_of(s, lists);
    for (size_t i = 0; i < LISTS; i++)
        if (lists[i].at != NULL)
            notes[count++] = (struct checkpoint_note){list_names[i], lists[i].at};
    TRY(check_replaces(path.at, s->settings));
    recorder_flush(r);
    TRY(checkpoint_write(path.at, tensors.at, tensors.count, notes, count));
    if (r != NULL && stat(path.at, &about) == 0 && S_ISREG(about.st_mode)) {
        TRY(run_checkpoint_hash(path.at, sha256));
        recorder_checkpoint(r, now->updates, path.at, sha256);
    }
done:
    free_tensors(&tensors);
    for (size_t i = 0; i < LISTS; i++)
        text_free(&lists[i]);
    text_free(&config);
    text_free(&path);
    return result;
}

/* ---- reading -----------------------------------------------------------------------------------
 */

/* Counts or times from 0 to 9e15. Three numbers may be larger; only LOSS_SUM may be negative. */
static status read_number(const char *path, const char *key, const char *text, double *out)
{
    status result = OK;
    if (text == NULL) {
        FAIL(ERROR_DATA,
             "%s has no note '%s': it is no checkpoint of a run, or from an older version; "
             "initial= can start a new run from its parameters",
             path, key);
    }
    const bool sum = strcmp(key, number_names[LOSS_SUM]) == 0;
    const bool any_size =
        sum || strcmp(key, number_names[SENT_BYTES]) == 0 || strcmp(key, list_names[ACCOUNT]) == 0;
    if (!text_to_real(text, out) || (!any_size && fabs(*out) >= 9e15) || (*out < 0 && !sum))
        FAIL(ERROR_DATA, "%s: note '%s' is '%s', which is not a valid number; the file is damaged",
             path, key, text);
done:
    return result;
}

struct notes {
    double numbers[NUMBERS]; /* NaN: missing in the file */
    struct {
        double *at;
        size_t count;
    } lists[LISTS];
};

static void free_notes(struct notes *n)
{
    for (size_t i = 0; i < LISTS; i++)
        memory_free(n->lists[i].at);
}

static status read_list(const char *path, enum list list, const char *text, struct notes *out)
{
    status result = OK;
    size_t most = 1;
    for (const char *c = text; *c != '\0'; c++)
        most += *c == ' ';
    TRY(memory_new(&out->lists[list].at, most, sizeof(double), "a checkpoint's notes"));
    while (*text != '\0') {
        char number[32];
        snprintf(number, sizeof number, "%.*s", (int)strcspn(text, " "), text);
        TRY(read_number(path, list_names[list], number,
                        &out->lists[list].at[out->lists[list].count]));
        out->lists[list].count++;
        text += strcspn(text, " ");
        text += *text == ' ';
    }
done:
    return result;
}

/* ERROR_USAGE if keys that define the computation differ from those of the checkpoint. */
static status check_settings(const char *path, const char *then, const options *now)
{
    status result = OK;
    struct text differing = {0};
    if (then == NULL)
        FAIL(ERROR_DATA,
             "%s has no note 'config' with the settings of its run, so it cannot be resumed; "
             "initial= can start a new run from its parameters",
             path);
    TRY(config_from_row_differing(then, now, &differing));
    if (differing.length > 0) {
        FAIL(ERROR_USAGE,
             "%s is from a run with other settings (%s), so resuming would give another result; "
             "use the same settings, or initial= to start a new run from its parameters",
             path, differing.at);
    }
done:
    text_free(&differing);
    return result;
}

/* The caller calls free_notes, also after an error. */
static status read_notes(const char *path, const options *settings, struct notes *out)
{
    status result = OK;
    struct checkpoint_note notes[NUMBERS + LISTS + 1] = {[NUMBERS + LISTS] = {"config", NULL}};
    *out = (struct notes){0};
    for (size_t i = 0; i < NUMBERS + LISTS; i++)
        notes[i].key = i < NUMBERS ? number_names[i] : list_names[i - NUMBERS];
    TRY(checkpoint_read(path, NULL, 0, notes, COUNT_OF(notes)));
    for (size_t i = 0; i < NUMBERS; i++) {
        out->numbers[i] = NAN;
        if (i < OPTIONAL || notes[i].value != NULL)
            TRY(read_number(path, notes[i].key, notes[i].value, &out->numbers[i]));
    }
    for (size_t i = 0; i < LISTS; i++)
        if (notes[NUMBERS + i].value != NULL)
            TRY(read_list(path, (enum list)i, notes[NUMBERS + i].value, out));
    TRY(check_settings(path, notes[NUMBERS + LISTS].value, settings));
done:
    for (size_t i = 0; i < COUNT_OF(notes); i++)
        memory_free((void *)(uintptr_t)notes[i].value);
    return result;
}

status run_checkpoint_check(const char *path, const options *settings, uint64_t *version)
{
    struct notes notes;
    status result = read_notes(path, settings, &notes);
    if (result == OK && version != NULL)
        *version = (uint64_t)notes.numbers[VERSION];
    free_notes(&notes);
    return result;
}

static double or_zero(double number)
{
    return isnan(number) ? 0 : number;
}

/* Allocates vectors of rules: of corrections in mode=async, of the delay in mode=sync. */
static status allocate_vectors(struct run_checkpoint_file *s, const struct notes *notes,
                               size_t workers, size_t parameters)
{
    status result = OK;
    const size_t vectors = (size_t)or_zero(notes->numbers[VECTORS]);
    const size_t most =
        notes->lists[BATCHES].at != NULL ? CORRECTION_SHARED + workers : 2 * (size_t)DELAY_MOST;
    if (vectors > most || s->state.waiting > vectors)
        FAIL(ERROR_DATA,
             "the checkpoint is damaged: %zu vectors of rules, %zu of them waiting; choose another",
             vectors, s->state.waiting);
    TRY(memory_new(&s->vectors, vectors + 1, sizeof(float *), "vectors of rules"));
    s->state.vectors = (const float *const *)s->vectors;
    for (; s->state.vector_count < vectors; s->state.vector_count++) {
        TRY(memory_new(&s->vectors[s->state.vector_count], parameters, sizeof(float),
                       "a vector of a rule"));
    }
done:
    return result;
}

/* For mode=async: fills in the server's state. Takes ownership of list ACCOUNT. */
static status allocate_server_state(struct run_checkpoint_file *s, struct notes *notes,
                                    size_t workers)
{
    status result = OK;
    if (notes->lists[BATCHES].at == NULL)
        return OK;
    if (notes->lists[BATCHES].count != workers) {
        FAIL(ERROR_DATA,
             "the checkpoint is damaged: %zu workers, but data positions of %zu; choose another",
             workers, notes->lists[BATCHES].count);
    }
    TRY(memory_new(&s->batches, workers, sizeof *s->batches, "workers' batches"));
    for (size_t i = 0; i < workers; i++)
        s->batches[i] = (uint64_t)notes->lists[BATCHES].at[i];
    s->account = notes->lists[ACCOUNT].at;
    notes->lists[ACCOUNT].at = NULL;
    s->state.computed = (uint64_t)or_zero(notes->numbers[COMPUTED]);
    s->state.batches = s->batches;
    s->state.account = s->account;
    s->state.account_count = notes->lists[ACCOUNT].count;
done:
    return result;
}

/* Number of state vectors of the optimizer; with an outer rule, those of the rule. */
static status states_of(const options *settings, size_t *out)
{
    status result = OK;
    struct optimizer_rule rule;
    struct outer outer = {0};
    TRY(optimizer_rule_of(settings, &rule));
    if (strcmp(options_text(settings, "mode"), "async") == 0)
        TRY(outer_open(&outer, settings, (unsigned)options_integer(settings, "workers")));
    *out = outer.rule == NULL ? rule.states : outer.update != NULL ? outer.update->states : 0;
done:
    return result;
}

/* Allocates vectors for the contents of the file, according to its notes. */
static status allocate_state(struct run_checkpoint_file *s, struct notes *notes,
                             const options *settings, size_t parameters)
{
    status result = OK;
    size_t states;
    const double *numbers = notes->numbers;
    const size_t each = (size_t)or_zero(numbers[RANK_FLOATS]);
    const size_t workers = workers_max_of(settings);
    TRY(states_of(settings, &states));
    if (each > UINT32_MAX)
        FAIL(ERROR_DATA,
             "the checkpoint is damaged: %zu floats of state for each rank; choose another", each);
    TRY(memory_new(&s->parameters, parameters, sizeof(float), "parameters"));
    TRY(memory_new(&s->optimizer_state, states * parameters + 1, sizeof(float), "optimizer state"));
    TRY(memory_new(&s->ranks, workers * each + 1, sizeof(float), "state of ranks"));
    s->state = (struct training_state){.updates = (uint64_t)numbers[VERSION],
                                       .samples = (uint64_t)numbers[SAMPLES],
                                       .seconds = numbers[SECONDS],
                                       .skipped = (uint64_t)numbers[SKIPPED],
                                       .skipped_last = (uint64_t)or_zero(numbers[SKIPPED_LAST]),
                                       .loss_sum = or_zero(numbers[LOSS_SUM]),
                                       .loss_count = (uint64_t)or_zero(numbers[LOSS_COUNT]),
                                       .sent_bytes = or_zero(numbers[SENT_BYTES]),
                                       .parameters = s->parameters,
                                       .optimizer_state = states > 0 ? s->optimizer_state : NULL,
                                       .optimizer_state_count = states * parameters,
                                       .waiting = (size_t)or_zero(numbers[WAITING]),
                                       .ranks = s->ranks,
                                       .rank_count = each};
    TRY(allocate_vectors(s, notes, workers, parameters));
    TRY(allocate_server_state(s, notes, workers));
done:
    return result;
}

status run_checkpoint_open(struct run_checkpoint_file *out, const char *path,
                           const options *settings, const worker *w)
{
    status result = OK;
    struct tensors tensors = {0};
    struct notes notes;
    *out = (struct run_checkpoint_file){0};
    /* Check the settings first: with another optimizer the error would only name a missing tensor.
     */
    TRY(read_notes(path, settings, &notes));
    TRY(allocate_state(out, &notes, settings, worker_parameter_count(w)));
    TRY(open_tensors(
        &(struct run_checkpoint){.settings = settings, .worker = w, .now = &out->state}, &tensors));
    TRY(checkpoint_read(path, tensors.at, tensors.count, NULL, 0));
done:
    free_tensors(&tensors);
    free_notes(&notes);
    if (result != OK)
        run_checkpoint_close(out);
    return result;
}

void run_checkpoint_close(struct run_checkpoint_file *s)
{
    memory_free(s->parameters);
    memory_free(s->optimizer_state);
    memory_free(s->ranks);
    memory_free(s->batches);
    for (size_t i = 0; i < s->state.vector_count; i++)
        memory_free(s->vectors[i]);
    memory_free(s->vectors);
    memory_free(s->account);
    *s = (struct run_checkpoint_file){0};
}
