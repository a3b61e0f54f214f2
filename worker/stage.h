/*
 * stage.h — part of a model: forward and backward of micro-batches on one rank of a pipeline. It
 * knows no network.
 *
 * A model is cut where one tensor is all that crosses (tape_cuts), and each stage runs the model's
 * own function with the calls of other stages left out. A mini-batch is the one that
 * worker_gradient computes, cut into micro-batches of equal size: samples [m·b, (m + 1)·b) of it
 * are number m. Batch norm sees one micro-batch at a time (Huang et al. 2019, section 2.2).
 *
 * A stage has a slice of the flat parameter vector: elements offset .. offset + count. With one
 * stage and one micro-batch the gradient is worker_gradient's, bit for bit. With more stages it
 * differs where a kernel rounds differently for another layout of its input; with more
 * micro-batches by the order of sums.
 *
 * On the CPU alone. One thread per stage. Everything is allocated at open.
 */
#ifndef GRADLAG_WORKER_STAGE_H
#define GRADLAG_WORKER_STAGE_H

#include "worker/backend.h"
#include "worker/worker.h"

enum { STAGE_MOST = 64 }; /* stages of a model */

struct stage_part {
    size_t first, last;         /* the model's calls: tape.h */
    struct shape input, output; /* what crosses, of one sample */
    size_t offset, count;       /* its slice of the parameters, in elements */
    char from[48], to[48];      /* its first and its last layer */
};

struct stage_plan {
    unsigned stages;
    struct stage_part part[STAGE_MOST];
};

/* Which of the model's cuts to use: chosen[0 .. stages − 1), ascending. By hand where key
 * stage_cuts names the layers that begin a stage; else so that the slowest stage is as fast as can
 * be, by times measured here for micro-batches of `samples`. ERROR_USAGE where the model has fewer
 * cuts or none at such a layer. */
status stage_cuts_choose(const options *o, unsigned stages, uint32_t samples,
                         unsigned chosen[STAGE_MOST]) MUST_CHECK;
/* The parts between these cuts: a pure function, alike on all ranks. */
status stage_plan_make(struct stage_plan *out, const options *o, unsigned stages,
                       const unsigned *chosen) MUST_CHECK;
/* The cuts [0 .. stages − 1) between segments of these costs so that the largest sum is smallest.
 */
void stage_balance(const double *cost, size_t segments, unsigned stages, unsigned *chosen);

typedef struct stage stage;

struct stage_options {
    const options *settings; /* borrowed until close */
    const struct stage_part *part;
    unsigned replica, replicas; /* whose shard of the data it reads */
    uint32_t micro_batches;     /* of key batch's samples; divides them */
    unsigned slots; /* micro-batches between their forward and their backward, at most */
    bool recompute; /* keep the stage's inputs alone and compute forward again (Chen et al. 2016) */
};

status stage_open(stage **out, const struct stage_options *o) MUST_CHECK;
void stage_close(stage **s);

/* Where what the stage before computed is to be written before stage_forward:
 * [micro-batch][part->input]; NULL in the first stage, which reads the dataset. */
float *stage_input(stage *s, unsigned slot);
/* Elements of stage_input's buffer (0 in the first stage), and of `output` (0 in the last). */
size_t stage_input_count(const stage *s);
size_t stage_output_count(const stage *s);

/* Micro-batch `micro` of batch `batch` at the stage's slice of the parameters, which must stay
 * until its backward. output[stage_output_count], NULL in the last stage; there *loss is the mean
 * over the micro-batch in nats, which may be non-finite. */
status stage_forward(stage *s, unsigned slot, uint64_t batch, uint32_t micro,
                     const float *parameters, float *output, float *loss) MUST_CHECK;
/* Its gradient: gradient[part->count] ← that of the mean over the micro-batch, or += with `add`.
 * output_gradient: of `output`, NULL in the last stage. input_gradient: of stage_input, NULL in the
 * first stage. The slot is free then. */
status stage_backward(stage *s, unsigned slot, const float *output_gradient, float *gradient,
                      bool add, float *input_gradient) MUST_CHECK;

/* Of activations and their gradients (tape_bytes), of all slots, and of saved inputs. */
size_t stage_activation_bytes(const stage *s);

#endif
