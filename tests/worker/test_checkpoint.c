/* test_checkpoint.c — safetensors files: files are read back as written, and a damaged file is an
 * error that never crashes the reader. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "worker/checkpoint.h"
#include "base/random.h"
#include "tests/rigs/scratch.h"

static char folder[64], path[128];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/gradlag-checkpoint-XXXXXX", scratch_folder());
    snprintf(path, sizeof path, "%s/x.safetensors", mkdtemp(folder) != NULL ? folder : "/nowhere");
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails if a temporary file was left behind */
}

static void write_bytes(const void *bytes, size_t count)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

static size_t read_bytes(uint8_t *bytes, size_t room)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t count = fread(bytes, 1, room, f);
    assert_int_equal(fclose(f), 0);
    return count;
}

static float weights[6] = {1, -2.5f, 3e-40f, 3.4e38f, -0.0f, 6}, bias[3] = {7, 8, 9}, one[1] = {5};
static const struct checkpoint_tensor written[] = {
    {"fc.weight", 2, {3, 2}, weights}, {"fc.bias", 1, {3}, bias}, {"scalar \"q\"", 0, {0}, one}};
static const struct checkpoint_note notes[] = {{"model", "lenet"}, {"version", "12"}};

static void write_example(void)
{
    assert_int_equal(checkpoint_write(path, written, COUNT_OF(written), notes, COUNT_OF(notes)),
                     OK);
}

static void a_file_is_read_back_as_written(void **state)
{
    (void)state;
    float w[6] = {0}, b[3] = {0}, s[1] = {0};
    /* In another order, and without some of the notes. */
    const struct checkpoint_tensor wanted[] = {
        {"scalar \"q\"", 0, {0}, s}, {"fc.bias", 1, {3}, b}, {"fc.weight", 2, {3, 2}, w}};
    struct checkpoint_note found[] = {{"version", NULL}, {"absent", "x"}};
    write_example();
    assert_int_equal(checkpoint_read(path, wanted, 3, found, 2), OK);
    assert_memory_equal(w, weights, sizeof w);
    assert_memory_equal(b, bias, sizeof b);
    assert_memory_equal(s, one, sizeof s);
    assert_string_equal(found[0].value, "12");
    assert_null(found[1].value);
    memory_free((char *)(uintptr_t)found[0].value);
}

/* Compares the bytes with the format's definition, so that other programs can read the file. */
static void the_file_matches_the_format(void **state)
{
    (void)state;
    static float x[2] = {1, 2};
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2],"
        "\"data_offsets\":[0,8]}}";
    const struct checkpoint_tensor t = {"a", 1, {2}, x};
    const struct checkpoint_note n = {"k", "v"};
    uint8_t bytes[256];
    assert_int_equal(checkpoint_write(path, &t, 1, &n, 1), OK);
    size_t count = read_bytes(bytes, sizeof bytes), padded = (sizeof header - 1 + 7) / 8 * 8;
    assert_int_equal(count, 8 + padded + 8);
    assert_int_equal(bytes[0], padded);
    for (int i = 1; i < 8; i++)
        assert_int_equal(bytes[i], 0);
    assert_memory_equal(bytes + 8, header, sizeof header - 1);
    static const uint8_t data[] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40};
    assert_memory_equal(bytes + 8 + padded, data, sizeof data);
}

/* Writes a file with this header and `data` bytes after it, and reads tensor "a" of 2 floats. */
static status read_with_header(const char *header, size_t data)
{
    static uint8_t bytes[4096];
    float a[2];
    const struct checkpoint_tensor wanted = {"a", 1, {2}, a};
    uint64_t length = strlen(header);
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    write_bytes(bytes, 8 + length + data);
    return checkpoint_read(path, &wanted, 1, NULL, 0);
}

static void inconsistent_headers_are_data_errors(void **state)
{
    (void)state;
#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
    assert_int_equal(read_with_header("{" A "}", 8), OK);
    static const struct {
        const char *header;
        size_t data;
    } bad[] = {
        {"{" A "}", 7},
        {"{" A "}", 9},
        {"["
         "1]",
         8},
        {"{" A, 8},
        {"{}", 0},
        {"{\"a\":3}", 8},
        {"{" A "," A "}", 8},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,16]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", 16},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0.0,8]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,8]}}", 8},
        {"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8},
        /* 2³² × 2³² × 4 wraps to 0; 2⁶² × 4 + … wraps too */
        {"{" A
         ",\"b\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[8,8]}}",
         8},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807],\"data_offsets\":[8,8]}}",
         8},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}", 16},
        {"{" A ",\"__metadata__\":{\"k\":1}}", 8},
        {"{" A ",\"__metadata__\":[]}", 8},
        {"{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8},
    };
#undef A
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        if (read_with_header(bad[i].header, bad[i].data) != ERROR_DATA)
            fail_msg("accepted: %s with %zu bytes", bad[i].header, bad[i].data);
        assert_non_null(strstr(error_message(), path));
    }
}

static void a_header_length_beyond_the_file_is_a_data_error(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0,         1, 1000, 100000001, UINT64_MAX, UINT64_MAX - 7,
                                       1ull << 63};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        uint8_t bytes[32] = {0};
        memcpy(bytes, &lengths[i], 8);
        write_bytes(bytes, sizeof bytes);
        assert_int_equal(checkpoint_read(path, NULL, 0, NULL, 0), ERROR_DATA);
    }
    write_bytes("", 0);
    assert_int_equal(checkpoint_read(path, NULL, 0, NULL, 0), ERROR_DATA);
    assert_int_equal(checkpoint_read(folder, NULL, 0, NULL, 0), ERROR_DATA);
    unlink(path);
    assert_int_equal(checkpoint_read(path, NULL, 0, NULL, 0), ERROR_DATA);
}

