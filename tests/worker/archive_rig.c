#include "tests/worker/archive_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <archive.h>
#include <archive_entry.h>
#include <jpeglib.h>

struct archive_rig {
    struct archive *archive;
    struct archive_entry *entry;
};

archive_rig *archive_rig_open(const char *path)
{
    archive_rig *a = calloc(1, sizeof *a);
    assert_non_null(a);
    a->archive = archive_write_new();
    a->entry = archive_entry_new();
    assert_int_equal(archive_write_set_format_pax_restricted(a->archive), ARCHIVE_OK);
    if (strstr(path, ".gz") != NULL) {
        assert_int_equal(archive_write_add_filter_gzip(a->archive), ARCHIVE_OK);
        assert_int_equal(archive_write_set_options(a->archive, "compression-level=1"), ARCHIVE_OK);
    } else if (strstr(path, ".xz") != NULL) {
        assert_int_equal(archive_write_add_filter_xz(a->archive), ARCHIVE_OK);
        assert_int_equal(archive_write_set_options(a->archive, "compression-level=0"), ARCHIVE_OK);
    }
    assert_int_equal(archive_write_open_filename(a->archive, path), ARCHIVE_OK);
    return a;
}

void archive_rig_add(archive_rig *a, const char *name, const void *data, size_t bytes)
{
    archive_entry_clear(a->entry);
    archive_entry_set_pathname(a->entry, name);
    archive_entry_set_size(a->entry, (int64_t)bytes);
    archive_entry_set_filetype(a->entry, AE_IFREG);
    archive_entry_set_perm(a->entry, 0644);
    assert_int_equal(archive_write_header(a->archive, a->entry), ARCHIVE_OK);
    assert_int_equal(archive_write_data(a->archive, data, bytes), (int)bytes);
}

void archive_rig_close(archive_rig *a)
{
    assert_int_equal(archive_write_close(a->archive), ARCHIVE_OK);
    archive_entry_free(a->entry);
    archive_write_free(a->archive);
    free(a);
}

void jpeg_rig_make(struct jpeg *out, uint32_t height, uint32_t width, int channels, uint8_t red,
                   uint8_t green, uint8_t blue)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    uint8_t row[3 * 64], *rows[1] = {row}, *made = NULL;
    unsigned long bytes = 0;

    assert_true(width <= 64);
    for (uint32_t x = 0; x < width; x++) {
        const uint8_t pixel[3] = {red, green, blue};
        memcpy(row + x * (uint32_t)channels, pixel, (size_t)channels);
    }
    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &made, &bytes);
    c.image_height = height;
    c.image_width = width;
    c.input_components = channels;
    c.in_color_space = channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, 95, TRUE);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < height)
        jpeg_write_scanlines(&c, rows, 1);
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    assert_true(bytes <= sizeof out->bytes);
    memcpy(out->bytes, made, bytes);
    out->count = bytes;
    free(made);
}
