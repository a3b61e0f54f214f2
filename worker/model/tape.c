#include "base/clock.h"
#include "base/memory.h"
#include "worker/model/tape_internal.h"

#include <string.h>

uint32_t tape_batch(const tape *t)
{
    return t->batch;
}

struct shape tensor_shape(const tensor *x)
{
    return x->d.output;
}

size_t tape_operation_count(const tape *t)
{
    return t->node_count;
}

const struct op_description *tape_operation(const tape *t, size_t index)
{
    REQUIRE(index < t->node_count);
    return &t->nodes[index]->d;
}

float *tape_images(tape *t)
{
    return t->b->kind->buffer_host(t->b, t->input->value);
}

uint32_t *tape_labels(tape *t)
{
    return t->labels;
}

status tape_set_targets(tape *t, uint32_t targets)
{
    status result = OK;
    uint32_t *labels;
    REQUIRE(targets > 0 && t->mode != TAPE_DISCOVER);
    TRY(memory_new(&labels, (size_t)t->batch * targets, sizeof *labels, "labels"));
    memory_free(t->labels);
    t->labels = labels;
    t->targets = targets;
done:
    return result;
}

void tape_gather(tape *t, const struct dataset *d, enum dataset_split split,
                 const uint32_t *indices, uint32_t first, uint32_t n, const struct crop *crops)
{
    const struct backend_kind *on = t->b->kind;
    if (on->gather == NULL) {
        dataset_gather(d, split, indices, first, n, crops, tape_images(t), t->labels);
        return;
    }
    dataset_labels(d, split, indices, first, n, t->labels);
    t->gathered = true;
    t->gather_failed = on->gather(t->b, t->input->value, split, indices, first, n, crops);
}

/* ---- nodes ---- */

static bool node_fits(const tape *t, const struct tape_node *n, const tensor *x)
{
    if (n->step == t->step || memcmp(&n->d, &x->d, sizeof n->d) != 0)
        return false;
    for (int i = 0; i < 2; ++i)
        if (x->input[i] != NULL &&
            !t->b->kind->buffer_same_layout(n->made_for[i], x->input[i]->node->value))
            return false;
    return true;
}

/* A step usually repeats the previous one, so the search starts after the last node found. */
static struct tape_node *find_node(tape *t, const tensor *x)
{
    for (size_t i = 0; i < t->node_count; ++i) {
        size_t at = (t->cursor + i) % t->node_count;
        if (node_fits(t, t->nodes[at], x)) {
            t->cursor = at + 1;
            return t->nodes[at];
        }
    }
    return NULL;
}

static void node_close(tape *t, struct tape_node *n)
{
    if (n->op != NULL)
        t->b->kind->op_close(t->b, n->op);
    if (n->value != NULL)
        t->b->kind->buffer_close(t->b, n->value);
    memory_free(n->host);
    memory_free(n->statistics);
    memory_free(n);
}

static status make_room(tape *t)
{
    status result = OK;
    if (t->node_count == t->node_capacity) {
        size_t capacity = t->node_capacity == 0 ? 32 : t->node_capacity * 2;
        TRY(memory_grow(&t->nodes, t->node_count, capacity, sizeof *t->nodes, "the tape"));
        TRY(memory_grow(&t->order, t->order_count, capacity, sizeof *t->order, "the tape"));
        /* One more: a stage's images have a gradient too. */
        TRY(memory_grow(&t->spare, t->spare_count, capacity + 1, sizeof *t->spare, "the tape"));
        t->node_capacity = capacity;
    }
done:
    return result;
}

static bool collects_statistics(const tape *t, const struct op_description *d)
{
    return d->kind == OP_BATCH_NORM && t->mode != TAPE_TRAIN && !(d->flags & OP_GIVEN_STATISTICS);
}

