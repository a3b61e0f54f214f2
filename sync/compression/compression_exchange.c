/*
 * compression_exchange.c — sends codes between ranks by MPI collectives, over any number of hosts.
 * Sums are taken in rank order.
 *
 * Codes of single floats (fp16, bf16) travel like reduction=ordered, piece by piece: every rank
 * gets its chunk of a piece from all ranks, decodes and sums, encodes the mean and sends it to all.
 * Encoding rounds the mean once more. The rank that encodes adds the rounding error × P to its
 * residual, because the mean takes 1/P of that rank's next gradient. All ranks together send the
 * bytes of a code 2·(P − 1) times.
 *
 * Codes of the whole vector (topk, sign) go to every rank, which decodes and sums all of them:
 * P·(P − 1) × the bytes of a code, and as much work on each rank. This sends less than float32 does
 * if a code has less than 2/P of the vector's bytes.
 *
 * In both cases, the uncompressed notes and a flag are exchanged first: P·(P − 1) × 28 bytes. The
 * flag is set if no update takes the gradient (optimizer_takes()). If a flag is set, or a note is
 * not finite, no code is sent: the values would stay in the residuals for ever.
 */
#include "sync/compression/compression_exchange.h"

#include "base/memory.h"
#include "base/vector.h"
#include "sync/communicator/ranks.h"
#include "worker/optimizer/optimizer.h"

#include <math.h>
#include <string.h>

enum { NOTES_AND_FLAG = COMMUNICATOR_NOTES + 1 }; /* flag: 1 if no update takes the gradient */

static const char what[] = "the mean of compressed gradients";

/* Position of each rank's chunk of a piece, in bytes of code; arrays of [size]. */
struct exchange_layout {
    int *lengths, *offsets;         /* in the piece */
    int *own_lengths, *own_offsets; /* of this rank's chunk, received from every rank */
};

struct compression_exchange {
    const communicator *c;
    char *code;     /* this rank's code of the vector or of a piece */
    char *received; /* [size] codes of the vector, or of this rank's chunk of a piece */
    float *notes;   /* [size][NOTES_AND_FLAG] */
    struct exchange_layout pieces; /* of the piece under way */
};

static void layout_set(struct exchange_layout *l, const communicator *c, size_t count, size_t each)
{
    size_t from, length, own_from, own;
    ranks_chunk(count, c->rank, c->size, &own_from, &own);
    for (unsigned i = 0; i < c->size; i++) {
        ranks_chunk(count, i, c->size, &from, &length);
        l->lengths[i] = (int)(length * each);
        l->offsets[i] = (int)(from * each);
        l->own_lengths[i] = (int)(own * each);
        l->own_offsets[i] = (int)(i * own * each);
    }
}

static status check_sends_codes(const struct compression_kind *codes,
                                const struct communicator_kind *kind)
{
    status result = OK;
    if (!kind->sends_codes) {
        FAIL(
            ERROR_USAGE,
            "compression=%s: communicator=%s sends floats only, no codes; use communicator=auto or "
            "mpi",
            codes->about.name, kind->about.name);
    }
done:
    return result;
}

status compression_check(const options *o)
{
    const struct registry *codes = &compression_registry, *kinds = &communicator_registry;
    const char *wanted = options_text(o, "communicator");
    const struct compression_kind *chosen =
        (const struct compression_kind *)registry_find(codes, options_text(o, "compression"));
    const bool idle = chosen->encode == NULL || options_integer(o, "workers") == 1;
    if (idle || strcmp(wanted, "auto") == 0)
        return OK;
    return check_sends_codes(chosen,
                             (const struct communicator_kind *)registry_find(kinds, wanted));
}

status compression_chosen(const struct compression_kind **out, const options *o,
                          const communicator *c)
{
    status result = OK;
    const struct about *about;

    *out = NULL;
    TRY(registry_require(&compression_registry, options_text(o, "compression"), &about));
    const struct compression_kind *kind = (const struct compression_kind *)about;
    if (kind->encode == NULL || c->size == 1)
        goto done;
    TRY(check_sends_codes(kind, c->kind));
    *out = kind;
done:
    return result;
}

