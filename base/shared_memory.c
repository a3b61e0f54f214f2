/* shared_memory.c — see shared_memory.h. */
#include "base/shared_memory.h"

#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

struct area {
    const uint8_t *at;
    struct shared_memory_place place; /* of the area's first byte */
};

static struct {
    pthread_mutex_t lock;
    struct area *areas;
    size_t count;
    uint64_t numbers; /* the number of the newest area */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static atomic_bool wanted;

/* ---- the table ---- */

void shared_memory_add(const void *at, size_t bytes, int fd, uint64_t offset,
                       enum shared_memory_use use)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    if (use == OTHERS_READ && (seals < 0 || (seals & F_SEAL_FUTURE_WRITE) == 0))
        return;
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return;
    pthread_mutex_lock(&table.lock);
    struct area *e = memory_append(&table.areas, &table.count, sizeof *e);
    *e = (struct area){
        .at = at,
        .place = {
            .area = ++table.numbers, .fd = own, .file_offset = offset, .bytes = bytes, .use = use}};
    pthread_mutex_unlock(&table.lock);
}

/* Removes the entry that begins at `at`; returns its size, or 0 if there is none. */
static size_t take(const void *at)
{
    size_t bytes = 0;
    pthread_mutex_lock(&table.lock);
    for (size_t i = 0; i < table.count && bytes == 0; i++) {
        struct area *e = &table.areas[i];
        if (e->at != at)
            continue;
        bytes = e->place.bytes;
        close(e->place.fd);
        *e = table.areas[--table.count];
    }
    pthread_mutex_unlock(&table.lock);
    return bytes;
}

void shared_memory_remove(const void *at)
{
    (void)take(at);
}

bool shared_memory_find(const void *at, size_t bytes, struct shared_memory_place *out)
{
    bool found = false;
    const uint8_t *first = at;
    pthread_mutex_lock(&table.lock);
    for (size_t i = 0; i < table.count && !found; i++) {
        const struct area *e = &table.areas[i];
        found = first >= e->at && bytes <= e->place.bytes &&
                (size_t)(first - e->at) <= e->place.bytes - bytes;
        if (found) {
            *out = e->place;
            out->offset = (uint64_t)(first - e->at);
        }
    }
    pthread_mutex_unlock(&table.lock);
    return found;
}

/* ---- areas ---- */

static void seal(const struct shared_memory *m, const char *name, enum shared_memory_use use)
{
    if (fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        return;
    if (use == OTHERS_READ && fcntl(m->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0)
        log_debug("%s: this kernel cannot stop other processes from mapping it for writing (%s)",
                  name, strerror(errno));
    fcntl(m->fd, F_ADD_SEALS, F_SEAL_SEAL);
}

status shared_memory_open(struct shared_memory *m, const char *name, size_t bytes,
                          enum shared_memory_use use)
{
    status result = OK;
    *m = (struct shared_memory){.fd = -1, .bytes = bytes};
    if (use != OTHERS_NONE)
        m->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (m->fd >= 0 && ftruncate(m->fd, (off_t)bytes) != 0) {
        close(m->fd);
        m->fd = -1;
    }
    const int flags = m->fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, m->fd, 0);
    if (at == MAP_FAILED)
        FAIL(ERROR_OTHER,
             "cannot map %zu MB for %s: %s; use fewer workers or a smaller model, or raise the "
             "limit of virtual memory (ulimit -v)",
             bytes >> 20, name, strerror(errno));
    m->at = at;
    if (use != OTHERS_NONE)
        madvise(m->at, m->bytes, MADV_HUGEPAGE);
    if (m->fd >= 0) {
        seal(m, name, use);
        shared_memory_add(m->at, bytes, m->fd, 0, use);
    }
done:
    if (result != OK && m->fd >= 0)
        close(m->fd);
    return result;
}

void shared_memory_close(struct shared_memory *m)
{
    if (m->at == NULL)
        return;
    shared_memory_remove(m->at);
    munmap(m->at, m->bytes);
    if (m->fd >= 0)
        close(m->fd);
    *m = (struct shared_memory){0};
}

/* ---- vectors ---- */

void shared_memory_want(void)
{
    atomic_store(&wanted, true);
}

enum shared_memory_use shared_memory_wanted(enum shared_memory_use use)
{
    return atomic_load(&wanted) ? use : OTHERS_NONE;
}

status shared_memory_new(float **out, size_t count, const char *what, enum shared_memory_use use)
{
    status result = OK;
    struct shared_memory m = {0};
    struct shared_memory_place place;
    *out = NULL;
    if (shared_memory_wanted(use) != OTHERS_NONE)
        TRY(shared_memory_open(&m, what, count * sizeof **out, use));
    if (m.at == NULL || !shared_memory_find(m.at, m.bytes, &place)) {
        shared_memory_close(&m);
        return memory_new(out, count, sizeof **out, what);
    }
    *out = (float *)(void *)m.at;
    close(m.fd); /* the table keeps a copy of the descriptor */
done:
    return result;
}

void shared_memory_free(float *p)
{
    const size_t bytes = p != NULL ? take(p) : 0;
    if (bytes > 0)
        munmap(p, bytes);
    else
        memory_free(p);
}
