/* compression_none.c — gradients travel as they are, in float32. */
#include "sync/compression/compression.h"

const struct compression_kind compression_none = {
    .about = {.name = "none", .description = "gradients as they are, in float32"},
};