static size_t piece_of(const compression *z, unsigned size)
{
    size_t piece = ranks_ordered_piece(size);
    return piece < z->count ? piece : z->count;
}

status compression_join(compression *z, communicator *c)
{
    status result = OK;
    struct compression_exchange *x = NULL;
    const size_t each = z->kind->float_bytes, whole = compression_code_bytes(z);
    /* Chunks are cut at cache lines, so each is at most one line above the average. */
    const size_t piece = piece_of(z, c->size), chunks = piece + (size_t)16 * c->size;

    if (each == 0 && whole > INT32_MAX) {
        FAIL(ERROR_USAGE,
             "compression=%s: a code of %zu bytes does not fit into one MPI message; use "
             "compression=fp16",
             z->kind->about.name, whole);
    }
    TRY(memory_new(&x, 1, sizeof *x, "the exchange"));
    z->exchange = x;
    x->c = c;
    TRY(memory_new(&x->code, each > 0 ? piece * each : whole, 1, "codes"));
    TRY(memory_new(&x->received, each > 0 ? chunks * each : whole * c->size, 1, "codes"));
    TRY(memory_new(&x->notes, (size_t)c->size * NOTES_AND_FLAG, sizeof(float), "notes"));
    TRY(memory_new(&x->pieces.lengths, (size_t)4 * c->size, sizeof(int), "the exchange"));
    x->pieces.offsets = x->pieces.lengths + c->size;
    x->pieces.own_lengths = x->pieces.offsets + c->size;
    x->pieces.own_offsets = x->pieces.own_lengths + c->size;
done:
    return result;
}

void compression_leave(compression *z)
{
    struct compression_exchange *x = z != NULL ? z->exchange : NULL;
    if (x == NULL || x->c->failed) /* failed: codes may still arrive there */
        return;
    memory_free(x->code);
    memory_free(x->received);
    memory_free(x->notes);
    memory_free(x->pieces.lengths);
    memory_free(x);
    z->exchange = NULL;
}

/* What one mean adds to communicator_sent_bytes. */
static double sent_bytes(const compression *z, const communicator *c)
{
    const double others = c->size - 1, to_all = others * c->size;
    const double code = (double)compression_code_bytes(z);
    const double notes = NOTES_AND_FLAG * sizeof(float);
    return (z->kind->float_bytes > 0 ? 2 * others * code : to_all * code) + to_all * notes;
}

/* out ← the mean, in rank order, of the codes of `size` ranks, `bytes` apart. */
static void mean_of_codes(const compression *z, unsigned size, const char *codes, size_t bytes,
                          size_t count, float *out)
{
    memset(out, 0, count * sizeof *out);
    for (unsigned i = 0; i < size; i++)
        z->kind->add(z, codes + i * bytes, count, out);
    vector_multiply(count, 1.0f / (float)size, out, out);
}

static status mean_of_whole(compression *z, communicator *c, float *gradient)
{
    status result = OK;
    const struct compression_exchange *x = z->exchange;
    const size_t bytes = compression_code_bytes(z);
    MPI_Request request;

    compression_encode(z, gradient, 0, z->count, x->code);
    TRY(ranks_check(MPI_Iallgather(x->code, (int)bytes, MPI_BYTE, x->received, (int)bytes, MPI_BYTE,
                                   c->ranks->world, &request),
                    what));
    TRY(ranks_wait(c, &request, 1, what));
    mean_of_codes(z, c->size, x->received, bytes, z->count, gradient);
done:
    return result;
}

/* Encodes the mean of this rank's chunk, which is in `data`. The rounding error × size goes into
 * the residual: the mean takes 1/size of this rank's next gradient. */
static void encode_mean(compression *z, unsigned size, float *data, float *residual, size_t count,
                        void *code)
{
    z->kind->encode(z, data, count, code);
    for (size_t i = 0; i < count; i++)
        residual[i] += data[i] * (float)size;
}

