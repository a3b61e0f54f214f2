/* test_base.c — errors, text, hashes, log lines, suggestions and options. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "base/thread.h"
#include "base/text.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/shared_memory.h"
#include "base/suggestion.h"
#include "base/registry.h"
#include "tests/rigs/scratch.h"

static status fails(bool fail)
{
    status result = OK;
    if (fail)
        FAIL(ERROR_DATA, "file %s: line %d", "a.idx", 3);
done:
    return result;
}

static void an_error_keeps_its_message_and_origin(void **state)
{
    (void)state;
    assert_int_equal(fails(false), OK);
    assert_int_equal(fails(true), ERROR_DATA);
    assert_string_equal(error_message(), "file a.idx: line 3");
    assert_non_null(strstr(error_origin(), "test_base.c:"));
    assert_int_equal(error_add_context(ERROR_DATA, "worker %d", 4), ERROR_DATA);
    assert_string_equal(error_message(), "worker 4: file a.idx: line 3");
}

static void an_error_may_quote_the_previous_one(void **state)
{
    (void)state;
    assert_int_equal(fails(true), ERROR_DATA);
    status s = error_set(ERROR_OTHER, __FILE__, __LINE__, "again: %s", error_message());
    assert_int_equal(s, ERROR_OTHER);
    assert_string_equal(error_message(), "again: file a.idx: line 3");
}

/* FIPS 180-4 examples, fed in two pieces cut anywhere. */
static void sha256_gives_the_published_answers(void **state)
{
    (void)state;
    static const struct {
        const char *text, *hash;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        for (size_t cut = 0; cut <= strlen(known[i].text); cut++) {
            struct sha256 s;
            char hex[65];
            sha256_begin(&s);
            sha256_add(&s, known[i].text, cut);
            sha256_add(&s, known[i].text + cut, strlen(known[i].text) - cut);
            sha256_end(&s, hex);
            assert_string_equal(hex, known[i].hash);
        }
    }
}

static void json_text_is_escaped(void **state)
{
    (void)state;
    struct text t = {0};
    text_add_json(&t, "a\"b\\c\n");
    assert_string_equal(t.at, "\"a\\\"b\\\\c\\u000a\"");
    text_add_json(&t, "\xc3\xa9\xff|\xe2\x82"); /* é, an invalid byte, a truncated character */
    assert_non_null(strstr(t.at, "\"\xc3\xa9\\ufffd|\\ufffd\\ufffd\""));
    text_add_json(&t, NULL);
    assert_non_null(strstr(t.at, "null"));
    text_free(&t);
}

static void a_line_of_the_log_holds_no_control_characters(void **state)
{
    (void)state;
    char line[128] = "";
    int ends[2], kept = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    log_error("a name of \033[2J\x07\x7f a file, Grüße\tand\nmore");
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(ends[1]);
    close(kept);
    assert_true(read(ends[0], line, sizeof line - 1) > 0);
    close(ends[0]);
    assert_string_equal(line, "gradlag: error: a name of ?[2J?? a file, Grüße\tand\nmore\n");
}

static void distance_counts_edits(void **state)
{
    (void)state;
    assert_int_equal(text_distance("momentum", "momentum"), 0);
    assert_int_equal(text_distance("momentun", "momentum"), 1);
    assert_int_equal(text_distance("", "abc"), 3);
    assert_int_equal(text_distance("kitten", "sitting"), 3);
    assert_int_equal(text_distance("modle", "model"), 1);
    assert_int_equal(text_distance("workesr", "workers"), 1);
    assert_int_equal(text_distance("ba", "ab"), 1);
    assert_int_equal(text_distance("ca", "abc"), 3);
}

static void the_nearest_name_is_suggested(void **state)
{
    (void)state;
    static const char *const known[] = {"mode", "model", "workers", "batch_normalisation", "rule"};
    static const char *const wanted[][2] = {{"wrokers", "workers"},
                                            {"rlue", "rule"},
                                            {"modle", "model"},
                                            {"batch", "batch_normalisation"},
                                            {"mod", "mode"}};
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        struct suggestion s = {.wanted = wanted[i][0]};
        for (size_t k = 0; k < COUNT_OF(known); k++)
            suggestion_add(&s, known[k]);
        assert_string_equal(s.nearest, wanted[i][1]);
        assert_int_equal(suggestion_fail(&s, NULL, "test"), ERROR_USAGE);
    }
}

