/*
 * backend_cpu_norm.c — batch norm through oneDNN, with a ReLU after it if requested. Scale γ and
 * shift β are read from the flat vectors, and their gradients are written there.
 *
 * SyncBatchNorm (OP_JOINT_STATISTICS): one primitive computes this batch's statistics, add_up forms
 * the sums of all workers, and the normalising primitive takes the resulting statistics as given.
 * Its backward pass treats mean and variance as constants. The gradient through them is, per
 * channel, −s Σg/m − s x̂ Σg x̂/m over all m elements of the joint batch, with s = γ/√(variance +
 * ε). This is a normalisation with scale −s Σg x̂/m and shift −s Σg/m.
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"

#include <math.h>
#include <string.h>

struct cpu_norm {
    backend_op op;
    dnnl_primitive_t forward, backward;
    dnnl_memory_t scale, shift, scale_gradient, shift_gradient;
    struct cpu_block mean, variance, workspace;
    struct { /* OP_JOINT_STATISTICS */
        dnnl_primitive_t own, through;
        dnnl_memory_t result;
        double *sums;            /* [2][channels] */
        float *scale, *constant; /* [channels]: arguments of `through` */
    } joint;
};

static status point(dnnl_memory_t m, const float *at)
{
    return cpu_check(dnnl_memory_set_data_handle(m, (void *)at), "batch norm");
}

/* ---- over a joint batch ---- */

/* sums ← the sums over all workers; *count: elements of a channel in the joint batch. */
static status add_up(const struct cpu_norm *k, const struct op_call *call, double *count)
{
    const struct op_description *d = &k->op.d;
    const struct batch_norm_group *joint = call->joint;
    *count = (double)d->batch * d->input.height * d->input.width;
    if (joint == NULL)
        return OK;
    *count *= joint->shares;
    return joint->add_up(joint->context, k->joint.sums, 2 * (size_t)d->input.channels);
}

static status find_statistics(struct cpu *c, struct cpu_norm *k, const struct op_call *call)
{
    status result = OK;
    const size_t channels = k->op.d.input.channels;
    const double own = (double)k->op.d.batch * k->op.d.input.height * k->op.d.input.width;
    double *sums = k->joint.sums, count;
    const dnnl_exec_arg_t a[] = {{DNNL_ARG_SRC, call->input[0]->memory},
                                 {DNNL_ARG_DST, call->output->memory}, /* overwritten later */
                                 {DNNL_ARG_MEAN, k->mean.memory},
                                 {DNNL_ARG_VARIANCE, k->variance.memory}};
    TRY(cpu_execute(c, k->joint.own, 4, a, "batch norm's statistics"));
    for (size_t i = 0; i < channels; ++i) {
        double mean = (double)k->mean.data[i];
        sums[i] = own * mean;
        sums[channels + i] = own * ((double)k->variance.data[i] + mean * mean);
    }
    TRY(add_up(k, call, &count));
    for (size_t i = 0; i < channels; ++i) {
        double mean = sums[i] / count, variance = sums[channels + i] / count - mean * mean;
        k->mean.data[i] = (float)mean;
        k->variance.data[i] = variance > 0 ? (float)variance : 0;
    }
done:
    return result;
}

/* to[] += the gradient through the statistics. `scale` and `shift`: the gradients of γ and β;
 * `scratch`: as many floats as to[]. */
static status add_through_statistics(struct cpu *c, struct cpu_norm *k, const struct op_call *call,
                                     const float *scale, const float *shift, float *scratch,
                                     float *to)
{
    status result = OK;
    const size_t channels = k->op.d.input.channels;
    double *sums = k->joint.sums, count;
    for (size_t i = 0; i < channels; ++i) {
        sums[i] = (double)shift[i];
        sums[channels + i] = (double)scale[i];
    }
    TRY(add_up(k, call, &count));
    for (size_t i = 0; i < channels; ++i) {
        double s = (double)c->parameters[call->weight + i] /
                   sqrt((double)k->variance.data[i] + (double)BATCH_NORM_EPSILON);
        k->joint.scale[i] = (float)(-s * sums[channels + i] / count);
        k->joint.constant[i] = (float)(-s * sums[i] / count);
    }
    TRY(point(k->scale, k->joint.scale));
    TRY(point(k->shift, k->joint.constant));
    TRY(point(k->joint.result, scratch));
    const dnnl_exec_arg_t a[] = {{DNNL_ARG_SRC, call->input[0]->memory},
                                 {DNNL_ARG_DST, k->joint.result},
                                 {DNNL_ARG_SCALE, k->scale},
                                 {DNNL_ARG_SHIFT, k->shift},
                                 {DNNL_ARG_MEAN, k->mean.memory},
                                 {DNNL_ARG_VARIANCE, k->variance.memory}};
    TRY(cpu_execute(c, k->joint.through, 6, a, "batch norm's gradient"));
    cpu_add_into(to, scratch, call->output_gradient->count);
done:
    return result;
}

