-- A results file as version 3 of the format wrote it: its schema, and one synchronous run.

-- The results file, version 3: its tables; views.sql holds the views. docs/results-file.md says what every column means, with its unit.
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
    not_a_number        TEXT,
    settings            TEXT CHECK (settings IS NULL OR json_valid(settings)),
    runner              TEXT CHECK (runner IS NULL OR json_valid(runner))
) STRICT;
CREATE INDEX run_by_config_hash ON run (config_hash);
CREATE INDEX run_by_experiment ON run (experiment, arm);
CREATE INDEX run_going_on ON run (status) WHERE status IN ('queued', 'running');

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
            WHEN 5 THEN 'not_finite'
        END) VIRTUAL NOT NULL,
    -- Pushes that the server was given before this one: events in this order replay the run.
    arrival        INTEGER,
    batch          INTEGER,
    waited_for     INTEGER,
    rate           REAL,
    reason_code    INTEGER,
    reason         TEXT GENERATED ALWAYS AS (
        CASE reason_code
            WHEN 1 THEN 'damping'
            WHEN 2 THEN 'consistency'
            WHEN 3 THEN 'after_end'
            WHEN 4 THEN 'worker_lost'
            WHEN 5 THEN 'run_ended'
            WHEN 6 THEN 'run_diverged'
            WHEN 7 THEN 'gradient'
            WHEN 8 THEN 'loss'
            WHEN 9 THEN 'update'
        END) VIRTUAL,
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
    not_a_number TEXT,
    -- Pushes that the server was given before; NULL where it was not told.
    push_number  INTEGER
) STRICT;
CREATE INDEX event_by_run ON event (run_id);

CREATE TABLE checkpoint (
    run_id  INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    path    TEXT NOT NULL,
    sha256  TEXT,
    PRIMARY KEY (run_id, version)
) STRICT, WITHOUT ROWID;

-- The views of a results file of version 3; docs/results-file.md says what every column means.
-- Files of an older version show the same views when they are read (results/present.c).

-- Every run with what it shares with those that differ in the seed alone, and in words what no
-- column of its own says. In a file of many runs the settings that all of them share say nothing.
CREATE VIEW run_with_settings AS
WITH described AS (
    SELECT *, coalesce(settings, json_remove(config, '$.seed')) AS known FROM run),
configuration AS (SELECT DISTINCT known FROM described WHERE known IS NOT NULL),
varied AS (
    SELECT key FROM configuration, json_each(known)
    WHERE (key NOT LIKE '%.%' OR key LIKE 'dataset.%')
      AND key NOT IN ('mode', 'engine', 'model', 'dataset', 'consistency', 'damping', 'correction',
                      'workers', 'lr', 'momentum', 'batch')
    GROUP BY key
    HAVING count(DISTINCT value) > 1 OR count(*) < (SELECT count(*) FROM configuration)),
worded AS (
    SELECT known,
        (SELECT group_concat(key || '=' || value, ' ') FROM json_each(known)
         WHERE key LIKE '%.%' AND key NOT LIKE 'dataset.%') AS parameters,
        (SELECT group_concat(key || '=' || value, ' ') FROM json_each(known)
         WHERE key IN (SELECT key FROM varied)) AS others
    FROM configuration)
SELECT id, experiment, arm, mode, engine, workers, model, dataset, batch, lr, momentum, consistency,
       damping, correction, seed, status, updates, train_seconds, samples_per_second,
       final_accuracy, mean_staleness, described.known AS settings, parameters, others
FROM described LEFT JOIN worded ON worded.known = described.known;

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

-- Seeds taken together: runs of the same settings, which is all of the configuration that decides
-- the outcome, but the seed. parameters holds the dotted keys, such as damping.power=0.5, but for
-- the dataset's; others the rest of the settings that have no column here, as far as they are not
-- the same in the whole file. sd is the sample standard deviation (n - 1), NULL for one seed. Runs
-- that did not finish are counted, not averaged.
CREATE VIEW accuracy_by_workers AS
WITH described AS (
    SELECT *,
        CASE status WHEN 'finished' THEN final_accuracy END AS accuracy,
        CASE status WHEN 'finished' THEN 1 END AS finished
    FROM run_with_settings
    WHERE status NOT IN ('queued', 'running'))
