/* communicator.c — the registry of communicators, and the code that all kinds share. */
#include "base/log.h"
#include "base/memory.h"
#include "base/shared_memory.h"
#include "base/text.h"
#include "base/vector.h"
#include "sync/communicator/host_networks.h"
#include "sync/communicator/ranks.h"

#include <stdlib.h>
#include <string.h>

#define COMMUNICATOR(name) extern const struct communicator_kind communicator_##name;
#include "sync/communicator/communicator.def"
#undef COMMUNICATOR

static const struct about *const entries[] = {
#define COMMUNICATOR(name) &communicator_##name.about,
#include "sync/communicator/communicator.def"
#undef COMMUNICATOR
};
const struct registry communicator_registry = {"communicator", entries, COUNT_OF(entries)};

status communicator_open(communicator **out, const options *o, size_t count,
                         const struct device_place *place)
{
    status result = OK;
    const struct about *about;

    *out = NULL;
    TRY(registry_require(&communicator_registry, options_text(o, "communicator"), &about));
    TRY(communicator_open_kind(out, (const struct communicator_kind *)about, o, count, place));
done:
    return result;
}

/* Whether a processor is free for the helper thread of overlap.c while all ranks compute. A
 * launcher may have bound the rank to some of its host's processors. */
static bool leaves_a_processor(const struct ranks *r, const options *o)
{
    unsigned threads = (unsigned)options_integer(o, "threads");
    return threads < r->own && (threads + 1) * r->here <= r->processors;
}

status communicator_open_kind(communicator **out, const struct communicator_kind *kind,
                              const options *o, size_t count, const struct device_place *place)
{
    status result = OK;
    communicator *c = NULL;

    TRY(memory_new(&c, 1, sizeof *c, "the communicator"));
    c->timeout_s = options_real(o, "timeout_s");
    c->warn_after_s = 5;
    c->ordered = strcmp(options_text(o, "reduction"), "ordered") == 0;
    c->compressed = strcmp(options_text(o, "compression"), "none") != 0;
    c->count = count + COMMUNICATOR_NOTES;
    c->place = place;
    c->bucket = (size_t)options_integer(o, "bucket_kib") * 1024 / sizeof(float);
    if (c->bucket > c->count)
        c->bucket = c->count;
    if (c->bucket > INT32_MAX)
        c->bucket = INT32_MAX;
    TRY(ranks_open(c));
    watchdog_arm(c->timeout_s, "opening the communicator");
    TRY(ranks_all(c, leaves_a_processor(c->ranks, o), &c->has_processor));
    if (kind->choose != NULL)
        TRY(kind->choose(c, &kind));
    c->in_rank_order = kind->in_rank_order;
    TRY(kind->open(c, o, c->count));
    c->kind = kind;
    if (c->buffer == NULL && !kind->on_device) {
        TRY(shared_memory_new(&c->buffer, c->count, "the gradient", OTHERS_WRITE));
        c->buffer_is_ours = true;
    }
    if (c->ordered && !c->in_rank_order && !kind->on_device && c->size > 1) {
        /* Chunks are cut at cache lines, so each is at most one line above the average. */
        TRY(memory_new(&c->received, ranks_ordered_piece(c->size) + (size_t)16 * c->size,
                       sizeof(float), "the ordered reduction"));
    }
    TRY(overlap_open(c));
done:
    watchdog_disarm();
    if (result != OK && c != NULL) {
        c->failed = true;
        communicator_close(&c);
    }
    *out = c;
    return result;
}

void communicator_close(communicator **c)
{
    if (c == NULL || *c == NULL)
        return;
    const struct error before = error_save();
    overlap_stop(*c);
    if (!(*c)->failed && communicator_barrier_long(*c, "the end of the run") != OK)
        log_error("%s", error_message());
    error_restore(&before);
    if ((*c)->kind != NULL)
        (*c)->kind->close(*c);
    if (!(*c)->failed) { /* else MPI may still read or write them until the process ends */
        if ((*c)->buffer_is_ours)
            shared_memory_free((*c)->buffer);
        memory_free((*c)->received);
        memory_free((*c)->staging);
    }
    overlap_close(*c);
    ranks_close(*c);
    memory_free(*c);
    *c = NULL;
}

