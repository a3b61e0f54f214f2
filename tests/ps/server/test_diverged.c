/* What a run says that ended because a number was not finite. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "ps/server/diverged.h"

static const char *said(enum push_reason reason, double norm, struct diverged_where where)
{
    static char text[WIRE_TEXT_BYTES];
    const struct push_record culprit = {
        .worker = 2, .sequence = 5, .read_version = 40, .reason = reason, .gradient_norm = norm};
    diverged_describe(&culprit, &where, text);
    return text;
}

static void it_is_said_whose_number_it_was_and_where(void **state UNUSED)
{
    const struct diverged_where whole = {1, 0, 0, 100}, slice = {3, 1, 34, 33};
    assert_string_equal(said(PUSH_BAD_GRADIENT, INFINITY, whole),
                        "the gradient of worker 2 is not finite (its push 5, computed at version "
                        "40): lower lr, or damp stale gradients");
    assert_string_equal(
        said(PUSH_BAD_UPDATE, 1, whole),
        "the update by the gradient of worker 2 is not finite, or too large to be "
        "squared (its push 5, computed at version 40): lower lr, or damp stale gradients");
    assert_string_equal(said(PUSH_BAD_GRADIENT, 1e25, whole),
                        "the gradient of worker 2 is too large to be squared (its push 5, computed "
                        "at version 40): lower lr, or damp stale gradients");
    assert_string_equal(said(PUSH_BAD_GRADIENT, NAN, slice),
                        "the gradient of worker 2 is not finite in server 1's slice, parameters 34 "
                        "to 66 (push 5, of version 40); others may have applied theirs: lower lr, "
                        "or damp stale gradients");
}

/* As all servers do. */
static void a_loss_is_not_said_to_be_of_a_slice(void **state UNUSED)
{
    const struct diverged_where slice = {3, 1, 34, 33};
    assert_string_equal(said(PUSH_BAD_LOSS, NAN, slice),
                        "the loss of worker 2 is not finite (its push 5, computed at version 40): "
                        "lower lr, or damp stale gradients");
}

static void it_fits_into_a_message(void **state UNUSED)
{
    const struct push_record culprit = {.worker = 63,
                                        .sequence = 99999,
                                        .read_version = 999999,
                                        .reason = PUSH_BAD_GRADIENT,
                                        .gradient_norm = NAN};
    const struct diverged_where where = {64, 63, 3000000, 4999999};
    char text[WIRE_TEXT_BYTES];
    diverged_describe(&culprit, &where, text);
    assert_string_equal(text + strlen(text) - strlen("stale gradients"), "stale gradients");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_said_whose_number_it_was_and_where),
        cmocka_unit_test(a_loss_is_not_said_to_be_of_a_slice),
        cmocka_unit_test(it_fits_into_a_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
