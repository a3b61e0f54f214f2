/*
 * backend_cuda_data.c — the dataset on the device, and the inputs that change in every step:
 * labels, indices, crops, the number of valid samples and the rates of the update. These are in one
 * block of pinned memory for each step that may be queued. The first command that needs a part of
 * it copies the whole block to the device:
 *
 *   struct cuda_step | indices[capacity] | crops[capacity] | labels[labels]
 */
#include "base/memory.h"
#include "worker/cuda/backend_cuda.h"

#include <string.h>

_Static_assert(sizeof(struct cuda_step) <= CUDA_STAGED_INDICES, "the indices follow the step");

size_t cuda_staged_crops(uint32_t capacity)
{
    return CUDA_STAGED_INDICES + (size_t)capacity * sizeof(uint32_t);
}

static size_t staged_labels(uint32_t capacity)
{
    return cuda_staged_crops(capacity) + (size_t)capacity * sizeof(struct crop);
}

static size_t staged_bytes(const struct cuda_staging *s)
{
    return staged_labels(s->capacity) + (size_t)s->labels * sizeof(uint32_t);
}

/* This step's block. The copies of earlier steps may not have run yet. */
static uint8_t *block_of(const struct cuda *c, const struct cuda_staging *s)
{
    REQUIRE(c->resident.queued < DEVICE_STEPS_MOST);
    return s->blocks + c->resident.queued * staged_bytes(s);
}

static void copy_staged(const struct cuda *c, const struct cuda_staging *grown)
{
    const uint32_t had = c->staging.capacity, has = grown->capacity;
    const uint8_t *from = block_of(c, &c->staging);
    uint8_t *to = block_of(c, grown);
    memcpy(to, from, cuda_staged_crops(had)); /* the step's numbers and the indices */
    memcpy(to + cuda_staged_crops(has), from + cuda_staged_crops(had), had * sizeof(struct crop));
    memcpy(to + staged_labels(has), from + staged_labels(had),
           c->staging.labels * sizeof(uint32_t));
}

/* Grows the blocks to these numbers of samples and labels and keeps this step's contents. */
static status staging_for(struct cuda *c, uint32_t samples, uint32_t labels)
{
    status result = OK;
    struct cuda_staging *s = &c->staging, grown = {.capacity = s->capacity, .labels = s->labels};
    if (s->blocks != NULL && s->capacity >= samples && s->labels >= labels)
        goto done;
    if (samples > grown.capacity)
        grown.capacity = (samples + 63) / 64 * 64;
    if (labels > grown.labels)
        grown.labels = (labels + 63) / 64 * 64;
    TRY(cuda_room_for(c, &s->device, staged_bytes(&grown), "a batch's labels"));
    const size_t bytes = DEVICE_STEPS_MOST * staged_bytes(&grown);
    TRY_CUDA(c, host_new, &grown.blocks, bytes, "a batch's labels");
    memset(grown.blocks, 0, bytes);
    if (s->blocks != NULL)
        copy_staged(c, &grown);
    cuda_commands_retire(c, NULL, s->blocks);
    grown.device = s->device;
    *s = grown;
done:
    return result;
}

struct cuda_step *cuda_staged_step(struct cuda *c)
{
    return (struct cuda_step *)block_of(c, &c->staging);
}

status cuda_stage(struct cuda *c)
{
    status result = OK;
    struct cuda_staging *s = &c->staging;
    if (!s->queued) {
        TRY(staging_for(c, 0, 0));
        TRY(cuda_queue_up(c, s->device.at, block_of(c, s), staged_bytes(s)));
        s->queued = true;
    }
done:
    return result;
}

status cuda_stage_labels(struct cuda *c, const uint32_t *labels, uint32_t count, uint32_t valid,
                         const uint32_t **device_labels, const uint32_t **device_valid)
{
    status result = OK;
    struct cuda_staging *s = &c->staging;
    TRY(staging_for(c, 0, count));
    cuda_staged_step(c)->valid = valid;
    memcpy(block_of(c, s) + staged_labels(s->capacity), labels, count * sizeof *labels);
    TRY(cuda_stage(
        c)); /* correct even if the copy is queued already, because no copy has run yet */
    const uint8_t *device = s->device.at;
    *device_valid = &((const struct cuda_step *)s->device.at)->valid;
    *device_labels = (const uint32_t *)(device + staged_labels(s->capacity));
done:
    return result;
}

/* ---- the dataset --------------------------------------------------------------------------------
 */

void cuda_data_close(struct cuda *c)
{
    struct cuda_data *d = &c->data;
    for (int s = 0; s < SPLIT_COUNT; ++s)
        if (d->images[s] != NULL)
            c->kind->memory_free(c->device, d->images[s]);
    if (d->values != NULL)
        c->kind->memory_free(c->device, d->values);
    *d = (struct cuda_data){0};
}

/* The value that dataset_gather computes from each byte. A table gives the same bits. */
static status upload_values(struct cuda *c, const struct dataset *from)
{
    status result = OK;
    float values[DATASET_CHANNELS][256];
    for (uint32_t k = 0; k < from->channels; ++k)
        for (int byte = 0; byte < 256; ++byte)
            values[k][byte] = from->scale[k] * (float)byte + from->shift[k];
    size_t bytes = from->channels * sizeof values[0];
    TRY_CUDA(c, memory_new, &c->data.values, bytes, "the dataset's scale");
    TRY(cuda_upload(c, c->data.values, values, bytes));
done:
    return result;
}

status cuda_data_open(backend *b, const struct dataset *from)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    struct cuda_data *d = &c->data;
    cuda_data_close(c);
    d->shape = *from;
    TRY(upload_values(c, from));
    for (int s = 0; s < SPLIT_COUNT; ++s) {
        size_t bytes = dataset_split_bytes(from, s);
        if (bytes > 0) {
            TRY_CUDA(c, memory_new, &d->images[s], bytes, "the dataset");
            TRY(cuda_upload(c, d->images[s], from->images[s], bytes));
        }
    }
done:
    if (result != OK)
        cuda_data_close(c);
    return result;
}

status cuda_gather(backend *b, backend_buffer *images, enum dataset_split split,
                   const uint32_t *indices, uint32_t first, uint32_t n, const struct crop *crops)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    const struct dataset *d = &c->data.shape;
    REQUIRE(n <= images->batch);
    REQUIRE(images->count == images->batch * dataset_image_size(d));
    REQUIRE(crops == NULL || !d->tokens);
    TRY(staging_for(c, images->batch, 0));
    uint8_t *host = block_of(c, &c->staging);
    uint32_t *staged = (uint32_t *)(host + CUDA_STAGED_INDICES);
    for (uint32_t i = 0; i < images->batch; ++i)
        staged[i] = i < n ? dataset_place(d, split, indices, first, i) : 0;
    if (crops != NULL) {
        struct crop *to = (struct crop *)(host + cuda_staged_crops(c->staging.capacity));
        memset(to, 0, images->batch * sizeof *to);
        memcpy(to, crops, n * sizeof *to);
    }
    images->gathered = true;
    images->cropped = crops != NULL;
    images->split = split;
    for (int i = 0; i < LAYOUTS; ++i)
        images->valid[i] = images->rounded_valid[i] = false;
done:
    return result;
}
