#include "experiments/run/environment.h"

#include "base/memory.h"
#include "base/text.h"
#include "experiments/run/queued_run.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* Reads up to room−1 bytes of a file as text; empty if it cannot be read. */
static void read_start(const char *path, char *out, size_t room, size_t *length)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *length = 0;
    for (ssize_t got = 1; fd >= 0 && got > 0 && *length + 1 < room;) {
        got = read(fd, out + *length, room - 1 - *length);
        *length += got > 0 ? (size_t)got : 0;
    }
    out[*length] = '\0';
    if (fd >= 0)
        close(fd);
}

void environment_arguments(struct text *out)
{
    static const char secret[] = "run_token=";
    enum { ROOM = 1 << 18 };
    static char all[ROOM]; /* an allocation could fail */
    char path[48];
    size_t length;
    /* In a process that a sweep started, the parent is the sweep, whose command the user typed. */
    pid_t typed = getenv(QUEUED_TITLE) != NULL ? getppid() : getpid();
    snprintf(path, sizeof path, "/proc/%ld/cmdline", (long)typed);
    read_start(path, all, ROOM, &length);
    text_add(out, "[");
    for (size_t at = 0; at < length; at += strlen(all + at) + 1) {
        bool is_secret = strncmp(all + at, secret, sizeof secret - 1) == 0;
        text_add(out, "%s", at > 0 ? "," : "");
        text_add_json(out, is_secret ? secret : all + at);
    }
    text_add(out, "]");
}

void environment_folder(struct text *out)
{
    char path[4096];
    text_add_json(out, getcwd(path, sizeof path));
}

/* ---- the environment ----------------------------------------------------------------------------
 */

static const struct variable variables[] = {
    {"CUDA_*", "which GPUs are visible, and how CUDA uses them"},
    {"DNNL_*", "oneDNN (older names)"},
    {"GLIBC_TUNABLES", "the C library's allocator and vector instructions"},
    {"GRADLAG_BF16_*", "emulation of bf16 products"},
    {"GRADLAG_CUDA_*", "kernels, graphs and queued steps of the CUDA backend, for measurements"},
    {"GRADLAG_DATASETS", "folder of installed datasets (default /usr/share/datasets)"},
    {"LD_LIBRARY_PATH", "which libraries are loaded"},
    {"LD_PRELOAD", "libraries that are loaded before others"},
    {"MALLOC_*", "the C library's allocator"},
    {"NCCL_*", "collectives between GPUs"},
    {"NVIDIA_*", "which GPUs are visible in a container"},
    {"OMPI_MCA_*", "Open MPI"},
    {"OMP_*", "OpenMP threads of libraries"},
    {"ONEDNN_*", "oneDNN: instruction sets, verbosity"},
    {"PMIX_MCA_*", "Open MPI's launcher"},
    {"PRTE_MCA_*", "Open MPI's launcher since version 5"},
};

bool environment_variable(size_t i, struct variable *out)
{
    if (i < COUNT_OF(variables))
        *out = variables[i];
    return i < COUNT_OF(variables);
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* True for variables that a launcher sets for its processes, and for paths of compilers. */
static bool is_irrelevant(const char *entry)
{
    static const char *const irrelevant[] = {
        "OMPI_MCA_ess",
        "OMPI_MCA_orte",
        "OMPI_MCA_pmix",
        "OMPI_MCA_shmem_RU",
        "OMPI_MCA_initial_wdir",
        "OMPI_MCA_plm",
        "OMPI_MCA_mpi_oversubscribe",
        "OMPI_MCA_btl_v",
        "OMPI_MCA_osc_sm_backing",
        "PMIX_MCA_mca_base",
        "PMIX_MCA_psec",
        "CUDA_HOME=",
        "CUDA_PATH",
        "OMPI_MCA_rmaps_base_oversubscribe=",
    };
    for (size_t i = 0; i < COUNT_OF(irrelevant); i++)
        if (begins(entry, irrelevant[i]))
            return true;
    return false;
}

static bool is_relevant(const char *entry)
{
    for (size_t i = 0; i < COUNT_OF(variables); i++) {
        size_t length = strlen(variables[i].name);
        bool group = variables[i].name[length - 1] == '*';
        length -= group;
        if (strncmp(entry, variables[i].name, length) == 0 && (group || entry[length] == '='))
            return !is_irrelevant(entry);
    }
    return false;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void environment_variables(struct text *out)
{
    size_t count = 0;
    const char **found = NULL;
    for (char **e = environ; *e != NULL; e++)
        count += is_relevant(*e);
    REQUIRE(memory_new(&found, count + 1, sizeof *found, "variables") == OK);
    count = 0;
    for (char **e = environ; *e != NULL; e++)
        if (is_relevant(*e))
            found[count++] = *e;
    qsort(found, count, sizeof *found, by_text);
    text_add(out, "{");
    for (size_t i = 0; i < count; i++) {
        char name[256];
        size_t length = strcspn(found[i], "=");
        snprintf(name, sizeof name, "%.*s", (int)length, found[i]);
        text_add(out, "%s", i > 0 ? "," : "");
        text_add_json(out, name);
        text_add(out, ":");
        text_add_json(out, found[i] + length + 1);
    }
    text_add(out, "}");
    memory_free(found);
}

/* ---- the machine --------------------------------------------------------------------------------
 */

/* Copies the rest of the first line that begins with `key`, without quotes; false: there is none.
 */
static bool line_of(const char *path, const char *key, char *out, size_t room)
{
    char text[4096];
    size_t length;
    read_start(path, text, sizeof text, &length);
    for (const char *line = text; *line != '\0';
         line += strcspn(line, "\n"), line += *line == '\n') {
        if (begins(line, key)) {
            const char *value = line + strlen(key);
            value += strspn(value, " \t\"");
            snprintf(out, room, "%.*s", (int)strcspn(value, "\"\n"), value);
            return true;
        }
    }
    return false;
}

void environment_system(struct text *out)
{
    char name[128];
    bool known = line_of("/etc/os-release", "PRETTY_NAME=", name, sizeof name);
    text_add_json(out, known ? name : NULL);
}

void environment_gpus(struct text *out)
{
    static const char folder[] = "/proc/driver/nvidia/gpus";
    struct text all = {0};
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[512], model[128];
        snprintf(path, sizeof path, "%s/%s/information", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && line_of(path, "Model:", model, sizeof model))
            text_add(&all, "%s%s", all.length > 0 ? ", " : "", model);
        free(entries[i]);
    }
    free(entries);
    text_add_json(out, all.at);
    text_free(&all);
}

void environment_gpu_driver(struct text *out)
{
    char version[128];
    bool known =
        line_of("/sys/module/nvidia/version", "", version, sizeof version) && version[0] != '\0';
    text_add_json(out, known ? version : NULL);
}
