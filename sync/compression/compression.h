/*
 * compression.h — gradients made smaller on their way between ranks, with error feedback.
 *
 * What a code cannot hold is not lost: it stays behind in this rank's residual and is added to its
 * next gradient (Seide et al. 2014, section 3; Karimireddy et al. 2019, algorithm 2):
 *
 *     p ← gradient + residual;  code ← encode(p);  residual ← p − decode(code)
 *
 * So after any number of updates the mean of what was applied, plus the mean of the residuals, is
 * the mean of all gradients: bit by bit nothing is forgotten, it only comes later. The residual is
 * kept in units of the gradient. Where a paper has the learning rate inside (p = γ·g + e), the two
 * are the same as long as the rate is constant; while it falls, an old error counts here at the
 * new, lower rate.
 *
 * sync/compression/compression_NAME.c implements a code, one line in compression.def registers it.
 * How codes travel is in sync/compression/compression_exchange.c. One thread.
 */
#ifndef GRADLAG_SYNC_COMPRESSION_COMPRESSION_H
#define GRADLAG_SYNC_COMPRESSION_COMPRESSION_H

#include "sync/communicator/communicator.h"

typedef struct compression compression;

struct compression_kind {
    struct about about;
    /* Bytes of one float's code, which depends on that float alone: any part of a vector can be
     * coded. 0: only whole vectors can, by code_bytes(). */
    size_t float_bytes;
    size_t (*code_bytes)(const compression *z);       /* of a whole vector; NULL: float_bytes */
    status (*open)(compression *z, const options *o); /* sets z->state; NULL: nothing to do */
    void (*close)(compression *z);
    /* code ← values[0..count); values[i] ← values[i] − what decoding will give. What is not finite
     * must come out not finite at the other end, too. Where float_bytes is 0, count is z->count. */
    void (*encode)(compression *z, float *values, size_t count, void *code);
    /* sum[0..count) += the values that the code stands for. */
    void (*add)(const compression *z, const void *code, size_t count, float *sum);
};
extern const struct registry compression_registry;

struct compression {
    const struct compression_kind *kind; /* NULL functions: none */
    size_t count;
    size_t *ends; /* of the tensors that the vector consists of, ascending; the last is count */
    size_t tensors;
    float *residual; /* [count] */
    void *state;
    struct compression_exchange *exchange; /* sync/compression/compression_exchange.c */
};

/* Of vectors of `count` floats, a tensor up to each of ends[0..tensors) (tensors = 0: one). Reads
 * the kind's own keys. */
status compression_open(compression **out, const struct compression_kind *kind, const options *o,
                        size_t count, const size_t *ends, size_t tensors) MUST_CHECK;
void compression_close(compression **z);
size_t compression_code_bytes(const compression *z);
/* One rank's side of an exchange, of the part [from, from + count): see above. */
void compression_encode(compression *z, const float *gradient, size_t from, size_t count,
                        void *code);

/* ---- between ranks (compression_exchange.c) ----------------------------------------------------
 */

/* ERROR_USAGE: the communicator that the settings name does not carry codes. */
status compression_check(const options *o) MUST_CHECK;
/* The kind that key `compression` chooses, NULL for none. ERROR_USAGE where codes cannot travel by
 * this communicator. With one rank nothing travels: NULL. */
status compression_chosen(const struct compression_kind **out, const options *o,
                          const communicator *c) MUST_CHECK;
/* Memory for the exchange; all ranks alike. */
status compression_join(compression *z, communicator *c) MUST_CHECK;
void compression_leave(compression *z); /* by compression_close */
/* gradient[0..count) ← the mean over ranks of the decoded, in rank order: the same bits on every
 * rank, whatever `reduction` says. notes[0..COMMUNICATOR_NOTES) ← their mean, uncompressed. Where
 * a rank's gradient or note is not finite, gradient[0] is not on any, and residuals stay as they
 * were. Collective; allocates nothing. */
status compression_mean(compression *z, communicator *c, float *gradient, float *notes) MUST_CHECK;

#endif
