/* payload.c — see payload.h. Each of the two files begins with one page that holds the nonce; slots
 * of whole pages follow. In the gradients' file the mailboxes lie between that page and the
 * slots. */
#include "ps/net/payload.h"

#include "base/memory.h"
#include "base/sha256.h"
#include "base/shared_memory.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Offsets of a mapping are whole pages of the system, 64 KiB on some ARM systems. */
static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t whole_pages(size_t bytes)
{
    return (bytes + page() - 1) / page() * page();
}

struct payload_area {
    struct shared_memory parameters, gradients;
    size_t count, stride, gradients_begin; /* count in floats, the others in bytes */
    unsigned slots, workers;
    float **slot;
    mailboxes *mailboxes;
    uint8_t nonce[WIRE_NONCE_BYTES];
};

static size_t slot_bytes(size_t count)
{
    return whole_pages(count * sizeof(float));
}

status payload_open(payload_area **out, size_t count, unsigned slots, unsigned workers)
{
    status result = OK;
    payload_area *p = NULL;
    REQUIRE(out != NULL && count > 0 && slots > 0 && workers > 0);
    TRY(memory_new(&p, 1, sizeof *p, "the payload"));
    p->count = count;
    p->stride = slot_bytes(count);
    p->slots = slots;
    p->workers = workers;
    TRY(memory_new(&p->slot, slots, sizeof *p->slot, "the version slots"));
    TRY(shared_memory_open(&p->parameters, "gradlag-parameters", page() + slots * p->stride,
                           OTHERS_READ));
    p->gradients_begin = page() + whole_pages(mailboxes_bytes(workers));
    TRY(shared_memory_open(&p->gradients, "gradlag-gradients",
                           p->gradients_begin + workers * p->stride, OTHERS_WRITE));
    if (payload_is_shared(p))
        TRY(mailboxes_open(&p->mailboxes, p->gradients.at + page(), workers));
    payload_random(p->nonce, sizeof p->nonce);
    memcpy(p->parameters.at, p->nonce, sizeof p->nonce);
    memcpy(p->gradients.at, p->nonce, sizeof p->nonce);
    for (unsigned s = 0; s < slots; s++)
        p->slot[s] = (float *)(void *)(p->parameters.at + page() + s * p->stride);
done:
    if (result != OK)
        payload_close(&p);
    *out = p;
    return result;
}

void payload_close(payload_area **p)
{
    if (p == NULL || *p == NULL)
        return;
    mailboxes_close(&(*p)->mailboxes);
    shared_memory_close(&(*p)->parameters);
    shared_memory_close(&(*p)->gradients);
    memory_free((*p)->slot);
    memory_free(*p);
    *p = NULL;
}

float **payload_slots(payload_area *p)
{
    return p->slot;
}

float *payload_gradient(payload_area *p, unsigned worker)
{
    REQUIRE(worker < p->workers);
    return (float *)(void *)(p->gradients.at + p->gradients_begin + worker * p->stride);
}

mailboxes *payload_mailboxes(payload_area *p)
{
    return p->mailboxes;
}

bool payload_is_shared(const payload_area *p)
{
    return p->parameters.fd >= 0 && p->gradients.fd >= 0;
}

void payload_describe(const payload_area *p, unsigned worker, struct wire_welcome *out)
{
    REQUIRE(worker < p->workers);
    payload_host(out->host);
    out->pid = (uint32_t)getpid();
    out->slots = p->slots;
    out->payload = WIRE_PAYLOAD_FRAMES;
    if (!payload_is_shared(p))
        return;
    out->payload = WIRE_PAYLOAD_SHM;
    memcpy(out->nonce, p->nonce, sizeof out->nonce);
    out->parameters_fd = (uint32_t)p->parameters.fd;
    out->gradients_fd = (uint32_t)p->gradients.fd;
    out->parameters_offset = page();
    out->parameters_stride = p->stride;
    out->gradient_offset = p->gradients_begin + worker * p->stride;
}

/* Opens /proc/PID/fd/N, checks its size and nonce, and maps [offset, offset + bytes): at `over`, or
 * at any address if `over` is NULL. */
