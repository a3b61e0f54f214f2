/*
 * worker.h — one training replica: it computes the gradient of batch k at parameters θ. It uses no
 * network.
 *
 * Invariant: the gradient is a pure function of (model, dataset, seed, worker index, worker count,
 * batch number, parameters). Two workers opened with the same settings compute the same bits, in
 * either training mode, at any time, in any order of calls.
 *
 * Parameters and gradients are one flat float32 vector each, with `worker_parameter_count`
 * elements, cut into named slices (worker_slice). A gradient is the mean over its mini-batch. A
 * loss is mean cross-entropy in nats. A sample of a text is a window of tokens: gradient, loss and
 * accuracy are means over its tokens, and the target of a token is the next one.
 *
 * worker_open allocates the buffers of a step (exceptions: worker/README.md). One thread at a time
 * may use a worker.
 */
#ifndef GRADLAG_WORKER_WORKER_H
#define GRADLAG_WORKER_WORKER_H

#include "worker/model/batch_norm_group.h"
#include "worker/device_vectors.h"

#include <signal.h>

typedef struct worker worker;

struct worker_options {
    const options *settings; /* borrowed until close: model, dataset, batch, seed, device, … */
    unsigned index, count;   /* this worker's shard is number `index` of `count`; index ≥ count: a
                                late worker (worker/data/sampler.h) */
    bool no_gradients; /* the caller never calls worker_gradient; pipeline stages compute gradients
                        */
    bool parameters_only; /* do not load the dataset: only shapes and initial parameters */
    /* A worker with the same settings that lends its dataset and is closed later. It is ignored for
     * an external model, whose data are in its program. NULL: load the dataset. */
    const worker *dataset_of;
    /* Non-zero: the run must stop; a signal handler sets it. The worker then waits for an external
     * program for at most timeout_s, and the pace delays no step. NULL: requests to stop are
     * ignored. */
    const volatile sig_atomic_t *stop;
};

struct step_stats {
    float loss;          /* mean over the batch, nats; may be non-finite: the caller checks */
    uint32_t samples;    /* in the batch */
    uint32_t correct;    /* targets of the batch predicted correctly before the update */
    uint64_t began_ns;   /* clock_ns() at the start; the parts below follow each other */
    uint64_t data_ns;    /* gathering the batch */
    uint64_t compute_ns; /* forward, backward and the pace's delay, without the watch's time */
    uint64_t forward_ns,
        backward_ns; /* on a device: forward = recording and launching, backward = waiting; external
                        model: forward = 0, backward = the time that the program reports */
    uint64_t watch_ns; /* time spent in calls of the watch */
};

/* Adds counts and times of one gradient to a sum over gradients. The caller averages the losses. */
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

/* Losses in nats (regression: half squared errors); accuracies and shares as fractions. If a
 * split is empty, its loss is NOT_MEASURED and its accuracy NaN. Accuracies and shares are NaN too
 * if the data have no classes. */
struct evaluation {
    double train_loss; /* the caller sets the mean training loss; NaN here */
    double validation_loss, validation_accuracy;
    double test_loss, test_accuracy;
    double top_class_share; /* share of the test predictions that name the most predicted class */
};

struct parameter_slice {
    const char *name; /* "conv1.weight" */
    size_t offset;    /* in the flat vector, in elements */
    size_t count;
    unsigned rank; /* 1..4 */
    uint32_t shape[4];
};

/* Errors: ERROR_USAGE (settings that contradict each other), ERROR_DATA (dataset), ERROR_OTHER. */
status worker_open(worker **out, const struct worker_options *w) MUST_CHECK;
void worker_close(worker **w);

size_t worker_parameter_count(const worker *w);
size_t worker_slice_count(const worker *w);
const struct parameter_slice *worker_slice(const worker *w, size_t index);
/* The same slices in the optimizer's form. Borrowed: they live as long as the worker. */
struct optimizer_layers worker_layers(const worker *w);
/* Samples of one epoch: the whole training split, not the shard. */
uint64_t worker_epoch_samples(const worker *w);

/* Writes θ at version 0, identical on every worker. It is a pure function of model and seed, or the
 * content of the checkpoint that key `initial` names. ERROR_DATA: that file is damaged or lacks a
 * parameter, or a value is not finite. */
status worker_initial_parameters(worker *w, float *out, size_t count) MUST_CHECK;

/* Writes gradient[0..count) of batch `batch` (0, 1, 2, …) at `parameters`. Both vectors may be in
 * shared memory: the worker reads the parameters in place and the backward pass writes into
 * `gradient`. 64-byte alignment is faster but not required. The call includes the pace's delay
 * (worker/pace/pace.h), if a pace is set. */
status worker_gradient(worker *w, const float *parameters, uint64_t batch, float *gradient,
                       struct step_stats *stats) MUST_CHECK;

/* A callback between operators, forward and backward, and once at the end. The gradient's elements
 * from `final_from` on have their final values; the callback may read and change them. `final_from`
 * falls from the count to 0, because the backward pass visits the layers in reverse. If the
 * gradient is on a device, only the last call reports final elements. */
struct gradient_watch {
    void *context;
    void (*between)(void *context, size_t final_from);
};
/* worker_gradient with a watch. After an error the watch may not have seen all elements. */
status worker_gradient_watched(worker *w, const float *parameters, uint64_t batch, float *gradient,
                               const struct gradient_watch *watch,
                               struct step_stats *stats) MUST_CHECK;

/* Between `hold` and `forget` the caller keeps all memory passed to worker_gradient mapped, so that
 * a GPU may copy from and to it directly. Call `forget` before the memory is unmapped or freed. */
