/*
 * tfrecord.h — TFRecord framing: each record is its length (u64 little-endian), a checksum of the
 * length, the bytes, a checksum of the bytes. The checksum is CRC-32C, rotated and offset
 * ("masked"). https://www.tensorflow.org/tutorials/load_data/tfrecord
 */
#ifndef GRADLAG_RESULTS_EXPORT_TFRECORD_H
#define GRADLAG_RESULTS_EXPORT_TFRECORD_H

#include "base/text.h"

#include <stdio.h>

/* CRC-32C (Castagnoli, RFC 3720) of bytes. */
uint32_t tfrecord_crc32c(const void *bytes, size_t count);
uint32_t tfrecord_masked(uint32_t crc);
/* The caller checks ferror(to). */
void tfrecord_write(FILE *to, const struct text *record);

#endif
