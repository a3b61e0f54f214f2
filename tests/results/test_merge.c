/* Merging results files: which runs are copied, skipped or refused. */
#include "base/text.h"
#include "tests/results/results_rig.h"

#include "results/store/merge.h"
#include "results/run_queue.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char other_path[96], out_path[96];

static int set_up(void **state)
{
    int code = rig_make_folder(state);
    snprintf(other_path, sizeof other_path, "%s/other.db", rig_folder);
    snprintf(out_path, sizeof out_path, "%s/all.db", rig_folder);
    return code;
}

/* Merges one file into another. */
static status merge_file(const char *into, const char *from, struct merge_outcome *out)
{
    merge *m = NULL;
    size_t runs;
    status result = merge_open(&m, into, false);
    result = result == OK ? merge_add(m, from, out) : result;
    result = result == OK ? merge_finish(m, &runs) : result;
    merge_close(&m);
    return result;
}

static void merge_summaries(void)
{
    merge *m = NULL;
    size_t runs;
    struct merge_outcome outcome;
    assert_int_equal(merge_open(&m, out_path, true), OK);
    assert_int_equal(merge_add(m, other_path, &outcome), OK);
    assert_int_equal(merge_finish(m, &runs), OK);
    merge_close(&m);
}

/* Merges no file; only checks the target. */
static status merge_check(const char *path, size_t *runs)
{
    merge *m = NULL;
    status result = merge_open(&m, path, false);
    result = result == OK ? merge_finish(m, runs) : result;
    merge_close(&m);
    return result;
}