static const struct option power_options[] = {
    {.key = "rule.power", .type = OPTION_REAL, .initial = "0.5", .minimum = 0, .maximum = 10},
    {0},
};
static const struct about rule_none = {.name = "none", .description = "nothing"};
static const struct about rule_polynomial = {
    .name = "polynomial", .description = "a power", .options = power_options};
static const struct about *const rules[] = {&rule_none, &rule_polynomial};
static const struct registry rule_registry = {.kind = "rule", .entries = rules, .count = 2};

static const struct option global_options[] = {
    {.key = "mode", .type = OPTION_NAME, .initial = "async", .names = "async|sync"},
    {.key = "workers", .type = OPTION_INTEGER, .initial = "1", .minimum = 1, .maximum = 4096},
    {.key = "lr", .type = OPTION_REAL, .initial = "0.03", .minimum = 0, .maximum = 100},
    {.key = "rule", .type = OPTION_NAME, .initial = "none", .registry = &rule_registry},
    {.key = "verbose", .type = OPTION_FLAG, .initial = "false"},
    {.key = "overlap", .type = OPTION_NAME, .initial = "auto", .names = "auto|yes|no"},
    {.key = "tag", .type = OPTION_TEXT, .initial = ""},
    {0},
};

static int open_options(void **state)
{
    options *o = NULL;
    if (options_open(&o) != OK || options_declare(o, global_options) != OK)
        return -1;
    *state = o;
    return 0;
}

static int close_options(void **state)
{
    options *o = *state;
    options_close(&o);
    return 0;
}

static void a_default_holds_until_it_is_set(void **state)
{
    options *o = *state;
    assert_int_equal(options_integer(o, "workers"), 1);
    assert_false(options_was_set(o, "workers"));
    assert_int_equal(options_set(o, "workers", "16", "command line"), OK);
    assert_int_equal(options_integer(o, "workers"), 16);
    assert_true(options_was_set(o, "workers"));
    assert_string_equal(options_origin(o, "workers"), "command line");
    assert_string_equal(options_value(o, "lr"), "0.03");
    assert_int_equal(options_set(o, "mode", "sync", "x"), OK);
    assert_string_equal(options_text(o, "mode"), "sync");
    assert_int_equal(options_set(o, "verbose", "true", "x"), OK);
    assert_true(options_flag(o, "verbose"));
}

/* Hashes of settings must not depend on the word. */
static void yes_equals_true_and_no_equals_false(void **state)
{
    options *o = *state;
    static const char *const typed[][3] = {{"yes", "true", "yes"},
                                           {"no", "false", "no"},
                                           {"true", "true", "yes"},
                                           {"false", "false", "no"}};
    for (size_t i = 0; i < COUNT_OF(typed); i++) {
        assert_int_equal(options_set(o, "verbose", typed[i][0], "x"), OK);
        assert_string_equal(options_value(o, "verbose"), typed[i][1]);
        assert_int_equal(options_flag(o, "verbose"), i % 2 == 0);
        assert_int_equal(options_set(o, "overlap", typed[i][0], "x"), OK);
        assert_string_equal(options_text(o, "overlap"), typed[i][2]);
        assert_int_equal(options_set(o, "tag", typed[i][0], "x"), OK);
        assert_string_equal(options_text(o, "tag"), typed[i][0]);
    }
}

/* The message names the origin, the key, the value and `also`: what is allowed. */
static void expect_refused(options *o, const char *key, const char *value, const char *also)
{
    assert_int_equal(options_set(o, key, value, "file.yaml"), ERROR_USAGE);
    const char *const parts[] = {"file.yaml", key, value, also};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (strstr(error_message(), parts[i]) == NULL)
            fail_msg("'%s' is not in: %s", parts[i], error_message());
}

