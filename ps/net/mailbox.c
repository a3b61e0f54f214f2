/* mailbox.c — see mailbox.h. The memory begins with a page for the server's side; the places of the
 * workers follow. */
#include "ps/net/mailbox.h"

#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, PLACE = 1024, LINE = 64 };

static const char MAGIC[8] = "GLMAIL1"; /* changes with the layout below */

struct mailbox_head {
    char magic[sizeof MAGIC];
    uint32_t workers;
    struct mailbox_side server __attribute__((aligned(LINE)));
};

struct mailbox_place {
    struct mailbox_side worker __attribute__((aligned(LINE)));
    atomic_uint used;
    struct mailbox_cell push __attribute__((aligned(LINE)));
    struct mailbox_cell release __attribute__((aligned(LINE)));
};
_Static_assert(sizeof(struct mailbox_place) <= PLACE && sizeof(struct mailbox_head) <= PAGE,
               "a mailbox's memory");

struct mailboxes {
    uint8_t *memory;
    unsigned workers;
    struct bell bell;
    struct mailbox *of; /* [workers] */
};

static struct mailbox_place *place_in(void *memory, unsigned worker)
{
    return (struct mailbox_place *)(void *)((uint8_t *)memory + PAGE + (size_t)worker * PLACE);
}

/* ---- bells ---------------------------------------------------------------------------------- */

bool bell_rings(const struct bell *b)
{
    return b->side != NULL && atomic_load(&b->side->rung) != b->heard;
}

void bell_hear(struct bell *b)
{
    if (b->side != NULL)
        b->heard = atomic_load(&b->side->rung);
}

bool bell_sleep(struct bell *b)
{
    atomic_store(&b->side->sleeps, 1);
    if (!bell_rings(b))
        return true;
    atomic_store(&b->side->sleeps, 0);
    return false;
}

void bell_wake(struct bell *b)
{
    char rings[64];
    atomic_store(&b->side->sleeps, 0);
    while (read(b->fd, rings, sizeof rings) == (ssize_t)sizeof rings)
        continue;
}

/* Opens a pipe for reading and writing: such a descriptor never has a broken pipe. */
static int open_bell(uint32_t pid, uint32_t number)
{
    char path[64];
    struct stat file;
    snprintf(path, sizeof path, "/proc/%u/fd/%u", pid, number);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 && (fstat(fd, &file) != 0 || !S_ISFIFO(file.st_mode))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int new_bell(void)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return -1;
    int fd = open_bell((uint32_t)getpid(), (uint32_t)ends[0]);
    close(ends[0]);
    close(ends[1]);
    return fd;
}

/* ---- cells ---------------------------------------------------------------------------------- */

void mailbox_send(struct mailbox *m, const struct wire_message *message)
{
    uint8_t bytes[WIRE_MAX_BYTES];
    struct mailbox_cell *cell = m->out;
    const size_t size = wire_encode(message, bytes);
    const unsigned writing = atomic_load(&cell->sequence) | 1; /* odd if a process died in here */
    REQUIRE(size <= sizeof cell->message);
    atomic_store(&cell->sequence, writing);
    cell->bytes = (uint32_t)size;
    memcpy(cell->message, bytes, size);
    atomic_store(&cell->sequence, writing + 1);
    atomic_fetch_add(&m->peer->rung, 1);
    if (atomic_load(&m->peer->sleeps) != 0)
        (void)!write(m->peer_bell, "", 1); /* a full pipe rings already */
}

bool mailbox_receive(struct mailbox *m, enum wire_type type, struct wire_message *out,
                     bool *decoded)
{
    uint8_t bytes[WIRE_MAX_BYTES];
    const struct mailbox_cell *cell = m->in;
    if (cell == NULL)
        return false;
    const unsigned sequence = atomic_load(&cell->sequence);
    const uint32_t size = cell->bytes;
    if (sequence == m->seen || sequence % 2 != 0)
        return false;
    memcpy(bytes, cell->message, sizeof bytes);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&cell->sequence) != sequence)
        return false; /* its sender rings when the message is complete */
    m->seen = sequence;
    *decoded = size <= sizeof bytes && wire_decode(out, bytes, size) == OK && out->type == type;
    return true;
}

/* ---- the server's side ---------------------------------------------------------------------- */

