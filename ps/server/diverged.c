/* diverged.c — see diverged.h. */
#include "ps/server/diverged.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const char *what_of(const struct push_record *culprit)
{
    return culprit->reason == PUSH_BAD_LOSS     ? "loss"
           : culprit->reason == PUSH_BAD_UPDATE ? "update with the gradient"
                                                : "gradient";
}

/* All servers get the same loss, but each server checks only its own part of a gradient. */
void diverged_describe(const struct push_record *culprit, const struct diverged_where *where,
                       char out[WIRE_TEXT_BYTES])
{
    const bool square = culprit->reason == PUSH_BAD_GRADIENT && isfinite(culprit->gradient_norm);
    const char *wrong = square                               ? "too large to be squared"
                        : culprit->reason == PUSH_BAD_UPDATE ? "not finite or too large"
                                                             : "not finite";
    static const char advice[] = "lower lr, or damp stale gradients";
    if (where->skips && culprit->reason != PUSH_BAD_UPDATE) {
        snprintf(out, WIRE_TEXT_BYTES,
                 "the %s of worker %u is %s (push %" PRIu64 ", of version %" PRIu64
                 "); on_nonfinite=skip has dropped the %d before it: %s",
                 what_of(culprit), culprit->worker, wrong, culprit->sequence, culprit->read_version,
                 SERVER_CORE_SKIPS, advice);
        return;
    }
    if (where->servers == 1 || culprit->reason == PUSH_BAD_LOSS) {
        snprintf(out, WIRE_TEXT_BYTES,
                 "the %s of worker %u is %s (its push %" PRIu64 ", computed at version %" PRIu64
                 "): %s",
                 what_of(culprit), culprit->worker, wrong, culprit->sequence, culprit->read_version,
                 advice);
        return;
    }
    snprintf(out, WIRE_TEXT_BYTES,
             "the %s of worker %u is %s at server %u (parameters %zu to %zu, push %" PRIu64
             ", version %" PRIu64 "): %s",
             what_of(culprit), culprit->worker, wrong, where->server, where->begin,
             where->begin + where->count - 1, culprit->sequence, culprit->read_version, advice);
}
