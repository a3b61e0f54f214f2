/*
 * export_optuna.c — a journal for Optuna's JournalStorage: one line of JSON per operation. It uses
 * two operations: create a study (0) and create a completed trial (4).
 *
 * An experiment is a study, as are the runs on their own together; a run is a trial. Its parameters
 * are the settings in which the study's runs differ, but for the seed. The value is what tuning
 * looks at: accuracy on the validation split, where there is none on the test set, and for data
 * without classes the test loss.
 */
#include "base/memory.h"
#include "base/text.h"
#include "results/export/export_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CREATE_STUDY = 0, CREATE_TRIAL = 4, SET_STUDY_ATTRIBUTE = 2 };
enum { MINIMIZE = 1, MAXIMIZE = 2 };
enum { TRIAL_RUNNING = 0, TRIAL_COMPLETE = 1, TRIAL_FAIL = 3 };

enum optuna_kind { WHOLE, REAL, CHOICE };

/* A key in which the runs of a study differ. */
struct optuna_axis {
    char *key;
    enum optuna_kind kind;
    double low, high;
    char **choices; /* if CHOICE */
    size_t count;
};

struct study {
    FILE *to;
    int64_t number;
    const char *name;
    const char *value, *curve; /* columns of run and evaluation */
    struct optuna_axis *axes;
    size_t axis_count, room;
};

static const char *text_of(sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text != NULL ? text : "";
}

static void free_axes(struct study *study)
{
    for (size_t i = 0; i < study->axis_count; i++) {
        for (size_t k = 0; k < study->axes[i].count; k++)
            memory_free(study->axes[i].choices[k]);
        free(study->axes[i].choices);
        memory_free(study->axes[i].key);
    }
    free(study->axes);
    study->axes = NULL;
    study->axis_count = study->room = 0;
}

/* Calls `each` for every row of `sql`; ?1: ids of the runs, ?2: name of the study. */
static status each_of_study(struct export *e, const struct study *study, const char *sql,
                            export_row *each, void *context)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    TRY(database_prepare(e->db, &s, sql));
    sqlite3_bind_text(s, 1, e->ids.at, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, study->name, -1, SQLITE_STATIC);
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        TRY(each(e, s, context));
    TRY(database_check(e->db, code, "read a study"));
done:
    sqlite3_finalize(s);
    return result;
}

#define OF_STUDY EXPORT_CHOSEN " AND coalesce(experiment, 'gradlag') = ?2 AND status <> 'queued'"
#define AS_TEXT                                                                                    \
    "CASE j.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(j.value AS TEXT) END"

/* ---- keys in which runs differ ------------------------------------------------------------------
 */

static status add_axis(struct export *e, sqlite3_stmt *s, void *context)
{
    struct study *study = context;
    (void)e;
    if (study->axis_count == study->room) {
        study->room = study->room == 0 ? 16 : 2 * study->room;
        study->axes = realloc(study->axes, study->room * sizeof *study->axes);
        REQUIRE(study->axes != NULL);
    }
    bool whole = sqlite3_column_int(s, 1) != 0, number = sqlite3_column_int(s, 2) != 0;
    study->axes[study->axis_count++] = (struct optuna_axis){.key = text_copy(text_of(s, 0)),
                                                            .kind = whole    ? WHOLE
                                                                    : number ? REAL
                                                                             : CHOICE,
                                                            .low = sqlite3_column_double(s, 3),
                                                            .high = sqlite3_column_double(s, 4)};
    return OK;
}

static struct optuna_axis *find_axis(struct study *study, const char *key)
{
    for (size_t i = 0; i < study->axis_count; i++)
        if (strcmp(study->axes[i].key, key) == 0)
            return &study->axes[i];
    return NULL;
}

/* Called once for each pair of key and value. */
static status add_choice(struct export *e, sqlite3_stmt *s, void *context)
{
    struct optuna_axis *axis = find_axis(context, text_of(s, 0));
    (void)e;
    if (axis != NULL && axis->kind == CHOICE) {
        axis->choices = realloc(axis->choices, (axis->count + 1) * sizeof *axis->choices);
        REQUIRE(axis->choices != NULL);
        axis->choices[axis->count++] = text_copy(text_of(s, 1));
    }
    return OK;
}

static status read_axes(struct export *e, struct study *study)
{
    static const char axes[] =
        "WITH known AS (SELECT coalesce(settings, config) AS its FROM run WHERE " OF_STUDY ") "
        "SELECT j.key, min(j.type = 'integer'), min(j.type IN ('integer', 'real')),"
        " min(CAST(j.value AS REAL)), max(CAST(j.value AS REAL))"
        " FROM known, json_each(known.its) AS j WHERE j.key <> 'seed' GROUP BY j.key"
        " HAVING count(DISTINCT j.value) > 1 OR count(*) < (SELECT count(*) FROM known)"
        " ORDER BY j.key";
    static const char choices[] =
        "SELECT DISTINCT j.key, " AS_TEXT " FROM run, json_each(coalesce(settings, config)) AS j"
        " WHERE " OF_STUDY " ORDER BY 1, 2";
    status result = OK;
    TRY(each_of_study(e, study, axes, add_axis, study));
    TRY(each_of_study(e, study, choices, add_choice, study));
done:
    return result;
}

