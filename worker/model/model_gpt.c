/*
 * model_gpt.c — a decoder-only transformer for tokens (Radford et al. 2019, section 2.3, with the
 * norms before each part): learned positions, causal attention, GELU, a feed-forward part of four
 * times the width. Linear layers have no bias.
 *
 * Weights begin as normal numbers with deviation 0.02; those of the two projections into the
 * residual stream with 0.02 / √(2 · layers), because the stream sums 2 · layers of them.
 */
#include "worker/model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS, WIDTH, HEADS, TIED, NAME_BYTES = 48 };

static const float deviation = 0.02f;

static status configure(struct model *m, const options *o)
{
    status result = OK;
    const int64_t width = options_integer(o, "model.width"),
                  heads = options_integer(o, "model.heads");
    if (width % heads != 0) {
        FAIL(ERROR_USAGE,
             "%s: model.width=%lld is not divisible by model.heads=%lld: each head has width / "
             "heads features; change one of them",
             options_origin(o, options_was_set(o, "model.heads") ? "model.heads" : "model.width"),
             (long long)width, (long long)heads);
    }
    m->settings[LAYERS] = options_integer(o, "model.layers");
    m->settings[WIDTH] = width;
    m->settings[HEADS] = heads;
    m->settings[TIED] = strcmp(options_text(o, "model.tied"), "yes") == 0;
done:
    return result;
}

static const char *name_of(char out[NAME_BYTES], uint32_t block, const char *layer)
{
    snprintf(out, NAME_BYTES, "h%u.%s", block, layer);
    return out;
}

/* x + projection(attention(norm(x))), then x + down(GELU(up(norm(x)))) */
static tensor *block_of(tape *t, tensor *x, const struct model *m, uint32_t block)
{
    const uint32_t width = (uint32_t)m->settings[WIDTH], heads = (uint32_t)m->settings[HEADS];
    const float into_stream = deviation / sqrtf(2 * (float)m->settings[LAYERS]);
    char name[NAME_BYTES];
    tensor *y = layer_norm(t, x, name_of(name, block, "ln1"));
    y = linear_per_position(t, y, name_of(name, block, "attn.qkv"), 3 * width, deviation);
    y = causal_attention(t, y, heads);
    y = linear_per_position(t, y, name_of(name, block, "attn.proj"), width, into_stream);
    x = add(t, x, y);
    y = layer_norm(t, x, name_of(name, block, "ln2"));
    y = linear_per_position(t, y, name_of(name, block, "mlp.up"), 4 * width, deviation);
    y = gelu(t, y);
    y = linear_per_position(t, y, name_of(name, block, "mlp.down"), width, into_stream);
    return add(t, x, y);
}

static tensor *forward(tape *t, tensor *x, const struct model *m)
{
    const uint32_t width = (uint32_t)m->settings[WIDTH];
    x = embedding(t, x, "wte", m->classes, width, deviation);
    x = position_embedding(t, x, "wpe", deviation);
    for (uint32_t block = 0; block < m->settings[LAYERS]; ++block)
        x = block_of(t, x, m, block);
    x = layer_norm(t, x, "ln_f");
    return linear_per_position(t, x, m->settings[TIED] ? "wte" : "head", m->classes, deviation);
}

static const struct option settings[] = {
    {"model.layers", OPTION_INTEGER, "2", 1, 96, NULL, NULL,
     "blocks of attention and feed-forward"},
    {"model.width", OPTION_INTEGER, "64", 1, 16384, NULL, NULL,
     "features of each position; divisible by model.heads"},
    {"model.heads", OPTION_INTEGER, "4", 1, 1024, NULL, NULL, "heads of each attention"},
    {"model.tied", OPTION_NAME, "no", 0, 0, "no|yes", NULL,
     "yes: the head's weights are those of the token embedding"},
    {0},
};

const struct model_kind model_gpt = {
    .about = {"gpt", "decoder-only transformer for tokens, pre-norm, with learned positions",
              "Radford et al. 2019, section 2.3", settings},
    .configure = configure,
    .forward = forward,
    .reads_tokens = true,
};
