#include "worker/data/dataset_jpeg.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

enum { WIDEST = 4096 };

/* libjpeg reports an error through a callback that must not return. */
struct decoder {
    struct jpeg_decompress_struct state;
    struct jpeg_error_mgr errors;
    jmp_buf failed;
    char message[JMSG_LENGTH_MAX];
};

static void give_up(j_common_ptr state)
{
    struct decoder *d = state->client_data;
    state->err->format_message(state, d->message);
    longjmp(d->failed, 1);
}

/* A warning means damaged data, which libjpeg would replace by grey; treat it as an error. */
static void fail_on_warning(j_common_ptr state, int level)
{
    if (level < 0)
        give_up(state);
}

static void split_planes(const uint8_t *restrict row, uint32_t width, size_t plane,
                         uint8_t *restrict out)
{
    for (uint32_t x = 0; x < width; x++) {
        out[x] = row[3 * x];
        out[plane + x] = row[3 * x + 1];
        out[2 * plane + x] = row[3 * x + 2];
    }
}

/* False: d->message has the cause. */
static bool decode(struct decoder *d, const uint8_t *data, size_t bytes, uint32_t height,
                   uint32_t width, uint8_t *planes)
{
    uint8_t row[3 * WIDEST], *rows[1] = {row};
    if (setjmp(d->failed) != 0)
        return false;
    jpeg_create_decompress(&d->state); /* keeps err and client_data */
    jpeg_mem_src(&d->state, data, bytes);
    (void)jpeg_read_header(&d->state, TRUE);
    if (d->state.image_height != height || d->state.image_width != width) {
        snprintf(d->message, sizeof d->message, "the image has %u by %u pixels instead of %u by %u",
                 d->state.image_width, d->state.image_height, width, height);
        return false;
    }
    d->state.out_color_space = JCS_RGB;
    d->state.dct_method = JDCT_ISLOW;
    (void)jpeg_start_decompress(&d->state);
    while (d->state.output_scanline < height) {
        size_t y = d->state.output_scanline;
        (void)jpeg_read_scanlines(&d->state, rows, 1);
        split_planes(row, width, (size_t)height * width, planes + y * width);
    }
    (void)jpeg_finish_decompress(&d->state);
    return true;
}

status jpeg_decode_planes(const uint8_t *data, size_t bytes, uint32_t height, uint32_t width,
                          uint8_t *planes)
{
    status result = OK;
    struct decoder d = {0};

    REQUIRE(width >= 1 && width <= WIDEST && height >= 1);
    d.state.err = jpeg_std_error(&d.errors);
    d.errors.error_exit = give_up;
    d.errors.emit_message = fail_on_warning;
    d.state.client_data = &d;
    if (!decode(&d, data, bytes, height, width, planes))
        result = error_set(ERROR_DATA, __FILE__, __LINE__, "not a valid JPEG image: %s", d.message);
    jpeg_destroy_decompress(&d.state); /* also correct for the all-zero state before creation */
    return result;
}
