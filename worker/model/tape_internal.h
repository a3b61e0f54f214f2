/*
 * tape_internal.h — shared by tape.c (running), tape_ops.c and tape_ops_sequence.c (recording),
 * tape_gradients.c, tape_watch.c and tape_statistics.c.
 */
#ifndef GRADLAG_WORKER_MODEL_TAPE_INTERNAL_H
#define GRADLAG_WORKER_MODEL_TAPE_INTERNAL_H

#include "worker/model/tape.h"

/*
 * A tensor is one call of the model. A node is an operation with its buffers; it survives between
 * steps. A tensor gets its node when it runs.
 */
struct tape_node {
    struct op_description d;
    backend_op *op;
    backend_buffer *value;
    bool wants_gradient;
    backend_buffer *made_for[2]; /* inputs at opening: they fix the layouts */
    float *host;                 /* row-major copy for tape_value */
    float *statistics;           /* batch norm: mean and variance of this batch, when collected */
    /* current step: */
    uint64_t step;
    struct tape_node *input[2];
    size_t layer;
    struct tape_node *first_reader; /* first node that read the value; in backward, the last one to
                                       add to its gradient */
    bool has_gradient;
    backend_buffer *gradient; /* from the first write until this node's backward */
};

struct tensor {
    struct op_description d;
    tensor *input[2];
    size_t layer;
    struct tape_node *node;
    bool wants_gradient;
    size_t number; /* number of the model's call in this step; the images are 0 */
    bool absent;   /* call of another stage: shape without a value */
};

/* Statistics of one batch norm layer, collected by TAPE_CALIBRATE. */
struct statistics {
    float *mean, *variance; /* used by TAPE_EVALUATE */
    double *sums; /* [2 channels + 1]: of means, of variances + means², number of batches */
};

/* Owner of a slice: a layer's weight (0) or bias (1). */
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
    /* Range of calls: first < number <= last. The tape's images are the result of call `first`. */
    size_t first, last, tensor_count;
    struct shape images;      /* shape of the model's images, if first > 0 */
    struct tape_node *result; /* result of the forward half: the loss, or call `last` row-major */
    size_t bytes;             /* values and their gradients, by their shapes */
    uint32_t batch;
    uint32_t targets; /* labels of one sample */
    uint32_t *labels; /* [batch][targets] */
    float smoothing;  /* label smoothing */
    bool joins;       /* batch norm is over a joint batch */
    const struct batch_norm_group
        *joint;                    /* group of the joint batch; NULL: this tape's batch only */
    struct batch_norm_group timed; /* the group, with time measurement */
    bool gathered;                 /* the images are already on the device */
    status gather_failed;          /* error of tape_gather, reported by the next step */
    struct tape_node *input;
    float *zeros; /* result of tape_value in discovery and after an error */
    size_t zeros_count;

    struct tape_node **nodes; /* all nodes */
    size_t node_count, node_capacity, cursor;
    backend_buffer **spare; /* free gradient buffers; capacity as `nodes` */
    size_t spare_count;
    struct tape_node **order; /* nodes of this step, in order; capacity as `nodes` */
    size_t order_count;
    struct chunk *chunks, *chunk;
    size_t chunk_used;
    size_t layer_guess;

    struct statistics *statistics; /* [layers] */
    uint64_t (*written)[2];        /* [layers]: last step that wrote weight, bias */
    uint32_t *uses; /* [layers]: operations of this step that may still write the gradient */
    struct slice_owner *owners; /* [slices] */
    size_t unsettled;           /* slices [0, unsettled) may still be written in this step */
    const struct gradient_watch *watch;
    uint64_t began_ns, watched_ns;
    struct tape_times times;
    uint64_t step;
    float *gradient;
    uint32_t valid;
    struct op_loss loss;
    tensor dead; /* result of calls after an error */
    status failed;
};

/* TRY for functions that return a tensor. */
#define STICK(t, call)                                                                             \
    do {                                                                                           \
        (t)->failed = (call);                                                                      \
        if ((t)->failed != OK)                                                                     \
            return &(t)->dead;                                                                     \
    } while (0)

/* Allocates a tensor of this step. */
status tape_new_tensor(tape *t, tensor **out) MUST_CHECK;
/* Computes the value of a tensor whose inputs have values. */
status tape_run(tape *t, tensor *x) MUST_CHECK;
/* Records a call. Its inputs run now; the call itself runs when its result is needed. Sets the
 * batch, the input shape and the flags that follow from the inputs. */
tensor *tape_record(tape *t, struct op_description d, size_t layer, tensor *a, tensor *b);

/* Names the layer and finds it by this name; a discovery pass adds it. *out: its number, NO_SLICE
 * if the next call belongs to another stage. */
status tape_find_layer(tape *t, struct layer *wanted, const char *name, bool biased,
                       size_t *out) MUST_CHECK;
/* True: the next call belongs to another stage. */
bool tape_skips(const tape *t);
/* The backward pass from `from`. Its gradient is set, unless it is a loss. */
status tape_run_back(tape *t, struct tape_node *from) MUST_CHECK;

/* ---- tape_gradients.c ---- */
/* Sets n->gradient to a buffer for the gradient of the node's value. */
status tape_take_gradient(tape *t, struct tape_node *n) MUST_CHECK;
void tape_give_gradient_back(tape *t, struct tape_node *n);
void tape_sort_gradients(tape *t);
/* Bytes of one batch of values with this shape. */
size_t tape_bytes_of(const tape *t, struct shape s);

/* ---- tape_watch.c: which slices of the gradient are final ---- */
status tape_open_watch(tape *t) MUST_CHECK;
void tape_close_watch(tape *t);
/* Before the backward pass: counts the operations that will write to each layer's gradient. */
void tape_count_uses(tape *t);
/* Marks slices as final, from the end of the vector on, while no operation can still write them.
 * Slices that no operation wrote become 0. */
status tape_settle(tape *t) MUST_CHECK;
/* Calls the watch with the first final element. */
void tape_call_watch(tape *t);

/* ---- tape_statistics.c ---- */
status tape_open_statistics(tape *t) MUST_CHECK;
void tape_close_statistics(tape *t);
void tape_forget_statistics(tape *t);
/* Adds the statistics of one batch, after its step: a device provides them only then. */
void tape_collect_statistics(tape *t, const struct tape_node *n);
/* Computes the variance over all calibration samples: the mean of the batches' variances plus the
 * variance of their means. A layer without a calibration batch gets mean 0, variance 1. */
void tape_settle_statistics(tape *t);

#endif
