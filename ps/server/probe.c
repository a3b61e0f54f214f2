/* probe.c — see probe.h. */
#include "ps/server/probe.h"

#include "base/memory.h"

status probe_open(struct probe *out, const options *o, size_t count)
{
    status result = OK;
    *out = (struct probe){.count = count, .every = (uint64_t)options_integer(o, "probe_every")};
    if (out->every > 0)
        TRY(memory_new(&out->fresh, count, sizeof *out->fresh, "a fresh gradient"));
done:
    return result;
}

void probe_close(struct probe *p)
{
    memory_free(p->fresh);
    p->fresh = NULL;
}

bool probe_is_due(const struct probe *p, uint64_t arrivals)
{
    return p->every > 0 && arrivals % p->every == 0;
}
