/*
 * backend_cuda_data.c — the dataset on the device, and the inputs that change in every step:
 * labels, indices, crops and the number of valid samples. These are in one block of pinned memory.
 * The first command that needs a part of it copies the whole block to the device:
 *
 *   valid, 3 unused | labels[capacity] | indices[capacity] | crops[capacity]
 */
#include "base/memory.h"
#include "worker/cuda/backend_cuda.h"

#include <string.h>

enum { STAGED_LABELS = 16 };

size_t cuda_staged_indices(uint32_t capacity)
{
    return STAGED_LABELS + (size_t)capacity * sizeof(uint32_t);
}

size_t cuda_staged_crops(uint32_t capacity)
{
    return cuda_staged_indices(capacity) + (size_t)capacity * sizeof(uint32_t);
}

static size_t staged_bytes(uint32_t capacity)
{
    return cuda_staged_crops(capacity) + (size_t)capacity * sizeof(struct crop);
}

/* Grows the block to this number of samples and keeps its contents. */
static status staging_for(struct cuda *c, uint32_t batch)
{
    status result = OK;
    struct cuda_staging *s = &c->staging;
    uint8_t *host;
    uint32_t had = s->capacity, capacity = (batch + 63) / 64 * 64;
    if (had >= batch)
        goto done;
    TRY(cuda_room_for(c, &s->device, staged_bytes(capacity), "a batch's labels"));
    TRY_CUDA(c, host_new, &host, staged_bytes(capacity), "a batch's labels");
    memset(host, 0, staged_bytes(capacity));
    if (s->host != NULL) {
        memcpy(host, s->host, cuda_staged_indices(had));
        memcpy(host + cuda_staged_indices(capacity), s->host + cuda_staged_indices(had),
               had * sizeof(uint32_t));
        memcpy(host + cuda_staged_crops(capacity), s->host + cuda_staged_crops(had),
               had * sizeof(struct crop));
    }
    cuda_commands_retire(c, NULL, s->host);
    s->host = host;
    s->capacity = capacity;
    s->queued = false;
done:
    return result;
}

status cuda_stage(struct cuda *c)
{
    status result = OK;
    struct cuda_staging *s = &c->staging;
    if (!s->queued) {
        TRY(cuda_queue_up(c, s->device.at, s->host, staged_bytes(s->capacity)));
        s->queued = true;
    }
done:
    return result;
}

status cuda_stage_labels(struct cuda *c, const uint32_t *labels, uint32_t batch, uint32_t valid,
                         const uint32_t **device_labels, const uint32_t **device_valid)
{
    status result = OK;
    struct cuda_staging *s = &c->staging;
    TRY(staging_for(c, batch));
    memcpy(s->host, &valid, sizeof valid);
    memcpy(s->host + STAGED_LABELS, labels, batch * sizeof *labels);
    TRY(cuda_stage(
        c)); /* correct even if the copy is queued already, because no copy has run yet */
    const uint8_t *device = s->device.at;
    *device_valid = (const uint32_t *)device;
    *device_labels = (const uint32_t *)(device + STAGED_LABELS);
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
    TRY(staging_for(c, images->batch));
    uint8_t *host = c->staging.host;
    uint32_t *staged = (uint32_t *)(host + cuda_staged_indices(c->staging.capacity));
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