const char *communicator_name(const communicator *c)
{
    return c->kind->about.name;
}

void communicator_add_network(const communicator *c, struct text *out)
{
    if (c->kind->on_device)
        text_add(out, "NCCL");
    else if (c->size == 1 || c->ranks->one_host)
        text_add(out, "%s", c->size == 1 ? "none" : "shared memory");
    else if (!host_networks_add_used(out))
        text_add(out, "not TCP: a transport that Open MPI chose");
    if (c->size == 1 || !c->kind->sums_by_mpi)
        return;
    if (!c->ranks->one_host) {
        text_add(out, "; MPI_Iallreduce of %zu KiB at a time", c->bucket * sizeof(float) / 1024);
        return;
    }
    static const char open_mpi[] = "Open MPI v"; /* framework smsc copies from version 5 on */
    const char *version = sync_library_version();
    const bool newer = strncmp(version, open_mpi, strlen(open_mpi)) == 0 &&
                       strtol(version + strlen(open_mpi), NULL, 10) >= 5;
    const char *copies =
        getenv(newer ? "OMPI_MCA_smsc" : "OMPI_MCA_btl_vader_single_copy_mechanism");
    text_add(out, "; one MPI_Allreduce, %s=%s", newer ? "smsc" : "btl_vader_single_copy_mechanism",
             copies != NULL ? copies : "(default)");
}

unsigned communicator_processors(const communicator *c)
{
    return c->ranks->processors;
}

float *communicator_buffer(communicator *c)
{
    return c->buffer;
}

/* After an error the ranks cannot synchronise again, not even to close. */
static status mark_failed(communicator *c, status result)
{
    if (result != OK)
        c->failed = true;
    return result;
}

status ranks_mean(communicator *c, float *data, size_t count)
{
    if (c->ordered && !c->in_rank_order)
        return ranks_mean_ordered(c, data, count);
    return c->kind->allreduce_mean(c, data, count);
}

status communicator_allreduce_mean(communicator *c, float *data, size_t count)
{
    REQUIRE(count <= c->count && !c->kind->on_device);
    if (c->size == 1 || count == 0)
        return OK;
    c->sent_bytes += communicator_mean_bytes(c, count);
    return mark_failed(c, ranks_mean(c, data, count));
}

status communicator_allreduce_scaled(communicator *c, float *data, size_t count, double *factor)
{
    status result = OK;
    const size_t all = count + COMMUNICATOR_NOTES;
    const bool exact = (c->size & (c->size - 1)) == 0; /* multiplying by 1/size never rounds */
    *factor = 1;
    if (c->size <= 2 || !exact || c->ordered || c->kind->allreduce_sum == NULL)
        return communicator_allreduce_mean(c, data, all);
    REQUIRE(all <= c->count);
    c->sent_bytes += communicator_mean_bytes(c, all);
    TRY(mark_failed(c, c->kind->allreduce_sum(c, data, all)));
    *factor = 1.0 / c->size;
    vector_multiply(COMMUNICATOR_NOTES, (float)*factor, data + count, data + count);
done:
    return result;
}

status communicator_device_begin(communicator *c, unsigned steps)
{
    REQUIRE(c->size > 1 && c->kind->on_device);
    return mark_failed(c, c->kind->device_begin(c, steps));
}

status communicator_device_sum(void *context, float *data, size_t count, void *stream)
{
    communicator *c = context;
    REQUIRE(count <= c->count);
    return mark_failed(c, c->kind->device_sum(c, data, count, stream));
}

status communicator_device_end(communicator *c, size_t count, unsigned steps)
{
    c->sent_bytes += steps * communicator_mean_bytes(c, count);
    return mark_failed(c, c->kind->device_end(c, steps));
}

