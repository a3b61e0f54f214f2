/* tape_ops_sequence.c — recording of operations on sequences: T positions with C features are
 * T×1×C (tape.h). */
#include "worker/model/tape_internal.h"

static status is_sequence(const char *what, struct shape s)
{
    status result = OK;
    if (s.height != 1) {
        FAIL(ERROR_USAGE,
             "model: %s of %u×%u×%u: height must be 1, because T positions with C features are "
             "T×1×C",
             what, s.channels, s.height, s.width);
    }
done:
    return result;
}

tensor *embedding(tape *t, tensor *tokens, const char *name, uint32_t vocabulary, uint32_t width,
                  float deviation)
{
    size_t at = 0;
    struct layer l = {.kind = OP_EMBEDDING,
                      .weight_rank = 2,
                      .weight_shape = {vocabulary, width},
                      .fan_in = width,
                      .deviation = deviation};
    if (t->failed != OK)
        return &t->dead;
    STICK(t, tape_find_layer(t, &l, name, false, &at));
    return tape_record(
        t,
        (struct op_description){.kind = OP_EMBEDDING,
                                .vocabulary = vocabulary,
                                .output = {(uint32_t)shape_count(tokens->d.output), 1, width}},
        at, tokens, NULL);
}

tensor *position_embedding(tape *t, tensor *x, const char *name, float deviation)
{
    size_t at = 0;
    const struct shape s = x->d.output;
    struct layer l = {.kind = OP_POSITION_EMBEDDING,
                      .weight_rank = 2,
                      .weight_shape = {s.channels, s.width},
                      .fan_in = s.width,
                      .deviation = deviation};
    if (t->failed != OK)
        return &t->dead;
    STICK(t, is_sequence("a position embedding", s));
    STICK(t, tape_find_layer(t, &l, name, false, &at));
    return tape_record(t, (struct op_description){.kind = OP_POSITION_EMBEDDING, .output = s}, at,
                       x, NULL);
}

tensor *layer_norm(tape *t, tensor *x, const char *name)
{
    size_t at = 0;
    const struct shape s = x->d.output;
    struct layer l = {
        .kind = OP_LAYER_NORM, .weight_rank = 1, .weight_shape = {s.width}, .fan_in = 1};
    if (t->failed != OK)
        return &t->dead;
    STICK(t, is_sequence("a layer norm", s));
    STICK(t, tape_find_layer(t, &l, name, true, &at));
    return tape_record(
        t, (struct op_description){.kind = OP_LAYER_NORM, .flags = OP_BIASED, .output = s}, at, x,
        NULL);
}

tensor *linear_per_position(tape *t, tensor *x, const char *name, uint32_t outputs, float deviation)
{
    size_t at = 0;
    const struct shape s = x->d.output;
    struct layer l = {.kind = OP_LINEAR,
                      .weight_rank = 2,
                      .weight_shape = {outputs, s.width},
                      .fan_in = s.width,
                      .deviation = deviation};
    if (t->failed != OK)
        return &t->dead;
    STICK(t, is_sequence("a linear layer per position", s));
    STICK(t, tape_find_layer(t, &l, name, false, &at));
    return tape_record(t,
                       (struct op_description){.kind = OP_LINEAR,
                                               .flags = OP_PER_POSITION,
                                               .output = {s.channels, 1, outputs}},
                       at, x, NULL);
}

static status has_heads(struct shape s, uint32_t heads)
{
    status result = OK;
    if (heads == 0 || s.width == 0 || s.width % (3 * heads) != 0) {
        FAIL(ERROR_USAGE,
             "model: causal attention of %u×%u×%u with %u heads: the width must be a multiple of 3 "
             "× heads, for query, key and value",
             s.channels, s.height, s.width, heads);
    }
done:
    return result;
}

tensor *causal_attention(tape *t, tensor *x, uint32_t heads)
{
    const struct shape s = x->d.output;
    if (t->failed != OK)
        return &t->dead;
    STICK(t, is_sequence("causal attention", s));
    STICK(t, has_heads(s, heads));
    return tape_record(t,
                       (struct op_description){.kind = OP_ATTENTION,
                                               .heads = heads,
                                               .output = {s.channels, 1, s.width / 3}},
                       NO_SLICE, x, NULL);
}
