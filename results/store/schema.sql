-- The tables of a results file, version 1. run_summaries.sql has the tables of totals, views.sql the views.
-- docs/results-file.md documents every column with its unit.
--
-- SQLite stores NaN as NULL. Every table with measured numbers therefore has a column not_a_number: NULL, or a
-- comma-separated list of the columns of the row whose value is NaN. A column that is NULL and not in this list was
-- not measured. Infinities are stored as such (±9e999).
--
-- push and step are by far the largest tables. Their *_us columns hold whole microseconds, which SQLite stores in
-- one to three bytes each.
--
-- Every table has a rowid. DuckDB splits a table by rowid among its threads: in a table WITHOUT ROWID each thread
-- returned all rows, so that every sum was wrong, and count(*) was refused.

CREATE TABLE run (
    id                  INTEGER PRIMARY KEY,
    uuid                TEXT NOT NULL UNIQUE,
    experiment          TEXT,
    arm                 TEXT,
    tag                 TEXT,
    mode                TEXT NOT NULL,
    engine              TEXT,
    workers             INTEGER NOT NULL,
    model               TEXT,
    dataset             TEXT,
    device              TEXT,
    batch               INTEGER,
    optimizer           TEXT,
    lr                  REAL,
    momentum            REAL,
    consistency         TEXT,
    damping             TEXT,
    correction          TEXT,
    communicator        TEXT,
    compression         TEXT,
    seed                INTEGER,
    status              TEXT NOT NULL CHECK (status IN
                        ('queued', 'running', 'finished', 'diverged', 'failed', 'stopped')),
    started_at          TEXT,
    finished_at         TEXT,
    updates             INTEGER,
    samples_used        INTEGER,
    samples_computed    INTEGER,
    train_seconds       REAL,
    samples_per_second  REAL,
    final_accuracy      REAL,
    best_accuracy       REAL,
    final_loss          REAL,
    validation_accuracy REAL,
    mean_staleness      REAL,
    max_staleness       INTEGER,
    parameters_sha256   TEXT,
    error               TEXT,
    config              TEXT CHECK (config IS NULL OR json_valid(config)),
    config_hash         TEXT,
    host                TEXT CHECK (host IS NULL OR json_valid(host)),
    not_a_number        TEXT,
    settings            TEXT CHECK (settings IS NULL OR json_valid(settings)),
    runner              TEXT CHECK (runner IS NULL OR json_valid(runner)),
    -- Bytes of gradients, with loss and flags, in messages of all ranks, by the cost model of the communicator; for a
    -- pipeline also activations between stages. 0: ranks share memory. An asynchronous run: gradients or codes, and
    -- parameters, in frames. NULL: a simulated synchronous run.
    sent_bytes          INTEGER,
    -- 1: the totals of the run are in the tables of run_summaries.sql.
    summarized          INTEGER,
    -- Progress report, about once a second: an object of updates, samples, total_samples, seconds, loss, staleness and
    -- at (UTC). NULL after the end.
    progress            TEXT CHECK (progress IS NULL OR json_valid(progress)),
    -- For queued runs. runner is NULL until a process takes the run.
    queued_at           TEXT,
    priority            INTEGER,
    attempt             INTEGER,
    -- 1: at the last evaluation at least 99 % of the test predictions were one class; NULL: unknown.
    collapsed           INTEGER
) STRICT;
CREATE INDEX run_by_config_hash ON run (config_hash);
CREATE INDEX run_by_experiment ON run (experiment, arm);
CREATE INDEX run_going_on ON run (status) WHERE status IN ('queued', 'running');
CREATE INDEX run_without_summary ON run (id) WHERE summarized IS NULL;

CREATE TABLE evaluation (
    run_id              INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    updates             INTEGER NOT NULL,
    samples             INTEGER NOT NULL,
    seconds             REAL,
    train_loss          REAL,
    validation_loss     REAL,
    validation_accuracy REAL,
    test_loss           REAL,
    test_accuracy       REAL,
    not_a_number        TEXT,
    -- Duration in wall-clock time; not training time, unless the run has an event evaluation_beside. NULL if training has a virtual clock.
    took_seconds        REAL,
    -- Share of the test predictions of the most predicted class.
    top_class_share     REAL,
    PRIMARY KEY (run_id, updates)
) STRICT;

