/* cuda_emulated_memory.c — device memory within fences, and which host memory is pinned. */
#include "worker/cuda_emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256, FENCE = 0xa5 };

/* ---- device memory ------------------------------------------------------------------------------
 */

static const uint8_t *memory_of(const struct piece *p)
{
    return (const uint8_t *)p + ALIGNMENT;
}

static bool all_fence(const uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != FENCE) {
            return false;
        }
    }
    return true;
}

status cuda_pieces_check(const cuda_device *d)
{
    status result = OK;
    for (const struct piece *p = d->pieces; p != NULL; p = p->next) {
        const bool before = all_fence((const uint8_t *)(p + 1), ALIGNMENT - sizeof *p);
        if (!before || !all_fence(memory_of(p) + p->bytes, ALIGNMENT)) {
            FAIL(ERROR_OTHER,
                 "emulated GPU: something was written %s %s (%zu bytes); " CUDA_OUR_BUG,
                 before ? "behind" : "before", p->what, p->bytes);
        }
    }
done:
    return result;
}

status cuda_piece_new(cuda_device *d, void *out, size_t bytes, const char *what)
{
    status result = OK;
    const size_t rounded = (bytes + 2 * ALIGNMENT + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct piece *p = aligned_alloc(ALIGNMENT, rounded);
    if (p == NULL) {
        FAIL(ERROR_OTHER, "%s: the emulated GPU found no %zu bytes of host memory", what, bytes);
    }
    memset(p, FENCE, rounded);
    p->next = d->pieces;
    p->bytes = bytes;
    snprintf(p->what, sizeof p->what, "%s", what);
    d->pieces = p;
    d->bytes += bytes;
    *(void **)out = (uint8_t *)p + ALIGNMENT;
    memset(*(void **)out, CUDA_POISON, bytes);
done:
    return result;
}

size_t cuda_piece_free(cuda_device *d, const void *at)
{
    size_t bytes = SIZE_MAX;
    for (struct piece **link = &d->pieces; *link != NULL; link = &(*link)->next) {
        struct piece *p = *link;
        if (memory_of(p) == at) {
            *link = p->next;
            bytes = p->bytes;
            free(p);
            break;
        }
    }
    REQUIRE(bytes != SIZE_MAX);
    d->bytes -= bytes;
    return bytes;
}

/* ---- host memory --------------------------------------------------------------------------------
 */

status cuda_pinned_add(cuda_device *d, const void *at, size_t bytes, bool read_only)
{
    status result = OK;
    struct pinned *p;
    TRY(memory_new(&p, 1, sizeof *p, "pinned memory"));
    *p = (struct pinned){d->pinned, at, bytes, read_only};
    d->pinned = p;
done:
    return result;
}

void cuda_pinned_drop(cuda_device *d, const void *at)
{
    for (struct pinned **link = &d->pinned; *link != NULL; link = &(*link)->next) {
        struct pinned *p = *link;
        if (p->at == at) {
            *link = p->next;
            memory_free(p);
            return;
        }
    }
    NEVER("unpin of what is not pinned");
}

status cuda_may_write(const cuda_device *d, const void *at, size_t bytes)
{
    status result = OK;
    const uintptr_t from = (uintptr_t)at;
    for (const struct pinned *p = d->pinned; p != NULL; p = p->next) {
        const uintptr_t begin = (uintptr_t)p->at;
        if (p->read_only && from < begin + p->bytes && begin < from + bytes) {
            FAIL(ERROR_OTHER, "copy_down of %zu bytes: %p is pinned to be read only; " CUDA_OUR_BUG,
                 bytes, at);
        }
    }
done:
    return result;
}

static bool is_pinned(const cuda_device *d, const void *at, size_t bytes)
{
    const uintptr_t from = (uintptr_t)at;
    for (const struct pinned *p = d->pinned; p != NULL; p = p->next) {
        if (from >= (uintptr_t)p->at && from + bytes <= (uintptr_t)p->at + p->bytes) {
            return true;
        }
    }
    return false;
}

void cuda_pieces_close(cuda_device *d)
{
    while (d->pieces != NULL) {
        (void)cuda_piece_free(d, memory_of(d->pieces));
    }
    while (d->pinned != NULL) {
        cuda_pinned_drop(d, d->pinned->at);
    }
}

/* ---- which is which -----------------------------------------------------------------------------
 */

/* The piece of device memory that holds at[0..bytes), the piece it only partly lies in, or NULL. */
static const struct piece *piece_at(const cuda_device *d, const void *at, size_t bytes, bool *whole)
{
    const uintptr_t from = (uintptr_t)at;
    for (const struct piece *p = d->pieces; p != NULL; p = p->next) {
        const uintptr_t begin = (uintptr_t)memory_of(p);
        if (from + bytes > begin && from < begin + p->bytes) {
            *whole = from >= begin && from + bytes <= begin + p->bytes;
            return p;
        }
    }
    return NULL;
}

status cuda_side_check(const cuda_device *d, const char *call, const void *at, size_t bytes,
                       bool on_device)
{
    status result = OK;
    bool whole = false;
    const struct piece *p = piece_at(d, at, bytes, &whole);
    if (on_device && (p == NULL || !whole)) {
        FAIL(ERROR_OTHER, "%s of %zu bytes: %p is not that much device memory%s%s; " CUDA_OUR_BUG,
             call, bytes, at, p == NULL ? "" : ", only a part of ", p == NULL ? "" : p->what);
    }
    if (!on_device && p != NULL) {
        FAIL(ERROR_OTHER, "%s of %zu bytes: %p should be host memory and is %s; " CUDA_OUR_BUG,
             call, bytes, at, p->what);
    }
    if (!on_device && d->capturing && !is_pinned(d, at, bytes)) {
        FAIL(ERROR_OTHER,
             "%s of %zu bytes in a capture: host memory at %p is not pinned; " CUDA_OUR_BUG, call,
             bytes, at);
    }
done:
    return result;
}
