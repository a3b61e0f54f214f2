/*
 * export_tensorboard.c — TensorBoard's event files: one folder per run with scalars, staleness
 * histograms and hyperparameters, and one file beside the folders that lists all hyperparameters
 * and metrics.
 *
 * An event file is a sequence of records (tfrecord.h), each a protobuf `Event`: tensorflow's
 * event.proto and summary.proto, and plugins/hparams/{plugin_data,api}.proto of tensorboard. Steps
 * are updates; times are those of training, counted from when the run began.
 */
#include "base/sha256.h"
#include "base/text.h"
#include "results/export/export_internal.h"
#include "results/export/protobuf.h"
#include "results/query/push_series.h"
#include "results/export/tfrecord.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SCALARS = 1000 /* of gradients, per run */, HISTOGRAMS = 50 };

/* Field numbers of the Protocol Buffers messages. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5 };
enum { SUMMARY_VALUE = 1 };
enum {
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2,
    VALUE_HISTOGRAM = 5,
    VALUE_METADATA = 9,
};
enum {
    HISTOGRAM_MIN = 1,
    HISTOGRAM_MAX,
    HISTOGRAM_NUM,
    HISTOGRAM_SUM,
    HISTOGRAM_SUM_SQUARES,
    HISTOGRAM_LIMIT,
    HISTOGRAM_BUCKET
};
enum { METADATA_PLUGIN = 1, PLUGIN_NAME = 1, PLUGIN_CONTENT = 2 };
enum { HPARAMS_EXPERIMENT = 2, HPARAMS_START = 3, HPARAMS_END = 4 };
enum { EXPERIMENT_CREATED = 3, EXPERIMENT_HPARAM = 4, EXPERIMENT_METRIC = 5 };
enum { HPARAM_NAME = 1, HPARAM_TYPE = 4, METRIC_NAME = 1, METRIC_DISPLAY = 3, METRIC_NAME_TAG = 2 };
enum { START_HPARAM = 1, START_GROUP = 4, START_SECONDS = 5, END_STATUS = 1, END_SECONDS = 2 };
enum { MAP_KEY = 1, MAP_VALUE = 2, STRUCT_NUMBER = 2, STRUCT_TEXT = 3, STRUCT_BOOL = 4 };
enum { TYPE_STRING = 1, TYPE_BOOL = 2, TYPE_FLOAT64 = 3 };
enum { STATUS_SUCCESS = 1, STATUS_FAILURE = 2, STATUS_RUNNING = 3 };

/* The export of one run. */
struct tensorboard_file {
    FILE *to;
    double began; /* seconds since 1970 */
    /* The stretch of the current histogram. */
    struct staleness_bin last;
    double *limits, *buckets; /* [room] */
    size_t count, room;
    double least, greatest, number, sum, squares;
};

static void begin_event(struct text *event, double wall, int64_t step)
{
    event->length = 0;
    protobuf_add_double(event, EVENT_WALL_TIME, wall);
    if (step != 0)
        protobuf_add_integer(event, EVENT_STEP, (uint64_t)step);
}

/* Writes an event with one summary value, which already has its tag. */
static void write_value(FILE *to, double wall, int64_t step, const struct text *value)
{
    struct text event = {0}, summary = {0};
    protobuf_add_bytes(&summary, SUMMARY_VALUE, value);
    begin_event(&event, wall, step);
    protobuf_add_bytes(&event, EVENT_SUMMARY, &summary);
    tfrecord_write(to, &event);
    text_free(&event);
    text_free(&summary);
}

static void write_version(FILE *to, double wall)
{
    struct text event = {0};
    begin_event(&event, wall, 0);
    protobuf_add_text(&event, EVENT_FILE_VERSION, "brain.Event:2");
    tfrecord_write(to, &event);
    text_free(&event);
}

/* Writes nothing for a value that was not measured. */
static void write_scalar(struct tensorboard_file *b, double seconds, int64_t step, const char *tag,
                         double number)
{
    struct text value = {0};
    if (isnan(number))
        return;
    protobuf_add_text(&value, VALUE_TAG, tag);
    protobuf_add_float(&value, VALUE_SIMPLE, (float)number);
    write_value(b->to, b->began + (isnan(seconds) ? 0 : seconds), step, &value);
    text_free(&value);
}

/* ---- scalars ------------------------------------------------------------------------------------
 */

