/*
 * archive_rig.h — tar archives and JPEG images that tests create.
 */
#ifndef GRADLAG_TESTS_WORKER_ARCHIVE_RIG_H
#define GRADLAG_TESTS_WORKER_ARCHIVE_RIG_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct archive_rig archive_rig;

/* Creates an archive at `path` with the compression of its suffix (.gz, .xz, none), fastest level.
 */
archive_rig *archive_rig_open(const char *path);
void archive_rig_add(archive_rig *a, const char *name, const void *data, size_t bytes);
void archive_rig_close(archive_rig *a);

struct jpeg {
    uint8_t bytes[4096];
    size_t count;
};
/* Encodes an image of one colour; channels 1: a grey image of value `red`. */
void jpeg_rig_make(struct jpeg *out, uint32_t height, uint32_t width, int channels, uint8_t red,
                   uint8_t green, uint8_t blue);

#endif
