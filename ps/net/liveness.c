/* liveness.c — see liveness.h. */
#include "ps/net/liveness.h"

#include "base/clock.h"
#include "base/log.h"
#include "ps/net/peer_process.h"

#include <stdio.h>

void liveness_heard(struct liveness *l)
{
    l->heard_ns = clock_ns();
    l->named = false;
}

bool liveness_is_lost(struct liveness *l, const char *name, unsigned timeout_ms, uint64_t now_ns,
                      char why[LIVENESS_WHY_BYTES])
{
    const uint64_t silent_ms = liveness_ms(l->heard_ns, now_ns);
    if (l->died_ns == 0 && peer_process_has_ended(l->pidfd)) {
        l->died_ns = now_ns;
        peer_process_forget(&l->pidfd);
    }
    if (l->died_ns != 0 && liveness_ms(l->died_ns, now_ns) >= LIVENESS_LAST_WORDS_MS) {
        snprintf(why, LIVENESS_WHY_BYTES, "died: see its own message, or the kernel's log");
        return true;
    }
    if (silent_ms >= timeout_ms) {
        snprintf(why, LIVENESS_WHY_BYTES,
                 "was silent for %.1f s (timeout_s): is it stopped or cut off?",
                 (double)silent_ms * 1e-3);
        return true;
    }
    if (silent_ms >= LIVENESS_NAME_MS && !l->named) {
        l->named = true;
        log_warning("%s has been silent for %.0f s; the limit is %u s", name,
                    (double)silent_ms * 1e-3, timeout_ms / 1000);
    }
    return false;
}
