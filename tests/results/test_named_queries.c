/* The named queries and their results; views and documentation of the results file. */
#include "tests/results/query_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first number that `sql` returns. */
static double number(const char *sql)
{
    double value;
    bool known;
    if (query_number(rig_path, sql, NULL, 0, &value, &known) != OK)
        fail_msg("%s", error_message());
    assert_true(known);
    return value;
}

/* ---- named queries -----------------------------------------------------------------------------
 */

static void every_named_query_has_a_description_and_runs(void **state)
{
    (void)state;
    struct query_description q;
    size_t count = 0;
    for (; query_at(count, &q); count++) {
        char why[256] = "";
        assert_non_null(query_no_rows_reason(q.name, why));
        assert_true(strlen(why) > 20 && strchr(why, '\n') == NULL);
        assert_true(strlen(q.description) > 20);
        assert_true(strncmp(query_text(q.name), "-- ", 3) == 0);
        for (int format = QUERY_TABLE; format <= QUERY_VERTICAL; format++) {
            const char *const run[] = {"run=1"};
            bool of_run = strstr(query_text(q.name), "-- :run") != NULL;
            if (run_query(q.name, (enum query_format)format, run, of_run ? 1 : 0) != OK)
                fail_msg("%s: %s", q.name, error_message());
            assert_true(strlen(answer) > 0 || format == QUERY_VERTICAL);
        }
        if (run_query(q.name, QUERY_TABLE, NULL, 0) != OK) /* with the defaults of all parameters */
            fail_msg("%s: %s", q.name, error_message());
    }
    assert_true(count >= 10);
    assert_null(query_text("no-such"));
    char why[256];
    assert_null(query_no_rows_reason("no-such", why));
    assert_null(query_no_rows_reason("SELECT 1", why));
}

static void every_parameter_of_a_query_is_declared(void **state)
{
    (void)state;
    struct query_description q;
    for (size_t i = 0; query_at(i, &q); i++) {
        sqlite3 *db = NULL;
        sqlite3_stmt *s = NULL;
        const char *text = query_text(q.name);
        int declared = 0;
        assert_int_equal(database_open_reader(&db, rig_path), OK);
        assert_int_equal(database_prepare(db, &s, text), OK);
        for (int p = 1; p <= sqlite3_bind_parameter_count(s); p++) {
            char line[80];
            snprintf(line, sizeof line, "\n-- %s = ", sqlite3_bind_parameter_name(s, p));
            assert_contains(text, line);
        }
        for (const char *c = text; (c = strstr(c, "\n-- :")) != NULL; c++)
            declared++;
        assert_int_equal(declared, sqlite3_bind_parameter_count(s));
        sqlite3_finalize(s);
        database_close(&db);
    }
}

static void every_named_query_runs_on_a_file_without_runs(void **state)
{
    (void)state;
    struct query_description q;
    recorder *r = NULL;
    assert_int_equal(recorder_open(&r, rig_path), OK);
    recorder_close(&r);
    for (size_t i = 0; query_at(i, &q); i++) {
        bool of_run = strstr(query_text(q.name), "-- :run = last") != NULL;
        assert_int_equal(run_query(q.name, QUERY_TABLE, NULL, 0), of_run ? ERROR_USAGE : OK);
    }
    assert_int_equal(run_query("staleness-histogram", QUERY_TABLE, NULL, 0), ERROR_USAGE);
    rig_assert_error_names(rig_path);
}

static void accuracy_is_averaged_over_the_seeds_of_finished_runs(void **state)
{
    (void)state;
    assert_float_equal(number("SELECT mean_accuracy FROM accuracy_by_workers "
                              "WHERE arm = 'undamped'"),
                       0.6, 1e-12);
    assert_float_equal(number("SELECT sd_accuracy FROM accuracy_by_workers WHERE arm = 'undamped'"),
                       sqrt(0.02), 1e-12);
    assert_string_equal(rig_ask("SELECT group_concat(arm || seeds || diverged, ' ') FROM "
                                "(SELECT * FROM accuracy_by_workers ORDER BY arm)"),
                        "damped20 sync10 undamped21");
    assert_string_equal(rig_ask("SELECT sd_accuracy FROM accuracy_by_workers WHERE arm = 'sync'"),
                        "NULL");
    assert_string_equal(rig_ask("SELECT parameters FROM accuracy_by_workers WHERE arm = 'damped'"),
                        "damping.power=0.5");
    assert_int_equal(run_query("accuracy-by-mode-and-workers", QUERY_TABLE, NULL, 0), OK);
    assert_contains(answer, "stale-gradients  undamped  async  none              4  0.03     32  - "
                            "                     2");
    assert_contains(answer, "0.8       0.0141        0.6729          0.927");
    assert_contains(answer, "0.6       0.1414        0.0000          1.000");
}