/* Writes an evaluation; NULL and NaN give no point. */
static status write_evaluation(struct export *e, sqlite3_stmt *s, void *context)
{
    static const char *const tags[] = {"loss/train",          "loss/validation",
                                       "accuracy/validation", "loss/test",
                                       "accuracy/test",       "throughput/samples_per_second"};
    struct tensorboard_file *b = context;
    double seconds = sqlite3_column_double(s, 1);
    (void)e;
    for (int i = 0; i < (int)COUNT_OF(tags); i++) {
        if (sqlite3_column_type(s, 2 + i) != SQLITE_NULL) {
            write_scalar(b, seconds, sqlite3_column_int64(s, 0), tags[i],
                         sqlite3_column_double(s, 2 + i));
        }
    }
    return OK;
}

static status write_evaluations(struct export *e, int64_t run, struct tensorboard_file *b)
{
    static const char sql[] =
        "SELECT updates, seconds, train_loss, validation_loss, validation_accuracy, test_loss, "
        "test_accuracy, (samples - lag(samples, 1, 0) OVER w)"
        " / nullif(seconds - lag(seconds, 1, 0) OVER w, 0) FROM evaluation WHERE run_id = ?1 "
        "WINDOW w AS (ORDER BY updates) ORDER BY updates";
    return export_each_of(e, sql, run, write_evaluation, b);
}

static status write_gradients(struct export *e, int64_t run, struct tensorboard_file *b)
{
    status result = OK;
    struct series series = {0};
    TRY(push_series_read(e->db, run, SCALARS, &series));
    for (size_t i = 0; i < series.count; i++) {
        const struct series_point *p = &series.at[i];
        const struct {
            const char *tag;
            double value;
        } scalars[] = {
            {"loss/batch", p->loss},
            {"staleness/mean", p->staleness},
            {"staleness/max", p->greatest_staleness},
            {"staleness/scale", p->scale},
            {"staleness/gap", p->gap},
            {"gradient/norm", p->gradient_norm},
            {"throughput/updates_per_second", p->updates_per_second},
        };
        for (size_t k = 0; k < COUNT_OF(scalars); k++)
            write_scalar(b, p->seconds, p->updates, scalars[k].tag, scalars[k].value);
    }
done:
    push_series_free(&series);
    return result;
}

/* ---- histograms ---------------------------------------------------------------------------------
 */

/* Each staleness is a bucket, one version wide. */
static void write_histogram(struct tensorboard_file *b)
{
    struct text value = {0}, histogram = {0};
    if (b->count == 0)
        return;
    protobuf_add_double(&histogram, HISTOGRAM_MIN, b->least - 0.5);
    protobuf_add_double(&histogram, HISTOGRAM_MAX, b->greatest + 0.5);
    protobuf_add_double(&histogram, HISTOGRAM_NUM, b->number);
    protobuf_add_double(&histogram, HISTOGRAM_SUM, b->sum);
    protobuf_add_double(&histogram, HISTOGRAM_SUM_SQUARES, b->squares);
    protobuf_add_doubles(&histogram, HISTOGRAM_LIMIT, b->limits, b->count);
    protobuf_add_doubles(&histogram, HISTOGRAM_BUCKET, b->buckets, b->count);
    protobuf_add_text(&value, VALUE_TAG, "staleness");
    protobuf_add_bytes(&value, VALUE_HISTOGRAM, &histogram);
    write_value(b->to, b->began + (isnan(b->last.seconds) ? 0 : b->last.seconds), b->last.updates,
                &value);
    text_free(&value);
    text_free(&histogram);
    b->count = 0;
}

static void add_bucket(struct tensorboard_file *b, double limit, double count)
{
    if (b->count == b->room) {
        b->room = b->room == 0 ? 64 : 2 * b->room;
        b->limits = realloc(b->limits, b->room * sizeof *b->limits);
        b->buckets = realloc(b->buckets, b->room * sizeof *b->buckets);
        REQUIRE(b->limits != NULL && b->buckets != NULL);
    }
    b->limits[b->count] = limit;
    b->buckets[b->count++] = count;
}

static status gather(void *context, const struct staleness_bin *c)
{
    struct tensorboard_file *b = context;
    double staleness = (double)c->staleness, count = (double)c->gradients;
    if (b->count > 0 && c->stretch != b->last.stretch)
        write_histogram(b);
    if (b->count == 0) {
        b->least = staleness;
        b->number = b->sum = b->squares = 0;
    } else if (c->staleness > b->last.staleness + 1) {
        add_bucket(b, staleness - 0.5, 0); /* an empty bucket up to the next staleness */
    }
    add_bucket(b, staleness + 0.5, count);
    b->greatest = staleness;
    b->number += count;
    b->sum += count * staleness;
    b->squares += count * staleness * staleness;
    b->last = *c;
    return OK;
}

