#include "experiments/keys.h"

#include "ps/consistency.h"
#include "ps/correction.h"
#include "ps/damping.h"
#include "ps/outer.h"
#include "sync/communicator.h"
#include "sync/pipeline.h"
#include "sync/compression.h"
#include "worker/augment.h"
#include "worker/backend.h"
#include "worker/dataset.h"
#include "worker/model.h"
#include "worker/optimizer.h"
#include "worker/pace.h"
#include "worker/schedule.h"

#include <string.h>

#define FLAG(k, value, text)                                                                       \
    {                                                                                              \
        .key = k, .type = OPTION_FLAG, .initial = value, .help = text                              \
    }
#define INTEGER(k, value, low, high, text)                                                         \
    {                                                                                              \
        .key = k, .type = OPTION_INTEGER, .initial = value, .minimum = low, .maximum = high,       \
        .help = text                                                                               \
    }
#define REAL(k, value, low, high, text)                                                            \
    {                                                                                              \
        .key = k, .type = OPTION_REAL, .initial = value, .minimum = low, .maximum = high,          \
        .help = text                                                                               \
    }
#define TEXT(k, value, text)                                                                       \
    {                                                                                              \
        .key = k, .type = OPTION_TEXT, .initial = value, .help = text                              \
    }
#define ONE_OF(k, value, list, text)                                                               \
    {                                                                                              \
        .key = k, .type = OPTION_NAME, .initial = value, .names = list, .help = text               \
    }
#define PART(k, value, r, text)                                                                    \
    {                                                                                              \
        .key = k, .type = OPTION_NAME, .initial = value, .registry = &r, .help = text              \
    }

#define MANY 9007199254740992.0 /* 2^53: whole numbers that a double holds exactly */

const struct option global_keys[] = {
#define KEY(use, ...) __VA_ARGS__,
#include "experiments/keys.def"
#undef KEY
    {0},
};

enum key_use key_use_of(const char *key)
{
    static const enum key_use uses[] = {
#define KEY(use, ...) KEY_##use,
#include "experiments/keys.def"
#undef KEY
    };
    for (size_t i = 0; i < COUNT_OF(uses); i++) {
        if (strcmp(global_keys[i].key, key) == 0) {
            return uses[i];
        }
    }
    if (strcmp(key, "device.index") == 0) {
        return KEY_BESIDE;
    }
    return KEY_DEFINES; /* of a part that was chosen */
}