/* The files in the folder of the test: "all.db other.db". */
static const char *list_files(void)
{
    static char all[512];
    struct dirent **entries = NULL;
    int count = scandir(rig_folder, &entries, NULL, alphasort);
    all[0] = '\0';
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.') {
            size_t length = strlen(all);
            snprintf(all + length, sizeof all - length, "%s%s", length > 0 ? " " : "",
                     entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
    return all;
}

/* A finished run with rows in every table. */
static void record(const char *path, uint64_t seed, unsigned pushes)
{
    int64_t id;
    recorder *r = NULL;
    struct run_description run = rig_run;
    char hash[16];
    snprintf(hash, sizeof hash, "hash%llu", (unsigned long long)seed);
    run.seed = seed;
    run.config_hash = hash;
    assert_int_equal(recorder_open(&r, path), OK);
    assert_int_equal(recorder_begin(r, &run, "running", &id), OK);
    for (unsigned i = 0; i < pushes; i++) {
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
        recorder_step(r, &(struct step_record){.update_version = i + 1, .loss = NAN});
    }
    recorder_evaluation(r, &(struct evaluation_record){.updates = 10, .test_accuracy = 0.5});
    recorder_event(r, 1, SEVERITY_INFO, "something", 2, "in detail");
    recorder_checkpoint(r, 10, "end.safetensors", "abc");
    assert_int_equal(recorder_finish(r, &rig_outcome), OK);
    recorder_close(&r);
}

static void use(const char *path)
{
    snprintf(rig_path, sizeof rig_path, "%s", path);
}

static const char totals[] =
    "SELECT (SELECT count(*) FROM run) || ' ' || (SELECT count(*) FROM push) || ' ' || "
    "(SELECT count(*) FROM step) || ' ' || (SELECT count(*) FROM evaluation) || ' ' || "
    "(SELECT count(*) FROM event) || ' ' || (SELECT count(*) FROM checkpoint)";

static void every_row_of_every_run_is_copied_once(void **state)
{
    (void)state;
    struct merge_outcome m;
    size_t runs;
    char first[64];
    snprintf(first, sizeof first, "%s", rig_path);
    record(rig_path, 1, 30);
    record(rig_path, 2, 20);
    record(other_path, 3, 10);
    record(other_path, 1, 5);
    assert_int_equal(merge_file(out_path, first, &m), OK);
    assert_true(m.copied == 2 && m.there == 0 && m.left == 0 && m.repeats == 0);
    assert_int_equal(merge_file(out_path, other_path, &m), OK);
    assert_true(m.copied == 2 && m.repeats == 1);
    assert_int_equal(merge_file(out_path, first, &m), OK);
    assert_true(m.copied == 0 && m.there == 2);
    assert_int_equal(merge_check(out_path, &runs), OK);
    assert_int_equal(runs, 4);
    use(out_path);
    assert_string_equal(rig_ask(totals), "4 65 65 4 4 4");
    assert_string_equal(
        rig_ask("SELECT group_concat(seed || ':' || (SELECT count(*) FROM push WHERE run_id = id) "
                "|| ':' || final_accuracy, ' ') FROM run"),
        "1:30:0.5 2:20:0.5 3:10:0.5 1:5:0.5");
    assert_string_equal(rig_ask("SELECT not_a_number FROM step LIMIT 1"), "loss");
    assert_string_equal(rig_ask("SELECT outcome || ' ' || staleness FROM push WHERE run_id = 3 AND "
                                "number = 2"),
                        "applied 2");
}

static void queued_and_running_runs_are_skipped_and_copied_after_they_have_ended(void **state)
{
    (void)state;
    struct merge_outcome m;
    struct queue_entry entry;
    int64_t id;
    char from[96];
    snprintf(from, sizeof from, "%s", rig_path);
    recorder *r = rig_begin(&rig_run, &id);
    struct run_description waits = rig_run;
    waits.config_hash = "beef";
    struct queue_request request = {.key = {.config_hash = "beef"}, .run = &waits, .attempt = 1};
    queue *q = NULL;
    assert_int_equal(queue_open(&q, from), OK);
    assert_int_equal(queue_add(q, &request, &entry), OK);
    assert_int_equal(queue_commit(q), OK);
    queue_close(&q);
    assert_int_equal(merge_file(out_path, from, &m), OK);
    assert_true(m.copied == 0 && m.left == 2);
    rig_finish(r, &rig_outcome);
    assert_int_equal(merge_file(out_path, from, &m), OK);
    assert_true(m.copied == 1 && m.left == 1);
    /* A copy that was made while the run was running is brought up to date. */
    use(out_path);
    rig_change("UPDATE run SET status = 'running', updates = NULL, runner = NULL");
    assert_int_equal(merge_file(out_path, from, &m), OK);
    assert_true(m.copied == 1);
    assert_string_equal(rig_ask("SELECT count(*) || ' ' || max(status) || updates FROM run"),
                        "1 finished100");
}

static void a_run_whose_process_was_killed_is_merged_as_failed(void **state)
{
    (void)state;
    struct merge_outcome m;
    char from[96];
    int64_t id;
    snprintf(from, sizeof from, "%s", rig_path);
    recorder *r = rig_begin(&rig_run, &id);
    recorder_close(&r);
    rig_change("UPDATE run SET runner = json_set(runner, '$.started', 12345)");
    assert_int_equal(merge_file(out_path, from, &m), OK);
    assert_true(m.copied == 1 && m.left == 0);
    /* On another host the reason is in other words. */
    use(out_path);
    rig_change("UPDATE run SET error = 'no progress since 2026-01-01T00:00:00Z'");
    /* The source now also marks the run as failed. */
    assert_int_equal(recorder_open(&r, from), OK);
    recorder_close(&r);
    assert_int_equal(merge_file(out_path, from, &m), OK);
    assert_true(m.copied == 0 && m.there == 1);
    use(out_path);
    assert_string_equal(rig_ask("SELECT status FROM run"), "failed");
}

static char written[96];
static unsigned commits;

/* Another run commits between two parts of a copy. Gives up after 20 commits. */
static bool commit_and_give_up(void)
{
    sqlite3 *db = NULL;
    if (commits < 20) {
        assert_int_equal(sqlite3_open(written, &db), SQLITE_OK);
        sqlite3_exec(db, "UPDATE run SET tag = random()", NULL, NULL, NULL);
        sqlite3_close(db);
        commits++;
    }
    return commits >= 20;
}

/* The merge copies the file, because it must end the killed run in it. 8 MB are several parts. */
static void a_file_that_another_run_writes_is_copied_in_one_turn(void **state)
{
    (void)state;
    struct merge_outcome m;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    recorder_close(&r);
    rig_change("UPDATE run SET runner = json_set(runner, '$.started', 12345)");
    rig_change("INSERT INTO event (run_id, severity, code, detail) "
               "SELECT id, 'info', 'long', hex(zeroblob(4000000)) FROM run");
    snprintf(written, sizeof written, "%s", rig_path);
    commits = 0;
    recorder_give_up_when(commit_and_give_up);
    const status result = merge_file(out_path, written, &m);
    recorder_give_up_when(NULL);
    assert_true(commits > 1);
    assert_int_equal(result, OK);
    assert_int_equal(m.copied, 1);
}

static void a_run_in_progress_is_not_replaced_by_a_copy_of_it_that_counts_as_failed(void **state)
{
    (void)state;
    struct merge_outcome m;
    char live[96], command[256];
    int64_t id;
    snprintf(live, sizeof live, "%s", rig_path);
    recorder *r = rig_begin(&rig_run, &id);
    assert_int_equal(merge_file(out_path, live, &m), OK);
    assert_int_equal(m.left, 1);
    rig_change("PRAGMA wal_checkpoint");
    snprintf(command, sizeof command, "cp %s %s", live, other_path);
    assert_int_equal(system(command), 0);
    use(other_path);
    rig_change("UPDATE run SET status = 'failed'");
    assert_int_equal(merge_file(live, other_path, &m), ERROR_RESULTS);
    assert_non_null(strstr(error_message(), "run 1"));
    use(live);
    assert_string_equal(rig_ask("SELECT status FROM run"), "running");
    /* A killed run is replaced. */
    rig_finish(r, &rig_outcome);
    rig_change("UPDATE run SET status = 'running', runner = json_set(runner, '$.started', 12345)");
    assert_int_equal(merge_file(live, other_path, &m), OK);
    assert_int_equal(m.copied, 1);
}

static void different_runs_with_one_uuid_are_refused_and_nothing_is_copied(void **state)
{
    (void)state;
    static const struct {
        const char *change, *undo, *table;
    } cases[] = {
        {"UPDATE run SET final_accuracy = 0.9 WHERE seed = 1",
         "UPDATE run SET final_accuracy = 0.5 WHERE seed = 1", "run"},
        {"UPDATE push SET run_id = 2, number = 99 WHERE run_id = 1 AND number = 2",
         "UPDATE push SET run_id = 1, number = 2 WHERE number = 99", "push"},
    };
    struct merge_outcome m;
    char from[96], uuid[40];
    snprintf(from, sizeof from, "%s", rig_path);
    record(from, 1, 3);
    assert_int_equal(merge_file(out_path, from, &m), OK);
    record(from, 2, 3);
    snprintf(uuid, sizeof uuid, "%s", rig_ask("SELECT uuid FROM run WHERE seed = 1"));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        rig_change(cases[i].change);
        assert_int_equal(merge_file(out_path, from, &m), ERROR_RESULTS);
        rig_assert_error_names(uuid);
        rig_assert_error_names(cases[i].table);
        use(out_path);
        assert_string_equal(rig_ask(totals), "1 3 3 1 1 1");
        use(from);
        rig_change(cases[i].undo);
    }
    assert_int_equal(merge_file(from, from, &m), ERROR_USAGE);
    assert_int_equal(merge_file(out_path, from, &m), OK);
    assert_true(m.copied == 1 && m.there == 1);
}

