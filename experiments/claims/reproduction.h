/*
 * reproduction.h — the runs of an experiment: plans them, looks them up in the results file, and
 * judges the claims. It executes no runs (plan.h does).
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
    struct run_uses uses; /* of the plan's runs */
    struct cells cells;   /* the caller opens it after runs were executed or looked up */
    bool has_further;     /* the plan has the further seeds of all columns of the map */
    size_t later;         /* runs whose settings depend on runs that have not finished yet */
    /* The caller sets the part before the first lay-out (plan.h). A part has whole choices of the
     * tuning with their runs, and single runs of arms that are neither tuned nor fitted. */
    struct plan_part part;
    struct plan seen; /* with a part: the single runs of all parts */
    /* With a part: number of fitted runs. No part has them, because their settings contain the
     * number of a run in one results file. They are executed on the merged file. */
    size_t fitted;
};
/* Opens an experiment by name or path, and checks its claims with cells_check(). */
status reproduction_open(struct reproduction *out, const char *name_or_path) MUST_CHECK;
void reproduction_close(struct reproduction *r);

/* Adds the runs to the plan, one seed after the other, so that an interrupted experiment has runs
 * of every arm. Runs that the plan already has stay as they are. Call it again after tuning or runs
 * have ended. `more`: the settings of the command line. */
status reproduction_lay_out(struct reproduction *r, bool quick,
                            const struct settings *more) MUST_CHECK;
/* Plans trials and runs and looks them up, with tuned and fitted runs as far as they are known.
 * `again`: plan them as if the results file were empty. */
status reproduction_look_up(struct reproduction *r, bool quick, bool again,
                            const struct settings *more) MUST_CHECK;
/* Adds runs with further seeds to each column of the map whose runs have ended, if these seeds may
 * decide the lead, and looks the runs up. A column gets all of them at once, so its lead is judged
 * at most twice. The decision depends only on results with the experiment's own seeds, so a later
 * call decides the same. */
status reproduction_add_seeds(struct reproduction *r, const struct settings *more) MUST_CHECK;
/* The path of the results file. */
const char *reproduction_results(const struct reproduction *r);

enum claim_outcome { CLAIM_PASS, CLAIM_FAIL, CLAIM_OPEN /* runs are missing */, CLAIM_OUTCOMES };
struct judged_claim {
    const struct claim *claim;
    enum claim_outcome outcome;
    double value, low, high; /* value: NaN if not known */
    /* Half of the 95 % interval of the value, by the jackknife over seeds (Tukey 1958): the value
     * is computed without each seed in turn. Student's t has the degrees of freedom of the cell
     * with the fewest seeds. For a mean this is the usual interval. NaN: that cell has fewer than
     * two seeds, the claim is in SQL, or no_jackknife. */
    double interval;
    /* The mean of the pseudo-values differs from the value by more than the half width. A claim of
     * equivalence then fails. */
    bool no_jackknife;
    bool borderline; /* it passes, and its interval is not all in the band */
    /* Cells that the claim reads, as in struct cells_reading; NULL: none. */
    const struct cell *incomplete, *delayed, *without_value, *single;
    /* The claim reads a cell that this part of the experiment does not have. A claim in SQL: it may
     * read a run that is missing, or that the quick part does not have. */
    bool absent;
};
/* Judges all claims into out[claim_count]. The cells must be open. */
status reproduction_judge(const struct reproduction *r, bool quick,
                          struct judged_claim *out) MUST_CHECK;
/* Appends why a claim has no value; nothing if it has one. The text has the arm's name or label. */
void reproduction_explain(const struct judged_claim *j, bool by_label, struct text *out);
/* Appends remarks: the claim is borderline or has no_jackknife; other work delayed the runs that it
 * reads. */
void reproduction_remark(const struct judged_claim *j, bool by_label, struct text *out);

#endif
