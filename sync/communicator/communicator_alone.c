/* communicator_alone.c — a communicator of one rank, for a process without a launcher and MPI. */
#include "base/memory.h"
#include "base/thread.h"
#include "sync/communicator/ranks.h"

static void alone_close(communicator *c UNUSED) {}

static const struct communicator_kind alone = {
    .about = {.name = "alone", .description = "one process without MPI (engine=virtual)"},
    .close = alone_close,
};

status communicator_open_alone(communicator **out, size_t count)
{
    status result = OK;
    communicator *c = NULL;
    struct ranks *r = NULL;
    *out = NULL;
    TRY(memory_new(&c, 1, sizeof *c, "the communicator"));
    TRY(memory_new(&r, 1, sizeof *r, "ranks"));
    r->world = r->node = MPI_COMM_NULL;
    r->gate.window = MPI_WIN_NULL;
    r->one_host = true;
    r->processors = processor_count();
    c->kind = &alone;
    c->ranks = r;
    c->size = 1;
    c->warn_after_s = c->timeout_s = 5;
    c->count = count + COMMUNICATOR_NOTES;
    TRY(memory_new(&c->buffer, c->count, sizeof(float), "the gradient"));
    c->buffer_is_ours = true;
    *out = c;
    c = NULL;
done:
    if (c != NULL) {
        memory_free(r);
        memory_free(c);
    }
    return result;
}
