/* sha256.h — SHA-256 (FIPS 180-4) of parameters, checkpoints and configurations. */
#ifndef GRADLAG_BASE_SHA256_H
#define GRADLAG_BASE_SHA256_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
};
void sha256_begin(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t bytes);
void sha256_end(struct sha256 *s, char hex[65]); /* 64 hex digits and NUL */

#endif
