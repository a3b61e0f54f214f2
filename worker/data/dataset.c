/* dataset.c — the registry of datasets, opening a dataset, and gathering batches. */
#include "worker/data/dataset.h"
#include "base/memory.h"
#include "base/vector.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DATASET(name) extern const struct dataset_kind dataset_##name;
#include "worker/data/dataset.def"
#undef DATASET

static const struct about *const entries[] = {
#define DATASET(name) &dataset_##name.about,
#include "worker/data/dataset.def"
#undef DATASET
};
const struct registry dataset_registry = {"dataset", entries, COUNT_OF(entries)};

const char *dataset_installed(void)
{
    const char *set = getenv("GRADLAG_DATASETS");
    return set != NULL && set[0] != '\0' ? set : "/usr/share/datasets";
}

status dataset_open(struct dataset *out, const options *o, bool with_data)
{
    status result = OK;
    const struct about *about = NULL;

    memset(out, 0, sizeof *out);
    TRY(registry_require(&dataset_registry, options_text(o, "dataset"), &about));
    const struct dataset_kind *kind = (const struct dataset_kind *)about;
    TRY(kind->describe(o, out));
    REQUIRE(out->channels >= 1 && out->channels <= DATASET_CHANNELS);
    if (with_data)
        TRY(kind->load(o, out));

done:
    if (result != OK) {
        (void)error_add_context(result, "dataset %s", options_text(o, "dataset"));
        dataset_close(out);
    }
    return result;
}

void dataset_close(struct dataset *d)
{
    if (d == NULL)
        return;
    if (d->mapped_bytes > 0)
        munmap(d->owner, d->mapped_bytes);
    else
        memory_free(d->owner);
    memset(d, 0, sizeof *d);
}

size_t dataset_image_size(const struct dataset *d)
{
    return (size_t)d->channels * d->height * d->width;
}

VECTOR_CLONES
static void normalise(const uint8_t *restrict in, size_t count, float scale, float shift,
                      float *restrict out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = scale * (float)in[i] + shift;
}

static void mirror(float *row, uint32_t width)
{
    for (uint32_t left = 0, right = width - 1; left < right; left++, right--) {
        float kept = row[left];
        row[left] = row[right];
        row[right] = kept;
    }
}

/* Writes one channel of one image with a crop, row by row. */
static void show(const uint8_t *in, uint32_t height, uint32_t width, float scale, float shift,
                 struct crop crop, float *out)
{
    int64_t rows = height, columns = width, dx = crop.dx, dy = crop.dy;
    int64_t left = dx < 0         ? 0
                   : dx < columns ? dx
                                  : columns; /* columns [left, right) of a row have pixels */
    int64_t right = dx > 0 ? columns : columns + dx > 0 ? columns + dx : 0;
    for (int64_t y = 0; y < rows; y++, out += columns) {
        memset(out, 0, columns * sizeof *out);
        if (y - dy < 0 || y - dy >= rows || left >= right)
            continue;
        normalise(in + (y - dy) * columns + left - dx, (size_t)(right - left), scale, shift,
                  out + left);
        if (crop.flip != 0)
            mirror(out, width);
    }
}

void dataset_gather(const struct dataset *d, enum dataset_split split, const uint32_t *indices,
                    uint32_t first, uint32_t n, const struct crop *crops, float *images,
                    uint32_t *labels)
{
    size_t plane = (size_t)d->height * d->width, size = dataset_image_size(d);

    REQUIRE(d->images[split] != NULL || n == 0);
    REQUIRE(indices != NULL || (first <= d->count[split] && n <= d->count[split] - first));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t index = indices != NULL ? indices[i] : first + i;
        REQUIRE(index < d->count[split]);
        for (uint32_t c = 0; c < d->channels; c++) {
            const uint8_t *in = d->images[split] + index * size + c * plane;
            float *out = images + i * size + c * plane;
            if (crops == NULL)
                normalise(in, plane, d->scale[c], d->shift[c], out);
            else
                show(in, d->height, d->width, d->scale[c], d->shift[c], crops[i], out);
        }
        if (labels != NULL)
            labels[i] = d->labels[split][index];
    }
}
