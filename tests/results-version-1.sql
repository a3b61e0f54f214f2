-- A results file as version 1 of the format wrote it: its schema, and two runs of one sweep.

-- The results file, version 1. docs/results-file.md says what every column means, with its unit.
--
-- NaN: SQLite has none and stores NULL instead. So every table that holds measured numbers has a
-- column not_a_number: NULL, or the names of those columns of the row whose value is NaN, separated
-- by commas. A column that is NULL and not named there was not measured. Infinities are stored as
-- themselves (±9e999).
--
-- push and step are by far the largest tables. They are clustered by run (WITHOUT ROWID), and
-- their *_us columns hold whole microseconds, which SQLite packs into one to three bytes each.

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
    not_a_number        TEXT
) STRICT;
CREATE INDEX run_by_config_hash ON run (config_hash);
CREATE INDEX run_by_experiment ON run (experiment, arm);

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
    PRIMARY KEY (run_id, updates)
) STRICT, WITHOUT ROWID;

-- One row per gradient that reached the server; number is their order, from 0.
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
    outcome_code   INTEGER NOT NULL,
    pull_us        REAL,
    compute_us     REAL,
    queue_us       REAL,
    apply_us       REAL,
    at_seconds     REAL,
    not_a_number   TEXT,
    -- Text to whoever reads it, but computed: it takes no room in the file.
    outcome        TEXT GENERATED ALWAYS AS (
        CASE outcome_code
            WHEN 0 THEN 'applied'
            WHEN 1 THEN 'aggregated'
            WHEN 2 THEN 'dropped_stale'
            WHEN 3 THEN 'dropped_late'
            WHEN 4 THEN 'duplicate'
            WHEN 5 THEN 'not_finite'
        END) VIRTUAL NOT NULL,
    PRIMARY KEY (run_id, number)
) STRICT, WITHOUT ROWID;

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
    PRIMARY KEY (run_id, update_version, worker)
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
    run_id       INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    at_seconds   REAL,
    severity     TEXT NOT NULL CHECK (severity IN ('info', 'warning', 'error')),
    code         TEXT NOT NULL,
    worker       INTEGER,
    detail       TEXT,
    not_a_number TEXT
) STRICT;
CREATE INDEX event_by_run ON event (run_id);

CREATE TABLE checkpoint (
    run_id  INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    path    TEXT NOT NULL,
    sha256  TEXT,
    PRIMARY KEY (run_id, version)
) STRICT, WITHOUT ROWID;

-- One line per run, the columns one usually wants.
CREATE VIEW run_summary AS
SELECT id, experiment, arm, tag, mode, workers, model, damping, consistency, lr, momentum, batch,
       seed, status, updates, samples_used, train_seconds, samples_per_second,
       updates / train_seconds AS updates_per_second,
       final_accuracy, best_accuracy, validation_accuracy, final_loss,
       mean_staleness, max_staleness, started_at, error
FROM run;

-- How often each staleness occurred among the gradients that went into an update.
CREATE VIEW staleness_histogram AS
SELECT run_id, staleness, count(*) AS pushes,
       count(*) * 1.0 / sum(count(*)) OVER (PARTITION BY run_id) AS share,
       avg(scale) AS mean_scale
FROM push
WHERE outcome_code IN (0, 1)
GROUP BY run_id, staleness;

-- Seeds taken together: runs that differ in the seed alone, judged by settings, which is the run's
-- configuration without what cannot change its outcome. parameters holds the dotted keys, such as
-- damping.power=0.5, but for the dataset's. sd is the sample standard deviation (n - 1), NULL for one seed. Runs that did
-- not finish are counted, not averaged.
CREATE VIEW accuracy_by_workers AS
WITH described AS (
    SELECT *,
        (SELECT json_group_object(key, value) FROM json_each(run.config)
         WHERE key NOT IN ('seed', 'results', 'tag', 'run_id', 'run_token', 'endpoint', 'record',
                           'timeout_s', 'on_lost', 'checkpoint', 'checkpoint_every', 'transport',
                           'payload', 'experiment', 'arm', 'threads', 'evaluate_every')) AS settings,
        (SELECT group_concat(key || '=' || value, ' ') FROM json_each(run.config)
         WHERE key LIKE '%.%' AND key NOT LIKE 'dataset.%') AS parameters,
        CASE status WHEN 'finished' THEN final_accuracy END AS accuracy,
        CASE status WHEN 'finished' THEN 1 END AS finished
    FROM run
    WHERE status NOT IN ('queued', 'running'))
SELECT experiment, arm, mode, engine, model, dataset, consistency, damping, correction, workers, lr,
       momentum, batch, parameters,
       count(finished) AS seeds,
       avg(accuracy) AS mean_accuracy,
       CASE WHEN count(accuracy) > 1 THEN
           sqrt(max(0.0, sum(accuracy * accuracy) - sum(accuracy) * avg(accuracy))
                / (count(accuracy) - 1))
       END AS sd_accuracy,
       min(accuracy) AS least_accuracy,
       max(accuracy) AS greatest_accuracy,
       avg(samples_per_second * finished) AS mean_samples_per_second,
       avg(updates / train_seconds * finished) AS mean_updates_per_second,
       avg(mean_staleness * finished) AS mean_staleness,
       count(*) FILTER (WHERE status = 'diverged') AS diverged,
       count(*) FILTER (WHERE status IN ('failed', 'stopped')) AS failed,
       settings
FROM described
GROUP BY experiment, arm, mode, engine, model, dataset, consistency, damping, correction, workers,
         lr, momentum, batch, parameters, settings;

