/*
 * Reads a foreign results file. If the input begins with SQLite's magic, it is the file. Any other
 * input is SQL, which runs on a valid file: hostile tables, views and triggers, which changes of
 * single bytes hardly ever create.
 */
#include "base/memory.h"
#include "results/query/query.h"
#include "results/query/push_reader.h"
#include "results/store/recorder.h"
#include "results/query/show_comparison.h"
#include "results/query/show_run.h"
#include "tests/fuzz/fuzz.h"
#include "base/embedded.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static char path[128];

static void remove_all(void)
{
    static const char *const endings[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < COUNT_OF(endings); i++) {
        char each[160];
        snprintf(each, sizeof each, "%s%s", path, endings[i]);
        (void)unlink(each);
    }
}

/* An endless view would stop the fuzzer without finding an error. */
static int deny_long(void *steps)
{
    return ++*(int *)steps > 100;
}

/* A valid empty file, created once and kept in memory. */
static void write_good(void)
{
    static uint8_t *good;
    static size_t size;
    recorder *r = NULL;
    if (good == NULL) {
        REQUIRE(recorder_open(&r, path) == OK);
        recorder_close(&r);
        FILE *file = fopen(path, "rb");
        REQUIRE(file != NULL && fseek(file, 0, SEEK_END) == 0);
        size = (size_t)ftell(file);
        rewind(file);
        REQUIRE(memory_new(&good, size, 1, "a results file") == OK);
        REQUIRE(fread(good, 1, size, file) == size);
        fclose(file);
    }
    fuzz_write("results.db", good, size);
}

static void make(const char *sql)
{
    sqlite3 *db = NULL;
    int steps = 0;
    write_good();
    REQUIRE(sqlite3_open(path, &db) == SQLITE_OK);
    sqlite3_progress_handler(db, 1000, deny_long, &steps);
    sqlite3_limit(db, SQLITE_LIMIT_LENGTH, 1 << 16);
    sqlite3_limit(db, SQLITE_LIMIT_ATTACHED, 0);
    (void)sqlite3_exec(db, "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF", NULL, NULL,
                       NULL);
    (void)sqlite3_exec(db, sql, NULL, NULL, NULL);
    sqlite3_close(db);
}

/* Runs one named query; the size of the input chooses it. */
static void query(size_t number, FILE *nowhere)
{
    const char *const settings[] = {"run=1"};
    struct query_description each;
    size_t count = 0;
    while (query_at(count, &each))
        count++;
    REQUIRE(query_at(number % count, &each));
    const struct query_request request = {.path = path,
                                          .question = each.name,
                                          .settings = settings,
                                          .setting_count =
                                              strstr(query_text(each.name), ":run") != NULL,
                                          .format = (enum query_format)(number % 5),
                                          .width = number % 100};
    (void)!query_run(&request, nowhere, NULL);
}

static void read_it(size_t number, FILE *nowhere)
{
    const struct run_key key = {.experiment = "e"};
    struct recorded_run run;
    struct found_run found_run;
    bool found;
    query(number, nowhere);
    (void)!show_run(path, "last", nowhere);
    (void)!show_comparison(path, (const char *const[]){"1", "last"}, 2, 80, nowhere);
    (void)!query_find_run(path, &key, &found_run, &found);
    if (recorded_run_read(&run, path, "1") == OK)
        recorded_run_free(&run);
}

static void write_to_it(void)
{
    recorder *r = NULL;
    if (recorder_open(&r, path) == OK)
        recorder_close(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *nowhere;
    if (nowhere == NULL) {
        nowhere = fopen("/dev/null", "w");
        snprintf(path, sizeof path, "%s/results.db", fuzz_folder());
    }
    if (size >= 6 && memcmp(data, "SQLite", 6) == 0) {
        fuzz_write("results.db", data, size);
    } else {
        char *sql = fuzz_text(data, size);
        if (strcasestr(sql, "recursive") == NULL)
            make(sql);
        memory_free(sql);
    }
    read_it(size, nowhere);
    write_to_it();
    remove_all();
    return 0;
}
