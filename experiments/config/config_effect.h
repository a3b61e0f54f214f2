/*
 * config_effect.h — what composition (config.c) asks: which setting has no effect beside the
 * others.
 */
#ifndef GRADLAG_EXPERIMENTS_CONFIG_CONFIG_EFFECT_H
#define GRADLAG_EXPERIMENTS_CONFIG_CONFIG_EFFECT_H

#include "base/options.h"

/* Why a key that was set has no effect: because of the key `with`, which has to be `instead`. */
struct ineffective {
    const char *key, *with, *instead;
};

/* One of them, if there is any. */
bool config_any_ineffective(const options *o, struct ineffective *out);

#endif
