/*
 * dataset_jpeg.h — one JPEG image to bytes, through libjpeg. The bytes are not trusted: an image of
 * another size than the one wanted is refused before it is decoded.
 */
#ifndef GRADLAG_WORKER_DATASET_JPEG_H
#define GRADLAG_WORKER_DATASET_JPEG_H

#include "worker/base.h"

/* Decodes to planes[3][height][width] (red, green, blue; grey images have three alike), with the
 * accurate integer transform. ERROR_DATA: not a JPEG, damaged in any way, or of another size. */
status jpeg_decode_planes(const uint8_t *data, size_t bytes, uint32_t height, uint32_t width,
                          uint8_t *planes) MUST_CHECK;

#endif
