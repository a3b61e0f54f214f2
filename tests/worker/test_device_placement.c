/*
 * test_device_placement.c — the device of a process, with the environment of every launcher and
 * without a launcher.
 */
#include "worker/device_placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

/* "NAME=value" pairs of the current case. */
static const char *const *environment;

static char *lookup(const char *name)
{
    size_t length = strlen(name);
    for (const char *const *e = environment; e != NULL && *e != NULL; e++)
        if (strncmp(*e, name, length) == 0 && (*e)[length] == '=')
            return (char *)(uintptr_t)(*e + length + 1);
    return NULL;
}

static const struct {
    const char *environment[8];
    unsigned index, count, visible;
    unsigned device, local_size;
} cases[] = {
    /* no launcher: devices in the order of the workers */
    {{NULL}, 0, 4, 2, 0, 4},
    {{NULL}, 3, 4, 2, 1, 4},
    {{NULL}, 5, 8, 1, 0, 8},
    /* the index in the whole job is not the index on the host */
    {{"OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_COMM_WORLD_RANK=9"},
     9,
     16,
     4,
     1,
     4},
    {{"SLURM_LOCALID=2", "SLURM_NTASKS_PER_NODE=4"}, 14, 16, 4, 2, 4},
    {{"SLURM_LOCALID=2"}, 14, 16, 4, 2, 16},
    {{"LOCAL_RANK=3", "LOCAL_WORLD_SIZE=8"}, 11, 16, 2, 1, 8},
    {{"MPI_LOCALRANKID=6", "MPI_LOCALNRANKS=8"}, 6, 8, 4, 2, 8},
    /* a launcher inside another one: the inner one counts */
    {{"SLURM_LOCALID=0", "SLURM_NTASKS_PER_NODE=1", "OMPI_COMM_WORLD_LOCAL_RANK=3",
      "OMPI_COMM_WORLD_LOCAL_SIZE=4"},
     3,
     4,
     8,
     3,
     4},
    {{"SLURM_LOCALID=0", "OMPI_COMM_WORLD_LOCAL_RANK=0", "GRADLAG_LOCAL_RANK=2",
      "GRADLAG_LOCAL_SIZE=5"},
     2,
     4,
     4,
     2,
     5},
    /* each process has one visible device */
    {{"SLURM_LOCALID=3", "SLURM_NTASKS_PER_NODE=4"}, 3, 4, 1, 0, 4},
    /* values that are not numbers are ignored */
    {{"OMPI_COMM_WORLD_LOCAL_RANK=", "SLURM_LOCALID=1"}, 0, 2, 2, 1, 2},
    {{"LOCAL_RANK=-1", "LOCAL_WORLD_SIZE=2"}, 1, 2, 2, 1, 2},
    {{"LOCAL_RANK=two"}, 1, 2, 2, 1, 2},
    {{"LOCAL_RANK=1x"}, 0, 2, 2, 0, 2},
    /* an impossible size is ignored */
    {{"LOCAL_RANK=3", "LOCAL_WORLD_SIZE=2"}, 3, 2, 8, 3, 4},
};

static void a_process_computes_on_its_local_rank_modulo_the_visible_devices(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        environment = cases[i].environment;
        struct placement p = placement_of(lookup, cases[i].index, cases[i].count, NULL);
        unsigned device = 99;
        assert_int_equal(placement_device(&p, cases[i].visible, &device), OK);
        if (device != cases[i].device || p.local_size != cases[i].local_size)
            fail_msg("case %zu: device %u of size %u", i, device, p.local_size);
    }
}

static struct placement chosen(const char *index)
{
    options *o = NULL;
    environment = NULL;
    assert_int_equal(options_open(&o), OK);
    assert_int_equal(options_declare(o, placement_options), OK);
    assert_int_equal(options_set(o, "device.index", index, "test"), OK);
    struct placement p = placement_of(lookup, 1, 2, o);
    options_close(&o);
    return p;
}

static void device_index_overrides_the_local_rank(void **state)
{
    (void)state;
    unsigned device = 99;
    struct placement p = chosen("2");
    assert_int_equal(placement_device(&p, 4, &device), OK);
    assert_int_equal(device, 2);
    p = chosen("-1");
    assert_int_equal(placement_device(&p, 4, &device), OK);
    assert_int_equal(device, 1);
}

static void an_invalid_device_index_is_a_usage_error_that_names_it(void **state)
{
    (void)state;
    unsigned device = 99;
    struct placement p = chosen("2");
    assert_int_equal(placement_device(&p, 2, &device), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "device.index"));
}

static void processes_spin_only_if_each_thread_has_a_processor(void **state)
{
    (void)state;
    struct placement p = {.local_size = 4};
    assert_true(placement_may_spin(&p, 1, 4));
    assert_true(placement_may_spin(&p, 0, 4));
    assert_false(placement_may_spin(&p, 1, 3));
    assert_true(placement_may_spin(&p, 2, 8));
    assert_false(placement_may_spin(&p, 2, 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_computes_on_its_local_rank_modulo_the_visible_devices),
        cmocka_unit_test(device_index_overrides_the_local_rank),
        cmocka_unit_test(an_invalid_device_index_is_a_usage_error_that_names_it),
        cmocka_unit_test(processes_spin_only_if_each_thread_has_a_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