/* ---- values -------------------------------------------------------------------------------------
 */

static status read_value_column(struct export *e, sqlite3_stmt *s, void *context)
{
    struct study *study = context;
    bool validation = sqlite3_column_int(s, 0) > 0, test = sqlite3_column_int(s, 1) > 0;
    (void)e;
    study->value = validation ? "validation_accuracy" : test ? "final_accuracy" : "final_loss";
    study->curve = validation ? "validation_accuracy" : test ? "test_accuracy" : "test_loss";
    return OK;
}

static void add_number(struct text *out, sqlite3_stmt *s, int column)
{
    double value = sqlite3_column_double(s, column);
    if (sqlite3_column_type(s, column) == SQLITE_NULL || !isfinite(value))
        text_add(out, "null");
    else
        text_add_real(out, value);
}

static void add_attribute(struct text *line, const char *key, sqlite3_stmt *s, int column)
{
    text_add(line, ",");
    text_add_json(line, key);
    text_add(line, ":");
    if (sqlite3_column_type(s, column) == SQLITE_TEXT)
        text_add_json(line, text_of(s, column));
    else
        add_number(line, s, column);
}

/* ---- trials -------------------------------------------------------------------------------------
 */

struct optuna_trial {
    struct study *study;
    struct text distributions, parameters, curve;
};

/* In the JSON format of Optuna's distributions. */
static void add_distribution(struct text *out, const struct optuna_axis *axis)
{
    struct text its = {0};
    if (axis->kind == CHOICE) {
        text_add(&its, "{\"name\":\"CategoricalDistribution\",\"attributes\":{\"choices\":[");
        for (size_t i = 0; i < axis->count; i++) {
            text_add(&its, "%s", i > 0 ? "," : "");
            text_add_json(&its, axis->choices[i]);
        }
        text_add(&its, "]}}");
    } else {
        text_add(&its, "{\"name\":\"%sDistribution\",\"attributes\":{\"log\":false,\"step\":%s,",
                 axis->kind == WHOLE ? "Int" : "Float", axis->kind == WHOLE ? "1" : "null");
        text_add(&its, "\"low\":");
        text_add_real(&its, axis->low);
        text_add(&its, ",\"high\":");
        text_add_real(&its, axis->high);
        text_add(&its, "}}");
    }
    text_add_json(out, its.at);
    text_free(&its);
}

static size_t index_of(const struct optuna_axis *axis, const char *choice)
{
    size_t i = 0;
    while (i + 1 < axis->count && strcmp(axis->choices[i], choice) != 0)
        i++;
    return i;
}

/* Columns: key, number, text. */
static status add_parameter(struct export *e, sqlite3_stmt *s, void *context)
{
    struct optuna_trial *t = context;
    const struct optuna_axis *axis = find_axis(t->study, text_of(s, 0));
    (void)e;
    if (axis == NULL)
        return OK;
    const char *between = t->parameters.length > 0 ? "," : "";
    text_add(&t->distributions, "%s", between);
    text_add_json(&t->distributions, axis->key);
    text_add(&t->distributions, ":");
    add_distribution(&t->distributions, axis);
    text_add(&t->parameters, "%s", between);
    text_add_json(&t->parameters, axis->key);
    text_add(&t->parameters, ":");
    if (axis->kind == CHOICE)
        text_add(&t->parameters, "%zu", index_of(axis, text_of(s, 2)));
    else
        text_add_real(&t->parameters, sqlite3_column_double(s, 1));
    return OK;
}

static status add_point(struct export *e, sqlite3_stmt *s, void *context)
{
    struct optuna_trial *t = context;
    (void)e;
    text_add(&t->curve, "%s\"%lld\":", t->curve.length > 0 ? "," : "",
             (long long)sqlite3_column_int64(s, 0));
    add_number(&t->curve, s, 1);
    return OK;
}

static const char *const attributes[] = {"run",
                                         "uuid",
                                         "arm",
                                         "workers",
                                         "seed",
                                         "status",
                                         "updates",
                                         "samples_used",
                                         "train_seconds",
                                         "samples_per_second",
                                         "final_accuracy",
                                         "final_loss",
                                         "mean_staleness",
                                         "error"};
enum { VALUE, BEGAN, ENDED, ATTRIBUTES };

static status read_trial(struct export *e, struct optuna_trial *t, int64_t run)
{
    static const char settings[] =
        "SELECT j.key, j.value, " AS_TEXT " FROM json_each((SELECT coalesce(settings, config)"
        " FROM run WHERE id = ?1)) AS j ORDER BY j.key";
    status result = OK;
    char curve[256];
    snprintf(curve, sizeof curve,
             "SELECT updates, %s FROM evaluation WHERE run_id = ?1 AND %s IS NOT NULL"
             " ORDER BY updates",
             t->study->curve, t->study->curve);
    TRY(export_each_of(e, settings, run, add_parameter, t));
    TRY(export_each_of(e, curve, run, add_point, t));
done:
    return result;
}

