#include "results/export/tfrecord.h"

#include "base/text.h"

uint32_t tfrecord_crc32c(const void *bytes, size_t count)
{
    static const uint32_t polynomial = 0x82f63b78; /* reflected */
    const uint8_t *at = bytes;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
    }
    return ~crc;
}

uint32_t tfrecord_masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void write_little_endian(FILE *to, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        fputc((int)(value >> (8 * i) & 0xff), to);
}

void tfrecord_write(FILE *to, const struct text *record)
{
    uint8_t length[8];
    for (unsigned i = 0; i < sizeof length; i++)
        length[i] = (uint8_t)((uint64_t)record->length >> (8 * i));
    fwrite(length, 1, sizeof length, to);
    write_little_endian(to, tfrecord_masked(tfrecord_crc32c(length, sizeof length)), 4);
    fwrite(record->at, 1, record->length, to);
    write_little_endian(to, tfrecord_masked(tfrecord_crc32c(record->at, record->length)), 4);
}
