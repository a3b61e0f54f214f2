/* Work shared out over threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "worker/parallel.h"

enum { ITEMS = 5000 };

static atomic_uint done[ITEMS];

static status count_item(void *context, size_t item)
{
    (void)context;
    atomic_fetch_add(&done[item], 1);
    return OK;
}

static void every_item_is_done_once(void **state)
{
    (void)state;
    static const unsigned threads[] = {0, 1, 2, 7, 1000};
    for (size_t t = 0; t < COUNT_OF(threads); t++) {
        memset(done, 0, sizeof done);
        assert_int_equal(parallel_for(ITEMS, threads[t], count_item, NULL), OK);
        for (size_t i = 0; i < ITEMS; i++) {
            assert_int_equal(done[i], 1);
        }
    }
    assert_int_equal(parallel_for(0, 4, count_item, NULL), OK);
    assert_int_equal(done[0], 1);
}

static status fail_from(void *context, size_t item)
{
    const size_t *first = context;
    if (item == *first) { /* the others fail before it does */
        clock_sleep_until_ns(clock_ns() + 2000000);
    }
    return item < *first ? OK : error_set(ERROR_DATA, __FILE__, __LINE__, "item %zu is bad", item);
}

static void the_lowest_failure_is_told_whatever_the_number_of_threads(void **state)
{
    (void)state;
    for (int round = 0; round < 100; round++) {
        size_t first = (size_t)round * 46;
        char wanted[32];
        snprintf(wanted, sizeof wanted, "item %zu is bad", first);
        assert_int_equal(parallel_for(ITEMS, 1 + (unsigned)round % 5, fail_from, &first),
                         ERROR_DATA);
        assert_string_equal(error_message(), wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_done_once),
        cmocka_unit_test(the_lowest_failure_is_told_whatever_the_number_of_threads),
    };
    return cmocka_run_group_tests_name("parallel", tests, NULL, NULL);
}
