/*
 * export_mlflow.c — MLflow's file store: mlruns/EXPERIMENT/RUN with a meta.yaml, one file for each
 * parameter, tag and metric.
 *
 * An experiment is one of ours, or "gradlag" for runs on their own; its id is made of its name and
 * a run's of its uuid, so that exporting again finds both. Steps are updates.
 */
#include "base/sha256.h"
#include "base/text.h"
#include "results/export/export_internal.h"
#include "results/query/push_series.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS = 200 /* of gradients, per run */ };
/* mlflow.entities.RunStatus */
enum { MLFLOW_RUNNING = 1, MLFLOW_FINISHED = 3, MLFLOW_FAILED = 4, MLFLOW_KILLED = 5 };

enum { ID, UUID, EXPERIMENT, NAME, BEGAN, ENDED, HOW, COMMIT, MEAN_STALENESS, RATE };

/* The export of one run. */
struct mlflow_run {
    struct text folder; /* "EXPERIMENT/RUN" */
    int64_t id;
    double began; /* ms since 1970 */
};

static const char *text_of(sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text != NULL ? text : "";
}

static status write_file(struct export *e, const char *folder, const char *name,
                         const struct text *content)
{
    status result = OK;
    struct output_file file = {0};
    struct text path = {0};
    text_add(&path, "%s/%s", folder, name);
    TRY(export_open(e, &file, path.at));
    if (content->length > 0)
        fwrite(content->at, 1, content->length, file.to);
    TRY(export_close(e, &file));
done:
    output_file_abandon(&file);
    text_free(&path);
    return result;
}

/* Writes "key: text\n" with a JSON string, which is valid YAML. */
static void add_yaml(struct text *out, const char *key, const char *value)
{
    text_add(out, "%s: ", key);
    text_add_json(out, value);
    text_add(out, "\n");
}

/* "file:///…": the folder of artifacts. */
static void add_uri(struct export *e, const char *key, const char *below, struct text *out)
{
    char folder[PATH_MAX];
    struct text uri = {0};
    bool known = realpath(e->to, folder) != NULL;
    text_add(&uri, "file://%s/%s", known ? folder : e->to, below);
    add_yaml(out, key, uri.at);
    text_free(&uri);
}

/* ---- experiments --------------------------------------------------------------------------------
 */

/* An id of eighteen digits, computed from the name; MLflow's own ids have this form. */
static void name_experiment(const char *name, char out[32])
{
    struct sha256 hash;
    char hex[65];
    sha256_begin(&hash);
    sha256_add(&hash, name, strlen(name));
    sha256_end(&hash, hex);
    hex[14] = '\0';
    snprintf(out, 32, "%018llu",
             strtoull(hex, NULL, 16) % 900000000000000000ull + 100000000000000000ull);
}

static status write_experiment(struct export *e, sqlite3_stmt *s, void *context)
{
    status result = OK;
    struct text meta = {0};
    const char *name = text_of(s, 0);
    char id[32];
    (void)context;
    name_experiment(name, id);
    add_uri(e, "artifact_location", id, &meta);
    text_add(&meta, "creation_time: %.0f\n", sqlite3_column_double(s, 1));
    add_yaml(&meta, "experiment_id", id);
    text_add(&meta, "last_update_time: %.0f\n", sqlite3_column_double(s, 2));
    add_yaml(&meta, "lifecycle_stage", "active");
    add_yaml(&meta, "name", name);
    TRY(write_file(e, id, "meta.yaml", &meta));
done:
    text_free(&meta);
    return result;
}

/* ---- runs ---------------------------------------------------------------------------------------
 */

static status write_entry(struct export *e, const struct mlflow_run *r, const char *kind,
                          const char *key, const char *value)
{
    status result = OK;
    struct text name = {0}, content = {0};
    text_add(&name, "%s/", kind);
    export_add_name(&name, key);
    text_add(&content, "%s", value);
    TRY(write_file(e, r->folder.at, name.at, &content));
done:
    text_free(&name);
    text_free(&content);
    return result;
}

static status write_parameter(struct export *e, sqlite3_stmt *s, void *context)
{
    return write_entry(e, context, "params", text_of(s, 0), text_of(s, 1));
}

static int64_t milliseconds(const struct mlflow_run *r, double seconds)
{
    return llround(r->began + 1000 * (isfinite(seconds) ? seconds : 0));
}

