/* pull_code.c — see pull_code.h. */
#include "worker/compression/pull_code.h"

#include <string.h>

enum { PART = 2048 }; /* floats; a part and its code stay in the first cache */

struct pull_code pull_code_of(const options *settings)
{
    const char *name = options_text(settings, "pull_precision");
    struct pull_code p = {.kind = NULL};
    if (strcmp(name, "fp32") != 0) {
        p.kind = (const struct compression_kind *)registry_find(&compression_registry, name);
        REQUIRE(p.kind != NULL && p.kind->float_bytes == sizeof(uint16_t));
    }
    return p;
}

size_t pull_code_bytes(const struct pull_code *p, size_t count)
{
    return count * (p->kind != NULL ? p->kind->float_bytes : sizeof(float));
}

static size_t part_at(size_t at, size_t count)
{
    return count - at < PART ? count - at : PART;
}

static void encode_part(const struct pull_code *p, const float *in, size_t count, uint16_t *code)
{
    compression z = {.kind = p->kind, .count = count};
    float values[PART]; /* encode() replaces them by the rounding errors */
    memcpy(values, in, count * sizeof *values);
    p->kind->encode(&z, values, count, code);
}

static void decode_part(const struct pull_code *p, const uint16_t *code, size_t count, float *out)
{
    const compression z = {.kind = p->kind, .count = count};
    memset(out, 0, count * sizeof *out);
    p->kind->add(&z, code, count, out);
}

void pull_code_encode(const struct pull_code *p, const float *in, size_t count, uint16_t *code)
{
    for (size_t at = 0; at < count; at += PART)
        encode_part(p, in + at, part_at(at, count), code + at);
}

void pull_code_decode(const struct pull_code *p, const void *code, size_t count, float *out)
{
    uint16_t aligned[PART];
    for (size_t at = 0; at < count; at += PART) {
        const size_t part = part_at(at, count);
        memcpy(aligned, (const uint8_t *)code + at * sizeof *aligned, part * sizeof *aligned);
        decode_part(p, aligned, part, out + at);
    }
}

void pull_code_round(const struct pull_code *p, const float *in, size_t count, float *out)
{
    uint16_t code[PART];
    for (size_t at = 0; at < count; at += PART) {
        encode_part(p, in + at, part_at(at, count), code);
        decode_part(p, code, part_at(at, count), out + at);
    }
}
