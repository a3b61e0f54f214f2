/* Memory that server and workers share: a worker maps it only if it is as described. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ps/net/payload.h"
#include "ps/core/slices.h"

enum { SLOTS = 3, WORKERS = 2, COUNT = 3000 };

static payload_area *open_area(size_t count, struct wire_welcome *welcome)
{
    payload_area *area = NULL;
    *welcome = (struct wire_welcome){.count = count};
    assert_int_equal(payload_open(&area, count, SLOTS, WORKERS), OK);
    assert_true(payload_is_shared(area));
    payload_describe(area, 1, welcome);
    return area;
}

static void a_worker_reads_every_slot_and_writes_its_own_gradient(void **state UNUSED)
{
    struct wire_welcome w;
    struct payload_view view;
    payload_area *area = open_area(COUNT, &w);
    assert_int_equal(payload_map(&view, &w, COUNT, NULL), OK);
    for (unsigned s = 0; s < SLOTS; s++) {
        payload_slots(area)[s][COUNT - 1] = 5.0f + (float)s;
        assert_true(payload_slot(&view, s)[COUNT - 1] == 5.0f + (float)s);
    }
    view.gradient[0] = 2.0f;
    assert_true(payload_gradient(area, 1)[0] == 2.0f && payload_gradient(area, 0)[0] == 0.0f);
    payload_unmap(&view);
    payload_close(&area);
}

/* ---- invalid descriptions ------------------------------------------------------------------- */

static void wrong_nonce(struct wire_welcome *w)
{
    w->nonce[3] ^= 1;
}
static void no_slots(struct wire_welcome *w)
{
    w->slots = 0;
}
static void more_slots(struct wire_welcome *w)
{
    w->slots++;
}
static void slots_that_wrap_around(struct wire_welcome *w)
{
    w->slots = 0x10000;
    w->parameters_stride = UINT64_C(1) << 48;
}
static void narrow_slots(struct wire_welcome *w)
{
    w->parameters_stride = 4096;
}
static void unaligned_stride(struct wire_welcome *w)
{
    w->parameters_stride += 4;
}
static void unaligned_offset(struct wire_welcome *w)
{
    w->parameters_offset += 64;
}
static void gradient_beyond_the_end(struct wire_welcome *w)
{
    w->gradient_offset = UINT64_MAX & ~UINT64_C(4095);
}
static void another_file(struct wire_welcome *w)
{
    w->gradients_fd = w->parameters_fd; /* it has the nonce */
    w->gradient_offset = UINT64_C(1) << 40;
}
static void a_device(struct wire_welcome *w)
{
    static int null = -1;
    null = null >= 0 ? null : open("/dev/null", O_RDWR | O_CLOEXEC);
    w->parameters_fd = (uint32_t)null;
}
static void another_process(struct wire_welcome *w)
{
    w->pid = 0x7fffffff;
}

static void memory_that_differs_from_its_description_is_not_mapped(void **state UNUSED)
{
    static const struct {
        void (*lie)(struct wire_welcome *w);
        const char *names;
    } cases[] = {
        {wrong_nonce, "/proc/"},
        {no_slots, "3000"},
        {more_slots, "/proc/"},
        {slots_that_wrap_around, "3000"},
        {narrow_slots, "3000"},
        {unaligned_stride, "3000"},
        {unaligned_offset, "3000"},
        {gradient_beyond_the_end, "/proc/"},
        {another_file, "/proc/"},
        {a_device, "/proc/"},
        {another_process, "/proc/2147483647/fd/"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct wire_welcome w;
        struct payload_view view;
        payload_area *area = open_area(COUNT, &w);
        assert_int_equal(payload_map(&view, &w, COUNT, NULL), OK);
        payload_unmap(&view);
        cases[i].lie(&w);
        assert_int_equal(payload_map(&view, &w, COUNT, NULL), ERROR_PEER);
        if (strstr(error_message(), cases[i].names) == NULL)
            fail_msg("case %zu: '%s' does not name '%s'", i, error_message(), cases[i].names);
        assert_null(view.parameters);
        payload_close(&area);
    }
}

/* ---- several servers ------------------------------------------------------------------------ */

static void slices_of_several_servers_lie_side_by_side(void **state UNUSED)
{
    enum { SERVERS = 2, WHOLE = 40000 };
    struct wire_welcome w[SERVERS];
    payload_area *area[SERVERS];
    struct payload_view view[SERVERS];
    const size_t stride = (WHOLE * sizeof(float) + 4095) / 4096 * 4096;
    const size_t room = (SLOTS + 2) * stride;
    uint8_t *at = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    const float *whole = (const float *)(const void *)at;
    struct slices slices;
    slices_cut(&slices, SERVERS, WHOLE, NULL);
    for (unsigned i = 0; i < SERVERS; i++) {
        const size_t begin = slices.begin[i], count = slice_count(&slices, i);
        const struct payload_place place = {at + begin * sizeof(float),
                                            at + (SLOTS + 1) * stride + begin * sizeof(float),
                                            stride, SLOTS};
        area[i] = open_area(count, &w[i]);
        assert_int_equal(payload_map(&view[i], &w[i], count, &place), OK);
        for (unsigned s = 0; s < SLOTS; s++)
            for (size_t k = 0; k < count; k++)
                payload_slots(area[i])[s][k] = (float)(begin + k + s);
    }
    for (unsigned s = 0; s < SLOTS; s++) {
        assert_ptr_equal(payload_slot(&view[0], s), whole + s * stride / sizeof(float));
        for (size_t k = 0; k < WHOLE; k++)
            assert_true(payload_slot(&view[0], s)[k] == (float)(k + s));
    }
    view[0].gradient[WHOLE - 1] = 7.0f;
    assert_true(payload_gradient(area[1], 1)[slice_count(&slices, 1) - 1] == 7.0f);
    for (unsigned i = 0; i < SERVERS; i++) {
        payload_unmap(&view[i]);
        payload_close(&area[i]);
    }
    assert_true(whole[WHOLE - 1] ==
                (float)(WHOLE - 1)); /* payload_unmap() leaves the caller's memory mapped */
    munmap(at, room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_reads_every_slot_and_writes_its_own_gradient),
        cmocka_unit_test(memory_that_differs_from_its_description_is_not_mapped),
        cmocka_unit_test(slices_of_several_servers_lie_side_by_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