static status write_histograms(struct export *e, int64_t run, struct tensorboard_file *b)
{
    status result = OK;
    TRY(push_series_staleness(e->db, run, HISTOGRAMS, gather, b));
    write_histogram(b);
done:
    return result;
}

/* ---- hyperparameters ----------------------------------------------------------------------------
 */

/* Writes a value whose metadata contains the message of the HParams plugin. */
static void write_plugin(FILE *to, double wall, const char *tag, unsigned field,
                         const struct text *content)
{
    struct text data = {0}, plugin = {0}, metadata = {0}, value = {0};
    protobuf_add_bytes(&data, field, content);
    protobuf_add_text(&plugin, PLUGIN_NAME, "hparams");
    protobuf_add_bytes(&plugin, PLUGIN_CONTENT, &data);
    protobuf_add_bytes(&metadata, METADATA_PLUGIN, &plugin);
    protobuf_add_text(&value, VALUE_TAG, tag);
    protobuf_add_bytes(&value, VALUE_METADATA, &metadata);
    write_value(to, wall, 0, &value);
    text_free(&data);
    text_free(&plugin);
    text_free(&metadata);
    text_free(&value);
}

static bool is_number(const char *type)
{
    return strcmp(type, "integer") == 0 || strcmp(type, "real") == 0;
}

static bool is_flag(const char *type)
{
    return strcmp(type, "true") == 0 || strcmp(type, "false") == 0;
}

/* Columns of json_each(): key, type, value. */
static status add_parameter(struct export *e, sqlite3_stmt *s, void *context)
{
    struct text *start = context, value = {0}, entry = {0};
    const char *type = (const char *)sqlite3_column_text(s, 1);
    (void)e;
    if (is_number(type)) {
        protobuf_add_double(&value, STRUCT_NUMBER, sqlite3_column_double(s, 2));
    } else if (is_flag(type)) {
        protobuf_add_integer(&value, STRUCT_BOOL, type[0] == 't');
    } else {
        const char *text = (const char *)sqlite3_column_text(s, 2);
        protobuf_add_text(&value, STRUCT_TEXT, text != NULL ? text : "");
    }
    protobuf_add_text(&entry, MAP_KEY, (const char *)sqlite3_column_text(s, 0));
    protobuf_add_bytes(&entry, MAP_VALUE, &value);
    protobuf_add_bytes(start, START_HPARAM, &entry);
    text_free(&value);
    text_free(&entry);
    return OK;
}

/* Runs that differ only in the seed are one group. */
static void add_group(struct text *start, const char *settings)
{
    struct sha256 hash;
    char hex[65];
    sha256_begin(&hash);
    sha256_add(&hash, settings, strlen(settings));
    sha256_end(&hash, hex);
    hex[12] = '\0';
    protobuf_add_text(start, START_GROUP, hex);
}

static status write_session(struct export *e, int64_t run, struct tensorboard_file *b,
                            const char *settings, const char *how, double ended)
{
    static const char sql[] =
        "SELECT key, type, value FROM json_each((SELECT config FROM run WHERE "
        "id = ?1)) WHERE key IN (SELECT value FROM json_each(?2))";
    status result = OK;
    struct text start = {0}, end = {0};
    bool goes_on = strcmp(how, "running") == 0;
    int code = strcmp(how, "finished") == 0 ? STATUS_SUCCESS
               : goes_on                    ? STATUS_RUNNING
                                            : STATUS_FAILURE;
    TRY(export_each_of(e, sql, run, add_parameter, &start));
    add_group(&start, settings);
    protobuf_add_double(&start, START_SECONDS, b->began);
    write_plugin(b->to, b->began, "_hparams_/session_start_info", HPARAMS_START, &start);
    if (!goes_on) {
        protobuf_add_integer(&end, END_STATUS, (uint64_t)code);
        protobuf_add_double(&end, END_SECONDS, ended);
        write_plugin(b->to, ended, "_hparams_/session_end_info", HPARAMS_END, &end);
    }
done:
    text_free(&start);
    text_free(&end);
    return result;
}

static status add_known_parameter(struct export *e, sqlite3_stmt *s, void *context)
{
    struct text *experiment = context, info = {0};
    const char *type = (const char *)sqlite3_column_text(s, 1);
    (void)e;
    protobuf_add_text(&info, HPARAM_NAME, (const char *)sqlite3_column_text(s, 0));
    protobuf_add_integer(&info, HPARAM_TYPE,
                         is_number(type) ? TYPE_FLOAT64
                         : is_flag(type) ? TYPE_BOOL
                                         : TYPE_STRING);
    protobuf_add_bytes(experiment, EXPERIMENT_HPARAM, &info);
    text_free(&info);
    return OK;
}