static status open_joint(struct cpu *c, struct cpu_norm *k, onednn_const_layout layout)
{
    status result = OK;
    dnnl_primitive_desc_t own = NULL, through = NULL;
    const size_t channels = k->op.d.input.channels;
    TRY_DNNL(onednn_batch_norm_forward(&own, c->engine, dnnl_forward_training, layout,
                                       BATCH_NORM_EPSILON, 0),
             "batch norm's statistics");
    TRY(cpu_primitive_new(c, &own, &k->joint.own, "batch norm's statistics"));
    TRY_DNNL(onednn_batch_norm_forward(&through, c->engine, dnnl_forward_inference, layout,
                                       BATCH_NORM_EPSILON,
                                       dnnl_use_scale | dnnl_use_shift | dnnl_use_global_stats),
             "batch norm's gradient");
    TRY(cpu_primitive_new(c, &through, &k->joint.through, "batch norm's gradient"));
    TRY(cpu_memory_new(c, layout, &k->joint.result));
    TRY(memory_new(&k->joint.sums, 2 * channels, sizeof(double), "a layer"));
    TRY(memory_new(&k->joint.scale, 2 * channels, sizeof(float), "a layer"));
    k->joint.constant = k->joint.scale + channels;
done:
    return result;
}

static void close_joint(struct cpu_norm *k)
{
    cpu_primitive_free(&k->joint.own);
    cpu_primitive_free(&k->joint.through);
    cpu_memory_free(&k->joint.result);
    memory_free(k->joint.sums);
    memory_free(k->joint.scale);
}

/* ---- the operation ---- */

static status forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cpu_norm *k = (struct cpu_norm *)op;
    size_t bytes = op->d.input.channels * sizeof(float);
    bool given = op->d.flags & OP_GIVEN_STATISTICS;
    if (given) {
        memcpy(k->mean.data, call->mean, bytes);
        memcpy(k->variance.data, call->variance, bytes);
    }
    if (op->d.flags & OP_JOINT_STATISTICS)
        TRY(find_statistics(c, k, call));
    TRY(point(k->scale, c->parameters + call->weight));
    TRY(point(k->shift, c->parameters + call->bias));
    const dnnl_exec_arg_t a[] = {{DNNL_ARG_SRC, call->input[0]->memory},
                                 {DNNL_ARG_DST, call->output->memory},
                                 {DNNL_ARG_SCALE, k->scale},
                                 {DNNL_ARG_SHIFT, k->shift},
                                 {DNNL_ARG_MEAN, k->mean.memory},
                                 {DNNL_ARG_VARIANCE, k->variance.memory},
                                 {DNNL_ARG_WORKSPACE, k->workspace.memory}};
    TRY(cpu_execute(c, k->forward, k->workspace.memory != NULL ? 7 : 6, a, "batch norm"));
    if (!given && call->mean != NULL) {
        memcpy(call->mean, k->mean.data, bytes);
        memcpy(call->variance, k->variance.data, bytes);
    }
done:
    return result;
}

static status backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cpu_norm *k = (struct cpu_norm *)op;
    size_t channels = op->d.input.channels;
    backend_buffer *g = call->output_gradient, *to = call->input_gradient[0];
    float *scale = c->gradient + call->weight, *shift = c->gradient + call->bias, *scratch;
    /* The primitive writes every result. A result that is added or not needed goes to scratch. */
    TRY(cpu_scratch(c, 2 * channels + 2 * g->count, &scratch));
    float *scale_to = call->accumulate_weight ? scratch : scale;
    float *shift_to = call->accumulate_bias ? scratch + channels : shift;
    float *write = to == NULL || call->accumulate[0] ? scratch + 2 * channels : to->data;
    dnnl_memory_t target = to == NULL ? g->memory : to->memory;
    TRY(point(k->scale, c->parameters + call->weight));
    TRY(point(k->shift, c->parameters + call->bias));
    TRY(point(k->scale_gradient, scale_to));
    TRY(point(k->shift_gradient, shift_to));
    if (to != NULL)
        TRY(point(target, write));
    int count = 8;
    dnnl_exec_arg_t a[10] = {{DNNL_ARG_SRC, call->input[0]->memory},
                             {DNNL_ARG_MEAN, k->mean.memory},
                             {DNNL_ARG_VARIANCE, k->variance.memory},
                             {DNNL_ARG_SCALE, k->scale},
                             {DNNL_ARG_DIFF_DST, g->memory},
                             {DNNL_ARG_DIFF_SRC, target}, /* in place if not needed */
                             {DNNL_ARG_DIFF_SCALE, k->scale_gradient},
                             {DNNL_ARG_DIFF_SHIFT, k->shift_gradient}};
    if (k->workspace.memory != NULL)
        a[count++] = (dnnl_exec_arg_t){DNNL_ARG_WORKSPACE, k->workspace.memory};
    if (ONEDNN_NORM_BACKWARD_TAKES_SHIFT)
        a[count++] = (dnnl_exec_arg_t){DNNL_ARG_SHIFT, k->shift};
    TRY(cpu_execute(c, k->backward, count, a, "batch norm's gradient"));
    if (op->d.flags & OP_JOINT_STATISTICS && to != NULL) {
        TRY(add_through_statistics(c, k, call, scale_to, shift_to,
                                   scratch + 2 * channels + g->count, write));
    }
    cpu_target_done(scale, scale_to, channels);
    cpu_target_done(shift, shift_to, channels);
    if (to != NULL) {
        TRY(point(target, to->data));
        cpu_target_done(to->data, write, to->count);
    }