static status make_node(tape *t, const tensor *x, struct tape_node **out)
{
    status result = OK;
    struct tape_node *n = NULL;
    TRY(make_room(t));
    TRY(memory_new(&n, 1, sizeof *n, "the tape"));
    n->d = x->d;
    for (int i = 0; i < 2; ++i)
        n->made_for[i] = x->input[i] != NULL ? x->input[i]->node->value : NULL;
    if (collects_statistics(t, &n->d)) {
        TRY(memory_new(&n->statistics, 2 * n->d.input.channels, sizeof(float),
                       "batch norm's statistics"));
    }
    TRY(t->b->kind->op_open(t->b, &n->d, n->made_for, &n->op, &n->value));
    n->wants_gradient = x->wants_gradient && n->value != NULL;
    t->bytes += n->value != NULL ? tape_bytes_of(t, n->d.output) : 0;
    t->nodes[t->node_count++] = n;
    t->cursor = t->node_count;
    *out = n;
    n = NULL;
done:
    if (n != NULL)
        node_close(t, n);
    return result;
}

/* ---- running ---- */

static void fill_call(tape *t, const struct tape_node *n, struct op_call *call)
{
    *call = (struct op_call){
        .output = n->value, .labels = t->labels, .valid = t->valid, .loss = &t->loss};
    for (int i = 0; i < 2; ++i)
        call->input[i] = n->input[i] != NULL ? n->input[i]->value : NULL;
    if (n->layer != NO_SLICE) {
        const struct layer *l = parameter_table_layer(t->parameters, n->layer);
        call->weight = l->weight_at;
        call->bias = l->bias_at;
    }
    if (n->d.kind == OP_BATCH_NORM && t->mode != TAPE_TRAIN) {
        struct statistics *s = &t->statistics[n->layer];
        bool given = n->d.flags & OP_GIVEN_STATISTICS;
        call->mean = given ? s->mean : n->statistics;
        call->variance = given ? s->variance : n->statistics + n->d.input.channels;
    }
    call->joint = t->joint != NULL && n->d.flags & OP_JOINT_STATISTICS ? &t->timed : NULL;
}

status tape_run(tape *t, tensor *x)
{
    status result = OK;
    struct op_call call;
    if (x->node != NULL || t->mode == TAPE_DISCOVER)
        goto done;
    if (x->absent) {
        FAIL(ERROR_USAGE, "model: a stage needs a value of another stage, because the model's "
                          "control flow depends on values; train it with stages=1 or mode=sync");
    }
    struct tape_node *n = find_node(t, x);
    if (n == NULL)
        TRY(make_node(t, x, &n));
    n->step = t->step;
    n->layer = x->layer;
    n->has_gradient = false;
    n->first_reader = NULL;
    for (int i = 0; i < 2; ++i) {
        n->input[i] = x->input[i] != NULL ? x->input[i]->node : NULL;
        if (n->input[i] != NULL && n->input[i]->first_reader == NULL)
            n->input[i]->first_reader = n;
    }
    t->order[t->order_count++] = n;
    x->node = n;
    fill_call(t, n, &call);
    TRY(t->b->kind->forward(t->b, n->op, &call));
    tape_call_watch(t);
done:
    return result;
}

/* Returns whether this step has already written slice `which` of the layer, and marks it as
 * written. */
static bool written_before(tape *t, size_t layer, int which)
{
    bool before = t->written[layer][which] == t->step;
    t->written[layer][which] = t->step;
    return before;
}

/* Index of the input that takes over the buffer of a sum's gradient; −1: the operation is not a
 * sum. */
static int heir_of(const struct op_description *d)
{
    if (d->kind == OP_ADD || d->kind == OP_POSITION_EMBEDDING)
        return 0;
    return d->flags & OP_RESIDUAL ? 1 : -1;
}

/* The gradient of a sum equals the gradients of its inputs: one input takes over the buffer without
 * a copy. */
