#include "ps/server/resume.h"

#include "ps/rules/consistency/consistency.h"
#include "ps/rules/correction/correction.h"
#include "ps/rules/damping/damping.h"
#include "ps/rules/outer/outer.h"
#include "ps/core/slices.h"

#include <string.h>

static const struct about *chosen(const struct registry *registry, const options *o,
                                  const char *key)
{
    return registry_find(registry, options_text(o, key));
}

/* For messages: the key that resumes a run from a checkpoint; instead_of(): what to do instead. */
static const char *key_of(const options *o)
{
    return options_is_initial(o, "resume") ? "restarts" : "resume";
}

static const char *instead_of(const options *o)
{
    return options_is_initial(o, "resume")
               ? "leave restarts out"
               : "start a new run from the parameters in the checkpoint with initial=";
}

/* A checkpoint of several servers holds all slices, of one version. */
static status check_servers(const options *o, bool keeps_vectors)
{
    status result = OK;
    if (servers_of(o) > 1 && !reads_snapshots(o)) {
        FAIL(ERROR_USAGE,
             "%s: with read=torn the servers have different versions, but a checkpoint holds one; "
             "set read=snapshot, or %s",
             key_of(o), instead_of(o));
    }
    if (servers_of(o) > 1 && keeps_vectors) {
        FAIL(ERROR_USAGE,
             "%s: with servers=%u a checkpoint does not hold the state of correction=%s; set "
             "servers=1, or %s",
             key_of(o), servers_of(o), options_text(o, "correction"), instead_of(o));
    }
done:
    return result;
}

status resume_check(const options *o)
{
    status result = OK;
    const struct correction_rule *correction =
        (const struct correction_rule *)chosen(&correction_registry, o, "correction");
    const struct damping_rule *damping =
        (const struct damping_rule *)chosen(&damping_registry, o, "damping");
    const struct consistency_policy *consistency =
        (const struct consistency_policy *)chosen(&consistency_registry, o, "consistency");
    const bool vectors = correction->shared > 0 || correction->own;
    if (((const struct outer_rule *)chosen(&outer_registry, o, "outer"))->elastic) {
        FAIL(ERROR_USAGE, "%s: a checkpoint does not hold the workers' parameters of outer=%s; %s",
             key_of(o), options_text(o, "outer"), instead_of(o));
    }
    if (correction->adjust != NULL) {
        FAIL(ERROR_USAGE,
             "%s: a checkpoint does not hold the versions by which correction=%s measures the "
             "momentum; %s",
             key_of(o), options_text(o, "correction"), instead_of(o));
    }
    if (consistency->takes && (vectors || damping->needs_history)) {
        FAIL(ERROR_USAGE,
             "%s: the state of %s=%s counts gradients that wait in the sum of consistency=%s, "
             "which a checkpoint does not hold; %s",
             key_of(o), vectors ? "correction" : "damping",
             options_text(o, vectors ? "correction" : "damping"), consistency->about.name,
             instead_of(o));
    }
    TRY(check_servers(o, vectors));
done:
    return result;
}