static void add_point(struct text *out, const struct mlflow_run *r, double seconds, double value,
                      int64_t step)
{
    text_add(out, "%lld ", (long long)milliseconds(r, seconds));
    if (isfinite(value))
        text_add_real(out, value);
    else
        text_add(out, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    text_add(out, " %lld\n", (long long)step);
}

/* Metrics of evaluations and their columns. */
static const char *const evaluated[] = {"train_loss", "validation_loss", "validation_accuracy",
                                        "test_loss", "test_accuracy"};

struct curves {
    const struct mlflow_run *run;
    struct text of[COUNT_OF(evaluated)];
};

static status add_evaluation(struct export *e, sqlite3_stmt *s, void *context)
{
    struct curves *c = context;
    (void)e;
    for (int i = 0; i < (int)COUNT_OF(evaluated); i++) {
        if (sqlite3_column_type(s, 2 + i) != SQLITE_NULL) {
            add_point(&c->of[i], c->run, sqlite3_column_double(s, 1),
                      sqlite3_column_double(s, 2 + i), sqlite3_column_int64(s, 0));
        }
    }
    return OK;
}

static status write_evaluations(struct export *e, const struct mlflow_run *r)
{
    static const char sql[] =
        "SELECT updates, seconds, train_loss, validation_loss, validation_accuracy, test_loss, "
        "test_accuracy FROM evaluation WHERE run_id = ?1 ORDER BY updates";
    status result = OK;
    struct curves c = {.run = r};
    TRY(export_each_of(e, sql, r->id, add_evaluation, &c));
    for (size_t i = 0; i < COUNT_OF(evaluated); i++) {
        char name[64];
        snprintf(name, sizeof name, "metrics/%s", evaluated[i]);
        if (c.of[i].length > 0)
            TRY(write_file(e, r->folder.at, name, &c.of[i]));
    }
done:
    for (size_t i = 0; i < COUNT_OF(evaluated); i++)
        text_free(&c.of[i]);
    return result;
}

/* One metric of the curve of gradients; `offset` of its field in a point. */
static status write_gradient_metric(struct export *e, const struct mlflow_run *r,
                                    const struct series *series, const char *name, size_t offset)
{
    status result = OK;
    struct text points = {0};
    for (size_t i = 0; i < series->count; i++) {
        double value;
        memcpy(&value, (const char *)&series->at[i] + offset, sizeof value);
        if (!isnan(value))
            add_point(&points, r, series->at[i].seconds, value, series->at[i].updates);
    }
    if (points.length > 0)
        TRY(write_file(e, r->folder.at, name, &points));
done:
    text_free(&points);
    return result;
}

static status write_gradients(struct export *e, const struct mlflow_run *r)
{
    status result = OK;
    struct series series = {0};
    TRY(push_series_read(e->db, r->id, POINTS, &series));
    TRY(write_gradient_metric(e, r, &series, "metrics/batch_loss",
                              offsetof(struct series_point, loss)));
    TRY(write_gradient_metric(e, r, &series, "metrics/staleness",
                              offsetof(struct series_point, staleness)));
    TRY(write_gradient_metric(e, r, &series, "metrics/updates_per_second",
                              offsetof(struct series_point, updates_per_second)));
done:
    push_series_free(&series);
    return result;
}

static status write_last(struct export *e, sqlite3_stmt *s, const struct mlflow_run *r, int column,
                         const char *name)
{
    status result = OK;
    struct text point = {0};
    if (sqlite3_column_type(s, column) != SQLITE_NULL) {
        double ended = (sqlite3_column_double(s, ENDED) - r->began) / 1000;
        add_point(&point, r, ended, sqlite3_column_double(s, column), 0);
        TRY(write_file(e, r->folder.at, name, &point));
    }
done:
    text_free(&point);
    return result;
}

static int status_of(const char *how)
{
    return strcmp(how, "running") == 0    ? MLFLOW_RUNNING
           : strcmp(how, "finished") == 0 ? MLFLOW_FINISHED
           : strcmp(how, "stopped") == 0  ? MLFLOW_KILLED
                                          : MLFLOW_FAILED;
}

static status write_meta(struct export *e, sqlite3_stmt *s, const struct mlflow_run *r,
                         const char *id, const char *experiment)
{
    status result = OK;
    struct text meta = {0}, artifacts = {0};
    bool goes_on = strcmp(text_of(s, HOW), "running") == 0;
    text_add(&artifacts, "%s/artifacts", r->folder.at);
    add_uri(e, "artifact_uri", artifacts.at, &meta);
    if (goes_on)
        text_add(&meta, "end_time: null\n");
    else
        text_add(&meta, "end_time: %.0f\n", sqlite3_column_double(s, ENDED));
    add_yaml(&meta, "entry_point_name", "");
    add_yaml(&meta, "experiment_id", experiment);
    add_yaml(&meta, "lifecycle_stage", "active");
    add_yaml(&meta, "run_id", id);
    add_yaml(&meta, "run_name", text_of(s, NAME));
    add_yaml(&meta, "run_uuid", id);
    add_yaml(&meta, "source_name", "");
    text_add(&meta, "source_type: 4\n");
    add_yaml(&meta, "source_version", "");
    text_add(&meta, "start_time: %.0f\nstatus: %d\ntags: []\n", r->began,
             status_of(text_of(s, HOW)));
    add_yaml(&meta, "user_id", "");
    TRY(write_file(e, r->folder.at, "meta.yaml", &meta));
done:
    text_free(&meta);
    text_free(&artifacts);
    return result;
}

/* MLflow ignores folders of runs without these. */
static status make_folders(struct export *e, const struct mlflow_run *r)
{
    static const char *const names[] = {"metrics", "params", "artifacts"};
    status result = OK;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct text path = {0};
        text_add(&path, "%s/%s", r->folder.at, names[i]);
        result = export_make_folder(e, path.at);
        text_free(&path);
        TRY(result);
    }
done:
    return result;
}

