-- A results file of version 4: the schema as it was, one asynchronous run and one that was going on.

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
    runner              TEXT CHECK (runner IS NULL OR json_valid(runner)),
    -- Of gradients (with loss and flags), in messages of all ranks together, by the communicator's
    -- cost model; 0 where ranks share memory, NULL where there are none.
    sent_bytes          INTEGER
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
    cosine         REAL,
    momentum       REAL,
    total_momentum REAL,
    -- Whose slice of the parameters the row is about: with several servers a gradient has a row for
    -- each, and versions, arrivals, norms and gaps are that server's own.
    server         INTEGER NOT NULL DEFAULT 0,
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
    -- Of compute_us; what they leave is the pace's delay.
    data_us        REAL,
    forward_us     REAL,
    backward_us    REAL,
    -- While the rank computed, buckets that had come back by the end of that were under way for so
    -- long: not part of exchange_us.
    hidden_us      REAL,
    -- Versions between the one the gradient was computed at and the one it was applied to: 1 with
    -- double buffering.
    staleness      INTEGER,
    -- When it ended.
    at_seconds     REAL,
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
) STRICT, WITHOUT ROWID;

-- The views of a results file of version 4; docs/results-file.md says what every column means.
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
-- compute + exchange + apply when synchronous. data, forward and backward are parts of compute;
-- hidden is exchange that went on meanwhile.
CREATE VIEW where_time_goes AS
SELECT run_id, worker, count(*) FILTER (WHERE server = 0) AS steps,
       avg(pull_us) AS pull_us, avg(compute_us) AS compute_us, NULL AS exchange_us,
       avg(queue_us) AS queue_us, avg(apply_us) AS apply_us,
       coalesce(avg(pull_us), 0) + coalesce(avg(compute_us), 0) AS step_us,
       NULL AS data_us, NULL AS forward_us, NULL AS backward_us, NULL AS hidden_us
FROM push
GROUP BY run_id, worker
UNION ALL
SELECT run_id, worker, count(*), NULL, avg(compute_us), avg(exchange_us), NULL, avg(apply_us),
       coalesce(avg(compute_us), 0) + coalesce(avg(exchange_us), 0) + coalesce(avg(apply_us), 0),
       avg(data_us), avg(forward_us), avg(backward_us), avg(hidden_us)
FROM step
GROUP BY run_id, worker;

PRAGMA application_id = 1196188007;
PRAGMA user_version = 4;

INSERT INTO run (id, uuid, mode, engine, workers, model, dataset, device, batch, optimizer, lr, momentum, consistency, damping, correction, seed, status, updates, samples_used, samples_computed, train_seconds, mean_staleness, max_staleness, config, settings, config_hash, host)
VALUES (1, '4cf623af-10e8-4eb6-973c-273386fe5468', 'async', 'real', 2, 'softmax', 'gaussian', 'cpu', 10, 'momentum', 0.03, 0.9, 'asp', 'inverse', 'none', 1, 'finished', 4, 40, 80, 0.5, 0.75, 2, '{"lr":0.03,"seed":1}', '{"lr":0.03}', 'cafe', '{"cpu":"some"}'),
       (2, '5df623af-10e8-4eb6-973c-273386fe5468', 'async', 'real', 2, 'softmax', 'gaussian', 'cpu', 10, 'momentum', 0.03, 0.9, 'asp', 'none', 'none', 2, 'running', NULL, NULL, NULL, NULL, NULL, NULL, '{"lr":0.03,"seed":2}', '{"lr":0.03}', 'beef', '{"cpu":"some"}');
INSERT INTO push (run_id, number, update_version, worker, sequence, read_version, staleness, scale, gap, gradient_norm, loss, outcome_code, pull_us, compute_us, queue_us, apply_us, at_seconds, not_a_number, arrival, batch, waited_for, rate, reason_code, cosine, momentum, total_momentum, server)
VALUES (1, 0, 1, 0, 0, 0, 0, 1.0, 0.0, 1.8371173070873836, 3.382469415664673, 0, 12.0, 56.0, 3.0, 7.0, 0.000123457, NULL, 0, 0, NULL, 0.03, NULL, NULL, NULL, NULL, 0),
       (1, 1, 2, 1, 0, 0, 1, 1.0, 0.0012003, 1.7, 3.0486884117126465, 0, 14.0, 52.0, 4.0, 6.0, 0.000223457, NULL, 1, 0, 0, 0.02999, NULL, 0.75, NULL, NULL, 0),
       (1, 2, 3, 0, 1, 1, 1, 0.5, 0.25, 9e999, 2.785759687423706, 1, 9.0, 17.0, 3.0, 2.0, 3000000000.5, NULL, 2, 1, 1, 0.015, NULL, NULL, 0.9, 0.95, 0),
       (1, 3, 3, 0, 7, 1, 2, 0.0, NULL, 1.5, NULL, 2, NULL, 17.0, 3.0, 2.0, 0.1, 'gap,loss', 5, 8, NULL, NULL, 1, NULL, NULL, NULL, 0),
       (1, 4, 3, 1, 1, 0, 0, 0.333333333333333315, NULL, -0.0, 1e-300, 3, 1.0, 9e999, 3.0, 2.0, NULL, NULL, 4, 3, NULL, NULL, 5, NULL, NULL, NULL, 0),
       (1, 5, 9, 1, 2, 6, 2, 0.333333333333333315, 3.0, 16777217.0, 33554432.0, 0, 1.0, 1.0, 3.0, 2.0, 0.3, NULL, NULL, NULL, NULL, 0.01, NULL, NULL, NULL, NULL, 1),
       (2, 0, 1, 0, 0, 0, 0, 1.0, 0.0, 1.5, 2.5, 0, 12.0, 56.0, 3.0, 7.0, 0.001, NULL, 0, 0, NULL, 0.03, NULL, NULL, NULL, NULL, 0);
INSERT INTO step (run_id, update_version, worker, loss, compute_us, exchange_us, apply_us, data_us, forward_us, backward_us, hidden_us, staleness, at_seconds)
VALUES (2, 1, 1, 2.5, 30.0, 20.0, 10.0, 1.0, 2.0, 3.0, 4.0, 1, 0.5);
INSERT INTO event (run_id, at_seconds, severity, code, worker, push_number, server) VALUES (1, 0.0, 'info', 'worker_joined', 1, 0, 0);