void worker_hold_memory(worker *w);
void worker_forget_memory(worker *w);

/* SyncBatchNorm (key batch_norm=synchronised). Mean and variance of batch norm are those of the
 * joint batch: the same batch number of all workers. Each worker differentiates the mean of all
 * workers' losses with respect to its own share, so that the mean of the workers' gradients is the
 * gradient of the joint batch. All workers must therefore compute the same batch number at the same
 * parameters. */
/* The largest number of sums in one exchange; 0: no layer is synchronised. */
size_t worker_joint_sums(const worker *w);
/* Sets the SyncBatchNorm group (borrowed). NULL or unset: local statistics. */
void worker_join(worker *w, const struct batch_norm_group *joint);

/* The batches of one shard. With it one worker object computes gradients for several workers.
 * Memory: 8 bytes for each sample of the shard, or, with sampler=reshuffled, of the whole training
 * split. `w` provides only the dataset's size. */
typedef struct worker_shard worker_shard;
status worker_shard_open(worker_shard **out, const worker *w, const options *settings,
                         unsigned index, unsigned count) MUST_CHECK;
void worker_shard_close(worker_shard **s);
/* Computes the gradient that worker_gradient computes on a worker opened with this shard, bit for
 * bit, without the pace's delay. One thread at a time may use a shard. */
status worker_gradient_as(worker *w, worker_shard *shard, const float *parameters, uint64_t batch,
                          float *gradient, struct step_stats *stats) MUST_CHECK;

/* Evaluates the validation and test splits at `parameters`. It changes no training state. Batch
 * norm uses statistics that this call re-estimates on fixed training batches at these parameters.
 */
status worker_evaluate(worker *w, const float *parameters, struct evaluation *out) MUST_CHECK;
/* From now on worker_evaluate uses up to `threads` threads, the caller among them; unset: 1. The
 * result does not depend on it, bit for bit. Each thread has the activations of an evaluation
 * batch. An external model and a device evaluate on one thread. */
void worker_evaluate_on(worker *w, unsigned threads);

/* Mean or variance of one batch norm layer, as evaluations at the same parameters use it. Names and
 * meaning are PyTorch's: "bn.running_mean", "bn.running_var". The variance is the biased one over
 * all samples of the estimation. */
struct worker_statistic {
    char name[64];
    uint32_t count;      /* channels */
    const float *values; /* [count]; borrowed until the worker's next evaluation */
};
size_t worker_statistic_count(const worker *w); /* two for each batch norm layer */
/* Estimates the statistics at `parameters` into out[0..worker_statistic_count). It costs the
 * forward pass of 2 000 training samples and changes no training state. */
status worker_estimate_statistics(worker *w, const float *parameters,
                                  struct worker_statistic *out) MUST_CHECK;

/* worker_evaluate in parts, for ranks that share the work. sums[b] belongs to batch b of both
 * splits, in order. The call computes batches b with b % parts == part and leaves the other sums
 * unchanged. It sets predicted[k] to the number of test targets in its batches that are predicted
 * as class k. worker_evaluation_of takes all sums, and the predictions added over the parts. Its
 * result equals that of worker_evaluate, bit for bit. */
struct evaluation_sum {
    double loss; /* nats, of all targets of `count` samples */
    uint32_t correct, count;
};
size_t worker_evaluation_batches(const worker *w);
size_t worker_classes(const worker *w); /* 1 if labels are numbers */
status worker_evaluate_part(worker *w, const float *parameters, unsigned part, unsigned parts,
                            struct evaluation_sum *sums, uint32_t *predicted) MUST_CHECK;
void worker_evaluation_of(const worker *w, const struct evaluation_sum *sums,
                          const uint32_t *predicted, struct evaluation *out);

/* ---- device-resident parameters, gradient and optimizer state (device_vectors.h) ---- */

/* NULL: the worker computes in host memory, and the caller must not call the functions below. */
const struct device_place *worker_place(const worker *w);
/* Vectors of zeros that live until the worker is closed. A second call returns the same vectors. If
 * worker_gradient gets out->parameters and out->gradient, it copies neither. worker_evaluate does
 * not copy out->parameters. */
status worker_reside(worker *w, size_t extra, unsigned states,
                     struct device_vectors *out) MUST_CHECK;
/* Copies part of a resident vector from the host or to it. The copy is complete on return. */
status worker_resident_write(worker *w, float *to_device, const float *from,
                             size_t count) MUST_CHECK;
status worker_resident_read(worker *w, float *to, const float *from_device,
                            size_t count) MUST_CHECK;
/* Steps that may be queued before their results are taken; 1 if a pace is set. */
unsigned worker_resident_steps(const worker *w);
/* Queues the gradient of batch `batch` at the resident parameters and its update
 * (device_vectors.h). *stats ← the times of the host; worker_resident_results sets the rest. */
status worker_resident_step(worker *w, const struct device_vectors *at, uint64_t batch,
                            const struct device_update *u, struct step_stats *stats) MUST_CHECK;
/* Waits for the `count` steps that were queued since the last call, batches `first` and following.
 * The waiting time is divided equally among the stats of the steps. If a step made no update, later
 * ones made none. */
status worker_resident_results(worker *w, uint64_t first, unsigned count, struct device_result *out,
                               struct step_stats *stats) MUST_CHECK;

/* "cpu: Intel Xeon …, oneDNN 2.6.3, 1 thread", for table `run`; lives as long as the worker. */
const char *worker_device_description(const worker *w);
/* model=external: a JSON object that identifies the program, for table `run`; else NULL. */
const char *worker_program(const worker *w);

#endif
