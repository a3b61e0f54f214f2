/* Reads one of the four IDX files, gzipped or not. The other three files are valid and hold
 * zeros. The first byte chooses the file and whether its name ends in .gz. */
#include "tests/fuzz/fuzz.h"
#include "worker/data/dataset.h"
#include "base/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static const struct {
    const char *name;
    uint8_t head[16];
    size_t head_bytes, bytes;
} files[] = {
    {"train-labels-idx1-ubyte", {0, 0, 8, 1, 0, 0, 0xea, 0x60}, 8, 60000},
    {"t10k-labels-idx1-ubyte", {0, 0, 8, 1, 0, 0, 0x27, 0x10}, 8, 10000},
    {"train-images-idx3-ubyte",
     {0, 0, 8, 3, 0, 0, 0xea, 0x60, 0, 0, 0, 28, 0, 0, 0, 28},
     16,
     60000 * 784},
    {"t10k-images-idx3-ubyte",
     {0, 0, 8, 3, 0, 0, 0x27, 0x10, 0, 0, 0, 28, 0, 0, 0, 28},
     16,
     10000 * 784},
};

static const struct option keys[] = {
    {"dataset", OPTION_NAME, "fashion-mnist", 0, 0, NULL, &dataset_registry, "dataset"},
    {"dataset.path", OPTION_TEXT, "", 0, 0, NULL, NULL, "folder"},
    {0},
};

/* Folder f holds all valid files except the f-th, which the input replaces. */
static void make_folders(void)
{
    static const uint8_t zeros[1 << 16];
    char path[192], twin[192];
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        snprintf(path, sizeof path, "%s/%s.gz", fuzz_folder(), files[f].name);
        gzFile out = gzopen(path, "wb6");
        REQUIRE(out != NULL);
        REQUIRE(gzwrite(out, files[f].head, (unsigned)files[f].head_bytes) > 0);
        for (size_t at = 0; at < files[f].bytes; at += sizeof zeros) {
            size_t rest = files[f].bytes - at;
            REQUIRE(gzwrite(out, zeros, (unsigned)(rest < sizeof zeros ? rest : sizeof zeros)) > 0);
        }
        REQUIRE(gzclose(out) == Z_OK);
    }
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        snprintf(path, sizeof path, "%s/%zu", fuzz_folder(), f);
        REQUIRE(mkdir(path, 0700) == 0);
        for (size_t other = 0; other < COUNT_OF(files); other++) {
            snprintf(path, sizeof path, "%s/%s.gz", fuzz_folder(), files[other].name);
            snprintf(twin, sizeof twin, "%s/%zu/%s.gz", fuzz_folder(), f, files[other].name);
            REQUIRE(other == f || link(path, twin) == 0);
        }
    }
}

static void forget_cache(void)
{
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s/cache'", fuzz_folder());
    REQUIRE(system(command) == 0);
}

static status load(const char *folder)
{
    options *o = NULL;
    struct dataset d = {0};
    REQUIRE(options_open(&o) == OK);
    REQUIRE(options_declare(o, keys) == OK);
    REQUIRE(options_set(o, "dataset.path", folder, "fuzz") == OK);
    status code = dataset_open(&d, o, true);
    if (code == OK) {
        dataset_close(&d);
        forget_cache();
    }
    options_close(&o);
    return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    char name[64], folder[128], path[256];
    if (!ready) {
        make_folders();
        ready = true;
    }
    if (size == 0)
        return 0;
    size_t f = data[0] % COUNT_OF(files);
    snprintf(name, sizeof name, "%zu/%s%s", f, files[f].name, (data[0] & 4) == 0 ? ".gz" : "");
    fuzz_write(name, data + 1, size - 1);
    snprintf(folder, sizeof folder, "%s/%zu", fuzz_folder(), f);
    status code = load(folder);
    REQUIRE(code == OK || code == ERROR_DATA);
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    REQUIRE(unlink(path) == 0);
    return 0;
}
