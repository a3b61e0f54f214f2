#include "experiments/plan_shared.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What makes a run this very run (plan_key), wherever it is made. */
static void key_of(const struct planned_run *r, char out[SHARED_KEY])
{
    struct run_key key;
    struct sha256 sum;
    char hex[65];
    plan_key(r, &key);
    const char *const parts[] = {key.config_hash, key.experiment, key.arm, key.config};
    sha256_begin(&sum);
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const char *part = parts[i] != NULL ? parts[i] : "";
        sha256_add(&sum, part, strlen(part) + 1);
    }
    sha256_end(&sum, hex);
    memcpy(out, hex, SHARED_KEY - 1);
    out[SHARED_KEY - 1] = '\0';
}

static void note(struct planned_run *r, const struct shared_run *now)
{
    static const enum planned_state states[] = {
        [SHARED_FREE] = PLANNED_MISSING,      [SHARED_OWN] = PLANNED_MISSING,
        [SHARED_TAKEN] = PLANNED_ELSEWHERE,   [SHARED_FINISHED] = PLANNED_FINISHED,
        [SHARED_DIVERGED] = PLANNED_DIVERGED, [SHARED_FAILED] = PLANNED_FAILED};
    r->state = states[now->state];
    r->turn = now->state == SHARED_OWN ? now->turn : 0;
    r->abroad = r->state != PLANNED_MISSING;
    if (sscanf(now->came, "%lf %lf", &r->score.accuracy, &r->score.loss) != 2) {
        r->score = (struct plan_score){.accuracy = NAN, .loss = NAN};
    }
}

static enum shared_state outcome_of(const struct planned_run *r)
{
    return r->state == PLANNED_FINISHED   ? SHARED_FINISHED
           : r->state == PLANNED_DIVERGED ? SHARED_DIVERGED
                                          : SHARED_FAILED;
}

/* With its score to the last bit: what a search tries next must be the same on all hosts. */
static status tell(struct planned_run *r, shared *s, const char *key, unsigned turn)
{
    status result = OK;
    struct plan_score score;
    char came[SHARED_CAME] = "";
    if (r->state == PLANNED_FINISHED) {
        TRY(plan_score(r, &score));
        snprintf(came, sizeof came, "%.17g %.17g", score.accuracy, score.loss);
    }
    TRY(shared_end(s, key, turn, outcome_of(r), came));
    r->told = true;
done:
    return result;
}

/* It ended here, and this process was killed before it could say so. */
static status tell_late(struct planned_run *r, shared *s, const char *key)
{
    status result = OK;
    struct shared_run now;
    TRY(shared_look(s, key, &now));
    if (now.turn > 0 && now.same_results) {
        TRY(tell(r, s, key, now.turn));
    } else if (now.state == SHARED_FREE) {
        TRY(shared_take(s, key, false, &now));
        if (now.state == SHARED_OWN) {
            TRY(tell(r, s, key, now.turn));
        }
    }
done:
    return result;
}

status plan_shared_begin(struct plan *p, shared *s)
{
    status result = OK;
    for (size_t i = 0; i < p->count; i++) {
        struct planned_run *r = &p->runs[i];
        struct shared_run now;
        char key[SHARED_KEY];
        if (r->told || (r->abroad && r->state != PLANNED_ELSEWHERE)) {
            continue;
        }
        key_of(r, key);
        if (r->state == PLANNED_FINISHED || r->state == PLANNED_DIVERGED) {
            TRY(tell_late(r, s, key));
            continue;
        }
        TRY(shared_look(s, key, &now));
        note(r, &now);
        if (r->state == PLANNED_FAILED) { /* once more, by whoever comes first */
            r->state = PLANNED_MISSING;
            r->abroad = false;
            r->failed_before = now.turn;
        }
    }
done:
    return result;
}

status plan_shared_take(struct planned_run *r, shared *s)
{
    status result = OK;
    struct shared_run now;
    char key[SHARED_KEY];
    if (r->turn > 0) {
        goto done;
    }
    key_of(r, key);
    TRY(shared_look(s, key, &now));
    bool again = now.state == SHARED_FAILED && now.turn == r->failed_before;
    TRY(shared_take(s, key, again, &now));
    note(r, &now);
    if (now.state == SHARED_FREE) { /* another one took it and stopped just now */
        r->state = PLANNED_ELSEWHERE;
    }
done:
    return result;
}

status plan_shared_end(struct planned_run *r, shared *s)
{
    status result = OK;
    char key[SHARED_KEY];
    if (s != NULL && r->turn > 0) {
        key_of(r, key);
        TRY(tell(r, s, key, r->turn));
        r->turn = 0;
    }
done:
    return result;
}

status plan_shared_look(struct plan *p, shared *s, size_t *going_on)
{
    status result = OK;
    *going_on = 0;
    for (size_t i = 0; i < p->count; i++) {
        struct planned_run *r = &p->runs[i];
        struct shared_run now;
        char key[SHARED_KEY];
        if (r->state == PLANNED_ELSEWHERE) {
            key_of(r, key);
            TRY(shared_look(s, key, &now));
            note(r, &now);
            *going_on += r->state == PLANNED_ELSEWHERE;
        }
    }
done:
    return result;
}

status plan_shared_was_lost(const struct planned_run *r, shared *s, bool *lost)
{
    status result = OK;
    struct shared_run now;
    char key[SHARED_KEY];
    key_of(r, key);
    TRY(shared_look(s, key, &now));
    *lost = now.turn > r->turn;
done:
    return result;
}