static void pairs_of_the_same_seeds_are_compared(void **state)
{
    (void)state;
    const char *const of[] = {"experiment=stale-gradients", "workers=4", "arm=damped"};
    assert_int_equal(run_query("paired-differences", QUERY_CSV, of, 3), OK);
    /* 0.79 - 0.5 and 0.81 - 0.7; 12.706 of Student's t */
    char first[200];
    double x, y, mean, sd, interval;
    unsigned n;
    const char *line = strstr(answer, "stale-gradients,4,damped");
    assert_non_null(line);
    snprintf(first, sizeof first, "%s", strstr(line, "undamped") + strlen("undamped"));
    assert_int_equal(
        sscanf(strchr(first, ','), ",%u,%lf,%lf,%lf,%lf,%lf", &n, &mean, &interval, &sd, &x, &y),
        6);
    assert_int_equal(n, 2);
    assert_true(fabs(x - 0.8) < 1e-12 && fabs(y - 0.6) < 1e-12 && fabs(mean - 0.2) < 1e-12);
    assert_true(fabs(sd - 0.18 / sqrt(2)) < 1e-12);
    assert_true(fabs(interval - 12.706 * 0.09) < 1e-9);
}

static const char *with_config; /* of the next runs; NULL: that of the rig */

/* Records a finished run with these settings, this accuracy and 100 pushes. */
static void record_with(const char *settings, unsigned seed, unsigned batch, double accuracy)
{
    int64_t id;
    struct run_description run = rig_run;
    run.experiment = run.arm = NULL;
    run.seed = seed;
    run.batch = batch;
    run.settings = settings;
    run.config = with_config != NULL ? with_config : run.config;
    recorder *r = rig_begin(&run, &id);
    recorder_evaluation(r, &(struct evaluation_record){.updates = 100,
                                                       .samples = 3200,
                                                       .seconds = 1,
                                                       .test_loss = 1,
                                                       .test_accuracy = accuracy,
                                                       .validation_loss = NOT_MEASURED,
                                                       .validation_accuracy = NAN});
    for (uint64_t i = 0; i < 100; i++) {
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
    }
    rig_finish(r, &rig_outcome);
}

static void runs_with_different_settings_are_not_averaged(void **state)
{
    (void)state;
    static const char *const queries[] = {"accuracy-by-mode-and-workers", "time-to-accuracy",
                                          "throughput-against-accuracy", "where-time-goes"};
    const char *const settings[] = {"accuracy=0.5"};
    record_with("{\"warmup_epochs\":0,\"batch\":32,\"threads\":1}", 1, 32, 0.5);
    record_with("{\"warmup_epochs\":0,\"batch\":32,\"threads\":1}", 2, 32, 0.6);
    record_with("{\"warmup_epochs\":1,\"batch\":32,\"threads\":1}", 1, 32, 0.7);
    record_with("{\"warmup_epochs\":1,\"batch\":64,\"threads\":1}", 1, 64, 0.8);
    assert_string_equal(rig_ask("SELECT group_concat(others || ':' || batch || ':' || seeds || ':' "
                                "|| round(mean_accuracy, 2), ' ') FROM (SELECT * FROM "
                                "accuracy_by_workers ORDER BY mean_accuracy)"),
                        "warmup_epochs=0:32:2:0.55 warmup_epochs=1:32:1:0.7 "
                        "warmup_epochs=1:64:1:0.8");
    for (size_t i = 0; i < COUNT_OF(queries); i++) {
        size_t lines = 0;
        assert_int_equal(
            run_query(queries[i], QUERY_CSV, settings, strcmp(queries[i], "time-to-accuracy") == 0),
            OK);
        for (const char *c = answer; (c = strchr(c, '\n')) != NULL; c++)
            lines++;
        assert_int_equal(lines, 1 + 3); /* a header, and three configurations */
        assert_contains(answer, "warmup_epochs=1");
    }
}

