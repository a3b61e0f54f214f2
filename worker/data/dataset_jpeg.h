/*
 * dataset_jpeg.h — decodes one JPEG image through libjpeg. The bytes are untrusted input: an image
 * of unexpected size is rejected before decoding.
 */
#ifndef GRADLAG_WORKER_DATA_DATASET_JPEG_H
#define GRADLAG_WORKER_DATA_DATASET_JPEG_H

#include "base/status.h"

/* Decodes to planes[3][height][width] (red, green, blue; the planes of a grey image are equal),
 * with the accurate integer transform. ERROR_DATA: not a JPEG, damaged, or of another size. */
status jpeg_decode_planes(const uint8_t *data, size_t bytes, uint32_t height, uint32_t width,
                          uint8_t *planes) MUST_CHECK;

#endif
