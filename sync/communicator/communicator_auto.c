/*
 * communicator_auto.c — chooses the fastest kind that works: mpi for compressed gradients; nccl if
 * every rank has its own GPU and NCCL is installed; else shared on one host, mpi over several. If
 * updates run in host memory, the caller gives no GPU (replica_may_be_on_gpu).
 */
#include "sync/communicator/communicator_nccl.h"
#include "sync/communicator/ranks.h"

extern const struct communicator_kind communicator_mpi, communicator_nccl, communicator_shared;

static status auto_choose(communicator *c, const struct communicator_kind **out)
{
    status result = OK;
    bool nccl_can;
    if (c->compressed) {
        *out = &communicator_mpi;
        return OK;
    }
    TRY(nccl_fits(c, &nccl_can));
    *out = nccl_can             ? &communicator_nccl
           : c->ranks->one_host ? &communicator_shared
                                : &communicator_mpi;
done:
    return result;
}

const struct communicator_kind communicator_auto = {
    .about = {.name = "auto",
              .description = "nccl if each rank has its own GPU and updates there; else shared on "
                             "one host; mpi on several hosts or with compression"},
    .choose = auto_choose,
};
