#include "tests/results/results_rig.h"
#include "base/sha256.h"
#include "tests/rigs/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char rig_folder[64], rig_path[96];

const struct run_description rig_run = {
    .experiment = "stale-gradients",
    .arm = "undamped",
    .mode = "async",
    .engine = "real",
    .model = "lenet",
    .dataset = "fashion-mnist",
    .consistency = "asp",
    .damping = "none",
    .workers = 4,
    .batch = 32,
    .seed = 1,
    .lr = 0.03,
    .momentum = 0.9,
    .config = "{\"mode\": \"async\", \"damping\": \"none\", \"seed\": 1}",
    .config_hash = "cafe",
    .host = "{\"cpu\": \"some\"}",
};
const struct run_outcome rig_outcome = {.status = "finished",
                                        .updates = 100,
                                        .samples_used = 3200,
                                        .samples_computed = 3232,
                                        .train_seconds = 2};

int rig_make_folder(void **state)
{
    (void)state;
    snprintf(rig_folder, sizeof rig_folder, "%s/gradlag-results-XXXXXX", scratch_folder());
    if (mkdtemp(rig_folder) == NULL)
        return -1;
    snprintf(rig_path, sizeof rig_path, "%s/results.db", rig_folder);
    return 0;
}

int rig_remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", rig_folder);
    return system(command);
}

recorder *rig_begin(const struct run_description *run, int64_t *id)
{
    recorder *r = NULL;
    assert_int_equal(recorder_open(&r, rig_path), OK);
    assert_int_equal(recorder_begin(r, run, "running", id), OK);
    return r;
}

void rig_finish(recorder *r, const struct run_outcome *outcome)
{
    assert_int_equal(recorder_finish(r, outcome), OK);
    recorder_close(&r);
    assert_null(r);
}

struct push_record rig_push(uint64_t i)
{
    uint64_t staleness = i < 3 ? i : 3;
    return (struct push_record){.arrival = i,
                                .update_version = i + 1,
                                .worker = (uint32_t)(i % 4),
                                .waited_for = NO_WORKER,
                                .batch = i / 4,
                                .sequence = i / 4,
                                .read_version = i - staleness,
                                .staleness = staleness,
                                .scale = 1,
                                .rate = 0.03,
                                .gap = 0.01,
                                .gradient_norm = 0.5 + (double)i,
                                .loss = 2.3,
                                .pull_us = 12.4,
                                .compute_us = 1034.6,
                                .queue_us = 3,
                                .apply_us = 8,
                                .at_seconds = 0.1 * (double)i};
}

bool rig_exists(const char *suffix)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", rig_path, suffix);
    return access(name, F_OK) == 0;
}

const char *rig_ask(const char *sql)
{
    static char answer[256];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    assert_int_equal(database_open_reader(&db, rig_path), OK);
    assert_int_equal(database_prepare(db, &s, sql), OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    const char *text = (const char *)sqlite3_column_text(s, 0);
    snprintf(answer, sizeof answer, "%s", text == NULL ? "NULL" : text);
    sqlite3_finalize(s);
    database_close(&db);
    return answer;
}

const char *rig_hash(void)
{
    static char hex[65];
    char bytes[4096];
    size_t count;
    struct sha256 sum;
    FILE *file = fopen(rig_path, "rb");
    assert_non_null(file);
    sha256_begin(&sum);
    while ((count = fread(bytes, 1, sizeof bytes, file)) > 0)
        sha256_add(&sum, bytes, count);
    fclose(file);
    sha256_end(&sum, hex);
    return hex;
}

void rig_assert_error_names(const char *value)
{
    if (strstr(error_message(), value) == NULL)
        fail_msg("the error does not name '%s': %s", value, error_message());
}

const char *rig_in_the_file(const char *sql)
{
    static char found[512];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    assert_int_equal(sqlite3_open(rig_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    const char *text = (const char *)sqlite3_column_text(s, 0);
    snprintf(found, sizeof found, "%s", text == NULL ? "NULL" : text);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return found;
}

void rig_change(const char *sql)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(rig_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}
