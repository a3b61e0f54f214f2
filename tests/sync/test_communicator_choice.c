/*
 * test_communicator_choice.c — when NCCL is refused, and which kind communicator=auto chooses. Both
 * are decided before NCCL is called, from data that the ranks exchange, so no GPU is needed.
 */
#include "tests/sync/sync_rig.h"

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

static const struct sync_case CASES[] = {
    {"refused", case_refused},
    {"auto", case_auto},
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nccl_is_refused_if_it_cannot_work),
        cmocka_unit_test(auto_takes_nccl_only_if_every_rank_has_its_own_gpu),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
