#include "tests/fuzz/fuzz.h"

#include "base/log.h"
#include "base/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void write_whole(int file, const uint8_t *data, size_t size)
{
    REQUIRE(ftruncate(file, 0) == 0);
    for (size_t at = 0; at < size;) {
        ssize_t n = pwrite(file, data + at, size - at, (off_t)at);
        REQUIRE(n > 0);
        at += (size_t)n;
    }
}

const char *fuzz_file(const uint8_t *data, size_t size)
{
    static int file = -1;
    static char path[64];
    if (file < 0) {
        file = memfd_create("fuzz", MFD_CLOEXEC);
        REQUIRE(file >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    write_whole(file, data, size);
    return path;
}

char *fuzz_text(const uint8_t *data, size_t size)
{
    char *text = NULL;
    REQUIRE(memory_new(&text, size + 1, 1, "text") == OK);
    memcpy(text, data, size);
    return text;
}

static char folder[64];

static void remove_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0)
        log_warning("%s stays behind", folder);
}

const char *fuzz_folder(void)
{
    if (folder[0] == '\0') {
        char cache[96];
        snprintf(folder, sizeof folder, "/dev/shm/gradlag-fuzz-XXXXXX");
        REQUIRE(mkdtemp(folder) != NULL);
        snprintf(cache, sizeof cache, "%s/cache", folder);
        REQUIRE(setenv("XDG_CACHE_HOME", cache, 1) == 0);
        atexit(remove_folder);
    }
    return folder;
}

void fuzz_write(const char *name, const uint8_t *data, size_t size)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(file >= 0);
    write_whole(file, data, size);
    close(file);
}