static void add_metric(struct text *experiment, const char *tag, const char *title)
{
    struct text name = {0}, info = {0};
    protobuf_add_text(&name, METRIC_NAME_TAG, tag);
    protobuf_add_bytes(&info, METRIC_NAME, &name);
    protobuf_add_text(&info, METRIC_DISPLAY, title);
    protobuf_add_bytes(experiment, EXPERIMENT_METRIC, &info);
    text_free(&name);
    text_free(&info);
}

/* Writes the list of hyperparameters and metrics to the folder above the runs. */
static status write_experiment(struct export *e)
{
    static const char sql[] =
        "SELECT j.key, min(j.type) FROM run, json_each(run.config) AS j WHERE " EXPORT_CHOSEN
        " AND j.key IN (SELECT value FROM json_each(?2)) GROUP BY j.key ORDER BY j.key";
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct text experiment = {0};
    struct output_file file = {0};
    int code;
    TRY(database_prepare(e->db, &s, sql));
    sqlite3_bind_text(s, 1, e->ids.at, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, e->keys.at, -1, SQLITE_STATIC);
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        TRY(add_known_parameter(e, s, &experiment));
    TRY(database_check(e->db, code, "read the runs' settings"));
    add_metric(&experiment, "accuracy/test", "test accuracy");
    add_metric(&experiment, "accuracy/validation", "validation accuracy");
    add_metric(&experiment, "loss/test", "test loss");
    add_metric(&experiment, "staleness/mean", "mean staleness");
    add_metric(&experiment, "throughput/samples_per_second", "samples per second");
    TRY(export_open(e, &file, "events.out.tfevents.0.gradlag"));
    write_version(file.to, 0);
    write_plugin(file.to, 0, "_hparams_/experiment", HPARAMS_EXPERIMENT, &experiment);
    TRY(export_close(e, &file));
done:
    sqlite3_finalize(s);
    output_file_abandon(&file);
    text_free(&experiment);
    return result;
}

/* ---- runs ---------------------------------------------------------------------------------------
 */

enum { ID, EXPERIMENT, NAME, WORKERS, SEED, BEGAN, ENDED, HOW, SETTINGS };

static const char *text_of(sqlite3_stmt *s, int column, const char *otherwise)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text != NULL ? text : otherwise;
}

/* "stale-gradients/undamped-w16-s1-run12/events.out.tfevents.1795000000.gradlag" */
static void name_file(sqlite3_stmt *s, struct text *out)
{
    const char *experiment = text_of(s, EXPERIMENT, "");
    if (experiment[0] != '\0') {
        export_add_name(out, experiment);
        text_add(out, "/");
    }
    export_add_name(out, text_of(s, NAME, "run"));
    text_add(out, "-w%s-s%s-run%s/events.out.tfevents.%.0f.gradlag", text_of(s, WORKERS, "0"),
             text_of(s, SEED, "0"), text_of(s, ID, "0"), sqlite3_column_double(s, BEGAN));
}

static status write_run(struct export *e, sqlite3_stmt *s, void *context)
{
    status result = OK;
    struct tensorboard_file b = {.began = sqlite3_column_double(s, BEGAN)};
    struct output_file file = {0};
    struct text name = {0};
    int64_t run = sqlite3_column_int64(s, ID);
    (void)context;
    name_file(s, &name);
    TRY(export_open(e, &file, name.at));
    b.to = file.to;
    write_version(b.to, b.began);
    TRY(write_session(e, run, &b, text_of(s, SETTINGS, ""), text_of(s, HOW, ""),
                      sqlite3_column_double(s, ENDED)));
    TRY(write_evaluations(e, run, &b));
    TRY(write_gradients(e, run, &b));
    TRY(write_histograms(e, run, &b));
    TRY(export_close(e, &file));
    e->runs++;
done:
    output_file_abandon(&file);
    text_free(&name);
    free(b.limits);
    free(b.buckets);
    return result;
}

status export_tensorboard(struct export *e)
{
    static const char sql[] =
        "SELECT id, experiment, coalesce(arm, mode), workers, seed,"
        " (julianday(started_at) - 2440587.5) * 86400,"
        " (julianday(coalesce(finished_at, started_at)) - 2440587.5) * 86400, status,"
        " coalesce(settings, config, '') FROM run WHERE " EXPORT_CHOSEN
        " AND started_at IS NOT NULL AND status <> 'queued' ORDER BY id";
    status result = OK;
    TRY(write_experiment(e));
    TRY(export_each(e, sql, write_run, NULL));
done:
    return result;
}
