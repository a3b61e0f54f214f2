/*
 * test_communicator_choice.c — when NCCL is refused, which kind communicator=auto chooses, and
 * whether ranks spin. All are decided from data that the ranks exchange, the first two before NCCL
 * is called, so no GPU is needed.
 */
#include "sync/communicator/ranks.h"
#include "tests/sync/sync_rig.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { COUNT = 1000 };

/* No GPU is needed, because nothing is queued on the stream. */
static struct device_place place_of(const char *pci)
{
    static int stream;
    struct device_place p = {.stream = &stream};
    snprintf(p.pci, sizeof p.pci, "%s", pci);
    return p;
}

/* `part`: a key or name that the message must contain. */
static status expect_refused(const char *reduction, const struct device_place *place,
                             const char *part)
{
    status result = OK;
    communicator *c = NULL;
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "communicator", "nccl"));
    TRY(sync_rig_set(o, "reduction", reduction));
    status opened = communicator_open(&c, o, COUNT, place);
    if (opened != ERROR_USAGE || c != NULL || strstr(error_message(), part) == NULL)
        FAIL(ERROR_OTHER, "opening ended as %s: '%s', not '%s'", status_name(opened),
             opened == OK ? "" : error_message(), part);
done:
    communicator_close(&c);
    options_close(&o);
    return result;
}

static status case_refused(unsigned rank UNUSED, unsigned size)
{
    status result = OK;
    const struct device_place one = place_of("0000:1b:00.0");
    TRY(expect_refused("fast", NULL, "device=cuda"));
    TRY(expect_refused("ordered", &one, "reduction=ordered"));
    if (size > 1) {
        /* If the library is missing, opening fails with that before it compares GPUs. */
        bool installed = strncmp(sync_nccl_version(), "not found", 9) != 0;
        TRY(expect_refused("fast", &one, installed ? "0000:1b:00.0" : "communicator=nccl"));
    }
done:
    return result;
}

static status expect_chosen(const char *reduction, const struct device_place *place,
                            const char *name)
{
    status result = OK;
    communicator *c = NULL;
    const struct communicator_kind *chosen = NULL;
    const struct communicator_kind *choice =
        (const struct communicator_kind *)registry_find(&communicator_registry, "auto");
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "reduction", reduction));
    TRY(communicator_open(&c, o, COUNT, NULL));
    c->place = place;
    TRY(choice->choose(c, &chosen));
    if (strcmp(chosen->about.name, name) != 0)
        FAIL(ERROR_OTHER, "auto is %s, not %s", chosen->about.name, name);
done:
    options_close(&o);
    communicator_close(&c);
    return result;
}

/* One GPU per rank, one GPU for all ranks, no GPU. */
static status case_auto(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    const bool installed = sync_nccl_version()[0] >= '0' && sync_nccl_version()[0] <= '9';
    const char *best = installed ? "nccl" : "shared";
    char pci[32];
    snprintf(pci, sizeof pci, "0000:%02x:00.0", rank);
    const struct device_place own = place_of(pci), same = place_of("0000:00:00.0");
    TRY(expect_chosen("fast", &own, best));
    TRY(expect_chosen("ordered", &own, "shared"));
    TRY(expect_chosen("fast", &same, "shared"));
    TRY(expect_chosen("fast", NULL, "shared"));
done:
    return result;
}

/* Binds this process to the n-th of its processors. */
static void bind_to(unsigned n)
{
    cpu_set_t may, one;
    CPU_ZERO(&one);
    REQUIRE(sched_getaffinity(0, sizeof may, &may) == 0);
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &may) && n-- == 0)
            CPU_SET(i, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
}

/* A CPU quota does not count: below it ranks that spin are faster. */
static unsigned processors_of_mask(void)
{
    cpu_set_t may;
    REQUIRE(sched_getaffinity(0, sizeof may, &may) == 0);
    return (unsigned)CPU_COUNT(&may);
}

static status exchange_bound(bool may_spin)
{
    status result = OK;
    communicator *c = NULL;
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "communicator", "mpi"));
    TRY(communicator_open(&c, o, COUNT, NULL));
    for (unsigned i = 0; i < 10; i++)
        TRY(communicator_allreduce_mean(c, communicator_buffer(c), COUNT));
    if (c->ranks->crowded == may_spin)
        FAIL(ERROR_OTHER, "ranks with %u processors %s spin", c->ranks->processors,
             may_spin ? "do not" : "do");
done:
    options_close(&o);
    communicator_close(&c);
    return result;
}

/* Each rank is bound to one processor, as by mpirun and srun; next, all to the same one by mistake.
 */
static status case_bound(unsigned rank, unsigned size)
{
    const bool enough = processors_of_mask() >= size;
    bind_to(enough ? rank : 0);
    return exchange_bound(enough);
}

static status case_bound_to_one(unsigned rank UNUSED, unsigned size UNUSED)
{
    bind_to(0);
    return exchange_bound(false);
}

/* Only rank 1 is bound. All ranks must still decide alike, because they must call the same MPI
 * functions. */
static status case_bound_differently(unsigned rank, unsigned size)
{
    const bool enough = processors_of_mask() >= size;
    if (rank == 1)
        bind_to(0);
    return exchange_bound(enough);
}

static const struct sync_case CASES[] = {
    {"refused", case_refused},
    {"auto", case_auto},
    {"bound", case_bound},
    {"bound to one", case_bound_to_one},
    {"bound differently", case_bound_differently},
    {NULL, NULL},
};

static void nccl_is_refused_if_it_cannot_work(void **state UNUSED)
{
    sync_rig_expect_ok(1, "refused");
    sync_rig_expect_ok(2, "refused");
    sync_rig_expect_ok(3, "refused");
}

static void auto_takes_nccl_only_if_every_rank_has_its_own_gpu(void **state UNUSED)
{
    sync_rig_expect_ok(2, "auto");
    sync_rig_expect_ok(3, "auto");
}

static void all_ranks_know_how_many_processors_they_have_together(void **state UNUSED)
{
    sync_rig_expect_ok(2, "bound");
    sync_rig_expect_ok(2, "bound to one");
    sync_rig_expect_ok(2, "bound differently");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nccl_is_refused_if_it_cannot_work),
        cmocka_unit_test(auto_takes_nccl_only_if_every_rank_has_its_own_gpu),
        cmocka_unit_test(all_ranks_know_how_many_processors_they_have_together),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
