/* memory.h — aligned, zeroed memory; errors instead of NULL. */
#ifndef GRADLAG_BASE_MEMORY_H
#define GRADLAG_BASE_MEMORY_H

#include "base/status.h"

/* Zeroed, 64-byte aligned (cache line, AVX-512), in huge pages from half a MiB on. NULL only if
 * `bytes` is 0 or there is no memory left. */
void *memory_allocate(size_t bytes);
void memory_free(void *p); /* NULL-safe */
/* Stores memory_allocate(count × size) in *out, or returns ERROR_OTHER naming `what`. */
status memory_new(void *out, size_t count, size_t size, const char *what) MUST_CHECK;
/* Replaces the array at the address `array` by one of `capacity` elements from memory_new(), and
 * keeps the first `count` elements. Unchanged after an error. */
status memory_grow(void *array, size_t count, size_t capacity, size_t size,
                   const char *what) MUST_CHECK;
/* Appends one zeroed element to a list and returns it. `list` is the address of the pointer to the
 * list, which starts as NULL with *count 0; the list may move. Release it with free(). Aborts if
 * there is no memory left. */
void *memory_append(void *list, size_t *count, size_t size);
/* Makes glibc keep freed large blocks instead of returning them to the kernel: a fresh 100 MB block
 * per message costs 2–3× in page faults. Called once at program start. */
void memory_keep_large_blocks(void);

#endif
