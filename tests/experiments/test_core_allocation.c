/* Cores and GPUs of runs that are processed in parallel. */
#include "base/text.h"
#include "experiments/config/config.h"
#include "experiments/sweep/core_allocation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static options *compose(const char *const *texts)
{
    struct settings s = {0};
    options *o = NULL;
    int count = 0;
    while (texts[count] != NULL)
        count++;
    assert_int_equal(settings_read_arguments(&s, count, (char **)texts), OK);
    assert_int_equal(config_compose(&o, &s), OK);
    settings_free(&s);
    return o;
}
#define COMPOSE(...) compose((const char *const[]){__VA_ARGS__, NULL})

/* A machine with `cores` cores and the GPUs of the environment. */
static void open_machine(struct core_allocation *p, unsigned cores, unsigned jobs)
{
    assert_int_equal(core_allocation_open(p, 1, false), OK);
    CPU_ZERO(&p->cores);
    for (unsigned i = 0; i < cores; i++)
        CPU_SET((int)(2 * i), &p->cores); /* not adjacent */
    p->free_cores = p->cores;
    p->core_count = cores;
    p->jobs = jobs;
}

/* Sets CUDA_VISIBLE_DEVICES on a machine with 8 GPUs. NULL: unsets both variables. */
static void set_visible_gpus(const char *list)
{
    if (list != NULL) {
        setenv("GRADLAG_STAND_IN_DEVICES", "8", 1);
        setenv("CUDA_VISIBLE_DEVICES", list, 1);
    } else {
        unsetenv("GRADLAG_STAND_IN_DEVICES");
        unsetenv("CUDA_VISIBLE_DEVICES");
    }
}

static void a_run_gets_a_core_for_each_thread_and_no_core_is_shared(void **state)
{
    (void)state;
    struct core_allocation p;
    struct core_share a, b, c;
    options *two = COMPOSE("workers=2"), *many = COMPOSE("workers=16", "threads=4");
    open_machine(&p, 4, 4);
    assert_true(core_allocation_take(&p, two, &a) && core_allocation_take(&p, two, &b));
    assert_true(a.core_count == 2 && b.core_count == 2);
    cpu_set_t both;
    CPU_AND(&both, &a.cores, &b.cores);
    assert_int_equal(CPU_COUNT(&both), 0);
    assert_false(core_allocation_take(&p, two, &c));
    core_allocation_give_back(&p, &a);
    assert_false(core_allocation_take(&p, many, &c)); /* it needs all cores */
    core_allocation_give_back(&p, &b);
    assert_true(core_allocation_take(&p, many, &c));
    assert_int_equal(c.core_count, 4);
    options_close(&two);
    options_close(&many);
}

static void a_virtual_cluster_gets_its_share_or_its_virtual_threads(void **state)
{
    (void)state;
    struct core_allocation p;
    struct core_share a, b;
    options *share = COMPOSE("engine=virtual", "pace=constant", "workers=64");
    options *three = COMPOSE("engine=virtual", "pace=constant", "virtual.threads=3");
    open_machine(&p, 8, 4);
    assert_true(core_allocation_take(&p, share, &a) && core_allocation_take(&p, three, &b));
    assert_true(a.core_count == 2 && b.core_count == 3);
    options_close(&share);
    options_close(&three);
}

static void each_worker_gets_a_gpu_of_the_environment(void **state)
{
    (void)state;
#ifndef GRADLAG_CUDA
    skip();
#endif
    struct core_allocation p;
    struct core_share a, b;
    struct text variable = {0};
    set_visible_gpus(
        "3,GPU-6,5,8,0"); /* the driver, too, ignores the rest from an invalid one (8) on */
    options *two = COMPOSE("device=cuda", "workers=2"), *one = COMPOSE("device=cuda");
    open_machine(&p, 8, 4);
    assert_true(core_allocation_take(&p, two, &a));
    set_visible_gpus(NULL);
    assert_int_equal(p.gpu_count, 3);
    assert_false(core_allocation_take(&p, two, &b));
    assert_true(core_allocation_take(&p, one, &b));
    core_allocation_gpu_variable(&p, &b, &variable);
    assert_string_equal(variable.at, "CUDA_VISIBLE_DEVICES=5");
    variable.length = 0;
    core_allocation_gpu_variable(&p, &a, &variable);
    assert_string_equal(variable.at, "CUDA_VISIBLE_DEVICES=3,GPU-6");
    core_allocation_give_back(&p, &a);
    assert_true(core_allocation_take(&p, two, &a));
    text_free(&variable);
    options_close(&two);
    options_close(&one);
}

static void a_virtual_cluster_gets_one_gpu(void **state)
{
    (void)state;
#ifndef GRADLAG_CUDA
    skip();
#endif
    struct core_allocation p;
    struct core_share a, b;
    set_visible_gpus("0,1,2");
    options *o = COMPOSE("device=cuda", "engine=virtual", "pace=constant", "workers=64");
    open_machine(&p, 8, 4);
    assert_true(core_allocation_take(&p, o, &a) && core_allocation_take(&p, o, &b));
    set_visible_gpus(NULL);
    assert_true(a.gpu_count == 1 && b.gpu_count == 1);
    options_close(&o);
}

static void runs_that_share_cores_are_spread_over_the_gpus(void **state)
{
    (void)state;
#ifndef GRADLAG_CUDA
    skip();
#endif
    enum { RUNS = 5 };
    struct core_allocation p;
    struct core_share each[RUNS];
    static const char *const wanted[RUNS] = {"0", "1", "2", "0", "2"};
    set_visible_gpus("0,1,2");
    options *one = COMPOSE("device=cuda", "workers=1");
    assert_int_equal(core_allocation_open(&p, 64, true), OK);
    for (unsigned i = 0; i < RUNS; i++) {
        struct text variable = {0}, expected = {0};
        if (i == RUNS - 1)
            core_allocation_give_back(&p, &each[2]);
        assert_true(core_allocation_take(&p, one, &each[i]));
        assert_int_equal(each[i].core_count, 0);
        core_allocation_gpu_variable(&p, &each[i], &variable);
        text_add(&expected, "CUDA_VISIBLE_DEVICES=%s", wanted[i]);
        assert_string_equal(variable.at, expected.at);
        text_free(&variable);
        text_free(&expected);
    }
    set_visible_gpus(NULL);
    options_close(&one);
}

static void a_single_run_gets_the_whole_machine(void **state)
{
    (void)state;
    struct core_allocation p;
    struct core_share a;
    options *o = COMPOSE("workers=2");
    assert_int_equal(core_allocation_open(&p, 1, false), OK);
    assert_true(core_allocation_take(&p, o, &a));
    assert_int_equal(a.core_count, 0);
    assert_int_equal(core_allocation_open(&p, p.core_count + 1, false), ERROR_USAGE);
    assert_int_equal(core_allocation_open(&p, p.core_count + 1, true), OK);
    options_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_gets_a_core_for_each_thread_and_no_core_is_shared),
        cmocka_unit_test(a_virtual_cluster_gets_its_share_or_its_virtual_threads),
        cmocka_unit_test(each_worker_gets_a_gpu_of_the_environment),
        cmocka_unit_test(a_virtual_cluster_gets_one_gpu),
        cmocka_unit_test(runs_that_share_cores_are_spread_over_the_gpus),
        cmocka_unit_test(a_single_run_gets_the_whole_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