/* Such keys are no settings, because they change no bit. */
static void runs_that_differ_in_what_changes_speed_are_not_averaged(void **state)
{
    (void)state;
    static const char settings[] = "{\"batch\":32}";
    with_config = "{\"batch\":32,\"overlap\":\"yes\",\"results\":\"a.db\"}";
    record_with(settings, 1, 32, 0.5);
    with_config = "{\"batch\":32,\"overlap\":\"no\",\"results\":\"a.db\"}";
    record_with(settings, 1, 32, 0.5);
    with_config = "{\"batch\":32,\"overlap\":\"no\",\"results\":\"b.db\"}";
    record_with(settings, 2, 32, 0.5);
    with_config = NULL;
    assert_int_equal(run_query("throughput-against-accuracy", QUERY_CSV, NULL, 0), OK);
    assert_contains(answer, ",overlap=yes,1,");
    assert_contains(answer, ",overlap=no,2,");
}

/* Folders of keys may have different names. */
static void encrypted_runs_and_other_networks_are_not_averaged_with_plain_runs(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{\"curve\":\"\",\"network.interface\":\"\",\"trusted_network\":false}",
        "{\"curve\":\"a/keys\"}",
        "{\"curve\":\"b/keys\"}",
        "{\"network.interface\":\"eth1\"}",
        "{\"trusted_network\":true}",
        "{}"};
    for (unsigned i = 0; i < COUNT_OF(configs); i++) {
        with_config = configs[i];
        record_with("{\"batch\":32}", 1 + i, 32, 0.5);
    }
    with_config = NULL;
    assert_int_equal(run_query("throughput-against-accuracy", QUERY_CSV, NULL, 0), OK);
    assert_contains(answer, ",curve=yes,2,");
    assert_contains(answer, ",network.interface=eth1,1,");
    assert_contains(answer, ",trusted_network=1,1,");
    assert_contains(answer, ",,2,");
}

/* Their mean is one observation: they are not independent. */
static void runs_of_one_seed_count_as_one(void **state)
{
    (void)state;
    const char *const settings[] = {"accuracy=0.5"};
    record_with("{\"batch\":32}", 1, 32, 0.5);
    record_with("{\"batch\":32}", 2, 32, 0.6);
    record_with("{\"batch\":32}", 2, 32, 0.8);
    assert_string_equal(rig_ask("SELECT seeds || ' ' || round(mean_accuracy, 9) || ' ' || "
                                "round(sd_accuracy, 9) || ' ' || (interval_low > 0) FROM "
                                "accuracy_by_workers"),
                        "2 0.6 0.141421356 0");
    assert_int_equal(run_query("time-to-accuracy", QUERY_CSV, settings, 1), OK);
    assert_contains(answer, ",0.5,3,3,"); /* accuracy, runs, runs that reached it */
}

/* A row also shows settings without a column. It omits settings that are equal in the whole
 * file. */
static void a_row_shows_the_settings_in_which_it_differs(void **state)
{
    (void)state;
    static const char *const queries[] = {"accuracy-by-mode-and-workers",
                                          "throughput-against-accuracy",
                                          "time-to-accuracy",
                                          "where-time-goes",
                                          "paired-differences",
                                          "runs"};
    record_with("{\"model\":\"mlp\",\"momentum\":0.9,\"pace.cv\":0.2,\"batch\":32}", 1, 32, 0.5);
    record_with("{\"model\":\"mlp\",\"momentum\":0,\"pace.cv\":0.2,\"batch\":32}", 1, 32, 0.6);
    record_with("{\"model\":\"cnn\",\"momentum\":0,\"pace.cv\":0.2,\"batch\":32}", 1, 32, 0.7);
    for (size_t i = 0; i < COUNT_OF(queries); i++) {
        assert_int_equal(run_query(queries[i], QUERY_CSV, NULL, 0), OK);
        assert_contains(answer, "model=mlp momentum=0.9");
        assert_contains(answer, "model=mlp momentum=0");
        assert_contains(answer, "model=cnn momentum=0");
        assert_null(strstr(answer, "pace.cv"));
    }
}