static void hand_down(tape *t, struct tape_node *n)
{
    int input = heir_of(&n->d);
    struct tape_node *to = input >= 0 ? n->input[input] : NULL;
    if (to != NULL && to->wants_gradient && !to->has_gradient && to != n->input[1 - input] &&
        t->b->kind->buffer_same_layout(to->value, n->gradient)) {
        to->gradient = n->gradient;
        n->gradient = NULL;
    }
}

static status run_backward(tape *t, struct tape_node *n)
{
    status result = OK;
    struct op_call call;
    fill_call(t, n, &call);
    call.output_gradient = n->gradient;
    hand_down(t, n);
    for (int i = 0; i < 2; ++i) {
        struct tape_node *input = n->input[i];
        if (input != NULL && input->wants_gradient) {
            if (input->gradient == NULL)
                TRY(tape_take_gradient(t, input));
            call.input_gradient[i] = input->gradient;
            call.accumulate[i] = input->has_gradient;
            call.complete[i] = input->first_reader == n && n->input[1 - i] != input;
            input->has_gradient = true;
        }
    }
    if (n->layer != NO_SLICE) {
        call.accumulate_weight = written_before(t, n->layer, 0);
        if (n->d.flags & OP_BIASED)
            call.accumulate_bias = written_before(t, n->layer, 1);
    }
    TRY(t->b->kind->backward(t->b, n->op, &call));
done:
    tape_give_gradient_back(t, n);
    return result;
}

/* Runs the nodes in reverse. If gradients are in host memory, it reports each layer's gradient to
 * the watch after the last operation that writes it. */
static status read_backwards(tape *t)
{
    status result = OK;
    const bool in_place = t->b->kind->clear == NULL;
    for (size_t i = t->order_count; i-- > 0;) {
        struct tape_node *n = t->order[i];
        if (n->has_gradient)
            TRY(run_backward(t, n));
        if (n->layer != NO_SLICE)
            t->uses[n->layer]--;
        if (in_place && t->watch != NULL && n->has_gradient) {
            TRY(tape_settle(t));
            tape_call_watch(t);
        }
    }
done:
    return result;
}

/* The time of the watch counts for neither half of the step. */
static void end_of_forward(tape *t)
{
    uint64_t now = clock_ns();
    t->times = (struct tape_times){.forward_ns = now - t->began_ns - t->watched_ns,
                                   .watch_ns = t->watched_ns};
    t->began_ns = now;
    t->watched_ns = 0;
}

static void end_of_backward(tape *t)
{
    t->times.backward_ns = clock_ns() - t->began_ns - t->watched_ns;
    t->times.watch_ns += t->watched_ns;
}

status tape_run_back(tape *t, struct tape_node *from)
{
    from->has_gradient = true;
    tape_count_uses(t);
    return read_backwards(t);
}

status tape_finish(tape *t, tensor *loss, uint32_t valid, struct op_loss *out)
{
    status result = OK;
    bool running = t->mode != TAPE_DISCOVER;
    TRY(t->failed);
    if (!running)
        goto done;
    if (loss != NULL) {
        REQUIRE(op_is_loss(loss->d.kind) && valid > 0 && valid <= t->batch);
        t->valid = valid;
        TRY(tape_run(t, loss));
        if (t->gradient != NULL) {
            end_of_forward(t);
            TRY(tape_run_back(t, loss->node));
            TRY(tape_settle(t));
        }
    }
    TRY(t->b->kind->finish(t->b));
    running = false;
    for (size_t i = 0; t->mode == TAPE_CALIBRATE && i < t->order_count; ++i)
        if (t->order[i]->d.kind == OP_BATCH_NORM)
            tape_collect_statistics(t, t->order[i]);
    if (t->gradient != NULL) {
        tape_call_watch(t);
        end_of_backward(t);
    }
    if (loss != NULL && out != NULL)
        *out = t->loss;
done:
    if (running && t->b->kind->abandon != NULL)
        t->b->kind->abandon(t->b);
    return result;
}

/* ---- recording ---- */