static void a_bad_setting_is_a_usage_error_and_changes_nothing(void **state)
{
    options *o = *state;
    expect_refused(o, "workers", "0", "4096");
    expect_refused(o, "workers", "four", "4096");
    expect_refused(o, "workers", "4x", "4096");
    expect_refused(o, "lr", "nan", "100");
    expect_refused(o, "lr", "-1", "100");
    expect_refused(o, "mode", "asinc", "async|sync");
    expect_refused(o, "mode", "asy", "async|sync");
    expect_refused(o, "mode", "async|sync", "async|sync");
    expect_refused(o, "verbose", "1", "false");
    expect_refused(o, "mode", "yes", "async|sync");
    expect_refused(o, "overlap", "on", "auto|yes|no");
    expect_refused(o, "rule", "polinomial", "polynomial");
    assert_int_equal(options_set(o, "wrokers", "2", "file.yaml"), ERROR_USAGE);
    assert_int_equal(options_integer(o, "workers"), 1);
    assert_string_equal(options_text(o, "mode"), "async");
}

static void a_key_of_another_choice_is_a_usage_error_that_names_the_choice(void **state)
{
    options *o = *state;
    assert_int_equal(options_set(o, "rule.power", "1", "x"), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "polynomial"));
    assert_int_equal(options_declare(o, power_options), OK);
    assert_int_equal(options_set(o, "rule.power", "1", "x"), OK);
    assert_true(options_real(o, "rule.power") == 1.0);
}

/* ---- shared memory ---- */

static void a_vector_is_found_in_the_area_that_holds_it(void **state UNUSED)
{
    enum { BYTES = 8192 };
    struct shared_memory a, b, none;
    struct shared_memory_place first, second;
    assert_int_equal(shared_memory_open(&a, "a", BYTES, OTHERS_READ), OK);
    assert_int_equal(shared_memory_open(&b, "b", BYTES, OTHERS_WRITE), OK);
    assert_int_equal(shared_memory_open(&none, "none", BYTES, OTHERS_NONE), OK);
    assert_true(shared_memory_find(a.at, BYTES, &first));
    assert_true(shared_memory_find(b.at + 64, BYTES - 64, &second));
    assert_true(first.area != second.area && first.offset == 0 && second.offset == 64);
    assert_true(first.use == OTHERS_READ && second.use == OTHERS_WRITE);
    assert_false(shared_memory_find(b.at + 64, BYTES, &second));
    assert_false(shared_memory_find(none.at, 1, &second));
    /* Written here, seen through the other descriptor, which cannot write. */
    memcpy(a.at, "seen", 5);
    const char *seen = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, first.fd, 0);
    assert_string_equal(seen, "seen");
    assert_ptr_equal(mmap(NULL, BYTES, PROT_WRITE, MAP_SHARED, first.fd, 0), MAP_FAILED);
    munmap((void *)(uintptr_t)seen, BYTES);
    const uint8_t *gone = a.at;
    shared_memory_close(&a);
    assert_false(shared_memory_find(gone, 1, &first));
    assert_true(shared_memory_find(b.at, BYTES, &second));
    shared_memory_close(&b);
    shared_memory_close(&none);
}

static void a_vector_is_shared_once_that_is_wanted(void **state UNUSED)
{
    struct shared_memory_place place;
    float *before, *after;
    assert_int_equal(shared_memory_new(&before, 100, "a vector", OTHERS_WRITE), OK);
    shared_memory_want();
    assert_int_equal(shared_memory_new(&after, 100, "a vector", OTHERS_WRITE), OK);
    assert_false(shared_memory_find(before, 4, &place));
    assert_true(shared_memory_find(after, 400, &place));
    shared_memory_free(before);
    shared_memory_free(after);
    assert_false(shared_memory_find(after, 4, &place));
}

static volatile sig_atomic_t on_own_stack;

static void note_stack(int number)
{
    stack_t now;
    (void)number;
    on_own_stack = sigaltstack(NULL, &now) == 0 && (now.ss_flags & SS_ONSTACK) != 0;
}

