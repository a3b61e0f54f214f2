#include "worker/data/dataset_shared.h"

#include "base/memory.h"
#include "base/sha256.h"
#include "worker/data/dataset_store.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Building a block takes about a millisecond, so few blocks are unfinished when the last one is
 * begun. */
enum { BLOCK_BYTES = 16384, PAGE = 4096 };

/* The beginning of the file; then labels and images of the three splits, each on a new page. */
struct shared_head {
    _Atomic uint64_t identity; /* 0: no process has used the file yet */
    _Atomic uint32_t begun;    /* number of blocks begun */
    _Atomic uint8_t is_built[];
};

struct layout {
    uint32_t block_samples, blocks[SPLIT_COUNT], all_blocks;
    size_t labels[SPLIT_COUNT], images[SPLIT_COUNT], bytes; /* offsets in the file; its size */
};

static size_t on_page(size_t bytes)
{
    return (bytes + PAGE - 1) & ~(size_t)(PAGE - 1);
}

static void lay_out(const struct dataset *d, struct layout *l)
{
    const size_t size = dataset_image_size(d);
    *l = (struct layout){.block_samples = size < BLOCK_BYTES ? (uint32_t)(BLOCK_BYTES / size) : 1};
    for (int s = 0; s < SPLIT_COUNT; s++) {
        l->blocks[s] = (d->count[s] + l->block_samples - 1) / l->block_samples;
        l->all_blocks += l->blocks[s];
    }
    l->bytes = on_page(sizeof(struct shared_head) + l->all_blocks);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        l->labels[s] = l->bytes;
        l->bytes += on_page(d->count[s] * sizeof(uint32_t));
        l->images[s] = l->bytes;
        l->bytes += on_page(d->count[s] * size);
    }
}

/* Never 0. */
static uint64_t short_hash(const char *identity)
{
    struct sha256 hash = {0};
    char hex[72];
    sha256_begin(&hash);
    sha256_add(&hash, identity, strlen(identity));
    sha256_end(&hash, hex);
    hex[16] = '\0';
    return strtoull(hex, NULL, 16) | 1;
}

/* NULL: there is no file, or it is for other data. */
static struct shared_head *map_file(const struct layout *l, uint64_t identity)
{
    const char *path = getenv(DATASET_SHARED_FILE);
    struct stat about;
    struct shared_head *h = MAP_FAILED;
    uint64_t owner = 0;
    const int file = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return NULL;
    if (fstat(file, &about) == 0 && (about.st_size == (off_t)l->bytes ||
                                     (about.st_size == 0 && ftruncate(file, (off_t)l->bytes) == 0)))
        h = mmap(NULL, l->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (h == MAP_FAILED)
        return NULL;
    if (!atomic_compare_exchange_strong(&h->identity, &owner, identity) && owner != identity) {
        munmap(h, l->bytes);
        return NULL;
    }
    return h;
}

/* Draws in private memory, because random_permutation() works in place and another process may
 * already read the labels. */
static status write_labels(const struct dataset *d, const struct layout *l, uint64_t seed,
                           uint8_t *file)
{
    status result = OK;
    uint32_t *drawn = NULL;
    for (int s = 0; s < SPLIT_COUNT; s++) {
        TRY(memory_new(&drawn, d->count[s], sizeof *drawn, "labels"));
        dataset_draw_labels(d, s, seed, drawn);
        memcpy(file + l->labels[s], drawn, d->count[s] * sizeof *drawn);
        memory_free(drawn);
        drawn = NULL;
    }
done:
    return result;
}

static void build_block(const struct dataset *d, const struct layout *l, struct shared_head *h,
                        const struct dataset_images *images, uint32_t block)
{
    uint8_t *file = (uint8_t *)h;
    uint32_t first = block;
    int s = 0;
    while (first >= l->blocks[s])
        first -= l->blocks[s++];
    const uint32_t *labels = (const uint32_t *)(const void *)(file + l->labels[s]);
    const size_t size = dataset_image_size(d);
    const uint32_t begin = first * l->block_samples;
    for (uint32_t n = begin; n < d->count[s] && n < begin + l->block_samples; n++)
        images->draw(images->context, d, s, n, labels[n], file + l->images[s] + n * size);
    atomic_store_explicit(&h->is_built[block], 1, memory_order_release);
}

static bool is_built(struct shared_head *h, uint32_t block)
{
    return atomic_load_explicit(&h->is_built[block], memory_order_acquire) != 0;
}

static bool all_built(const struct layout *l, struct shared_head *h)
{
    for (uint32_t b = 0; b < l->all_blocks; b++)
        if (!is_built(h, b))
            return false;
    return true;
}

static status build(const struct dataset *d, const struct layout *l, struct shared_head *h,
                    const struct dataset_images *images)
{
    status result = OK;
    uint32_t block;
    TRY(images->prepare(images->context, d));
    while ((block = atomic_fetch_add(&h->begun, 1)) < l->all_blocks)
        build_block(d, l, h, images, block);
    /* Each process starts at a different block, so that the processes share the blocks that a
     * suspended process left unfinished. */
    const uint32_t offset = l->all_blocks > 0 ? (uint32_t)getpid() % l->all_blocks : 0;
    for (uint32_t i = 0; i < l->all_blocks; i++) {
        block = (offset + i) % l->all_blocks;
        if (!is_built(h, block))
            build_block(d, l, h, images, block);
    }
done:
    return result;
}

status dataset_shared_load(struct dataset *d, const char *identity, uint64_t seed,
                           const struct dataset_images *images)
{
    status result = OK;
    struct layout l;
    lay_out(d, &l);
    struct shared_head *h = map_file(&l, short_hash(identity));
    const bool shared = h != NULL;
    if (!shared)
        TRY(memory_new(&h, l.bytes, 1, "dataset"));
    d->owner = h;
    d->mapped_bytes = shared ? l.bytes : 0;
    uint8_t *file = (uint8_t *)h;
    if (!all_built(&l, h)) {
        TRY(write_labels(d, &l, seed, file));
        TRY(build(d, &l, h, images));
    }
    if (shared)
        (void)mprotect(h, l.bytes, PROT_READ);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        d->labels[s] = (const uint32_t *)(const void *)(file + l.labels[s]);
        d->images[s] = file + l.images[s];
    }
done:
    return result;
}