bool communicator_shares(const communicator *c)
{
    return c->size > 1 && c->kind->mean_of_share != NULL;
}

status communicator_common(communicator *c, size_t bytes, void **out)
{
    return mark_failed(c, c->kind->common(c, bytes, out));
}

void communicator_share(const communicator *c, size_t count, size_t *from, size_t *length)
{
    ranks_chunk(count, c->rank, c->size, from, length);
}

status communicator_mean_of_share(communicator *c, size_t count, float *notes)
{
    REQUIRE(count + COMMUNICATOR_NOTES <= c->count);
    memcpy(c->buffer + count, notes, COMMUNICATOR_NOTES * sizeof *notes);
    return mark_failed(c, c->kind->mean_of_share(c, count, notes));
}

status communicator_shares_done(communicator *c)
{
    return mark_failed(c, ranks_gate(c, "the mean gradient"));
}

double communicator_mean_bytes(const communicator *c, size_t count)
{
    if (c->size == 1)
        return 0;
    if (c->ordered && !c->in_rank_order)
        return ranks_ring_bytes(c, count);
    return c->kind->sent_bytes != NULL ? c->kind->sent_bytes(c, count) : 0;
}

double communicator_sent_bytes(const communicator *c)
{
    return c->sent_bytes;
}

/* Broadcasts and gathers use memory of the communicator, not of the caller. After a failed wait,
 * MPI may still write to that memory, but the caller may free its own. */
static status reserve_staging(communicator *c, size_t bytes)
{
    status result = OK;
    if (bytes <= c->staging_bytes)
        return OK;
    if (!c->failed)
        memory_free(c->staging);
    c->staging = NULL;
    c->staging_bytes = 0;
    TRY(memory_new(&c->staging, bytes, 1, "messages of ranks"));
    c->staging_bytes = bytes;
done:
    return result;
}

status communicator_broadcast(communicator *c, void *data, size_t bytes, unsigned root)
{
    enum { PIECE = 1 << 20 };
    status result = OK;
    REQUIRE(root < c->size);
    TRY(ranks_gate(c, "a broadcast"));
    for (size_t from = 0; c->size > 1 && from < bytes; from += PIECE) {
        size_t length = bytes - from < PIECE ? bytes - from : PIECE;
        MPI_Request request;
        TRY(reserve_staging(c, length));
        memcpy(c->staging, (char *)data + from, length);
        TRY(ranks_check(
            MPI_Ibcast(c->staging, (int)length, MPI_BYTE, (int)root, c->ranks->world, &request),
            "a broadcast"));
        TRY(ranks_wait(c, &request, 1, "a broadcast"));
        memcpy((char *)data + from, c->staging, length);
    }
done:
    return mark_failed(c, result);
}

status communicator_gather_all(communicator *c, const void *in, size_t bytes, void *out)
{
    status result = OK;
    MPI_Request request;
    REQUIRE(bytes <= INT32_MAX);
    if (c->size == 1) {
        memcpy(out, in, bytes);
        return OK;
    }
    TRY(ranks_gate(c, "a gather"));
    TRY(reserve_staging(c, bytes * c->size));
    memcpy(c->staging + bytes * c->rank, in, bytes);
    TRY(ranks_check(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, c->staging, (int)bytes,
                                   MPI_BYTE, c->ranks->world, &request),
                    "a gather"));
    TRY(ranks_wait(c, &request, 1, "a gather"));
    memcpy(out, c->staging, bytes * c->size);
done:
    return mark_failed(c, result);
}

status communicator_barrier(communicator *c)
{
    return mark_failed(c, ranks_gate(c, "a barrier"));
}

status communicator_barrier_long(communicator *c, const char *what)
{
    const double timeout_s = c->timeout_s;
    c->timeout_s = timeout_s * COMMUNICATOR_PATIENCE;
    status result = ranks_gate(c, what);
    c->timeout_s = timeout_s;
    return mark_failed(c, result);
}