static void other_files_and_other_versions_are_refused_and_not_changed(void **state)
{
    (void)state;
    struct merge_outcome m;
    char before[65], from[96];
    record(rig_path, 1, 3);
    rig_change("PRAGMA user_version = 6");
    snprintf(before, sizeof before, "%s", rig_hash());
    snprintf(from, sizeof from, "%s", rig_path);
    assert_int_equal(merge_file(out_path, from, &m), ERROR_RESULTS);
    rig_assert_error_names(from);
    assert_int_equal(merge_file(out_path, "tests/results/test_merge.c", &m), ERROR_RESULTS);
    record(other_path, 2, 3);
    assert_int_equal(merge_file(from, other_path, &m), ERROR_RESULTS);
    assert_string_equal(rig_hash(), before);
    assert_string_equal(list_files(), "other.db results.db");
}

static unsigned checks_left;

static bool stop_after_some_checks(void)
{
    checks_left -= checks_left > 0;
    return checks_left == 0;
}

static void a_stopped_merge_leaves_only_complete_files(void **state)
{
    (void)state;
    struct merge_outcome one;
    struct text left = {0};
    char first[96];
    merge *m = NULL;
    snprintf(first, sizeof first, "%s", rig_path);
    record(first, 1, 3);
    record(other_path, 2, 3000);
    assert_int_equal(merge_open(&m, out_path, false), OK);
    assert_int_equal(merge_add(m, first, &one), OK);
    assert_null(strstr(list_files(), "all.db "));
    checks_left = 3; /* while rows are copied */
    recorder_give_up_when(stop_after_some_checks);
    assert_int_equal(merge_add(m, other_path, &one), STOPPED);
    merge_describe(m, STOPPED, &left);
    assert_non_null(strstr(left.at, "all.db"));
    recorder_give_up_when(NULL);
    merge_close(&m);
    assert_string_equal(list_files(), "other.db results.db");

    assert_int_equal(merge_file(out_path, first, &one), OK);
    recorder_give_up_when(stop_after_some_checks);
    checks_left = 3;
    assert_int_equal(merge_file(out_path, other_path, &one), STOPPED);
    recorder_give_up_when(NULL);
    assert_string_equal(list_files(), "all.db other.db results.db");
    use(out_path);
    assert_string_equal(rig_ask(totals), "1 3 3 1 1 1");
    text_free(&left);
}