size_t mailboxes_bytes(unsigned workers)
{
    return PAGE + ((size_t)workers * PLACE + PAGE - 1) / PAGE * PAGE;
}

static bool make_bells(mailboxes *m)
{
    struct mailbox_head *head = (struct mailbox_head *)(void *)m->memory;
    m->bell = (struct bell){.side = &head->server, .fd = new_bell()};
    head->server.bell_fd = (uint32_t)m->bell.fd;
    bool made = m->bell.fd >= 0;
    for (unsigned w = 0; w < m->workers && made; w++) {
        struct mailbox_place *p = place_in(m->memory, w);
        m->of[w] = (struct mailbox){
            .in = &p->push, .out = &p->release, .peer = &p->worker, .peer_bell = new_bell()};
        p->worker.bell_fd = (uint32_t)m->of[w].peer_bell;
        made = m->of[w].peer_bell >= 0;
    }
    head->workers = m->workers;
    if (made)
        memcpy(head->magic, MAGIC, sizeof MAGIC);
    return made;
}

status mailboxes_open(mailboxes **out, void *memory, unsigned workers)
{
    status result = OK;
    mailboxes *m = NULL;
    TRY(memory_new(&m, 1, sizeof *m, "the mailboxes"));
    m->memory = memory;
    m->workers = workers;
    m->bell.fd = -1;
    TRY(memory_new(&m->of, workers, sizeof *m->of, "the mailboxes"));
    for (unsigned w = 0; w < workers; w++)
        m->of[w].peer_bell = -1;
    if (!make_bells(m)) {
        log_debug("pushes and releases go through the channel: no pipe: %s", strerror(errno));
        mailboxes_close(&m);
    }
done:
    if (result != OK)
        mailboxes_close(&m);
    *out = m;
    return result;
}

void mailboxes_close(mailboxes **p)
{
    if (p == NULL || *p == NULL)
        return;
    mailboxes *m = *p;
    for (unsigned w = 0; m->of != NULL && w < m->workers; w++)
        if (m->of[w].peer_bell >= 0)
            close(m->of[w].peer_bell);
    if (m->bell.fd >= 0)
        close(m->bell.fd);
    memory_free(m->of);
    memory_free(m);
    *p = NULL;
}

struct mailbox *mailboxes_of(mailboxes *m, unsigned worker)
{
    REQUIRE(worker < m->workers);
    return &m->of[worker];
}

struct bell *mailboxes_bell(mailboxes *m)
{
    return &m->bell;
}

void mailboxes_clear(mailboxes *m, unsigned worker)
{
    struct mailbox_place *p = place_in(m->memory, worker);
    atomic_store(&p->used, 0);
    atomic_store(&p->worker.sleeps, 0);
    m->of[worker].seen = atomic_load(&p->push.sequence);
}

bool mailboxes_is_used(const mailboxes *m, unsigned worker)
{
    return atomic_load(&place_in(m->memory, worker)->used) != 0;
}

/* ---- a worker's side ------------------------------------------------------------------------ */

bool mailbox_open(struct mailbox *m, struct bell *b, void *memory, size_t bytes, unsigned worker,
                  uint32_t pid)
{
    struct mailbox_head *head = memory;
    *m = (struct mailbox){.peer_bell = -1};
    *b = (struct bell){.fd = -1};
    if (bytes < PAGE || memcmp(head->magic, MAGIC, sizeof MAGIC) != 0 || worker >= head->workers ||
        bytes < mailboxes_bytes(worker + 1))
        return false;
    struct mailbox_place *p = place_in(memory, worker);
    int server = open_bell(pid, head->server.bell_fd), own = open_bell(pid, p->worker.bell_fd);
    *m = (struct mailbox){.peer_bell = server};
    *b = (struct bell){.fd = own};
    if (server < 0 || own < 0) {
        mailbox_close(m, b);
        return false;
    }
    m->in = &p->release;
    m->out = &p->push;
    m->peer = &head->server;
    m->seen = atomic_load(&p->release.sequence);
    b->side = &p->worker;
    bell_hear(b);
    atomic_store(&p->used, 1);
    return true;
}

void mailbox_close(struct mailbox *m, struct bell *b)
{
    if (m->peer_bell >= 0)
        close(m->peer_bell);
    if (b->fd >= 0)
        close(b->fd);
    *m = (struct mailbox){.peer_bell = -1};
    *b = (struct bell){.fd = -1};
}
