/*
 * pipeline_stage.h — one rank of a pipeline: its stage of the model, its slice of the parameters in
 * several versions, and the buffers for messages to its neighbours.
 */
#ifndef GRADLAG_SYNC_PIPELINE_PIPELINE_STAGE_H
#define GRADLAG_SYNC_PIPELINE_PIPELINE_STAGE_H

#include "sync/pipeline/pipeline.h"
#include "sync/pipeline/pipeline_link.h"
#include "sync/pipeline/pipeline_passes.h"
#include "sync/replica.h"
#include "worker/optimizer/optimizer.h"
#include "worker/pace/pace.h"
#include "worker/model/stage.h"

struct pipeline_slot {              /* one unit between its forward and its backward */
    float *output, *input_gradient; /* messages; NULL if there is no neighbour */
    MPI_Request forward, backward;
    const float *parameters; /* read by its forward and by its backward */
    uint64_t version;        /* of these parameters */
    float loss;              /* last stage: of its forward */
    /* Without flushes: notes to the neighbours, sent before a message. */
    float forward_notes[COMMUNICATOR_NOTES], backward_notes[COMMUNICATOR_NOTES];
    MPI_Request forward_notes_request, backward_notes_request;
};

struct pipeline_stage {
    const struct pipeline_kind *kind;
    struct pipeline_link link;
    struct stage_plan plan;
    stage *stage;
    const struct stage_part *part;
    uint32_t micro_batches;
    unsigned slot_count, version_count;
    struct pipeline_slot *slots;
    float **versions; /* [version_count]: a ring */
    uint64_t version; /* updates applied; its parameters: versions[version % version_count] */
    float *gradient;  /* part->count + COMMUNICATOR_NOTES */
    float *output_gradient;
    optimizer *optimizer;
    pace *pace;
    const volatile sig_atomic_t *stop; /* ends a delay of the pace; may be NULL */
    bool idle; /* after a divergence: messages continue without computing, so that every rank learns
                  of it */
    uint64_t forward_ns, backward_ns; /* computing time since they were set to 0 */
    float loss;                       /* last stage: sum over micro-batches since it was set to 0 */
    struct pass_log passes;
    /* On rank 0: the parameters and state of all stages, after replica_collect. */
    replica whole;
    float *all, *all_states;
    size_t offsets[STAGE_MOST], counts[STAGE_MOST];
};

/* Collective. Call pipeline_stage_close also after an error. */
status pipeline_stage_open(struct pipeline_stage *p,
                           const struct sync_trainer_options *o) MUST_CHECK;
void pipeline_stage_close(struct pipeline_stage *p);

/* The forward of unit `unit`, micro-batch `micro` of batch `batch`: receive, compute, send. */
status pipeline_stage_forward(struct pipeline_stage *p, uint64_t unit, uint64_t batch,
                              uint32_t micro) MUST_CHECK;
/* The backward of unit `unit`. `add`: add to the gradient instead of replacing it. */
status pipeline_stage_backward(struct pipeline_stage *p, uint64_t unit, uint64_t batch,
                               bool add) MUST_CHECK;
/* Waits until all messages of this stage are received. */
status pipeline_stage_wait_sent(struct pipeline_stage *p) MUST_CHECK;

const float *pipeline_stage_parameters(const struct pipeline_stage *p);
/* The next version ← update(the current version, the sum of `micro_batches` gradients). The caller
 * then increments p->version. pass->gap is computed against `read_at`; NULL: not computed. */
void pipeline_stage_apply(struct pipeline_stage *p, double lr, double epoch, const float *read_at,
                          struct optimizer_pass *pass);

struct pipeline_memory { /* bytes */
    uint64_t parameters, stashed, optimizer, gradient, activations, messages;
};
struct pipeline_memory pipeline_stage_memory(const struct pipeline_stage *p);

#endif