/* A file with a killed run is copied before it is merged. */
static void the_temporary_copy_is_removed_however_the_merge_ends(void **state)
{
    (void)state;
    struct merge_outcome one;
    status result = STOPPED;
    unsigned looks = 0;
    record(rig_path, 1, 3);
    rig_change("UPDATE run SET status = 'running', runner = json_set(runner, '$.started', 12345)");
    recorder_give_up_when(stop_after_some_checks);
    for (; result == STOPPED; looks++) {
        assert_string_equal(list_files(), "results.db");
        checks_left = looks + 1;
        result = merge_file(out_path, rig_path, &one);
    }
    recorder_give_up_when(NULL);
    assert_int_equal(result, OK);
    assert_true(looks > 3);
    assert_string_equal(list_files(), "all.db results.db");
}

static void a_target_that_another_process_created_is_not_changed(void **state)
{
    (void)state;
    struct merge_outcome one;
    merge *m = NULL;
    size_t runs;
    record(rig_path, 1, 3);
    assert_int_equal(merge_open(&m, out_path, false), OK);
    assert_int_equal(merge_add(m, rig_path, &one), OK);
    record(out_path, 2, 3);
    assert_int_equal(merge_finish(m, &runs), ERROR_RESULTS);
    rig_assert_error_names(out_path);
    merge_close(&m);
    assert_string_equal(list_files(), "all.db results.db");
    use(out_path);
    assert_string_equal(rig_ask("SELECT group_concat(seed) FROM run"), "2");
}

/* A -wal file without its database: SQLite would apply it to the new file. */
static void leftovers_of_another_file_are_refused(void **state)
{
    (void)state;
    struct merge_outcome one;
    char left[128];
    record(rig_path, 1, 3);
    snprintf(left, sizeof left, "%s-wal", out_path);
    fclose(fopen(left, "w"));
    assert_int_equal(merge_file(out_path, rig_path, &one), ERROR_RESULTS);
    rig_assert_error_names("all.db-wal");
    assert_string_equal(list_files(), "all.db-wal results.db");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, rig_remove_folder)

static void summaries_leave_out_gradients_and_steps_of_summarized_runs(void **state)
{
    (void)state;
    struct merge_outcome outcome;
    static const char by_run[] =
        "SELECT group_concat((SELECT count(*) FROM push WHERE run_id = run.id) || ' ' || (SELECT "
        "count(*) FROM step WHERE run_id = run.id), ', ') FROM run ORDER BY seed";
    record(other_path, 1, 10);
    record(other_path, 2, 10);
    use(other_path);
    rig_change("UPDATE run SET summarized = NULL WHERE seed = 2");
    merge_summaries();
    use(out_path);
    assert_string_equal(rig_ask(by_run), "0 0, 10 10");
    assert_string_equal(rig_ask("SELECT count(*) FROM evaluation"), "2");
    assert_string_equal(rig_ask("SELECT sum(pushes) FROM run_staleness JOIN run ON run.id = run_id "
                                "WHERE seed = 1"),
                        "10");
    /* The same runs, with and without rows of single gradients, are no contradiction. */
    assert_int_equal(merge_file(out_path, other_path, &outcome), OK);
    assert_int_equal(outcome.there, 2);
    assert_int_equal(merge_file(other_path, out_path, &outcome), OK);
    assert_int_equal(outcome.there, 2);
}

static void tables_of_the_owner_of_a_file_are_left_alone(void **state)
{
    (void)state;
    struct merge_outcome m;
    char first[64];
    snprintf(first, sizeof first, "%s", rig_path);
    record(first, 1, 3);
    record(other_path, 2, 3);
    rig_change("CREATE TABLE notes (run_id INTEGER, note TEXT); INSERT INTO notes VALUES (1, 'a')");
    if (merge_file(first, other_path, &m) != OK)
        fail_msg("%s", error_message());
    assert_int_equal(merge_file(out_path, first, &m), OK);
    assert_int_equal(m.copied, 2);
    assert_string_equal(rig_ask("SELECT count(*) FROM notes"), "1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tables_of_the_owner_of_a_file_are_left_alone),
        TEST(every_row_of_every_run_is_copied_once),
        TEST(queued_and_running_runs_are_skipped_and_copied_after_they_have_ended),
        TEST(a_run_whose_process_was_killed_is_merged_as_failed),
        TEST(a_file_that_another_run_writes_is_copied_in_one_turn),
        TEST(a_run_in_progress_is_not_replaced_by_a_copy_of_it_that_counts_as_failed),
        TEST(different_runs_with_one_uuid_are_refused_and_nothing_is_copied),
        TEST(other_files_and_other_versions_are_refused_and_not_changed),
        TEST(a_stopped_merge_leaves_only_complete_files),
        TEST(the_temporary_copy_is_removed_however_the_merge_ends),
        TEST(a_target_that_another_process_created_is_not_changed),
        TEST(leftovers_of_another_file_are_refused),
        TEST(summaries_leave_out_gradients_and_steps_of_summarized_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