static void damped_runs_are_compared_with_undamped_runs(void **state)
{
    (void)state;
    assert_int_equal(run_query("effect-of-damping", QUERY_CSV, NULL, 0), OK);
    const char *line = strchr(answer, '\n') + 1;
    assert_contains(line, "stale-gradients,4,polynomial,0.03,damping.power=0.5,2,0.8,");
    assert_contains(line, ",2,0.6,0.2");
    assert_null(strchr(strchr(line, '\n') + 1, '\n'));
    /* Standard deviations of √2 and 2 √2 hundredths over two seeds each: √(1 + 4) hundredths. */
    rig_change(
        "UPDATE run SET final_accuracy = (SELECT CASE damping WHEN 'none' THEN 0.58 + 0.04 * "
        "(id = (SELECT max(id) FROM run AS r WHERE r.arm = run.arm AND status = 'finished')) "
        "ELSE 0.79 + 0.02 * (id = (SELECT max(id) FROM run AS r WHERE r.arm = run.arm AND "
        "status = 'finished')) END) WHERE mode = 'async' AND status = 'finished'");
    assert_int_equal(run_query("effect-of-damping", QUERY_CSV, NULL, 0), OK);
    assert_contains(answer, ",0.0223606797");
}

static void the_time_to_an_accuracy_is_that_of_its_first_evaluation(void **state)
{
    (void)state;
    /* sync: 0.18 0.36 0.54 0.72 0.9 at 0 … 4 s; undamped: one of two gets to 0.6. */
    const char *const settings[][1] = {
        {"accuracy=0.6"}, {"accuracy=60"}, {"accuracy=6e-1"}, {"accuracy=+0.6"}, {"accuracy=060"}};
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        assert_int_equal(run_query("time-to-accuracy", QUERY_CSV, settings[i], 1), OK);
        assert_contains(answer, "stale-gradients,sync,sync,,4,0.03,32,,0.6,1,1,3,,,2400,75\n");
        assert_contains(answer,
                        "stale-gradients,undamped,async,none,4,0.03,32,,0.6,3,1,4,,,3200,100\n");
        assert_contains(answer, "stale-gradients,damped,async,polynomial,4,0.03,32,"
                                "damping.power=0.5,0.6,2,2,3,0,0,2400,75\n");
    }
    /* 3 and 5 s: a standard error of 1 s, and one degree of freedom. */
    rig_change("UPDATE evaluation SET seconds = seconds + 2 WHERE run_id = (SELECT max(id) FROM "
               "run WHERE arm = 'damped' AND status = 'finished')");
    assert_int_equal(run_query("time-to-accuracy", QUERY_CSV, settings[0], 1), OK);
    assert_contains(answer, "damping.power=0.5,0.6,2,2,4,1.414213");
    assert_contains(answer, ",12.706,2400,75\n");
    /* Reaching an accuracy again adds no row. */
    rig_change("UPDATE evaluation SET test_accuracy = 0.5 WHERE run_id = 1 AND updates >= 50");
    assert_string_equal(rig_ask("SELECT group_concat(updates, ' ') FROM time_to_accuracy "
                                "WHERE run_id = 1 AND accuracy = 0.5"),
                        "50");
}

/* One of three undamped runs reaches the accuracy, and at once. So the mean of arm undamped is the
 * least of all. */
static void arms_with_runs_that_do_not_reach_an_accuracy_come_last(void **state)
{
    (void)state;
    const char *const settings[] = {"accuracy=0.6"};
    rig_change("UPDATE evaluation SET test_accuracy = 0.7 WHERE run_id = 2");
    rig_change("UPDATE evaluation SET seconds = seconds + 1 "
               "WHERE run_id = (SELECT id FROM run WHERE arm = 'sync')");
    assert_int_equal(run_query("time-to-accuracy", QUERY_CSV, settings, 1), OK);
    const char *const order[] = {",damped,async,", ",sync,sync,", ",undamped,async,"};
    const char *at = answer;
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        at = strstr(at, order[i]);
        assert_non_null(at);
    }
    assert_contains(at, ",0.6,3,1,0,"); /* accuracy, runs, runs that reached it, seconds */
}

static void the_staleness_histogram_adds_up(void **state)
{
    (void)state;
    assert_string_equal(rig_ask("SELECT group_concat(staleness || ':' || pushes, ' ') || "
                                "' ' || sum(share) FROM staleness_histogram WHERE run_id = 1"),
                        "0:1 1:1 2:1 3:97 1.0");
    const char *const settings[] = {"run=1"};
    assert_int_equal(run_query("staleness-histogram", QUERY_CSV, settings, 1), OK);
    assert_contains(answer, "\n1,3,97,0,0.97,1,1,################################\n");
}

