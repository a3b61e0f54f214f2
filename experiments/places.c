#include "experiments/places.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Those of the environment's list, else as many as the driver has folders. */
static void find_gpus(struct places *p)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    for (; list != NULL && *list != '\0' && p->gpu_count < PLACES_GPUS;) {
        size_t length = strcspn(list, ",");
        snprintf(p->gpus[p->gpu_count++], sizeof p->gpus[0], "%.*s", (int)length, list);
        list += length + (list[length] == ',');
    }
    DIR *all = list == NULL ? opendir("/proc/driver/nvidia/gpus") : NULL;
    struct dirent *entry;
    while (all != NULL && (entry = readdir(all)) != NULL && p->gpu_count < PLACES_GPUS) {
        if (entry->d_name[0] != '.') {
            snprintf(p->gpus[p->gpu_count], sizeof p->gpus[0], "%u", p->gpu_count);
            p->gpu_count++;
        }
    }
    if (all != NULL) {
        closedir(all);
    }
}

status places_open(struct places *p, unsigned jobs, bool shared)
{
    status result = OK;
    *p = (struct places){.jobs = jobs, .shared = shared};
    REQUIRE(jobs > 0);
    if (sched_getaffinity(0, sizeof p->cores, &p->cores) != 0) {
        CPU_ZERO(&p->cores); /* more cores than the set has room for: nothing is bound */
        p->shared = true;
    }
    p->free_cores = p->cores;
    p->core_count = (unsigned)CPU_COUNT(&p->cores);
    if (!p->shared && jobs > p->core_count) {
        FAIL(ERROR_USAGE,
             "--jobs %u: this process may use %u cores, so some runs would share one; take fewer, "
             "or allow it with --oversubscribe",
             jobs, p->core_count);
    }
    find_gpus(p);
done:
    return result;
}

static unsigned cores_wanted(const struct places *p, const options *o)
{
    int64_t wanted = options_integer(o, "workers") * options_integer(o, "threads");
    if (strcmp(options_text(o, "engine"), "virtual") == 0) {
        wanted = options_integer(o, "virtual.threads");
        wanted = wanted > 0 ? wanted : p->core_count / p->jobs;
    }
    return wanted < p->core_count ? (unsigned)wanted : p->core_count;
}

static unsigned gpus_wanted(const struct places *p, const options *o)
{
    int64_t workers = options_integer(o, "workers");
    bool none = strcmp(options_text(o, "device"), "cuda") != 0;
    return none ? 0 : workers < p->gpu_count ? (unsigned)workers : p->gpu_count;
}

bool places_take(struct places *p, const options *o, struct place *out)
{
    *out = (struct place){0};
    if (p->shared || p->jobs == 1) {
        return true;
    }
    unsigned cores = cores_wanted(p, o), gpus = gpus_wanted(p, o), free_gpus = 0;
    for (unsigned i = 0; i < p->gpu_count; i++) {
        free_gpus += !p->gpu_taken[i];
    }
    if (cores > (unsigned)CPU_COUNT(&p->free_cores) || gpus > free_gpus) {
        return false;
    }
    for (int i = 0; i < CPU_SETSIZE && out->core_count < cores; i++) {
        if (CPU_ISSET(i, &p->free_cores)) {
            CPU_SET(i, &out->cores);
            CPU_CLR(i, &p->free_cores);
            out->core_count++;
        }
    }
    for (unsigned i = 0; i < p->gpu_count && out->gpu_count < gpus; i++) {
        if (!p->gpu_taken[i]) {
            p->gpu_taken[i] = out->gpus[i] = true;
            out->gpu_count++;
        }
    }
    return true;
}

void places_give_back(struct places *p, const struct place *place)
{
    CPU_OR(&p->free_cores, &p->free_cores, &place->cores);
    for (unsigned i = 0; i < p->gpu_count; i++) {
        p->gpu_taken[i] = p->gpu_taken[i] && !place->gpus[i];
    }
}

void places_gpu_variable(const struct places *p, const struct place *place, struct text *out)
{
    for (unsigned i = 0; i < p->gpu_count && place->gpu_count > 0; i++) {
        if (place->gpus[i]) {
            text_add(out, "%s%s", out->length == 0 ? "CUDA_VISIBLE_DEVICES=" : ",", p->gpus[i]);
        }
    }
}
