#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "experiments/config/config.h"
#include "tests/rigs/scratch.h"
#include "tests/worker/dataset_rig.h"

static char folder[64];
char dataset_cache[80], dataset_source[80];

/* All files are in one folder; the user's cache is not used. */
int dataset_rig_open(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/gradlag-dataset-XXXXXX", scratch_folder());
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(dataset_cache, sizeof dataset_cache, "%s/cache", folder);
    snprintf(dataset_source, sizeof dataset_source, "%s/source", folder);
    return setenv("XDG_CACHE_HOME", dataset_cache, 1) + mkdir(dataset_source, 0700);
}

static void empty_folder(const char *name)
{
    char path[1024];
    DIR *listing = opendir(name);
    for (const struct dirent *e; listing != NULL && (e = readdir(listing)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", name, e->d_name);
        unlink(path);
    }
    if (listing != NULL)
        closedir(listing);
}

void dataset_rig_forget_cache(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/gradlag", dataset_cache);
    empty_folder(path);
}

int dataset_rig_close(void **state)
{
    (void)state;
    char path[128];
    dataset_rig_forget_cache();
    empty_folder(dataset_source);
    snprintf(path, sizeof path, "%s/gradlag", dataset_cache);
    rmdir(path);
    rmdir(dataset_cache);
    rmdir(dataset_source);
    return rmdir(folder);
}

status dataset_rig_load(const char *name, const char *const *set, bool with_data,
                        struct dataset *out)
{
    options *o = NULL;
    char chosen[64];
    snprintf(chosen, sizeof chosen, "dataset=%s", name);
    assert_int_equal(config_compose_texts(&o, (const char *const[]){chosen, NULL}, set, "test"),
                     OK);
    status code = dataset_open(out, o, with_data);
    options_close(&o);
    return code;
}