static void a_signal_handler_has_a_stack_of_its_own(void **state)
{
    (void)state;
    struct sigaction action = {.sa_handler = note_stack};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 2; i++) {
        on_own_stack = 0;
        signal_handle(SIGUSR2, &action);
        raise(SIGUSR2);
        assert_true(on_own_stack);
    }
}

/* The reference has the fewest digits, from 15 to 17, that read back as `value`. */
static void expect_shortest(double value)
{
    struct text t = {0};
    char digits[32];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    text_add_real(&t, value);
    assert_string_equal(t.at, digits);
    text_free(&t);
}

static void a_real_number_is_written_in_its_shortest_form(void **state)
{
    (void)state;
    static const double edges[] = {0,     -0.0,      1,      1e-4, 9.9999e-5, 5e-324,
                                   1e300, 1e6,       999999, 1e15, 0.1,       0.3 - 0.1 - 0.1,
                                   1e-9,  1234567.5, 1e22,   2e-3, 1.0 / 3,   123456.789012345};
    struct random_stream random;
    random_open(&random, RANDOM_INITIALISATION, 1, 0, 0);
    for (size_t i = 0; i < COUNT_OF(edges); i++) {
        expect_shortest(edges[i]);
        expect_shortest(-edges[i]);
        expect_shortest(nextafter(edges[i], 1));
    }
    for (int i = 0; i < 100000; i++) {
        const double value = 20 * random_uniform(&random) - 10;
        expect_shortest(value);
        expect_shortest((float)value);
        expect_shortest(round(value * 1e9) / 1e9);
        expect_shortest(round(value * 1e9) * 1e-9);
        expect_shortest(ldexp(value, i % 2000 - 1000));
    }
}

static void an_integer_is_written_with_its_sign(void **state)
{
    (void)state;
    static const int64_t values[] = {0, -1, 10, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        struct text t = {0};
        int64_t back;
        text_add_integer(&t, values[i]);
        assert_true(text_to_integer(t.at, &back));
        assert_int_equal(back, values[i]);
        text_free(&t);
    }
}

static void only_plain_decimal_numbers_are_read(void **state)
{
    (void)state;
    static const char *const bad[] = {" 4", "\t4", "0x10", "0X1p3", "4 ", "", "1e400", "1e-400"};
    static const char *const good[] = {"4", "-4.5", "+1e3", ".5", "0e-400", "1e-310"};
    int64_t integer;
    double real;
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (text_to_real(bad[i], &real) || text_to_integer(bad[i], &integer))
            fail_msg("'%s' should be refused", bad[i]);
    for (size_t i = 0; i < COUNT_OF(good); i++)
        if (!text_to_real(good[i], &real) || real != strtod(good[i], NULL))
            fail_msg("'%s' should be read", good[i]);
}

static char groups[64]; /* a folder, as /sys/fs/cgroup */

static void write_file(const char *name, const char *content)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", groups, name);
    FILE *f = fopen(path, "w");
    assert_true(f != NULL && fputs(content, f) >= 0 && fclose(f) == 0);
}