-- The evaluations at which a run was better than ever before: the time to reach an accuracy a is
-- min(seconds) where accuracy >= a.
CREATE VIEW time_to_accuracy AS
SELECT run_id, test_accuracy AS accuracy, seconds, updates, samples
FROM (
    SELECT *, max(test_accuracy) OVER (
        PARTITION BY run_id ORDER BY updates
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS best_before
    FROM evaluation
    WHERE test_accuracy IS NOT NULL)
WHERE best_before IS NULL OR test_accuracy > best_before;

-- Means per step of each worker, in microseconds. A worker's own time is pull + compute when
-- asynchronous (pull is all its waiting; queue and apply are the server's part of it), and
-- compute + exchange + apply when synchronous.
CREATE VIEW where_time_goes AS
SELECT run_id, worker, count(*) AS steps,
       avg(pull_us) AS pull_us, avg(compute_us) AS compute_us, NULL AS exchange_us,
       avg(queue_us) AS queue_us, avg(apply_us) AS apply_us,
       coalesce(avg(pull_us), 0) + coalesce(avg(compute_us), 0) AS step_us
FROM push
WHERE outcome_code <> 4
GROUP BY run_id, worker
UNION ALL
SELECT run_id, worker, count(*), NULL, avg(compute_us), avg(exchange_us), NULL, avg(apply_us),
       coalesce(avg(compute_us), 0) + coalesce(avg(exchange_us), 0) + coalesce(avg(apply_us), 0)
FROM step
GROUP BY run_id, worker;

PRAGMA application_id = 1196188007;
PRAGMA user_version = 1;

INSERT INTO run (id, uuid, mode, engine, workers, model, dataset, device, batch, optimizer, lr, momentum, consistency, damping, correction, compression, seed, status, started_at, finished_at, updates, samples_used, samples_computed, train_seconds, samples_per_second, final_accuracy, best_accuracy, final_loss, validation_accuracy, mean_staleness, max_staleness, parameters_sha256, config, config_hash, host)
VALUES (1, '17159b6b-1e0f-4660-bba5-822d539cac90', 'async', 'real', 1, 'softmax', 'gaussian', 'cpu', 10, 'momentum', 0.03, 0.9, 'asp', 'none', 'none', 'none', 1, 'finished', '2026-11-21T10:54:15.624Z', '2026-11-21T10:54:15.798Z', 60, 600, 600, 0.002740844, 218910.67131146463, 0.988, 0.988, 0.05942029094696045, 0.992, 0.0, 0, '39c9f57020a0ce52da4d3cb00f978fa9f728248709afbaf5c2e9c7b52468f910', '{"arm":"","batch":10,"bucket_kib":512,"checkpoint":"","checkpoint_every":0,"communicator":"auto","compression":"none","consistency":"asp","correction":"none","damping":"none","dataset":"gaussian","dataset.channels":1,"dataset.classes":10,"dataset.path":"","dataset.samples":1000,"dataset.seed":1,"dataset.separation":8,"dataset.size":8,"device":"cpu","endpoint":"","engine":"real","epochs":5,"evaluate_every":0,"experiment":"","lr":0.03,"lr_scaling":"none","mode":"async","model":"softmax","momentum":0.9,"on_lost":"stop","optimizer":"momentum","pace":"none","payload":"auto","precision":"fp32","record":"all","reduction":"fast","results":"results.db","sampler":"partition","samples":600,"schedule":"linear","seed":1,"tag":"","threads":1,"timeout_s":30,"transport":"auto","updates":0,"warmup_epochs":0,"weight_decay":0,"workers":1}', 'c4136c3883dbdcf2ab77a19cb004c09cc16c021f7d86f70f8dfa1de414e00044', '{}');

INSERT INTO run (id, uuid, mode, engine, workers, model, dataset, device, batch, optimizer, lr, momentum, consistency, damping, correction, compression, seed, status, started_at, finished_at, updates, samples_used, samples_computed, train_seconds, samples_per_second, final_accuracy, best_accuracy, final_loss, validation_accuracy, mean_staleness, max_staleness, parameters_sha256, config, config_hash, host)
VALUES (3, '05913d86-2aad-4276-ba4e-c8ea3834f0db', 'async', 'real', 1, 'softmax', 'gaussian', 'cpu', 10, 'momentum', 0.03, 0.9, 'asp', 'none', 'none', 'none', 2, 'finished', '2026-11-21T10:54:16.114Z', '2026-11-21T10:54:16.340Z', 60, 600, 600, 0.023952735000000003, 25049.33152727653, 0.996, 0.996, 0.05439089298248291, 0.992, 0.0, 0, '4db5683cec2c809148148116b93c4b105ceb5d9a9abe8d0e069093575eeac11b', '{"arm":"","batch":10,"bucket_kib":512,"checkpoint":"","checkpoint_every":0,"communicator":"auto","compression":"none","consistency":"asp","correction":"none","damping":"none","dataset":"gaussian","dataset.channels":1,"dataset.classes":10,"dataset.path":"","dataset.samples":1000,"dataset.seed":1,"dataset.separation":8,"dataset.size":8,"device":"cpu","endpoint":"","engine":"real","epochs":5,"evaluate_every":0,"experiment":"","lr":0.03,"lr_scaling":"none","mode":"async","model":"softmax","momentum":0.9,"on_lost":"stop","optimizer":"momentum","pace":"none","payload":"auto","precision":"fp32","record":"all","reduction":"fast","results":"results.db","sampler":"partition","samples":600,"schedule":"linear","seed":2,"tag":"","threads":1,"timeout_s":30,"transport":"auto","updates":0,"warmup_epochs":0,"weight_decay":0,"workers":1}', 'f5d7bbf600d2bf9a0a51c60851f2f0ec6ab4cc014f909ee7598dfcd7b33fa61a', '{}');
