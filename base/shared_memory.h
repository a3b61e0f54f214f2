/*
 * shared_memory.h — memory that another process can map: an anonymous file (memfd) behind each
 * area, and a table of the areas of this process.
 *
 * An area is read-only for other processes if the kernel seals it so (F_SEAL_FUTURE_WRITE): only
 * mappings made before the seal can write. The table tells in which file and where a vector lies,
 * so that the vector's user need not know its owner. All functions may be called by any thread.
 */
#ifndef GRADLAG_BASE_SHARED_MEMORY_H
#define GRADLAG_BASE_SHARED_MEMORY_H

#include "base/status.h"

enum shared_memory_use { OTHERS_NONE, OTHERS_READ, OTHERS_WRITE /* and read */ };

struct shared_memory {
    int fd; /* −1: private memory */
    uint8_t *at;
    size_t bytes;
};

/* Maps `bytes` of a new file, zeroed and sealed against a change of its size, and adds the mapping
 * to the table. The memory is private if `use` is OTHERS_NONE or no file can be created. Only pages
 * that are written occupy memory. ERROR_OTHER: no address space. */
status shared_memory_open(struct shared_memory *m, const char *name, size_t bytes,
                          enum shared_memory_use use) MUST_CHECK;
void shared_memory_close(struct shared_memory *m); /* does nothing if *m is all zero */

/* Adds a mapping of [offset, offset + bytes) of file `fd` to the table, which keeps a copy of the
 * descriptor. Does nothing if `use` is OTHERS_READ and the file is not sealed against writing. */
void shared_memory_add(const void *at, size_t bytes, int fd, uint64_t offset,
                       enum shared_memory_use use);
void shared_memory_remove(const void *at); /* does nothing if `at` is not in the table */

struct shared_memory_place {
    uint64_t area; /* a number that this process never reuses */
    int fd;        /* of the area's file */
    uint64_t file_offset, bytes;
    uint64_t offset; /* in the area */
    enum shared_memory_use use;
};
/* Finds the area that contains [at, at + bytes). False: no area contains all of it. */
bool shared_memory_find(const void *at, size_t bytes, struct shared_memory_place *out);

/* From now on another process uses the vectors of this process's steps (model=external). */
void shared_memory_want(void);
/* Returns `use` after shared_memory_want(), OTHERS_NONE before. */
enum shared_memory_use shared_memory_wanted(enum shared_memory_use use);
/* A zeroed vector of `count` floats: in a new area after shared_memory_want(), else as memory_new()
 * allocates it. */
status shared_memory_new(float **out, size_t count, const char *what,
                         enum shared_memory_use use) MUST_CHECK;
void shared_memory_free(float *p); /* NULL-safe */

#endif
