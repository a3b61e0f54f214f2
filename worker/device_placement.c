#include "worker/device_placement.h"

#include <stdlib.h>

const struct option placement_options[] = {
    {.key = "device.index",
     .type = OPTION_INTEGER,
     .initial = "-1",
     .minimum = -1,
     .maximum = 1023,
     .help =
         "number of the visible device; -1: the process's local rank modulo the visible devices"},
    {0},
};

enum { MOST_PROCESSES = 1 << 20 };

static bool number_of(const char *text, unsigned *out)
{
    char *end = NULL;
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return false;
    unsigned long number = strtoul(text, &end, 10);
    if (*end != '\0' || number > MOST_PROCESSES)
        return false;
    *out = (unsigned)number;
    return true;
}

struct placement placement_of(char *(*value)(const char *name), unsigned index, unsigned count,
                              const options *o)
{
    static const struct {
        const char *rank, *size;
    } launchers[] = {
        {PLACEMENT_LOCAL_RANK, PLACEMENT_LOCAL_SIZE},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, /* MPICH, Intel MPI */
        {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},     /* torchrun */
        /* Last, because mpirun inside a Slurm step passes the step's SLURM_LOCALID to all its
         * ranks. Slurm gives the tasks per node in its own list format; SLURM_NTASKS_PER_NODE is
         * set only on request. */
        {"SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
    };
    struct placement p = {.local_rank = index, .local_size = count, .device = -1};
    for (size_t i = 0; i < COUNT_OF(launchers); i++) {
        if (number_of(value(launchers[i].rank), &p.local_rank)) {
            (void)number_of(value(launchers[i].size), &p.local_size);
            break;
        }
    }
    if (p.local_size <= p.local_rank)
        p.local_size = p.local_rank + 1;
    if (o != NULL && options_declared(o, "device.index"))
        p.device = options_integer(o, "device.index");
    return p;
}

status placement_device(const struct placement *p, unsigned visible, unsigned *out)
{
    status result = OK;
    REQUIRE(visible > 0);
    if (p->device >= (int64_t)visible) {
        FAIL(ERROR_USAGE,
             "device.index=%lld names no device: %u device%s visible, numbered from 0; check "
             "CUDA_VISIBLE_DEVICES and run `gradlag check`",
             (long long)p->device, visible, visible == 1 ? " is" : "s are");
    }
    *out = p->device >= 0 ? (unsigned)p->device : p->local_rank % visible;
done:
    return result;
}

bool placement_may_spin(const struct placement *p, unsigned threads, unsigned processors)
{
    return (uint64_t)p->local_size * (threads > 0 ? threads : 1) <= processors;
}
