/*
 * archive_rig.h — tar archives and JPEG images of tests' own making.
 */
#ifndef GRADLAG_TESTS_ARCHIVE_RIG_H
#define GRADLAG_TESTS_ARCHIVE_RIG_H

#include <stddef.h>
#include <stdint.h>

typedef struct archive_rig archive_rig;

/* A new archive at `path`, compressed as its ending says (.gz, .xz, none), at the fastest level. */
archive_rig *archive_rig_open(const char *path);
void archive_rig_add(archive_rig *a, const char *name, const void *data, size_t bytes);
void archive_rig_close(archive_rig *a);

struct jpeg {
    uint8_t bytes[4096];
    size_t count;
};
/* An image of one colour; channels 1: grey, of value red. */
void jpeg_rig_make(struct jpeg *out, uint32_t height, uint32_t width, int channels, uint8_t red,
                   uint8_t green, uint8_t blue);

#endif
