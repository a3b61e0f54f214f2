/* dataset.c — the registry of datasets, opening a dataset, and gathering batches. */
#include "worker/data/dataset.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/vector.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

status dataset_check_installed(const options *o)
{
    status result = OK;
    struct text folder = {0};
    const struct dataset_kind *kind =
        (const struct dataset_kind *)registry_find(&dataset_registry, options_text(o, "dataset"));
    if (kind == NULL || kind->remedy == NULL || options_text(o, "dataset.path")[0] != '\0')
        return OK;
    text_add(&folder, "%s/%s", dataset_installed(), kind->about.name);
    if (access(folder.at, R_OK) != 0)
        FAIL(ERROR_DATA, "%s: %s; %s", folder.at, strerror(errno), kind->remedy);
done:
    text_free(&folder);
    return result;
}

status dataset_open(struct dataset *out, const options *o, bool with_data)
{
    status result = OK;
    const struct about *about = NULL;

    memset(out, 0, sizeof *out);
    TRY(registry_require(&dataset_registry, options_text(o, "dataset"), &about));
    const struct dataset_kind *kind = (const struct dataset_kind *)about;
    out->targets = 1;
    out->tokens = kind->tokens;
    out->numeric = kind->numeric;
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

bool dataset_is_shared(const options *o)
{
    const struct about *about = registry_find(&dataset_registry, options_text(o, "dataset"));
    return about != NULL && ((const struct dataset_kind *)about)->shared;
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

void dataset_borrow(struct dataset *out, const struct dataset *owner)
{
    *out = *owner;
    out->owner = NULL;
    out->mapped_bytes = 0;
}

size_t dataset_image_size(const struct dataset *d)
{
    return (size_t)d->channels * d->height * d->width;
}

size_t dataset_split_bytes(const struct dataset *d, enum dataset_split split)
{
    return d->tokens ? d->length[split] : d->count[split] * dataset_image_size(d);
}

/* The label of the last token is in the text, too. */
static uint32_t windows_from(const struct dataset *d, enum dataset_split split)
{
    return d->length[split] > d->height ? d->length[split] - d->height : 0;
}

uint32_t dataset_training_indices(const struct dataset *d)
{
    return d->tokens ? windows_from(d, SPLIT_TRAIN) : d->count[SPLIT_TRAIN];
}

uint32_t dataset_place(const struct dataset *d, enum dataset_split split, const uint32_t *indices,
                       uint32_t first, uint32_t i)
{
    uint32_t place = indices != NULL ? indices[i] : first + i;
    if (!d->tokens) {
        REQUIRE(place < d->count[split]);
        return place;
    }
    if (indices == NULL) {
        REQUIRE(place < d->count[split]);
        place *= d->height;
    }
    REQUIRE(place < windows_from(d, split));
    return place;
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

VECTOR_CLONES
static void widen(const uint8_t *restrict in, size_t count, uint32_t *restrict out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = in[i];
}

void dataset_labels(const struct dataset *d, enum dataset_split split, const uint32_t *indices,
                    uint32_t first, uint32_t n, uint32_t *labels)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t place = dataset_place(d, split, indices, first, i);
        if (d->tokens)
            widen(d->images[split] + place + 1, d->targets, labels + (size_t)i * d->targets);
        else
            labels[i] = d->labels[split][place];
    }
}

void dataset_gather(const struct dataset *d, enum dataset_split split, const uint32_t *indices,
                    uint32_t first, uint32_t n, const struct crop *crops, float *images,
                    uint32_t *labels)
{
    const size_t plane = (size_t)d->height * d->width, size = dataset_image_size(d);
    const size_t step = d->tokens ? 1 : size;

    REQUIRE(d->images[split] != NULL || n == 0);
    REQUIRE(crops == NULL || !d->tokens);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *sample =
            d->images[split] + dataset_place(d, split, indices, first, i) * step;
        for (uint32_t c = 0; c < d->channels; c++) {
            const uint8_t *in = sample + c * plane;
            float *out = images + i * size + c * plane;
            if (crops == NULL)
                normalise(in, plane, d->scale[c], d->shift[c], out);
            else
                show(in, d->height, d->width, d->scale[c], d->shift[c], crops[i], out);
        }
    }
    if (labels != NULL)
        dataset_labels(d, split, indices, first, n, labels);
}