static status mean_of_piece(compression *z, communicator *c, float *gradient, size_t from,
                            size_t count)
{
    status result = OK;
    const struct compression_exchange *x = z->exchange;
    const struct exchange_layout *l = &x->pieces;
    const size_t each = z->kind->float_bytes, own = (size_t)l->own_lengths[0] / each;
    const size_t own_from = from + (size_t)l->offsets[c->rank] / each;
    MPI_Request request;

    compression_encode(z, gradient, from, count, x->code);
    TRY(ranks_check(MPI_Ialltoallv(x->code, l->lengths, l->offsets, MPI_BYTE, x->received,
                                   l->own_lengths, l->own_offsets, MPI_BYTE, c->ranks->world,
                                   &request),
                    what));
    TRY(ranks_wait(c, &request, 1, what));
    mean_of_codes(z, c->size, x->received, own * each, own, gradient + own_from);
    encode_mean(z, c->size, gradient + own_from, z->residual + own_from, own, x->received);
    TRY(ranks_check(MPI_Iallgatherv(x->received, l->own_lengths[0], MPI_BYTE, x->code, l->lengths,
                                    l->offsets, MPI_BYTE, c->ranks->world, &request),
                    what));
    TRY(ranks_wait(c, &request, 1, what));
    memset(gradient + from, 0, count * sizeof *gradient);
    z->kind->add(z, x->code, count, gradient + from);
done:
    return result;
}

static status mean_by_pieces(compression *z, communicator *c, float *gradient)
{
    status result = OK;
    const size_t piece = piece_of(z, c->size);

    for (size_t from = 0; from < z->count; from += piece) {
        size_t count = z->count - from < piece ? z->count - from : piece;
        layout_set(&z->exchange->pieces, c, count, z->kind->float_bytes);
        TRY(mean_of_piece(z, c, gradient, from, count));
    }
done:
    return result;
}

/* *finite ← whether updates take the gradients of all ranks, and all notes are finite. */
static status mean_of_notes(const compression *z, communicator *c, const float *gradient,
                            float *notes, bool *finite)
{
    status result = OK;
    float own[NOTES_AND_FLAG];
    const float *all = z->exchange->notes;
    MPI_Request request;

    memcpy(own, notes, COMMUNICATOR_NOTES * sizeof *own);
    own[COMMUNICATOR_NOTES] =
        optimizer_takes(vector_sum_of_squares(z->count, gradient), 1) ? 0.0f : 1.0f;
    TRY(ranks_check(MPI_Iallgather(own, NOTES_AND_FLAG, MPI_FLOAT, z->exchange->notes,
                                   NOTES_AND_FLAG, MPI_FLOAT, c->ranks->world, &request),
                    what));
    TRY(ranks_wait(c, &request, 1, what));
    *finite = true;
    for (unsigned k = 0; k < NOTES_AND_FLAG; k++) {
        float sum = all[k];
        for (unsigned i = 1; i < c->size; i++)
            sum += all[i * NOTES_AND_FLAG + k];
        *finite = *finite && isfinite(sum) && (k < COMMUNICATOR_NOTES || sum == 0);
        if (k < COMMUNICATOR_NOTES)
            notes[k] = sum * (1.0f / (float)c->size);
    }
done:
    return result;
}

status compression_mean(compression *z, communicator *c, float *gradient, float *notes)
{
    status result = OK;
    bool finite = true;

    TRY(ranks_gate(c, what));
    TRY(mean_of_notes(z, c, gradient, notes, &finite));
    if (!finite) {
        gradient[0] = NAN;
        goto done;
    }
    if (z->kind->float_bytes > 0)
        TRY(mean_by_pieces(z, c, gradient));
    else
        TRY(mean_of_whole(z, c, gradient));
    c->sent_bytes += sent_bytes(z, c);
done:
    if (result != OK)
        c->failed = true;
    return result;
}