static status map_part(void **map, const struct wire_welcome *w, uint32_t fd_number, bool writable,
                       uint64_t offset, size_t bytes, void *over)
{
    status result = OK;
    char path[64];
    uint8_t nonce[WIRE_NONCE_BYTES];
    struct stat file;
    *map = NULL;
    snprintf(path, sizeof path, "/proc/%u/fd/%u", w->pid, fd_number);
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        FAIL(ERROR_PEER, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || offset > (uint64_t)file.st_size ||
        bytes > (uint64_t)file.st_size - offset)
        FAIL(ERROR_PEER, "%s is not the memory that the server described", path);
    if (pread(fd, nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce ||
        memcmp(nonce, w->nonce, sizeof nonce) != 0)
        FAIL(ERROR_PEER, "%s is not the memory of this run (its nonce differs)", path);
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    int flags = over != NULL ? MAP_SHARED | MAP_FIXED : MAP_SHARED;
    void *at = mmap(over, bytes, protection, flags, fd, (off_t)offset);
    if (at == MAP_FAILED)
        FAIL(ERROR_PEER, "cannot map %zu MB of %s: %s", bytes >> 20, path, strerror(errno));
    madvise(at, bytes, MADV_HUGEPAGE);
    if (over == NULL) /* otherwise it is part of the caller's vector */
        shared_memory_add(at, bytes, fd, offset, writable ? OTHERS_WRITE : OTHERS_READ);
    *map = at;
done:
    if (fd >= 0)
        close(fd);
    return result;
}

static status map_over(struct payload_view *v, const struct wire_welcome *w, size_t bytes,
                       const struct payload_place *place)
{
    status result = OK;
    void *at;
    for (unsigned s = 0; s < w->slots; s++)
        TRY(map_part(&at, w, w->parameters_fd, false,
                     w->parameters_offset + s * w->parameters_stride, bytes,
                     place->parameters + s * place->stride));
    TRY(map_part(&at, w, w->gradients_fd, true, w->gradient_offset, bytes, place->gradient));
    v->parameters = place->parameters;
    v->stride = place->stride;
    v->slots = w->slots;
    v->gradient = (float *)(void *)place->gradient;
done:
    return result;
}

status payload_map(struct payload_view *out, const struct wire_welcome *w, size_t count,
                   const struct payload_place *place)
{
    status result = OK;
    struct payload_view v = {0};
    size_t limit = SIZE_MAX / 4;
    if (w->slots == 0 || w->parameters_stride > limit / w->slots ||
        w->parameters_stride < count * sizeof(float) || w->parameters_stride % page() != 0 ||
        w->parameters_offset % page() != 0 || w->gradient_offset % page() != 0)
        FAIL(ERROR_PEER, "the memory that the server described cannot hold %zu parameters", count);
    if (place != NULL && place->slots == w->slots) {
        TRY(map_over(&v, w, slot_bytes(count), place));
        goto done;
    }
    v.slots = w->slots;
    v.stride = w->parameters_stride;
    v.parameters_bytes = w->parameters_stride * w->slots;
    v.gradient_bytes = slot_bytes(count);
    TRY(map_part(&v.parameters_map, w, w->parameters_fd, false, w->parameters_offset,
                 v.parameters_bytes, NULL));
    TRY(map_part(&v.gradient_map, w, w->gradients_fd, true, w->gradient_offset, v.gradient_bytes,
                 NULL));
    v.parameters = v.parameters_map;
    v.gradient = v.gradient_map;
done:
    if (result != OK)
        payload_unmap(&v);
    *out = v;
    return result;
}

static void unmap(void *map, size_t bytes)
{
    if (map == NULL)
        return;
    shared_memory_remove(map);
    munmap(map, bytes);
}

void payload_unmap(struct payload_view *v)
{
    unmap(v->parameters_map, v->parameters_bytes);
    unmap(v->gradient_map, v->gradient_bytes);
    unmap(v->mailboxes_map, v->mailboxes_bytes);
    *v = (struct payload_view){0};
}

bool payload_open_mailbox(struct payload_view *v, const struct wire_welcome *w, unsigned worker,
                          struct mailbox *m, struct bell *b)
{
    v->mailboxes_bytes = mailboxes_bytes(worker + 1);
    return map_part(&v->mailboxes_map, w, w->gradients_fd, true, page(), v->mailboxes_bytes,
                    NULL) == OK &&
           mailbox_open(m, b, v->mailboxes_map, v->mailboxes_bytes, worker, w->pid);
}

const float *payload_slot(const struct payload_view *v, unsigned slot)
{
    REQUIRE(slot < v->slots);
    return (const float *)(const void *)(v->parameters + slot * v->stride);
}

void payload_host(uint8_t out[WIRE_HOST_BYTES])
{
    char boot[64], hex[65];
    struct stat space;
    struct sha256 sum;
    memset(out, 0, WIRE_HOST_BYTES);
    text_first_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (boot[0] == '\0' || stat("/proc/self/ns/pid", &space) != 0)
        return;
    sha256_begin(&sum);
    sha256_add(&sum, boot, strlen(boot));
    sha256_add(&sum, &space.st_ino, sizeof space.st_ino);
    sha256_end(&sum, hex);
    memcpy(out, hex, WIRE_HOST_BYTES);
}

bool payload_same_host(const uint8_t a[WIRE_HOST_BYTES], const uint8_t b[WIRE_HOST_BYTES])
{
    static const uint8_t unknown[WIRE_HOST_BYTES];
    return memcmp(a, b, WIRE_HOST_BYTES) == 0 && memcmp(a, unknown, WIRE_HOST_BYTES) != 0;
}

void payload_random(void *out, size_t bytes)
{
    uint8_t *at = out;
    while (bytes > 0) {
        ssize_t got = getrandom(at, bytes, 0);
        REQUIRE(got > 0 || errno == EINTR);
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        }
    }
}