status tape_new_tensor(tape *t, tensor **out)
{
    status result = OK;
    if (t->chunk == NULL || t->chunk_used == TENSORS_PER_CHUNK) {
        struct chunk **next = t->chunk == NULL ? &t->chunks : &t->chunk->next;
        if (*next == NULL)
            TRY(memory_new(next, 1, sizeof **next, "the tape"));
        t->chunk = *next;
        t->chunk_used = 0;
    }
    *out = &t->chunk->tensors[t->chunk_used++];
    memset(*out, 0, sizeof **out);
    (*out)->layer = NO_SLICE;
    (*out)->number = t->tensor_count++;
done:
    return result;
}

bool tape_skips(const tape *t)
{
    return t->tensor_count <= t->first || t->tensor_count > t->last;
}

/* Records a call of another stage. Its tensor has a shape but no value. Exception: the result of
 * call `first` is this stage's images. */
static tensor *skip(tape *t, struct op_description d)
{
    tensor *x;
    STICK(t, tape_new_tensor(t, &x));
    x->d = d;
    x->absent = true;
    if (x->number == t->first && t->input != NULL) {
        x->d.kind = t->input->d.kind;
        x->node = t->input;
        x->wants_gradient = t->input->wants_gradient;
    }
    return x;
}

tensor *tape_record(tape *t, struct op_description d, size_t layer, tensor *a, tensor *b)
{
    tensor *x;
    if (t->failed != OK)
        return &t->dead;
    if (tape_skips(t))
        return skip(t, d);
    STICK(t, tape_new_tensor(t, &x));
    STICK(t, tape_run(t, a));
    if (b != NULL)
        STICK(t, tape_run(t, b));
    d.batch = t->batch;
    d.input = a->d.output;
    bool inputs_want = a->wants_gradient || (b != NULL && b->wants_gradient);
    x->wants_gradient = t->mode == TAPE_TRAIN && (inputs_want || layer != NO_SLICE);
    d.flags |= t->mode == TAPE_TRAIN ? OP_TRAINING : 0;
    d.flags |= inputs_want ? OP_INPUT_GRADIENT : 0;
    x->d = d;
    x->layer = layer;
    x->input[0] = a;
    x->input[1] = b;
    return x;
}

static const float *zeros_of(tape *t, size_t count)
{
    if (t->zeros_count < count) {
        memory_free(t->zeros);
        t->zeros = memory_allocate(count * sizeof(float));
        REQUIRE(t->zeros != NULL);
        t->zeros_count = count;
    }
    return t->zeros;
}

static status show(tape *t, tensor *x, const float **out)
{
    status result = OK;
    REQUIRE(!op_is_loss(x->d.kind) || x->node == t->input);
    size_t count = t->batch * shape_count(x->d.output);
    if (t->mode == TAPE_DISCOVER) {
        *out = zeros_of(t, count);
        goto done;
    }
    TRY(tape_run(t, x));
    if (x->node->host == NULL)
        TRY(memory_new(&x->node->host, count, sizeof(float), "the tape"));
    TRY(t->b->kind->buffer_read(t->b, x->node->value, x->node->host));
    *out = x->node->host;
done:
    return result;
}

const float *tape_value(tape *t, tensor *x)
{
    const float *value = NULL;
    if (t->failed == OK)
        t->failed = show(t, x, &value);
    /* After an error the model still runs to its end; the values it reads are not used. */
    return t->failed == OK ? value : zeros_of(t, t->batch * shape_count(x->d.output));
}

/* ---- opening and closing ---- */