done:
    return result;
}

static void close_norm(backend_op *op)
{
    struct cpu_norm *k = (struct cpu_norm *)op;
    close_joint(k);
    cpu_primitive_free(&k->forward);
    cpu_primitive_free(&k->backward);
    cpu_memory_free(&k->scale);
    cpu_memory_free(&k->shift);
    cpu_memory_free(&k->scale_gradient);
    cpu_memory_free(&k->shift_gradient);
    cpu_block_close(&k->mean);
    cpu_block_close(&k->variance);
    cpu_block_close(&k->workspace);
    memory_free(k);
}

static status open_vectors(struct cpu *c, struct cpu_norm *k)
{
    status result = OK;
    onednn_layout vector = NULL;
    TRY(cpu_vector_layout(&vector, k->op.d.input.channels));
    TRY(cpu_memory_new(c, vector, &k->scale));
    TRY(cpu_memory_new(c, vector, &k->shift));
    TRY(cpu_memory_new(c, vector, &k->scale_gradient));
    TRY(cpu_memory_new(c, vector, &k->shift_gradient));
    TRY(cpu_block_open(c, vector, &k->mean));
    TRY(cpu_block_open(c, vector, &k->variance));
done:
    onednn_layout_close(&vector);
    return result;
}

status cpu_batch_norm_open(struct cpu *c, const struct op_description *d,
                           backend_buffer *const in[2], backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct cpu_norm *k = NULL;
    dnnl_primitive_desc_t p = NULL, back = NULL;
    TRY(memory_new(&k, 1, sizeof *k, "a layer"));
    k->op = (backend_op){*d, forward, backward, close_norm};
    TRY(open_vectors(c, k));
    bool given = d->flags & OP_GIVEN_STATISTICS, training = d->flags & OP_TRAINING;
    bool joint = d->flags & OP_JOINT_STATISTICS;
    unsigned flags = dnnl_use_scale | dnnl_use_shift;
    flags |= given || joint ? dnnl_use_global_stats : 0;
    if (joint)
        TRY(open_joint(c, k, in[0]->layout));
    flags |= d->activation == ACTIVATION_RELU ? dnnl_fuse_norm_relu : 0;
    /* Only dnnl_forward_training computes and returns the batch's statistics. */
    TRY_DNNL(onednn_batch_norm_forward(&p, c->engine,
                                       given ? dnnl_forward_inference : dnnl_forward_training,
                                       in[0]->layout, BATCH_NORM_EPSILON, flags),
             "batch norm");
    if (!given && d->activation == ACTIVATION_RELU)
        TRY(cpu_block_open(c, cpu_chosen(p, dnnl_query_workspace_md), &k->workspace));
    if (training) {
        REQUIRE(!given);
        TRY_DNNL(onednn_batch_norm_backward(&back, c->engine, in[0]->layout, BATCH_NORM_EPSILON,
                                            flags, p),
                 "batch norm's gradient");
        TRY(cpu_primitive_new(c, &back, &k->backward, "batch norm's gradient"));
    }
    TRY(cpu_primitive_new(c, &p, &k->forward, "batch norm"));
    TRY(cpu_buffer_new(c, d->batch, d->output, in[0]->layout, output));
    *out = &k->op;
    k = NULL;
done:
    if (p != NULL)
        dnnl_primitive_desc_destroy(p);
    if (k != NULL)
        close_norm(&k->op);
    return result;
}