-- Asynchronous mode: one row per gradient that reached a server, applied or not. number counts the rows of a run
-- from 0, in the order in which the server decided about the gradients.
--
-- outcome and reason have no CHECK: it would double the time of an insert.
CREATE TABLE push (
    run_id         INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    number         INTEGER NOT NULL,
    update_version INTEGER NOT NULL,
    worker         INTEGER NOT NULL,
    sequence       INTEGER NOT NULL,
    read_version   INTEGER NOT NULL,
    staleness      INTEGER NOT NULL,
    scale          REAL,
    gap            REAL,
    gradient_norm  REAL,
    loss           REAL,
    -- 'applied', 'aggregated', 'dropped_stale', 'dropped_late' or 'not_finite'.
    outcome        TEXT NOT NULL,
    pull_us        REAL,
    compute_us     REAL,
    queue_us       REAL,
    apply_us       REAL,
    at_seconds     REAL,
    not_a_number   TEXT,
    -- Gradients that the server received before this one. A replay needs this order.
    arrival        INTEGER NOT NULL,
    batch          INTEGER NOT NULL,
    waited_for     INTEGER,
    rate           REAL,
    -- Why the gradient was not used: 'damping', 'consistency', 'after_end', 'worker_lost', 'run_ended',
    -- 'run_diverged', 'gradient', 'loss' or 'update'. NULL if it was used.
    reason         TEXT,
    cosine         REAL,
    momentum       REAL,
    total_momentum REAL,
    server         INTEGER NOT NULL,
    -- Parts of compute_us, for runs with trace=.
    data_us        REAL,
    forward_us     REAL,
    backward_us    REAL,
    PRIMARY KEY (run_id, number)
) STRICT;

-- Synchronous mode: one row per rank and update.
CREATE TABLE step (
    run_id         INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    update_version INTEGER NOT NULL,
    worker         INTEGER NOT NULL,
    loss           REAL,
    compute_us     REAL,
    exchange_us    REAL,
    apply_us       REAL,
    not_a_number   TEXT,
    -- Parts of compute_us; the rest is the delay of the pace.
    data_us        REAL,
    forward_us     REAL,
    backward_us    REAL,
    -- Exchange of buckets that were complete before the rank had finished computing; not part of exchange_us.
    hidden_us      REAL,
    -- Staleness of the gradient: 0, or with delay=d the smaller of d and the number of earlier updates.
    staleness      INTEGER,
    -- End of the step.
    at_seconds     REAL,
    PRIMARY KEY (run_id, update_version, worker)
) STRICT;

-- Pipelines with trace=: one row per forward or backward pass of a micro-batch through a stage, numbered in the order of
-- its rank.
CREATE TABLE pass (
    run_id         INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    update_version INTEGER NOT NULL,
    worker         INTEGER NOT NULL,
    number         INTEGER NOT NULL,
    micro_batch    INTEGER NOT NULL,
    backward       INTEGER NOT NULL CHECK (backward IN (0, 1)),
    -- Updates that the stage had applied when the pass began.
    version        INTEGER NOT NULL,
    compute_us     REAL,
    -- End of the pass.
    at_seconds     REAL,
    not_a_number   TEXT,
    PRIMARY KEY (run_id, update_version, worker, number)
) STRICT;

CREATE TABLE event (
    run_id       INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    at_seconds   REAL,
    severity     TEXT NOT NULL CHECK (severity IN ('info', 'warning', 'error')),
    code         TEXT NOT NULL,
    worker       INTEGER,
    detail       TEXT,
    not_a_number TEXT,
    -- Pushes that the server received before the event; NULL for events without a position among the pushes.
    push_number  INTEGER,
    server       INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX event_by_run ON event (run_id);

CREATE TABLE checkpoint (
    run_id  INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    path    TEXT NOT NULL,
    sha256  TEXT,
    PRIMARY KEY (run_id, version)
) STRICT;
