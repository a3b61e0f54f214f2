/*
 * worker.h — one training replica: the gradient of batch k at parameters θ. It knows no network.
 *
 * The property everything else rests on: the gradient is a pure function of (model, dataset, seed,
 * worker index, worker count, batch number, parameters). Two workers opened alike give the same
 * bits, in either training mode, at any time, in any order of calls.
 *
 * Parameters and gradients are one flat float32 vector each, `worker_parameter_count` elements, cut
 * into named slices (worker_slice). A gradient is the mean over its mini-batch; a loss is mean
 * cross-entropy in nats.
 *
 * Everything is allocated at open; a step allocates nothing. One thread per worker at a time.
 */
#ifndef GRADLAG_WORKER_WORKER_H
#define GRADLAG_WORKER_WORKER_H

#include "worker/joint.h"
#include "worker/resident.h"

typedef struct worker worker;

struct worker_options {
    const options *settings; /* borrowed until close: model, dataset, batch, seed, device, … */
    unsigned index, count;   /* this worker's shard is number `index` of `count` */
    bool no_gradients;       /* worker_gradient is not called: a pipeline's stages compute them */
    bool parameters_only;    /* no dataset in memory: only shape and initial parameters */
};

struct step_stats {
    float loss;          /* mean over the batch, nats; may be non-finite: the caller checks */
    uint32_t samples;    /* in the batch */
    uint32_t correct;    /* of them classified correctly before the update */
    uint64_t began_ns;   /* clock_ns() when it began; the parts follow each other */
    uint64_t data_ns;    /* gathering the batch */
    uint64_t compute_ns; /* forward and backward, and the pace's delay; not what a watch took */
    uint64_t forward_ns,
        backward_ns;   /* on a device: writing down and launching, and waiting for it */
    uint64_t watch_ns; /* in calls of the watch */
};

/* Counts and times of one gradient added to those of others; the mean of losses is the caller's. */
static inline void step_stats_add(struct step_stats *all, const struct step_stats *one)
{
    all->samples += one->samples;
    all->correct += one->correct;
    all->data_ns += one->data_ns;
    all->compute_ns += one->compute_ns;
    all->forward_ns += one->forward_ns;
    all->backward_ns += one->backward_ns;
    all->watch_ns += one->watch_ns;
}

/* Losses in nats (of numbers: half squared errors), accuracies and shares as fractions. NaN where a
 * split is empty; accuracies and shares also where the data have no classes. */
struct evaluation {
    double train_loss; /* mean training loss is the caller's to fill in: NaN here */
    double validation_loss, validation_accuracy;
    double test_loss, test_accuracy;
    double top_class_share; /* of the test predictions: the share of the most predicted class */
};

struct parameter_slice {
    const char *name; /* "conv1.weight" */
    size_t offset;    /* in elements, into the flat vector */
    size_t count;
    unsigned rank; /* 1..4 */
    uint32_t shape[4];
};

/* Errors: ERROR_USAGE (settings that do not fit together), ERROR_DATA (dataset), ERROR_OTHER. */
status worker_open(worker **out, const struct worker_options *w) MUST_CHECK;
void worker_close(worker **w);

size_t worker_parameter_count(const worker *w);
size_t worker_slice_count(const worker *w);
const struct parameter_slice *worker_slice(const worker *w, size_t index);
/* The same as an optimizer wants them; they live as long as the worker. */
struct optimizer_layers worker_layers(const worker *w);
/* Training samples in the whole training split, not in the shard: what one epoch counts. */
uint64_t worker_epoch_samples(const worker *w);

/* Writes θ at version 0: a pure function of model and seed, or what the checkpoint holds that key
 * `initial` names; alike on every worker. ERROR_DATA: that file lacks a parameter, or is damaged.
 */
status worker_initial_parameters(worker *w, float *out, size_t count) MUST_CHECK;

/* gradient[0..count) of batch `batch` (0, 1, 2, …) at `parameters`. Both may be shared memory: the
 * parameters are read in place, the backward pass writes into `gradient`. 64-byte alignment is
 * wanted, not required. Includes the pace's delay (worker/pace.h), if one was set. */
status worker_gradient(worker *w, const float *parameters, uint64_t batch, float *gradient,
                       struct step_stats *stats) MUST_CHECK;