/* One of the 97 gradients with staleness 3 is dropped. */
static void the_staleness_histogram_needs_totals_only(void **state)
{
    (void)state;
    char before[sizeof answer];
    const char *const settings[] = {"run=1"};
    rig_change("UPDATE push SET outcome = 'dropped_stale' WHERE run_id = 1 AND number = 50; "
               "DELETE FROM run_staleness WHERE run_id = 1; "
               "UPDATE run SET summarized = NULL WHERE id = 1");
    assert_int_equal(run_query("staleness-histogram", QUERY_CSV, settings, 1), OK);
    assert_contains(answer, "\n1,3,96,1,0.9697,1,1,################################\n");
    snprintf(before, sizeof before, "%s", answer);
    rig_change("INSERT INTO run_staleness VALUES (1, 0, 1, 0, 1), (1, 1, 1, 0, 1), "
               "(1, 2, 1, 0, 1), (1, 3, 96, 1, 1); "
               "UPDATE run SET summarized = 1 WHERE id = 1; DELETE FROM push WHERE run_id = 1");
    assert_int_equal(run_query("staleness-histogram", QUERY_CSV, settings, 1), OK);
    assert_string_equal(answer, before);
}

static void a_learning_curve_has_a_row_per_evaluation(void **state)
{
    (void)state;
    const char *const settings[] = {"run=3"};
    rig_change("UPDATE evaluation SET test_loss = NULL, not_a_number = 'test_loss' "
               "WHERE run_id = 3 AND updates = 100");
    assert_int_equal(run_query("learning-curve", QUERY_CSV, settings, 1), OK);
    assert_contains(
        answer, "run,updates,samples,seconds,clock,train_loss,validation_loss,validation_accuracy,"
                "test_loss,test_accuracy,not_a_number\n3,0,0,0,wall,1,,,1,0.158");
    assert_contains(answer, "\n3,100,3200,4,wall,1,,,,0.79,test_loss\n");
    rig_change("UPDATE run SET engine = 'virtual' WHERE id = 6");
    assert_int_equal(run_query("learning-curve", QUERY_CSV, NULL, 0), OK);
    assert_contains(answer, "\n6,100,3200,4,virtual,1,,,1,0.9,");
    rig_change(
        "UPDATE evaluation SET validation_loss = 2.5, test_loss = NULL, test_accuracy = NULL "
        "WHERE run_id = 6 AND updates = 100");
    assert_int_equal(run_query("learning-curve", QUERY_CSV, NULL, 0), OK);
    assert_contains(answer, "\n6,100,3200,4,virtual,1,2.5,,,,");
}

static void throughput_is_listed_with_accuracy_fastest_first(void **state)
{
    (void)state;
    assert_int_equal(run_query("throughput-against-accuracy", QUERY_CSV, NULL, 0), OK);
    const char *undamped = strstr(answer, "\n4,undamped,async,none,0.03,32,,2,50,1600,0.6");
    const char *damped =
        strstr(answer, "\n4,damped,async,polynomial,0.03,32,damping.power=0.5,2,25,800,0.8");
    const char *sync =
        strstr(answer, "\n4,sync,sync,,0.03,32,,1,12.5,400,0.9,,0,0,0,stale-gradients,0\n");
    assert_non_null(undamped);
    assert_non_null(damped);
    assert_non_null(sync);
    assert_true(undamped < damped && damped < sync);
}

static void the_slowest_worker_comes_first(void **state)
{
    (void)state;
    const char *const settings[] = {"run=1"};
    assert_int_equal(run_query("slowest-worker", QUERY_CSV, settings, 1), OK);
    assert_contains(answer, "\n1,2,25,0.25,4000,2.2857142857142856,4000,500,");
    assert_ptr_equal(strchr(answer, '\n'), strstr(answer, "\n1,2,25,"));
}

static void late_synchronous_gradients_have_a_mean_staleness(void **state)
{
    (void)state;
    const char *const settings[] = {"run=6"};
    rig_change("UPDATE step SET staleness = 2 WHERE worker = 3"); /* delay=2 */
    assert_int_equal(run_query("slowest-worker", QUERY_CSV, settings, 1), OK);
    assert_contains(answer, "\n6,3,25,0.25,1000,1,1000,300,2\n");
    assert_contains(answer, "\n6,0,25,0.25,1000,1,1000,300,0\n");
}

