#include "experiments/sweep/core_allocation.h"

#include "base/forked_call.h"
#include "base/text.h"
#include "worker/cuda/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status count_gpus(const void *unused UNUSED, void *out)
{
    status result = OK;
    const struct cuda_kind *kind;
    TRY(cuda_kind_get(&kind));
    TRY(kind->count(out));
done:
    return result;
}

/* The visible GPUs, named as in CUDA_VISIBLE_DEVICES. Without GPUs or CUDA the list stays empty; a
 * run with device=cuda then reports the error itself. A child process counts the GPUs: this process
 * forks the trials of precision=auto, which fail if this process has used CUDA. */
static void find_gpus(struct core_allocation *p, const options *o)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    unsigned visible = 0;
    const struct forked_call count = {
        .call = count_gpus,
        .what = "the count of the GPUs",
        .work = "initialises the driver",
        .advice = "check that nvidia-smi answers",
        .timeout_s = options_real(o, "timeout_s"),
    };
    p->gpus_known = true;
    if (forked_call(&count, &visible, sizeof visible) != OK)
        return;
    for (; p->gpu_count < visible && p->gpu_count < CORE_ALLOCATION_GPUS; p->gpu_count++) {
        char *name = p->gpus[p->gpu_count];
        if (list == NULL) {
            snprintf(name, sizeof p->gpus[0], "%u", p->gpu_count);
        } else {
            size_t length = strcspn(list, ",");
            snprintf(name, sizeof p->gpus[0], "%.*s", (int)length, list);
            list += length + (list[length] == ',');
        }
    }
}

status core_allocation_open(struct core_allocation *p, unsigned jobs, bool shared)
{
    status result = OK;
    *p = (struct core_allocation){.jobs = jobs, .shared = shared};
    REQUIRE(jobs > 0);
    if (sched_getaffinity(0, sizeof p->cores, &p->cores) != 0) {
        CPU_ZERO(&p->cores); /* more cores than cpu_set_t can hold: bind no run */
        p->shared = true;
    }
    p->free_cores = p->cores;
    p->core_count = (unsigned)CPU_COUNT(&p->cores);
    if (!p->shared && jobs > p->core_count) {
        FAIL(ERROR_USAGE,
             "--jobs %u exceeds the %u cores that this process may use; give fewer jobs, or let "
             "runs "
             "share cores with --oversubscribe",
             jobs, p->core_count);
    }
done:
    return result;
}

static bool is_virtual(const options *o)
{
    return strcmp(options_text(o, "engine"), "virtual") == 0;
}

static unsigned cores_wanted(const struct core_allocation *p, const options *o)
{
    int64_t wanted = options_integer(o, "workers") * options_integer(o, "threads");
    if (is_virtual(o)) {
        wanted = options_integer(o, "virtual.threads");
        wanted = wanted > 0 ? wanted : p->core_count / p->jobs;
    }
    return wanted < p->core_count ? (unsigned)wanted : p->core_count;
}

static unsigned gpus_wanted(struct core_allocation *p, const options *o)
{
    int64_t wanted = is_virtual(o) ? 1 : options_integer(o, "workers");
    if (strcmp(options_text(o, "device"), "cuda") != 0)
        return 0;
    if (!p->gpus_known)
        find_gpus(p, o);
    return wanted < p->gpu_count ? (unsigned)wanted : p->gpu_count;
}

static unsigned free_gpus(const struct core_allocation *p)
{
    unsigned count = 0;
    for (unsigned i = 0; i < p->gpu_count; i++)
        count += p->gpu_runs[i] == 0;
    return count;
}

static void take_cores(struct core_allocation *p, unsigned count, struct core_share *out)
{
    for (int i = 0; i < CPU_SETSIZE && out->core_count < count; i++) {
        if (CPU_ISSET(i, &p->free_cores)) {
            CPU_SET(i, &out->cores);
            CPU_CLR(i, &p->free_cores);
            out->core_count++;
        }
    }
}

/* The GPU that the fewest runs use, among those that the share does not have yet. */
static unsigned least_used_gpu(const struct core_allocation *p, const struct core_share *share)
{
    unsigned best = 0;
    for (unsigned i = 1; i < p->gpu_count; i++)
        if (share->gpus[best] || (!share->gpus[i] && p->gpu_runs[i] < p->gpu_runs[best]))
            best = i;
    return best;
}

static void take_gpus(struct core_allocation *p, unsigned count, struct core_share *out)
{
    for (; out->gpu_count < count; out->gpu_count++) {
        unsigned gpu = least_used_gpu(p, out);
        out->gpus[gpu] = true;
        p->gpu_runs[gpu]++;
    }
}

bool core_allocation_take(struct core_allocation *p, const options *o, struct core_share *out)
{
    *out = (struct core_share){0};
    if (p->jobs == 1)
        return true;
    unsigned cores = p->shared ? 0 : cores_wanted(p, o), gpus = gpus_wanted(p, o);
    if (!p->shared && (cores > (unsigned)CPU_COUNT(&p->free_cores) || gpus > free_gpus(p)))
        return false;
    take_cores(p, cores, out);
    take_gpus(p, gpus, out);
    return true;
}

void core_allocation_give_back(struct core_allocation *p, const struct core_share *share)
{
    CPU_OR(&p->free_cores, &p->free_cores, &share->cores);
    for (unsigned i = 0; i < p->gpu_count; i++)
        p->gpu_runs[i] -= share->gpus[i];
}

void core_allocation_gpu_variable(const struct core_allocation *p, const struct core_share *share,
                                  struct text *out)
{
    for (unsigned i = 0; i < p->gpu_count && share->gpu_count > 0; i++)
        if (share->gpus[i])
            text_add(out, "%s%s", out->length == 0 ? "CUDA_VISIBLE_DEVICES=" : ",", p->gpus[i]);
}