/* Called between operators, forward and backward, and once at the end: the gradient's elements from
 * `final_from` on have their last values, and may be read and changed already. It falls from the
 * count to 0, as layers are read backwards; where the gradient is a device's, at the end alone. */
struct gradient_watch {
    void *context;
    void (*between)(void *context, size_t final_from);
};
/* The same gradient. After an error the watch may not have been shown all of it. */
status worker_gradient_watched(worker *w, const float *parameters, uint64_t batch, float *gradient,
                               const struct gradient_watch *watch,
                               struct step_stats *stats) MUST_CHECK;

/* From `hold` to `forget`, memory given to worker_gradient stays mapped: a GPU may then copy from
 * and to it directly. `forget` before it is unmapped or freed. */
void worker_hold_memory(worker *w);
void worker_forget_memory(worker *w);

/* Key batch_norm=synchronised: batch norm's mean and variance are those of the same batch number of
 * all workers together, and a gradient is then that of the mean of all their losses but for its own
 * share: the mean over workers of what they compute is the gradient of the joint batch. So it
 * depends on the others, who have to compute it at the same parameters, too. */
/* The most sums that are added up at once; 0: no batch norm of this worker's is over others'. */
size_t worker_joint_sums(const worker *w);
/* Who the others are; borrowed. Until then, and NULL: nobody. */
void worker_join(worker *w, const struct joint_batch *joint);

/* The batches of one shard, so that one worker object can compute for several workers: 4 to 8 bytes
 * for each sample of the shard. `w` gives the dataset's size alone. */
typedef struct worker_shard worker_shard;
status worker_shard_open(worker_shard **out, const worker *w, const options *settings,
                         unsigned index, unsigned count) MUST_CHECK;
void worker_shard_close(worker_shard **s);
/* What worker_gradient gives on a worker opened as that shard, bit for bit, at once: without the
 * pace's delay. One thread per shard at a time, too. */
status worker_gradient_as(worker *w, worker_shard *shard, const float *parameters, uint64_t batch,
                          float *gradient, struct step_stats *stats) MUST_CHECK;

/* Validation and test splits at `parameters`; a pure function, it touches no training state. Batch
 * norm uses statistics re-estimated on fixed training batches at these very parameters. */
status worker_evaluate(worker *w, const float *parameters, struct evaluation *out) MUST_CHECK;

/* worker_evaluate in parts, for ranks that share the work. sums[b] is of batch b of both splits, in
 * order; this computes those with b % parts == part and leaves the others alone. predicted[k] is
 * set to how many test samples of those batches are predicted as class k. worker_evaluation_of
 * takes all sums, and predictions added up over the parts; the result is that of worker_evaluate,
 * bit for bit.
 */
struct evaluation_sum {
    double loss; /* nats, of `count` samples */
    uint32_t correct, count;
};
size_t worker_evaluation_batches(const worker *w);
size_t worker_classes(const worker *w); /* 1 where labels are numbers */
status worker_evaluate_part(worker *w, const float *parameters, unsigned part, unsigned parts,
                            struct evaluation_sum *sums, uint32_t *predicted) MUST_CHECK;
void worker_evaluation_of(const worker *w, const struct evaluation_sum *sums,
                          const uint32_t *predicted, struct evaluation *out);

/* ---- on a device: parameters, gradient and optimizer state that stay there (resident.h) --------
 */

/* NULL where the worker computes in the host's memory: then the rest must not be called. */
const struct device_place *worker_place(const worker *w);
/* Vectors of zeros, until the worker is closed; a second time the same ones again. Given
 * out->parameters and out->gradient, worker_gradient copies neither; worker_evaluate likewise. */
status worker_reside(worker *w, size_t extra, unsigned states, struct resident *out) MUST_CHECK;
/* Part of a resident vector, from the host and to it; done on return. */
status worker_resident_write(worker *w, float *to_device, const float *from,
                             size_t count) MUST_CHECK;
status worker_resident_read(worker *w, float *to, const float *from_device,
                            size_t count) MUST_CHECK;
/* θ ← update(θ, scale · gradient) on the device; see resident.h. pass->gap is 0. */
status worker_resident_update(worker *w, const struct resident_update *u,
                              struct optimizer_pass *pass) MUST_CHECK;

/* "cpu: Intel Xeon …, oneDNN 2.6.3, 1 thread" for the run's row; lives as long as the worker. */
const char *worker_device_description(const worker *w);

#endif
