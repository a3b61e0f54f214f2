/* A function called in a copy of this process: its result, its error, its death, and its limits. */
#include "base/clock.h"
#include "base/forked_call.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>
#include <unistd.h>

static volatile int calls; /* of answer(), in this process */

static status answer(const void *argument, void *out)
{
    calls++;
    *(int *)out = *(const int *)argument + 1;
    return OK;
}

static status refuse(const void *argument, void *out)
{
    (void)out;
    return error_set(ERROR_DATA, __FILE__, __LINE__, "no %s here", (const char *)argument);
}

static status die(const void *argument, void *out)
{
    (void)argument;
    (void)out;
    _exit(OK);
}

static status hang(const void *argument, void *out)
{
    (void)argument;
    (void)out;
    while (calls == 0)
        pause();
    return OK;
}

static struct forked_call call_of(status (*function)(const void *, void *), const void *argument)
{
    return (struct forked_call){.call = function,
                                .argument = argument,
                                .what = "the call",
                                .work = "works",
                                .advice = "do without",
                                .timeout_s = 30};
}

static void the_result_comes_from_a_copy_of_the_process(void **state)
{
    (void)state;
    int seven = 7, out = 0;
    const struct forked_call c = call_of(answer, &seven);
    assert_int_equal(forked_call(&c, &out, sizeof out), OK);
    assert_int_equal(out, 8);
    assert_int_equal(calls, 0);
}

static void an_error_keeps_its_code_and_its_message(void **state)
{
    (void)state;
    const struct forked_call c = call_of(refuse, "GPU");
    assert_int_equal(forked_call(&c, NULL, 0), ERROR_DATA);
    assert_string_equal(error_message(), "no GPU here");
}

static void a_death_without_a_result_is_an_error(void **state)
{
    (void)state;
    const struct forked_call c = call_of(die, NULL);
    assert_int_equal(forked_call(&c, NULL, 0), ERROR_PEER);
    assert_string_equal(error_message(),
                        "the process of the call ended without a result; do without");
}

static void a_call_that_hangs_ends_at_its_limit_or_on_request(void **state)
{
    (void)state;
    const volatile sig_atomic_t stop = 1;
    const double began = clock_seconds();
    struct forked_call c = call_of(hang, NULL);
    c.timeout_s = 0.001;
    assert_int_equal(forked_call(&c, NULL, 0), ERROR_PEER);
    assert_non_null(strstr(error_message(), "the call has not ended"));
    c.timeout_s = 3600;
    c.stop = &stop;
    assert_int_equal(forked_call(&c, NULL, 0), STOPPED);
    assert_true(clock_seconds() - began < 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_result_comes_from_a_copy_of_the_process),
        cmocka_unit_test(an_error_keeps_its_code_and_its_message),
        cmocka_unit_test(a_death_without_a_result_is_an_error),
        cmocka_unit_test(a_call_that_hangs_ends_at_its_limit_or_on_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