tensor *tape_begin(tape *t, const float *parameters, float *gradient)
{
    tensor *x;
    REQUIRE((gradient != NULL) == (t->mode == TAPE_TRAIN));
    t->step++;
    t->failed = OK;
    t->gradient = gradient;
    t->chunk = NULL;
    for (size_t i = 0; i < t->node_count; ++i)
        tape_give_gradient_back(t, t->nodes[i]); /* from a step that failed */
    if (t->input != NULL) {
        tape_give_gradient_back(t, t->input);
        t->input->has_gradient = false;
        t->input->first_reader = NULL;
    }
    tape_sort_gradients(t);
    t->order_count = 0;
    t->cursor = 0;
    t->layer_guess = 0;
    t->unsettled = t->mode == TAPE_TRAIN ? parameter_table_slices(t->parameters) : 0;
    t->began_ns = clock_ns();
    t->watched_ns = 0;
    t->tensor_count = 0;
    STICK(t, tape_new_tensor(t, &x));
    x->d.output = t->first > 0 ? t->images : t->input_shape;
    x->absent = t->first > 0;
    if (t->mode != TAPE_DISCOVER) {
        size_t count = parameter_table_count(t->parameters);
        STICK(t, t->b->kind->begin(t->b, parameters, gradient, count));
        bool gathered = t->gathered;
        t->gathered = false;
        STICK(t, gathered ? t->gather_failed : t->b->kind->buffer_upload(t->b, t->input->value));
        x->node = x->absent ? NULL : t->input;
        x->d.kind = t->input->d.kind;
    }
    return x;
}

void tape_mark_last(tape *t, tensor *logits)
{
    REQUIRE(t->mode == TAPE_DISCOVER);
    if (t->failed == OK && logits->layer != NO_SLICE)
        parameter_table_layer(t->parameters, logits->layer)->last = true;
}

void tape_set_mode(tape *t, enum tape_mode mode)
{
    REQUIRE(mode == TAPE_CALIBRATE || mode == TAPE_EVALUATE);
    REQUIRE(t->mode == TAPE_CALIBRATE || t->mode == TAPE_EVALUATE);
    if (mode == TAPE_CALIBRATE)
        tape_forget_statistics(t);
    else if (t->mode == TAPE_CALIBRATE)
        tape_settle_statistics(t);
    t->mode = mode;
}

status tape_open(tape **out, backend *b, parameter_table *parameters, enum tape_mode mode,
                 struct shape input, uint32_t batch)
{
    status result = OK;
    tape *t = NULL;
    *out = NULL;
    TRY(memory_new(&t, 1, sizeof *t, "the tape"));
    t->b = b;
    t->parameters = parameters;
    t->mode = mode;
    t->input_shape = input;
    t->last = SIZE_MAX;
    t->batch = batch;
    t->targets = 1;
    t->dead.layer = NO_SLICE;
    t->dead.d.output = (struct shape){1, 1, 1};
    if (mode != TAPE_DISCOVER) {
        TRY(tape_set_targets(t, 1));
        TRY(memory_new(&t->input, 1, sizeof *t->input, "the tape"));
        t->input->d.output = input;
        t->input->layer = NO_SLICE;
        TRY(b->kind->buffer_open(b, batch, input, &t->input->value));
        t->bytes = tape_bytes_of(t, input);
        TRY(tape_open_statistics(t));
        TRY(tape_open_watch(t));
    }
    *out = t;
    t = NULL;
done:
    tape_close(&t);
    return result;
}

void tape_close(tape **out)
{
    tape *t = *out;
    if (t == NULL)
        return;
    tape_close_statistics(t);
    tape_close_watch(t);
    for (size_t i = 0; i < t->node_count; ++i) {
        tape_give_gradient_back(t, t->nodes[i]);
        node_close(t, t->nodes[i]);
    }
    for (size_t i = 0; i < t->spare_count; ++i)
        t->b->kind->buffer_close(t->b, t->spare[i]);
    memory_free(t->spare);
    if (t->input != NULL)
        node_close(t, t->input);
    while (t->chunks != NULL) {
        struct chunk *next = t->chunks->next;
        memory_free(t->chunks);
        t->chunks = next;
    }
    memory_free(t->nodes);
    memory_free(t->order);
    memory_free(t->labels);
    memory_free(t->zeros);
    memory_free(t);
    *out = NULL;
}
