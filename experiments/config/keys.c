#include "experiments/config/keys.h"

#include "base/text.h"
#include "ps/rules/consistency/consistency.h"
#include "ps/rules/correction/correction.h"
#include "ps/rules/damping/damping.h"
#include "ps/rules/outer/outer.h"
#include "sync/communicator/communicator.h"
#include "sync/pipeline/pipeline.h"
#include "worker/compression/compression.h"
#include "worker/data/augment.h"
#include "worker/backend.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/optimizer/optimizer.h"
#include "worker/pace/pace.h"
#include "worker/optimizer/schedule.h"

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
#define KEY(use, where, ...) __VA_ARGS__,
#include "experiments/config/keys.def"
#undef KEY
    {0},
};

/* Short names for keys.def. */
enum {
    ANY = KEY_ANY,
    ASYNC = KEY_ASYNC,
    SYNC = KEY_SYNC,
    PIPELINE = KEY_PIPELINE,
    REAL = KEY_REAL,
    VIRTUAL = KEY_VIRTUAL,
};

static const struct {
    enum key_use use;
    unsigned where;
} marks[] = {
#define KEY(use, where, ...) {KEY_##use, where},
#include "experiments/config/keys.def"
#undef KEY
};

/* The index of a global key; COUNT_OF(marks) for a dotted key of a part. */
static size_t index_of(const char *key)
{
    size_t i = 0;
    while (i < COUNT_OF(marks) &&
           (global_keys[i].key[0] != key[0] || strcmp(global_keys[i].key, key) != 0))
        i++;
    return i;
}

enum key_use key_use_of(const char *key)
{
    size_t i = index_of(key);
    if (i < COUNT_OF(marks))
        return marks[i].use;
    return strcmp(key, "device.index") == 0 ? KEY_BESIDE : KEY_DEFINES;
}

bool key_defines(const char *key)
{
    const enum key_use use = key_use_of(key);
    return use == KEY_DEFINES || use == KEY_OPTIONAL;
}

unsigned key_where_of(const char *key)
{
    size_t i = index_of(key);
    return i < COUNT_OF(marks) ? marks[i].where : KEY_ANY;
}

const char *key_mode(unsigned where)
{
    return (where & KEY_ASYNC) != 0      ? "async"
           : (where & KEY_SYNC) != 0     ? "sync"
           : (where & KEY_PIPELINE) != 0 ? "pipeline"
                                         : NULL;
}

const char *key_engine(unsigned where)
{
    return (where & KEY_REAL) != 0 ? "real" : (where & KEY_VIRTUAL) != 0 ? "virtual" : NULL;
}

void key_add_help(const struct option *key, struct text *out)
{
    unsigned where = key_where_of(key->key);
    const char *mode = key_mode(where), *engine = key_engine(where);
    text_add(out, "%s%s%s%s%s%s%s", mode != NULL ? "mode=" : "", mode != NULL ? mode : "",
             mode != NULL && engine != NULL ? " " : "", engine != NULL ? "engine=" : "",
             engine != NULL ? engine : "", where != KEY_ANY ? ": " : "", key->help);
}

void key_add_names(const struct option *key, const char *between, struct text *out)
{
    const char *names = key->type == OPTION_FLAG ? "true|false" : key->names;
    names = names != NULL ? names : "";
    while (*names != '\0') {
        size_t length = strcspn(names, "|");
        text_add_bytes(out, names, length);
        names += length + (names[length] == '|');
        text_add(out, "%s", *names != '\0' ? between : "");
    }
    for (size_t i = 0; key->registry != NULL && i < key->registry->count; i++)
        text_add(out, "%s%s", i == 0 ? "" : between, key->registry->entries[i]->name);
}

static const struct option *find_in(const struct option *table, const char *key)
{
    for (; table != NULL && table->key != NULL; table++)
        if (strcmp(table->key, key) == 0)
            return table;
    return NULL;
}

const struct option *keys_find(const char *key)
{
    const struct option *found = find_in(global_keys, key);
    for (const struct option *o = global_keys; o->key != NULL && found == NULL; o++)
        for (size_t i = 0; o->registry != NULL && i < o->registry->count && found == NULL; i++)
            found = find_in(o->registry->entries[i]->options, key);
    return found;
}