/* As in a container of Docker or Kubernetes with --cpus=1.5 and --memory=1g. */
static void a_control_group_limits_processors_and_memory(void **state)
{
    (void)state;
    const char *const folders[] = {"a", "a/b", "cpu"};
    char path[512];
    snprintf(groups, sizeof groups, "%s/groups-XXXXXX", scratch_folder());
    assert_non_null(mkdtemp(groups));
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        snprintf(path, sizeof path, "%s/%s", groups, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    assert_int_equal(processor_quota(groups, "/a/b"), UINT_MAX);
    write_file("a/b/cpu.max", "max 100000\n");
    assert_int_equal(processor_quota(groups, "/a/b"), UINT_MAX);
    write_file("a/cpu.max", "350000 100000\n"); /* the limit of a parent counts, too */
    assert_int_equal(processor_quota(groups, "/a/b"), 4);
    write_file("cpu.max", "150000 100000\n");
    assert_int_equal(processor_quota(groups, "/a/b"), 2);
    assert_int_equal(processor_quota(groups, "/"), 2);
    assert_int_equal(processor_quota(groups, ""), 2);
    write_file("cpu/cpu.cfs_period_us", "100000\n"); /* version 1 */
    write_file("cpu/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(processor_quota(groups, ""), 2);
    write_file("cpu/cpu.cfs_quota_us", "50000\n");
    assert_int_equal(processor_quota(groups, ""), 1);
    snprintf(path, sizeof path, "%s/cpu/cpu.cfs_period_us", groups);
    assert_int_equal(unlink(path), 0); /* a quota without a period does not count */
    assert_int_equal(processor_quota(groups, ""), 2);
    assert_true(processor_count() >= 1);
    assert_true(isinf(group_quota(groups, "/a/b", "memory.max")));
    write_file("a/b/memory.max", "max\n");
    write_file("a/memory.max", "1073741824\n");
    assert_true(group_quota(groups, "/a/b", "memory.max") == 1073741824);
    assert_true(memory_bytes() >= 1 << 20);
    static const char *const made[] = {"a/b/cpu.max",  "a/cpu.max",
                                       "cpu.max",      "a/b/memory.max",
                                       "a/memory.max", "cpu/cpu.cfs_quota_us",
                                       "a/b",          "a",
                                       "cpu",          ""};
    for (size_t i = 0; i < COUNT_OF(made); i++) {
        snprintf(path, sizeof path, "%s/%s", groups, made[i]);
        assert_int_equal(remove(path), 0);
    }
}

static void *halve_the_smallest(void *out)
{
    volatile float least = FLT_MIN;
    *(float *)out = least / 2;
    return NULL;
}

/* The setting is one of the calling thread, and its threads inherit it. */
static void *flush_and_start_a_thread(void *out)
{
    float *at = out;
    pthread_t other;
    thread_flush_subnormals();
    halve_the_smallest(&at[0]);
    assert_int_equal(thread_start(&other, halve_the_smallest, &at[1], "a thread"), OK);
    pthread_join(other, NULL);
    return NULL;
}

static void a_subnormal_number_is_0_if_wanted(void **state UNUSED)
{
    float found[3] = {1, 1, 1};
    pthread_t wanted;
    assert_int_equal(thread_start(&wanted, flush_and_start_a_thread, found, "a thread"), OK);
    pthread_join(wanted, NULL);
    halve_the_smallest(&found[2]);
#if defined(__x86_64__)
    assert_true(found[0] == 0 && found[1] == 0);
#endif
    assert_true(found[2] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_keeps_its_message_and_origin),
        cmocka_unit_test(a_real_number_is_written_in_its_shortest_form),
        cmocka_unit_test(an_integer_is_written_with_its_sign),
        cmocka_unit_test(an_error_may_quote_the_previous_one),
        cmocka_unit_test(sha256_gives_the_published_answers),
        cmocka_unit_test(json_text_is_escaped),
        cmocka_unit_test(only_plain_decimal_numbers_are_read),
        cmocka_unit_test(a_vector_is_found_in_the_area_that_holds_it),
        cmocka_unit_test(a_vector_is_shared_once_that_is_wanted),
        cmocka_unit_test(a_line_of_the_log_holds_no_control_characters),
        cmocka_unit_test(distance_counts_edits),
        cmocka_unit_test(the_nearest_name_is_suggested),
        cmocka_unit_test_setup_teardown(a_default_holds_until_it_is_set, open_options,
                                        close_options),
        cmocka_unit_test_setup_teardown(yes_equals_true_and_no_equals_false, open_options,
                                        close_options),
        cmocka_unit_test(a_control_group_limits_processors_and_memory),
        cmocka_unit_test(a_signal_handler_has_a_stack_of_its_own),
        cmocka_unit_test(a_subnormal_number_is_0_if_wanted),
        cmocka_unit_test_setup_teardown(a_bad_setting_is_a_usage_error_and_changes_nothing,
                                        open_options, close_options),
        cmocka_unit_test_setup_teardown(
            a_key_of_another_choice_is_a_usage_error_that_names_the_choice, open_options,
            close_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
