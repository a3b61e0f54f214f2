/*
 * check_gpu.c — rows of `gradlag check` for GPUs: properties, measured rates, and GPUs that are
 * slower than others of the same model.
 */
#include "base/memory.h"
#include "base/text.h"
#include "experiments/cli/check.h"
#include "worker/cuda/cuda_rates.h"

#include <stdio.h>
#include <string.h>

enum { MOST_GPUS = 64, RATES = CUDA_ARITHMETICS + 3 };

static const struct {
    const char *what, *unit;
    double scale;
} shown[RATES] = {
    {"products fp32", "TFLOP/s", 1e-12}, {"products tf32", "TFLOP/s", 1e-12},
    {"products bf16", "TFLOP/s", 1e-12}, {"memory, read + written", "GB/s", 1e-9},
    {"host to device", "GB/s", 1e-9},    {"device to host", "GB/s", 1e-9},
};

struct gpu {
    char name[16]; /* "gpu 0" */
    struct cuda_properties properties;
    bool measured;
    double rates[RATES];
};

static void print_properties(const struct check *c, const struct gpu *g)
{
    const struct cuda_properties *p = &g->properties;
    char capability[16];
    check_text(c, g->name, "name", p->name);
    check_text(c, g->name, "libraries", p->libraries);
    check_text(c, g->name, "pci", p->pci);
    snprintf(capability, sizeof capability, "%u.%u", p->capability / 10, p->capability % 10);
    check_text(c, g->name, "compute capability", capability);
    check_number(c, g->name, "multiprocessors", p->multiprocessors, "");
    check_number(c, g->name, "memory", (double)p->memory_bytes / (1 << 30), "GiB");
    check_number(c, g->name, "memory, free", (double)p->free_bytes / (1 << 30), "GiB");
}

static status measure(struct gpu *g, const struct cuda_kind *kind, unsigned index)
{
    status result = OK;
    struct cuda_rates r;
    TRY(cuda_rates_measure(kind, index, &cuda_rates_full, &r));
    memcpy(g->rates, r.product, sizeof r.product);
    g->rates[CUDA_ARITHMETICS] = r.memory;
    g->rates[CUDA_ARITHMETICS + 1] = r.up;
    g->rates[CUDA_ARITHMETICS + 2] = r.down;
    g->measured = true;
done:
    return result;
}

static void check_gpu(struct check *c, const struct cuda_kind *kind, unsigned index, struct gpu *g,
                      bool wanted)
{
    snprintf(g->name, sizeof g->name, "gpu %u", index);
    status found = kind->describe(index, &g->properties);
    if (found == OK) {
        print_properties(c, g);
        found = c->quick ? OK : measure(g, kind, index);
    }
    if (found != OK)
        check_failed(c, g->name, found, wanted);
    for (int i = 0; i < RATES && g->measured; i++)
        check_number(c, g->name, shown[i].what, g->rates[i] * shown[i].scale, shown[i].unit);
}

/* A GPU is compared with GPUs of the same model only. */
static void compare(const struct check *c, const struct gpu *all, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        for (int r = 0; r < RATES && all[i].measured; r++) {
            double peers[MOST_GPUS];
            unsigned same_model = 0, index = 0;
            for (unsigned k = 0; k < count; k++) {
                if (all[k].measured &&
                    strcmp(all[k].properties.name, all[i].properties.name) == 0) {
                    index = k == i ? same_model : index;
                    peers[same_model++] = all[k].rates[r];
                }
            }
            if (cuda_rates_slower(peers, same_model, index)) {
                struct text line = {0};
                text_add(&line,
                         "%s: %.4g %s, more than 10 %% below the median of GPUs of this model",
                         shown[r].what, all[i].rates[r] * shown[r].scale, shown[r].unit);
                check_text(c, all[i].name, "SLOWER THAN ITS PEERS", line.at);
                text_free(&line);
            }
        }
    }
}

void check_gpus(struct check *c, bool wanted)
{
    const struct cuda_kind *kind = NULL;
    struct gpu *all = NULL;
    unsigned count = 0;
    status found = cuda_kind_get(&kind);
    if (found == OK)
        found = kind->count(&count);
    if (found == OK && count == 0) {
        found = error_set(ERROR_USAGE, __FILE__, __LINE__,
                          "device=cuda: no GPU is visible; check the driver (nvidia-smi) and "
                          "CUDA_VISIBLE_DEVICES");
    }
    if (found == OK) {
        count = count < MOST_GPUS ? count : MOST_GPUS;
        found = memory_new(&all, count, sizeof *all, "GPUs");
    }
    if (found != OK) {
        check_failed(c, "gpu", found, wanted);
        return;
    }
    for (unsigned i = 0; i < count; i++)
        check_gpu(c, kind, i, &all[i], wanted);
    compare(c, all, count);
    memory_free(all);
}