static status write_trial(struct export *e, sqlite3_stmt *s, void *context)
{
    status result = OK;
    struct study *study = context;
    struct optuna_trial t = {.study = study};
    struct text line = {0};
    const char *how = text_of(s, ATTRIBUTES + 5);
    bool goes_on = strcmp(how, "running") == 0;
    bool complete = strcmp(how, "finished") == 0 && sqlite3_column_type(s, VALUE) != SQLITE_NULL &&
                    isfinite(sqlite3_column_double(s, VALUE));
    TRY(read_trial(e, &t, sqlite3_column_int64(s, ATTRIBUTES)));
    text_add(&line, "{\"op_code\":%d,\"worker_id\":\"gradlag\",\"study_id\":%lld,", CREATE_TRIAL,
             (long long)study->number);
    text_add(&line, "\"datetime_start\":");
    text_add_json(&line, text_of(s, BEGAN));
    if (!goes_on) {
        text_add(&line, ",\"datetime_complete\":");
        text_add_json(&line, text_of(s, ENDED));
    }
    text_add(&line, ",\"state\":%d,\"values\":null,\"value\":",
             complete  ? TRIAL_COMPLETE
             : goes_on ? TRIAL_RUNNING
                       : TRIAL_FAIL);
    if (complete)
        add_number(&line, s, VALUE);
    else
        text_add(&line, "null");
    text_add(&line, ",\"distributions\":{%s},\"params\":{%s},\"intermediate_values\":{%s},",
             t.distributions.at != NULL ? t.distributions.at : "",
             t.parameters.at != NULL ? t.parameters.at : "", t.curve.at != NULL ? t.curve.at : "");
    text_add(&line, "\"system_attrs\":{},\"user_attrs\":{\"mode\":");
    text_add_json(&line, text_of(s, ATTRIBUTES + (int)COUNT_OF(attributes)));
    for (int i = 0; i < (int)COUNT_OF(attributes); i++)
        add_attribute(&line, attributes[i], s, ATTRIBUTES + i);
    text_add(&line, "}}\n");
    fwrite(line.at, 1, line.length, study->to);
    e->runs++;
done:
    text_free(&line);
    text_free(&t.distributions);
    text_free(&t.parameters);
    text_free(&t.curve);
    return result;
}

static void write_head(const struct study *study)
{
    struct text line = {0};
    int direction = strcmp(study->value, "final_loss") == 0 ? MINIMIZE : MAXIMIZE;
    text_add(&line, "{\"op_code\":%d,\"worker_id\":\"gradlag\",\"study_name\":", CREATE_STUDY);
    text_add_json(&line, study->name);
    text_add(&line, ",\"directions\":[%d]}\n", direction);
    text_add(&line,
             "{\"op_code\":%d,\"worker_id\":\"gradlag\",\"study_id\":%lld,\"user_attr\":{\"value\":"
             "\"%s\"}}\n",
             SET_STUDY_ATTRIBUTE, (long long)study->number, study->value);
    fwrite(line.at, 1, line.length, study->to);
    text_free(&line);
}

/* Converts "2026-11-21T10:15:00.123Z" to a form that Python before 3.11 can parse. */
#define PYTHON_TIME(column) "replace(" column ", 'Z', '+00:00')"

static status write_study(struct export *e, sqlite3_stmt *s, void *context)
{
    static const char measured[] = "SELECT count(validation_accuracy), count(final_accuracy) FROM "
                                   "run WHERE " OF_STUDY;
    status result = OK;
    struct study *study = context;
    char sql[1024];
    study->name = text_of(s, 0);
    TRY(each_of_study(e, study, measured, read_value_column, study));
    TRY(read_axes(e, study));
    write_head(study);
    snprintf(
        sql, sizeof sql,
        "SELECT %s, " PYTHON_TIME("started_at") ", " PYTHON_TIME(
            "coalesce(finished_at, started_at)") ", id, uuid, arm, workers, seed, "
                                                 "status, updates, samples_used, train_seconds, "
                                                 "samples_per_second, final_accuracy, "
                                                 "final_loss, mean_staleness, error, mode FROM run "
                                                 "WHERE " OF_STUDY
                                                 " AND started_at IS NOT NULL ORDER BY id",
        study->value);
    TRY(each_of_study(e, study, sql, write_trial, study));
    study->number++;
done:
    free_axes(study);
    return result;
}

status export_optuna(struct export *e)
{
    status result = OK;
    struct output_file file = {0};
    struct study study = {0};
    TRY(export_open(e, &file, ""));
    study.to = file.to;
    TRY(export_each(e,
                    "SELECT DISTINCT coalesce(experiment, 'gradlag') FROM run WHERE " EXPORT_CHOSEN
                    " AND status <> 'queued' ORDER BY 1",
                    write_study, &study));
    TRY(export_close(e, &file));
done:
    output_file_abandon(&file);
    return result;
}
