/*
 * stage.h — part of a model: forward and backward passes of micro-batches on one rank of a
 * pipeline. It uses no network.
 *
 * A model is cut where exactly one tensor crosses (tape_cuts). Each stage runs the whole model
 * function and skips the calls of other stages. The mini-batch of worker_gradient is split into
 * micro-batches of equal size b: micro-batch m has samples [m·b, (m + 1)·b). Batch norm sees one
 * micro-batch at a time (Huang et al. 2019, section 2.2).
 *
 * A stage owns elements offset .. offset + count of the flat parameter vector. With one stage and
 * one micro-batch the gradient equals that of worker_gradient, bit for bit. With more stages it
 * differs where a kernel rounds differently for another input layout. With more micro-batches it
 * differs by the order of sums.
 *
 * CPU only. One thread per stage. stage_open allocates everything.
 */
#ifndef GRADLAG_WORKER_MODEL_STAGE_H
#define GRADLAG_WORKER_MODEL_STAGE_H

#include "worker/backend.h"
#include "worker/worker.h"

/* Largest numbers of stages, and of segments between the places where a model can be cut. */
enum { STAGE_MOST = 64, SEGMENTS_MOST = 256 };

struct stage_part {
    size_t first, last;         /* call numbers of the model: tape.h */
    struct shape input, output; /* tensors at the stage's borders, of one sample */
    size_t offset, count;       /* its slice of the parameters, in elements */
    char from[48], to[48];      /* first and last layer */
};

struct stage_plan {
    unsigned stages;
    struct stage_part part[STAGE_MOST];
};

/* Selects cuts of the model: chosen[0 .. stages − 1), ascending. If key stage_cuts is set, it names
 * the first layer of each later stage. Otherwise the cuts minimise the time of the slowest stage,
 * measured here with micro-batches of `samples`. ERROR_USAGE: the model has too few cuts, or no cut
 * at such a layer. */
status stage_cuts_choose(const options *o, unsigned stages, uint32_t samples,
                         unsigned chosen[STAGE_MOST]) MUST_CHECK;
/* The parts between these cuts: a pure function, with the same result on all ranks. */
status stage_plan_make(struct stage_plan *out, const options *o, unsigned stages,
                       const unsigned *chosen) MUST_CHECK;
/* Selects cuts [0 .. stages − 1) between segments of these costs that minimise the largest sum. */
void stage_balance(const double *cost, size_t segments, unsigned stages, unsigned *chosen);

typedef struct stage stage;

struct stage_options {
    const options *settings; /* borrowed until close */
    const struct stage_part *part;
    unsigned replica, replicas; /* shard of the data */
    uint32_t micro_batches;     /* micro-batches per mini-batch; a divisor of key batch */
    unsigned slots;             /* largest number of micro-batches between forward and backward */
    bool recompute; /* store only the stage's inputs and repeat the forward pass (Chen et al. 2016)
                     */
};

status stage_open(stage **out, const struct stage_options *o) MUST_CHECK;
void stage_close(stage **s);

/* Buffer for the previous stage's output, to be filled before stage_forward:
 * [micro-batch][part->input]. NULL in the first stage, which reads the dataset. */
float *stage_input(stage *s, unsigned slot);
/* Elements of stage_input's buffer (0 in the first stage) and of `output` (0 in the last stage). */
size_t stage_input_count(const stage *s);
size_t stage_output_count(const stage *s);

/* Forward pass of micro-batch `micro` of batch `batch`. `parameters`: the stage's slice, unchanged
 * until the backward pass. output[stage_output_count] is NULL in the last stage. There *loss is the
 * mean over the micro-batch in nats and may be non-finite. */
status stage_forward(stage *s, unsigned slot, uint64_t batch, uint32_t micro,
                     const float *parameters, float *output, float *loss) MUST_CHECK;
/* Backward pass: gradient[part->count] ← the gradient of the mean over the micro-batch, or += with
 * `add`. output_gradient: gradient of `output`, NULL in the last stage. input_gradient: gradient of
 * stage_input, NULL in the first stage. Frees the slot. */
status stage_backward(stage *s, unsigned slot, const float *output_gradient, float *gradient,
                      bool add, float *input_gradient) MUST_CHECK;

/* Bytes of activations and their gradients (tape_bytes) of all slots, and of saved inputs. */
size_t stage_activation_bytes(const stage *s);

#endif
