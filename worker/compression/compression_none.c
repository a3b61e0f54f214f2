/* compression_none.c — gradients in float32, not compressed. */
#include "worker/compression/compression.h"

const struct compression_kind compression_none = {
    .about = {.name = "none", .description = "float32, not compressed"},
};