static void waits_between_workers_are_summed(void **state)
{
    (void)state;
    int64_t id;
    char settings[32];
    const char *const one[] = {settings};
    recorder *r = rig_begin(&rig_run, &id);
    for (uint64_t i = 0; i < 40; i++) { /* 10 of each of 4 workers */
        struct push_record p = rig_push(i);
        p.pull_us = 1000 + 500 * (double)p.worker;
        p.waited_for = p.worker != 0 && i >= 20 ? 0 : NO_WORKER;
        recorder_push(r, &p);
    }
    rig_finish(r, &rig_outcome);
    snprintf(settings, sizeof settings, "run=%d", (int)id);
    assert_int_equal(run_query("who-waits-for-whom", QUERY_CSV, one, 1), OK);
    assert_string_equal(answer,
                        "run,worker,waited_for,times,share_of_steps,mean_wait_us,wait_seconds\n"
                        "7,3,0,5,0.5,2500,0.0125\n7,2,0,5,0.5,2000,0.01\n"
                        "7,1,0,5,0.5,1500,0.0075\n");
}

static void times_of_a_step_are_listed_by_mode(void **state)
{
    (void)state;
    assert_int_equal(run_query("where-time-goes", QUERY_CSV, NULL, 0), OK);
    assert_contains(
        answer, ",damped,async,4,polynomial,0.03,32,damping.power=0.5,2,200,2250,1750,500,,3,8,");
    assert_contains(answer, ",sync,sync,4,,0.03,32,,1,100,1400,1000,,300,,100,");
    /* Weighted by steps: (75 · 4 ms + 3 · 25 · 1 ms) / 150. */
    rig_change("UPDATE run_worker_time SET steps = 75 WHERE worker = 2");
    assert_int_equal(run_query("where-time-goes", QUERY_CSV, NULL, 0), OK);
    assert_contains(
        answer, ",damped,async,4,polynomial,0.03,32,damping.power=0.5,2,300,3000,2500,500,,3,8,");
}

static void failures_are_listed_with_their_error(void **state)
{
    (void)state;
    assert_answer("failures", QUERY_CSV,
                  "id,experiment,arm,mode,workers,lr,seed,status,updates,why\n"
                  "5,stale-gradients,undamped,async,4,0.03,3,diverged,100,"
                  "the loss is not finite\n");
}

static void queries_on_one_run_scan_no_other_run(void **state)
{
    (void)state;
    static const char *const queries[] = {
        "SELECT * FROM staleness_histogram WHERE run_id = 1",
        "SELECT * FROM where_time_goes WHERE run_id = 1",
        "SELECT * FROM time_to_accuracy WHERE run_id = 1",
        "SELECT * FROM last_evaluation WHERE run_id = 1",
        "SELECT * FROM run_part WHERE run_id = 1",
        "SELECT * FROM run_clock WHERE run_id = 1",
    };
    for (size_t i = 0; i < COUNT_OF(queries); i++) {
        char sql[128];
        snprintf(sql, sizeof sql, "EXPLAIN QUERY PLAN %s", queries[i]);
        assert_int_equal(run_query(sql, QUERY_CSV, NULL, 0), OK);
        assert_null(strstr(answer, "SCAN push"));
        assert_null(strstr(answer, "SCAN step"));
        assert_null(strstr(answer, "SCAN evaluation"));
        assert_null(strstr(answer, "SCAN run"));
    }
}
/* ---- the documentation and the sqlite3 shell ---------------------------------------------------
 */

static char *read_document(void)
{
    static char text[65536];
    FILE *file = fopen("docs/results-file.md", "r");
    assert_non_null(file);
    size_t count = fread(text, 1, sizeof text - 1, file);
    text[count] = '\0';
    fclose(file);
    return text;
}

