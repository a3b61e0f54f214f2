/*
 * reproduction.h — an experiment as runs: laid out, looked up in the results file, and what its
 * claims come to. Makes no runs.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_REPRODUCTION_H
#define GRADLAG_EXPERIMENTS_CLAIMS_REPRODUCTION_H

#include "base/text.h"
#include "experiments/claims/cells.h"
#include "experiments/claims/tuning.h"

struct reproduction { /* zero-initialise */
    struct experiment e;
    struct tuning tuning;
    struct plan plan;
    struct cells cells; /* the caller's to open, once runs are made or looked up */
    size_t later;       /* runs whose settings depend on runs that are not there yet */
    /* The caller sets the part before the first lay-out (plan.h). A part has whole choices of the
     * tuning, and single runs of the arms that neither tune themselves nor are fitted. */
    struct plan_part part;
    /* With a part: how many runs are fitted to others. No part makes them, since they name a run by
     * its number in one results file; they are made from the merged file. */
    size_t fitted;
};
/* A name or a path; checks that claims ask for what there is. */
status reproduction_open(struct reproduction *out, const char *name_or_path) MUST_CHECK;
void reproduction_close(struct reproduction *r);

/* Seed by seed, so that an experiment that was cut short has every arm. Runs that are in the plan
 * already stay as they are: call it again once more is known. `more`: the command line's settings.
 */
status reproduction_lay_out(struct reproduction *r, bool quick,
                            const struct settings *more) MUST_CHECK;
/* Trials and runs, with those that are tuned and fitted to what is there already. `again`: as if
 * nothing was. */
status reproduction_look_up(struct reproduction *r, bool quick, bool again,
                            const struct settings *more) MUST_CHECK;
/* The results file that its runs are in. */
const char *reproduction_results(const struct reproduction *r);

enum claim_outcome { CLAIM_PASS, CLAIM_FAIL, CLAIM_OPEN /* not measured */, CLAIM_OUTCOMES };
struct judged_claim {
    const struct claim *claim;
    enum claim_outcome outcome;
    double value, low, high; /* value: NaN where it is not known */
    /* NULL, or a cell that it needs: one whose runs did not all finish; one with runs whose
     * staleness spreads wider than their pace explains. */
    const struct cell *lacking, *delayed;
};
/* Into `out`, which has room for all of the experiment's claims. The cells must be open. */
status reproduction_judge(const struct reproduction *r, bool quick,
                          struct judged_claim *out) MUST_CHECK;
/* Why a claim has no value, in words that call the arm by its name or its label; nothing where it
 * has one. */
void reproduction_explain(const struct judged_claim *j, bool by_label, struct text *out);
/* What to know about a claim's value; nothing if the runs of all its cells kept their pace. */
void reproduction_remark(const struct judged_claim *j, bool by_label, struct text *out);

#endif