static status read_example(void)
{
    float w[6], b[3], s[1];
    const struct checkpoint_tensor wanted[] = {
        {"fc.weight", 2, {3, 2}, w}, {"fc.bias", 1, {3}, b}, {"scalar \"q\"", 0, {0}, s}};
    struct checkpoint_note found[] = {{"model", NULL}, {"version", NULL}};
    status code = checkpoint_read(path, wanted, 3, found, 2);
    for (size_t i = 0; i < COUNT_OF(found); i++)
        memory_free((char *)(uintptr_t)found[i].value);
    return code;
}

static void every_truncation_is_a_data_error(void **state)
{
    (void)state;
    uint8_t bytes[2048];
    write_example();
    size_t count = read_bytes(bytes, sizeof bytes);
    for (size_t n = 0; n < count; n++) {
        write_bytes(bytes, n);
        assert_int_equal(read_example(), ERROR_DATA);
    }
    write_bytes(bytes, count);
    assert_int_equal(read_example(), OK);
}

/* Random damage in the header is an error or harmless (blanks, a note's text); it never crashes. */
static void random_damage_never_crashes_the_reader(void **state)
{
    (void)state;
    uint8_t good[2048], bytes[2048];
    struct random_stream r;
    unsigned refused = 0;
    write_example();
    size_t count = read_bytes(good, sizeof good);
    random_open(&r, RANDOM_TEST, 1, 0, 0);
    for (unsigned n = 0; n < 3000; n++) {
        static const char likely[] = "0123456789-[]{}\",:\\ eE.x\0\xff";
        memcpy(bytes, good, count);
        for (uint32_t k = 1 + random_below(&r, 4); k > 0; k--) {
            uint32_t at = random_below(&r, (uint32_t)count - 40);
            bytes[at] = random_below(&r, 2) ? (uint8_t)likely[random_below(&r, sizeof likely - 1)]
                                            : (uint8_t)random_bits(&r);
        }
        write_bytes(bytes, count);
        status code = read_example();
        assert_true(code == OK || code == ERROR_DATA);
        refused += code == ERROR_DATA;
    }
    assert_true(refused > 1500);
}

static void a_failed_write_keeps_the_old_file(void **state)
{
    (void)state;
    char nowhere[160];
    snprintf(nowhere, sizeof nowhere, "%s/absent/x.safetensors", folder);
    assert_int_equal(checkpoint_write(nowhere, written, 1, NULL, 0), ERROR_OTHER);
    assert_non_null(strstr(error_message(), nowhere));
    assert_int_equal(checkpoint_write(folder, written, 1, NULL, 0), ERROR_USAGE);
    write_example();
    write_example(); /* replaces the file */
    assert_int_equal(read_example(), OK);
    unsigned files = 0;
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (const struct dirent *e = readdir(listing); e != NULL; e = readdir(listing))
        files += e->d_name[0] != '.';
    closedir(listing);
    assert_int_equal(files, 1);
}

/* The file size limit kills the child process. */
static void write_too_much(void)
{
    const struct rlimit little = {64, 64}, none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    setrlimit(RLIMIT_FSIZE, &little);
    signal(SIGXFSZ, SIG_DFL);
    write_example();
    _exit(0);
}

static void a_writer_killed_while_writing_leaves_no_file(void **state)
{
    (void)state;
    int how = 0, can = open(folder, O_TMPFILE | O_WRONLY, 0600);
    if (can < 0)
        skip(); /* this file system does not support unnamed temporary files */
    close(can);
    unlink(path);
    pid_t writer = fork();
    if (writer == 0)
        write_too_much();
    assert_int_equal(waitpid(writer, &how, 0), writer);
    assert_true(WIFSIGNALED(how));
    assert_int_equal(WTERMSIG(how), SIGXFSZ);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void names_of_other_tensors_are_reserved(void **state)
{
    (void)state;
    static const char *const reserved[] = {"__metadata__", "ranks",
                                           "correction0",  "waiting12",
                                           "optimizer0.w", "optimizer10.conv1.weight"};
    static const char *const others[] = {"w",          "rank",          "ranks.weight",
                                         "correction", "correction0.w", "waiting",
                                         "optimizer0", "optimizer.w",   ""};
    for (size_t i = 0; i < COUNT_OF(reserved); i++)
        assert_true(checkpoint_name_is_reserved(reserved[i]));
    for (size_t i = 0; i < COUNT_OF(others); i++)
        assert_false(checkpoint_name_is_reserved(others[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_read_back_as_written),
        cmocka_unit_test(the_file_matches_the_format),
        cmocka_unit_test(inconsistent_headers_are_data_errors),
        cmocka_unit_test(a_header_length_beyond_the_file_is_a_data_error),
        cmocka_unit_test(every_truncation_is_a_data_error),
        cmocka_unit_test(random_damage_never_crashes_the_reader),
        cmocka_unit_test(a_failed_write_keeps_the_old_file),
        cmocka_unit_test(a_writer_killed_while_writing_leaves_no_file),
        cmocka_unit_test(names_of_other_tensors_are_reserved),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