static void every_column_is_documented_under_its_table(void **state)
{
    (void)state;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    char *document = read_document();
    static const char sql[] =
        "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_xinfo(m.name) AS c "
        "WHERE (m.type = 'table' OR m.name = 'push') AND m.name NOT LIKE 'sqlite%'";
    assert_int_equal(database_open_reader(&db, rig_path), OK);
    assert_int_equal(database_prepare(db, &s, sql), OK);
    int columns = 0;
    for (; sqlite3_step(s) == SQLITE_ROW; columns++) {
        char title[64], column[64];
        snprintf(title, sizeof title, "\n### %s\n", (const char *)sqlite3_column_text(s, 0));
        if (strstr(document, title) == NULL)
            snprintf(title, sizeof title, "\n### %s:", (const char *)sqlite3_column_text(s, 0));
        snprintf(column, sizeof column, "`%s`", (const char *)sqlite3_column_text(s, 1));
        assert_contains(document, title);
        char *section = strstr(document, title);
        char *end = strstr(section + 1, "\n##");
        char *at = strstr(section, column);
        if (at == NULL || (end != NULL && at > end))
            fail_msg("docs/results-file.md: %s has no %s", title + 1, column);
    }
    assert_true(columns > 60);
    sqlite3_finalize(s);
    database_close(&db);
}

static void need_shell(void)
{
    if (system("command -v sqlite3 >/dev/null") != 0)
        skip();
}

static void the_documented_shell_commands_work(void **state)
{
    (void)state;
    need_shell();
    int commands = 0;
    for (char *line = read_document(); (line = strstr(line, "\nsqlite3 ")) != NULL; commands++) {
        char command[512];
        line++;
        snprintf(command, sizeof command, "cd '%s' && %.*s >/dev/null", rig_folder,
                 (int)strcspn(line, "\n"), line);
        if (system(command) != 0)
            fail_msg("%s", command);
    }
    assert_true(commands >= 5);
}

static void every_view_works_in_the_plain_shell(void **state)
{
    (void)state;
    need_shell();
    static const char *const views[] = {
        "run_summary", "staleness_histogram", "accuracy_by_workers", "last_evaluation", "run_clock",
        "run_part",    "time_to_accuracy",    "where_time_goes"};
    for (size_t i = 0; i < COUNT_OF(views); i++) {
        char command[256];
        snprintf(command, sizeof command,
                 "[ \"$(sqlite3 '%s' 'SELECT count(*) > 0 FROM (SELECT * FROM %s)')\" = 1 ]",
                 rig_path, views[i]);
        assert_int_equal(system(command), 0);
    }
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        SAMPLE_TEST(every_named_query_has_a_description_and_runs),
        SAMPLE_TEST(every_parameter_of_a_query_is_declared),
        RIG_TEST(every_named_query_runs_on_a_file_without_runs),
        SAMPLE_TEST(pairs_of_the_same_seeds_are_compared),
        SAMPLE_TEST(accuracy_is_averaged_over_the_seeds_of_finished_runs),
        RIG_TEST(runs_that_differ_in_what_changes_speed_are_not_averaged),
        RIG_TEST(runs_with_different_settings_are_not_averaged),
        RIG_TEST(runs_of_one_seed_count_as_one),
        RIG_TEST(encrypted_runs_and_other_networks_are_not_averaged_with_plain_runs),
        RIG_TEST(a_row_shows_the_settings_in_which_it_differs),
        SAMPLE_TEST(damped_runs_are_compared_with_undamped_runs),
        SAMPLE_TEST(the_time_to_an_accuracy_is_that_of_its_first_evaluation),
        SAMPLE_TEST(arms_with_runs_that_do_not_reach_an_accuracy_come_last),
        SAMPLE_TEST(the_staleness_histogram_adds_up),
        SAMPLE_TEST(the_staleness_histogram_needs_totals_only),
        SAMPLE_TEST(a_learning_curve_has_a_row_per_evaluation),
        SAMPLE_TEST(throughput_is_listed_with_accuracy_fastest_first),
        SAMPLE_TEST(the_slowest_worker_comes_first),
        SAMPLE_TEST(late_synchronous_gradients_have_a_mean_staleness),
        SAMPLE_TEST(waits_between_workers_are_summed),
        SAMPLE_TEST(times_of_a_step_are_listed_by_mode),
        SAMPLE_TEST(failures_are_listed_with_their_error),
        SAMPLE_TEST(queries_on_one_run_scan_no_other_run),
        SAMPLE_TEST(every_column_is_documented_under_its_table),
        SAMPLE_TEST(the_documented_shell_commands_work),
        SAMPLE_TEST(every_view_works_in_the_plain_shell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
