/*
 * tape_inside.h — what tape.c (running), tape_ops.c (recording), tape_watch.c and tape_statistics.c
 * share.
 */
#ifndef GRADLAG_WORKER_TAPE_INSIDE_H
#define GRADLAG_WORKER_TAPE_INSIDE_H

#include "worker/tape.h"

/*
 * A tensor is a call as the model wrote it; a node is an operation with its buffers, kept between
 * steps. A tensor gets its node when it is run.
 */
struct node {
    struct op_description d;
    backend_op *op;
    backend_buffer *value;
    bool wants_gradient;
    backend_buffer *made_for[2]; /* inputs it was made for: their layouts are its own */
    float *host;                 /* row-major copy for tape_value */
    float *statistics; /* batch norm's mean and variance of this batch, where they are collected */
    /* of the current step */
    uint64_t step;
    struct node *input[2];
    size_t layer;
    struct node *first_reader; /* the first that took this one's value: the last to add to its
                                  gradient */
    bool has_gradient;
    backend_buffer *gradient; /* from when something is written to it to its own backward */
};

struct tensor {
    struct op_description d;
    tensor *input[2];
    size_t layer;
    struct node *node;
    bool wants_gradient;
    size_t number; /* of the model's call in this step; the images are 0 */
    bool absent;   /* of another stage: it has a shape and no value */
};

/* Collected by TAPE_CALIBRATE for one batch norm layer. */
struct statistics {
    float *mean, *variance; /* what TAPE_EVALUATE uses */
    double *sum, *square;   /* of means, of variances + means² */
    uint32_t batches;
};

/* Whose slice it is: a layer's weight (0) or bias (1). */
struct slice_owner {
    size_t layer;
    int which;
};

#define TENSORS_PER_CHUNK 64
struct chunk {
    tensor tensors[TENSORS_PER_CHUNK];
    struct chunk *next;
};

struct tape {
    backend *b;
    parameter_table *parameters;
    enum tape_mode mode;
    struct shape input_shape;
    /* The calls it runs: first < number <= last. Call `first` is what its images are instead. */
    size_t first, last, tensor_count;
    struct shape images; /* of the model, where first > 0 */
    struct node *result; /* of the forward half: the loss, or call `last` row-major */
    size_t bytes;        /* of values and their gradients, by their shapes */
    uint32_t batch;
    uint32_t *labels;
    float smoothing;                 /* of labels */
    bool joins;                      /* batch norms are over a joint batch … */
    const struct joint_batch *joint; /* … of these; NULL: of this tape alone */
    struct joint_batch timed;        /* the same, and the clock */
    bool gathered;                   /* the images are on the device already */
    status gather_failed;            /* of the next step */
    struct node *input;
    float *zeros; /* what tape_value shows in discovery and after an error */
    size_t zeros_count;

    struct node **nodes; /* all ever made */
    size_t node_count, node_capacity, cursor;
    backend_buffer **spare; /* gradients not in use; as large as `nodes` */
    size_t spare_count;
    struct node **order; /* run in this step; as large as `nodes` */
    size_t order_count;
    struct chunk *chunks, *chunk;
    size_t chunk_used;
    size_t layer_guess;

    struct statistics *statistics; /* [layers] */
    uint64_t (*written)[2];        /* [layers]: step that last wrote weight, bias */
    uint32_t *uses; /* [layers]: operations of this step that may still write its gradient */
    struct slice_owner *owners; /* [slices] */
    size_t unsettled; /* slices, the first so many, that may still be written in this step */
    const struct gradient_watch *watch;
    uint64_t began_ns, watched_ns;
    struct tape_times times;
    uint64_t step;
    float *gradient;
    uint32_t valid;
    struct op_loss loss;
    tensor dead; /* what calls return after an error */
    status failed;
};

/* Like TRY, in functions that return a tensor. */
#define STICK(t, call)                                                                             \
    do {                                                                                           \
        (t)->failed = (call);                                                                      \
        if ((t)->failed != OK)                                                                     \
            return &(t)->dead;                                                                     \
    } while (0)

/* A fresh tensor of this step. */
status tape_new_tensor(tape *t, tensor **out) MUST_CHECK;
/* Gives the tensor its value. Its inputs have theirs. */
status tape_run(tape *t, tensor *x) MUST_CHECK;
/* Writes a call on the tape; its inputs are run now, itself when it is needed. Fills in the batch,
 * the input's shape and the flags that follow from the inputs. */
tensor *tape_record(tape *t, struct op_description d, size_t layer, tensor *a, tensor *b);

/* Whether the call that comes next is another stage's. */
bool tape_skips(const tape *t);
/* The backward pass from `from`, whose gradient is there, or which needs none. */
status tape_run_back(tape *t, struct node *from) MUST_CHECK;

/* ---- tape_gradients.c --------------------------------------------------------------------------
 */
/* A buffer for the gradient of the node's value, in n->gradient. */
status tape_take_gradient(tape *t, struct node *n) MUST_CHECK;
void tape_give_gradient_back(tape *t, struct node *n);
void tape_sort_gradients(tape *t);
/* Of a batch of such values. */
size_t tape_bytes_of(const tape *t, struct shape s);

/* ---- tape_watch.c: which slices of the gradient have their last values ------------------------
 */
status tape_open_watch(tape *t) MUST_CHECK;
void tape_close_watch(tape *t);
/* Before the backward pass: counts who will write where. */
void tape_count_uses(tape *t);
/* Slices that nobody will write any more, from the end of the vector on; what nobody wrote is 0. */
status tape_settle(tape *t) MUST_CHECK;
/* Shows the watch how far that is. */
void tape_tell_watch(tape *t);

/* ---- tape_statistics.c -------------------------------------------------------------------------
 */
status tape_open_statistics(tape *t) MUST_CHECK;
void tape_close_statistics(tape *t);
void tape_forget_statistics(tape *t);
/* Those of one batch, after its step: a device has them only then. */
void tape_collect_statistics(tape *t, const struct node *n);
/* The variance over all calibration samples: the mean of the batches' variances, and that of their
 * means. A layer that no calibration batch reached keeps mean 0, variance 1. */
void tape_settle_statistics(tape *t);

#endif