static status write_run(struct export *e, sqlite3_stmt *s, void *context)
{
    static const char parameters[] =
        "SELECT key, CASE type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE value END "
        "FROM json_each((SELECT config FROM run WHERE id = ?1))";
    status result = OK;
    struct mlflow_run r = {.id = sqlite3_column_int64(s, ID),
                           .began = sqlite3_column_double(s, BEGAN)};
    char experiment[32], id[40] = "", number[24];
    size_t length = 0;
    (void)context;
    for (const char *c = text_of(s, UUID); *c != '\0' && length < 32; c++)
        if (*c != '-')
            id[length++] = *c;
    name_experiment(text_of(s, EXPERIMENT), experiment);
    text_add(&r.folder, "%s/", experiment);
    export_add_name(&r.folder, id);
    TRY(make_folders(e, &r));
    TRY(write_meta(e, s, &r, id, experiment));
    TRY(export_each_of(e, parameters, r.id, write_parameter, &r));
    snprintf(number, sizeof number, "%lld", (long long)r.id);
    TRY(write_entry(e, &r, "tags", "mlflow.runName", text_of(s, NAME)));
    TRY(write_entry(e, &r, "tags", "mlflow.source.git.commit", text_of(s, COMMIT)));
    TRY(write_entry(e, &r, "tags", "gradlag.run", number));
    TRY(write_entry(e, &r, "tags", "gradlag.status", text_of(s, HOW)));
    TRY(write_evaluations(e, &r));
    TRY(write_gradients(e, &r));
    TRY(write_last(e, s, &r, MEAN_STALENESS, "metrics/mean_staleness"));
    TRY(write_last(e, s, &r, RATE, "metrics/samples_per_second"));
    e->runs++;
done:
    text_free(&r.folder);
    return result;
}

#define MILLISECONDS(column) "round((julianday(" column ") - 2440587.5) * 86400000)"

status export_mlflow(struct export *e)
{
    static const char experiments[] =
        "SELECT coalesce(experiment, 'gradlag') AS name, min(" MILLISECONDS(
            "started_at") "), "
                          "max(" MILLISECONDS(
                              "coalesce(finished_at, started_at)") ") FROM run WHERE " EXPORT_CHOSEN
                                                                   " AND started_at IS NOT NULL "
                                                                   "AND status <> 'queued' GROUP "
                                                                   "BY name";
    static const char runs[] =
        "SELECT id, uuid, coalesce(experiment, 'gradlag'),"
        " coalesce(arm, mode) || ' ×' || workers || ' seed ' || coalesce(seed, "
        "'-'), " MILLISECONDS("started_at") ", " MILLISECONDS(
            "coalesce(finished_at, started_at)") ", status, coalesce(host ->> '$.commit', ''), "
                                                 "mean_staleness, samples_per_second FROM run "
                                                 "WHERE " EXPORT_CHOSEN
                                                 " AND started_at IS NOT NULL AND status <> "
                                                 "'queued' ORDER BY id";
    status result = OK;
    TRY(export_each(e, experiments, write_experiment, NULL));
    TRY(export_each(e, runs, write_run, NULL));
done:
    return result;
}
