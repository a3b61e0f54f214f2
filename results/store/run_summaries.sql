-- Totals of runs that have ended, so that views need not read every gradient. The recorder writes them when a run
-- ends, with any status (results/store/run_summaries.c). run.summarized = 1: the totals of this run exist.
CREATE TABLE run_staleness (
    run_id     INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    staleness  INTEGER NOT NULL,
    pushes     INTEGER NOT NULL, -- gradients that were used
    dropped    INTEGER NOT NULL,
    mean_scale REAL,             -- of the gradients that were used
    PRIMARY KEY (run_id, staleness)
) STRICT;

-- The rows of where_time_goes.
CREATE TABLE run_worker_time (
    run_id      INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    worker      INTEGER NOT NULL,
    steps       INTEGER NOT NULL,
    pull_us     REAL,
    compute_us  REAL,
    exchange_us REAL,
    queue_us    REAL,
    apply_us    REAL,
    step_us     REAL,
    data_us     REAL,
    forward_us  REAL,
    backward_us REAL,
    hidden_us   REAL
) STRICT;
CREATE INDEX run_worker_time_by_run ON run_worker_time (run_id, worker);