SELECT experiment, arm, mode, engine, model, dataset, consistency, damping, correction, workers, lr,
       momentum, batch, parameters, others,
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
         lr, momentum, batch, settings;

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
GROUP BY run_id, worker
UNION ALL
SELECT run_id, worker, count(*), NULL, avg(compute_us), avg(exchange_us), NULL, avg(apply_us),
       coalesce(avg(compute_us), 0) + coalesce(avg(exchange_us), 0) + coalesce(avg(apply_us), 0)
FROM step
GROUP BY run_id, worker;

PRAGMA application_id = 1196188007;
PRAGMA user_version = 3;

INSERT INTO run (id, uuid, mode, engine, workers, model, dataset, device, batch, optimizer, lr, momentum, communicator, compression, seed, status, updates, samples_used, samples_computed, config, settings, config_hash, host, mean_staleness, max_staleness)
VALUES (1, '4cf623af-10e8-4eb6-973c-273386fe5468', 'sync', 'real', 2, 'softmax', 'gaussian', 'cpu', 10, 'momentum', 0.03, 0.9, 'auto', 'none', 1, 'finished', 3, 60, 60, '{"arm":"","augment":"none","batch":10,"bucket_kib":512,"checkpoint":"","checkpoint_every":0,"communicator":"auto","compression":"none","consistency":"asp","correction":"none","crash.down_s":1,"crash.mtbf_s":0,"damping":"none","dataset":"gaussian","dataset.channels":1,"dataset.classes":10,"dataset.path":"","dataset.samples":2000,"dataset.seed":1,"dataset.separation":8,"dataset.size":28,"deterministic":true,"device":"cpu","endpoint":"","engine":"real","epochs":5,"evaluate_every":0,"experiment":"","lr":0.03,"lr_scaling":"none","mode":"sync","model":"softmax","momentum":0.9,"network.gbps":0,"network.latency_ms":0,"on_lost":"stop","optimizer":"momentum","pace":"none","payload":"auto","precision":"fp32","record":"all","reduction":"fast","results":"/tmp/overlap/v3.db","sampler":"partition","samples":60,"schedule":"linear","seed":1,"server.apply_ms":0,"tag":"","threads":1,"timeout_s":30,"transport":"auto","updates":0,"virtual.threads":0,"warmup_epochs":0,"weight_decay":0,"workers":2}', '{"augment":"none","batch":10,"communicator":"auto","compression":"none","consistency":"asp","correction":"none","damping":"none","dataset":"gaussian","dataset.channels":1,"dataset.classes":10,"dataset.samples":2000,"dataset.seed":1,"dataset.separation":8,"dataset.size":28,"deterministic":true,"device":"cpu","engine":"real","epochs":5,"evaluate_every":0,"lr":0.03,"lr_scaling":"none","mode":"sync","model":"softmax","momentum":0.9,"optimizer":"momentum","pace":"none","precision":"fp32","reduction":"fast","sampler":"partition","samples":60,"schedule":"linear","threads":1,"updates":0,"warmup_epochs":0,"weight_decay":0,"workers":2}', '1df9009db4167dc457eda9eacc82940c4ca8ad8381c406b27d7a58139a5d7996', '{}', 0.0, 0);
INSERT INTO step (run_id, update_version, worker, loss, compute_us, exchange_us, apply_us, not_a_number)
VALUES (1, 1, 0, 3.382469415664673, 56.0, 10.0, 7.0, NULL),
       (1, 1, 1, 3.0486884117126465, 52.0, 14.0, 6.0, NULL),
       (1, 2, 0, 2.785759687423706, 17.0, 3.0, 2.0, NULL),
       (1, 2, 1, 2.9102799892425537, 18.0, 3.0, 3.0, NULL),
       (1, 3, 0, 2.7668020725250244, 16.0, 3.0, 3.0, NULL),
       (1, 3, 1, 2.5330471992492676, 13.0, 5.0, 3.0, NULL);
