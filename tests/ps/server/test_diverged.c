/* The error message of a run that diverged: which worker, push, version and slice it names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "ps/server/diverged.h"
#include "tests/ps/server/ps_rig.h"

static const struct diverged_where ONE_SERVER = {1, 0, 0, 100, false},
                                   SKIPPING = {1, 0, 0, 100, true}, SLICE = {3, 1, 34, 33, false};

static const char *described(enum push_reason reason, double norm,
                             const struct diverged_where *where)
{
    static char text[WIRE_TEXT_BYTES];
    const struct push_record culprit = {
        .worker = 2, .sequence = 5, .read_version = 40, .reason = reason, .gradient_norm = norm};
    diverged_describe(&culprit, where, text);
    return text;
}

static void the_message_names_worker_push_version_and_slice(void **state UNUSED)
{
    static const struct {
        enum push_reason reason;
        double norm;
        const struct diverged_where *where;
    } cases[] = {
        {PUSH_BAD_GRADIENT, INFINITY, &ONE_SERVER}, {PUSH_BAD_GRADIENT, 1e25, &ONE_SERVER},
        {PUSH_BAD_UPDATE, 1, &ONE_SERVER},          {PUSH_BAD_LOSS, NAN, &ONE_SERVER},
        {PUSH_BAD_GRADIENT, NAN, &SLICE},           {PUSH_BAD_GRADIENT, NAN, &SKIPPING},
    };
    static const char *const names[] = {"worker 2", "5", "40", "lr"};
    char text[COUNT_OF(cases)][WIRE_TEXT_BYTES];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        strcpy(text[i], described(cases[i].reason, cases[i].norm, cases[i].where));
        for (size_t k = 0; k < COUNT_OF(names); k++)
            rig_expect_named(text[i], names[k]);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(text[i], text[k]); /* each reason has a text of its own */
    }
    rig_expect_named(text[4], "server 1");
    rig_expect_named(text[4], "34");
    rig_expect_named(text[4], "66");
    rig_expect_named(text[5], "on_nonfinite=skip");
    rig_expect_named(text[5], "10");
    assert_null(strstr(described(PUSH_BAD_UPDATE, NAN, &SKIPPING), "on_nonfinite=skip"));
}

/* A loss is the same at all servers. */
static void a_bad_loss_names_no_slice(void **state UNUSED)
{
    assert_null(strstr(described(PUSH_BAD_LOSS, NAN, &SLICE), "server 1"));
}

static void the_longest_texts_keep_their_advice(void **state UNUSED)
{
    static const struct diverged_where where[] = {{64, 63, 3000000, 4999999, false},
                                                  {1, 0, 0, 4999999, true}};
    static const enum push_reason reasons[] = {PUSH_BAD_GRADIENT, PUSH_BAD_UPDATE, PUSH_BAD_LOSS};
    static const double norms[] = {NAN, 1e25};
    for (size_t i = 0; i < COUNT_OF(where) * COUNT_OF(reasons) * COUNT_OF(norms); i++) {
        const struct push_record culprit = {.worker = 63,
                                            .sequence = 99999,
                                            .read_version = 999999,
                                            .reason = reasons[i / 2 % COUNT_OF(reasons)],
                                            .gradient_norm = norms[i % 2]};
        char text[WIRE_TEXT_BYTES];
        diverged_describe(&culprit, &where[i / 2 / COUNT_OF(reasons)], text);
        rig_expect_named(text, "lower lr, or damp stale gradients");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_message_names_worker_push_version_and_slice),
        cmocka_unit_test(a_bad_loss_names_no_slice),
        cmocka_unit_test(the_longest_texts_keep_their_advice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
