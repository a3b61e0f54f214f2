#include "base/memory.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *memory_allocate(size_t bytes)
{
    enum { LINE = 64, HUGE_PAGE = 2 << 20 };
    if (bytes == 0 || bytes > SIZE_MAX - HUGE_PAGE)
        return NULL;
    /* Large blocks use huge pages, because the processor caches too few translations of 4 KiB pages
     * for them. */
    const size_t unit = bytes < HUGE_PAGE / 4 ? LINE : HUGE_PAGE;
    const size_t rounded = (bytes + unit - 1) / unit * unit;
    void *p = aligned_alloc(unit, rounded);
    if (p != NULL) {
        if (unit == HUGE_PAGE)
            (void)madvise(p, rounded, MADV_HUGEPAGE); /* a failure only costs speed */
        memset(p, 0, rounded);
    }
    return p;
}

void memory_free(void *p)
{
    free(p);
}

status memory_new(void *out, size_t count, size_t size, const char *what)
{
    size_t bytes;
    void *p = NULL;
    if (!__builtin_mul_overflow(count, size, &bytes))
        p = memory_allocate(bytes == 0 ? 1 : bytes);
    memcpy(out, &p, sizeof p);
    if (p == NULL) {
        return error_set(ERROR_OTHER, __FILE__, __LINE__,
                         "out of memory: %zu × %zu bytes for %s; use a smaller dataset, model, "
                         "batch or number of workers",
                         count, size, what);
    }
    return OK;
}

status memory_grow(void *array, size_t count, size_t capacity, size_t size, const char *what)
{
    status result = OK;
    void *fresh, *old;
    REQUIRE(count <= capacity);
    TRY(memory_new(&fresh, capacity, size, what));
    memcpy(&old, array, sizeof old);
    if (count > 0)
        memcpy(fresh, old, count * size);
    memory_free(old);
    memcpy(array, &fresh, sizeof fresh);
done:
    return result;
}

void *memory_append(void *list, size_t *count, size_t size)
{
    char *at;
    memcpy(&at, list, sizeof at);
    if ((*count & (*count - 1)) == 0) { /* empty, or full: capacities are powers of two */
        char *grown = realloc(at, (*count == 0 ? 1 : 2 * *count) * size);
        REQUIRE(grown != NULL);
        memcpy(list, &grown, sizeof grown);
        at = grown;
    }
    return memset(at + (*count)++ * size, 0, size);
}

void memory_keep_large_blocks(void)
{
    if (mallopt(M_MMAP_THRESHOLD, 1 << 30) == 0)
        mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the limit before glibc 2.35 */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 64 << 20);
}
