-- The views of a results file; docs/results-file.md documents their columns. gradlag reads a file through these views,
-- even if the file has other views of the same names (results/store/reader_views.c).
--
-- The totals of an ended run come from the tables of run_summaries.sql, those of a running run from its rows. CROSS JOIN
-- makes SQLite begin with table run, so that it reads no gradients of ended runs.

-- Every run with the settings that it shares with runs of other seeds, and text for settings without a column.
-- differing: the settings that are not equal in all runs of the experiment, except those with a column in every table of runs. Runs without
-- an experiment are one group.
-- cluster: the settings of the machines, the network, the data and the length of training, as JSON; runs can be compared if
-- experiment, model, workers and cluster are equal. A setting of 0 or '' is left out, because files of older versions lack newer keys.
CREATE VIEW run_with_settings AS
WITH described AS (
    -- pace.run differs between seeds, like the seed, so it is not a setting. Keys that change speed and not what is computed
    -- are not in `settings`; those that are not the default are added here.
    SELECT *, json_remove(json_patch(coalesce(settings, config), json_object(
        'overlap', nullif(config ->> 'overlap', 'auto'),
        'bucket_kib', nullif(config ->> 'bucket_kib', 512),
        'payload', nullif(config ->> 'payload', 'auto'),
        'transport', nullif(config ->> 'transport', 'auto'),
        'evaluation_pause', nullif(config ->> 'evaluation_pause', 'auto'),
        'hosts', nullif(config ->> 'hosts', ''),
        'network.interface', nullif(config ->> '$."network.interface"', ''),
        'curve', iif(config ->> 'curve' <> '', 'yes', NULL), -- the folder may differ between hosts
        'trusted_network', nullif(config ->> 'trusted_network', 0))), '$.seed', '$."pace.run"') AS known FROM run),
configuration AS (SELECT DISTINCT coalesce(experiment, '') AS experiment, known FROM described WHERE known IS NOT NULL),
configurations AS (SELECT experiment, count(*) AS count FROM configuration GROUP BY experiment),
varied AS (
    SELECT configuration.experiment, key FROM configuration, json_each(known)
    JOIN configurations ON configurations.experiment = configuration.experiment
    WHERE key NOT IN ('mode', 'damping', 'workers', 'lr', 'batch')
    GROUP BY configuration.experiment, key
    HAVING count(DISTINCT value) > 1 OR count(*) < configurations.count),
worded AS (
    SELECT experiment, known,
        (SELECT group_concat(key || '=' || value, ' ') FROM json_each(known)
         WHERE key LIKE '%.%' AND key NOT LIKE 'dataset.%'
           -- pace.worker_cv has no effect if pace=none
           AND known ->> ('$.' || substr(key, 1, instr(key, '.') - 1)) IS NOT 'none') AS parameters,
        (SELECT group_concat(key || '=' || value, ' ') FROM json_each(known)
         WHERE (experiment, key) IN varied) AS differing,
        (SELECT group_concat(key || '=' || value, ' ') FROM json_each(known)
         WHERE (experiment, key) IN varied
           AND (key NOT LIKE '%.%' OR key LIKE 'dataset.%')
           AND key NOT IN ('engine', 'model', 'dataset', 'consistency', 'correction', 'momentum'))
            AS others,
        (SELECT json_group_object(key, value) FROM (
             SELECT key, value FROM json_each(known)
             WHERE value IS NOT 0 AND value IS NOT ''
               AND (key IN ('engine', 'pace', 'dataset', 'seconds', 'epochs', 'samples', 'updates')
                    OR substr(key, 1, instr(key, '.'))
                       IN ('pace.', 'network.', 'crash.', 'dataset.', 'model.'))
               AND key <> 'network.interface'
             ORDER BY key)) AS cluster
    FROM configuration)
SELECT id, described.experiment, arm, mode, engine, workers, model, dataset, batch, lr, momentum, consistency,
       damping, correction, seed, status, updates, train_seconds, samples_per_second,
       final_accuracy, collapsed, mean_staleness, described.known AS settings, parameters, others, differing, cluster
FROM described LEFT JOIN worded
     ON worded.experiment = coalesce(described.experiment, '') AND worded.known = described.known;

-- The 97.5 % point of Student's t by degrees of freedom: the mean of n runs
-- ± quantile(n - 1) sd / sqrt(n) is its 95 % interval. Above 20 degrees use 1.96 + 2.5 / freedom.
CREATE VIEW student_95 AS
WITH known (freedom, quantile) AS (
    VALUES (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (7, 2.365),
           (8, 2.306), (9, 2.262), (10, 2.228), (11, 2.201), (12, 2.179), (13, 2.160), (14, 2.145),
           (15, 2.131), (16, 2.120), (17, 2.110), (18, 2.101), (19, 2.093), (20, 2.086))
SELECT freedom, quantile FROM known;

-- One row per run with the common columns.
CREATE VIEW run_summary AS
SELECT id, experiment, arm, tag, mode, workers, model, damping, consistency, lr, momentum, batch,
       seed, status, updates, samples_used, train_seconds, samples_per_second,
       updates / train_seconds AS updates_per_second,
       final_accuracy, best_accuracy, validation_accuracy, final_loss, collapsed,
       mean_staleness, max_staleness, started_at, error
FROM run;

-- Number of used gradients by staleness.
CREATE VIEW staleness_histogram AS
WITH counted AS (
    SELECT run_id, staleness, pushes, mean_scale FROM run_staleness WHERE pushes > 0
    UNION ALL
    SELECT run.id, staleness, count(*), avg(scale)
    FROM run CROSS JOIN push ON push.run_id = run.id
    WHERE summarized IS NULL AND outcome IN ('applied', 'aggregated')
    GROUP BY run.id, staleness)
SELECT run_id, staleness, pushes,
       pushes * 1.0 / sum(pushes) OVER (PARTITION BY run_id) AS share, mean_scale
FROM counted;

-- Means over runs with equal settings, that is, over seeds; runs of one seed count as one, their mean. parameters: dotted keys, such as damping.power=0.5, except
-- those of the dataset; others: other settings without a column here that differ within the experiment. sd: sample standard
-- deviation (n - 1). interval_low, interval_high: ends of the 95 % interval of the mean, cut to 0 and 1; all three are
-- NULL for one seed. Unfinished runs are counted, not averaged. Collapsed runs are averaged, too. Many builds of SQLite
-- have no sqrt(), so roots are computed by Newton's method, which decreases to the root until rounding stops it.
CREATE VIEW accuracy_by_workers AS
WITH described AS (
    SELECT *,
        CASE status WHEN 'finished' THEN final_accuracy END AS accuracy,
        CASE status WHEN 'finished' THEN 1 END AS finished
    FROM run_with_settings
    WHERE status NOT IN ('queued', 'running')),
by_seed AS (
    SELECT experiment, arm, mode, engine, model, dataset, consistency, damping, correction, workers,
           lr, momentum, batch, parameters, others, differing, cluster, settings,
           avg(accuracy) AS accuracy,
           max(finished) AS finished,
           avg(samples_per_second * finished) AS samples_per_second,
           avg(updates / train_seconds * finished) AS updates_per_second,
           avg(mean_staleness * finished) AS mean_staleness,
           count(*) FILTER (WHERE status = 'diverged') AS diverged,
           count(*) FILTER (WHERE status IN ('failed', 'stopped')) AS failed,
           count(*) FILTER (WHERE status = 'finished' AND collapsed = 1) AS collapsed
    FROM described
    GROUP BY experiment, arm, mode, engine, model, dataset, consistency, damping, correction,
             workers, lr, momentum, batch, settings, seed),
averaged AS (
    SELECT experiment, arm, mode, engine, model, dataset, consistency, damping, correction, workers,
           lr, momentum, batch, parameters, others, differing, cluster,
           count(finished) AS seeds,
           avg(accuracy) AS mean_accuracy,
           CASE WHEN count(accuracy) > 1 THEN
               max(0.0, sum(accuracy * accuracy) - sum(accuracy) * avg(accuracy))
                   / (count(accuracy) - 1)
           END AS variance,
           min(accuracy) AS least_accuracy,
           max(accuracy) AS greatest_accuracy,
           avg(samples_per_second) AS mean_samples_per_second,
           avg(updates_per_second) AS mean_updates_per_second,
           avg(mean_staleness) AS mean_staleness,
           sum(diverged) AS diverged,
           sum(failed) AS failed,
           sum(collapsed) AS collapsed,
           settings, count(accuracy) AS n
    FROM by_seed
    GROUP BY experiment, arm, mode, engine, model, dataset, consistency, damping, correction,
             workers, lr, momentum, batch, settings),
spread AS (
    SELECT *,
           CASE WHEN variance > 0 THEN
               (WITH RECURSIVE newton (x) AS (
                    SELECT (1 + variance) / 2
                    UNION ALL
                    SELECT (x + variance / x) / 2 FROM newton WHERE (x + variance / x) / 2 < x)
                SELECT min(x) FROM newton)
               ELSE variance END AS sd_accuracy,
           coalesce((SELECT quantile FROM student_95 WHERE freedom = n - 1), 1.96 + 2.5 / (n - 1))
               * CASE WHEN variance > 0 THEN
                     (WITH RECURSIVE newton (x) AS (
                          SELECT (1 + variance / n) / 2
                          UNION ALL
                          SELECT (x + variance / n / x) / 2 FROM newton
                          WHERE (x + variance / n / x) / 2 < x)
                      SELECT min(x) FROM newton)
                     ELSE variance END AS half
    FROM averaged)
SELECT experiment, arm, mode, engine, model, dataset, consistency, damping, correction, workers, lr,
       momentum, batch, parameters, others, differing, cluster, seeds, mean_accuracy, sd_accuracy,
       least_accuracy, greatest_accuracy, mean_samples_per_second, mean_updates_per_second, mean_staleness,
       diverged, failed, collapsed, settings,
       max(0.0, mean_accuracy - half) AS interval_low,
       min(1.0, mean_accuracy + half) AS interval_high
FROM spread;

-- Whether the seconds of a run are wall-clock or simulated (virtual) time. A replay has those of the run that it repeats.
CREATE VIEW run_clock AS
SELECT id AS run_id,
       CASE WHEN engine = 'virtual' OR EXISTS (
               SELECT 1 FROM event CROSS JOIN run AS recorded
               WHERE event.run_id = run.id AND code = 'replay_of'
                 AND recorded.uuid = substr(detail, instr(detail, '(') + 1, 36) AND recorded.engine = 'virtual')
           THEN 'virtual' ELSE 'wall' END AS clock
FROM run;

-- The last evaluation of every run. Table run has its test results and its validation accuracy, but not its validation
-- loss, which is the result of a run without test split.
CREATE VIEW last_evaluation AS
SELECT e.run_id, e.updates, samples, seconds, train_loss, validation_loss,
       e.validation_accuracy, test_loss, test_accuracy
FROM run CROSS JOIN evaluation AS e
WHERE e.run_id = run.id
  AND e.updates = (SELECT max(updates) FROM evaluation WHERE run_id = run.id);

-- The parts of the training of every run: the run itself, and the runs that it resumed from, as far as the file has them. The
-- evaluations of a part count up to last_update; later ones were rolled back. The recursion is a correlated subquery, so that
-- the parts of one run need no scan of table run. UNION ends a circle of runs, which a file from elsewhere may have.
CREATE VIEW run_part AS
SELECT run.id AS run_id, part.value ->> '$[0]' AS part_id, part.value ->> '$[1]' AS last_update
FROM run CROSS JOIN json_each((
    WITH RECURSIVE chain (id, last) AS (
        SELECT run.id, 9223372036854775807
        UNION
        SELECT earlier.id, min(chain.last, later.host ->> '$.resumed.version')
        FROM chain JOIN run AS later ON later.id = chain.id
        JOIN run AS earlier ON earlier.uuid = later.host ->> '$.resumed.run')
    SELECT json_group_array(json_array(id, last)) FROM chain)) AS part;

-- Evaluations that are better than all earlier ones of the run. The time to reach accuracy a is min(seconds) over the
-- rows with accuracy >= a. A resumed run has those before its checkpoint, too.
CREATE VIEW time_to_accuracy AS
SELECT run_id, test_accuracy AS accuracy, seconds, updates, samples
FROM (
    SELECT part.run_id, test_accuracy, seconds, updates, samples, max(test_accuracy) OVER (
        PARTITION BY part.run_id ORDER BY updates
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS best_before
    FROM run_part AS part CROSS JOIN evaluation AS e
    WHERE e.run_id = part.part_id AND updates <= part.last_update
      AND test_accuracy IS NOT NULL)
WHERE best_before IS NULL OR test_accuracy > best_before;

-- Means per step of each worker, in microseconds. Asynchronous: step = pull + compute; pull includes all waiting, and
-- queue and apply are the server's part of it. Synchronous: step = compute + exchange + apply. pipeline=pipedream, whose
-- gradients are rows of push: step = pull + compute + exchange + apply; pull is waiting for other stages. data, forward
-- and backward are parts of compute; hidden is exchange during compute.
CREATE VIEW where_time_goes AS
SELECT run_id, worker, steps, pull_us, compute_us, exchange_us, queue_us, apply_us, step_us,
       data_us, forward_us, backward_us, hidden_us
FROM run_worker_time
UNION ALL
SELECT run.id, worker, count(*) FILTER (WHERE server = 0), avg(pull_us), avg(compute_us),
       CASE mode WHEN 'pipeline' THEN avg(queue_us) END,
       CASE mode WHEN 'pipeline' THEN NULL ELSE avg(queue_us) END, avg(apply_us),
       coalesce(avg(pull_us), 0) + coalesce(avg(compute_us), 0)
           + CASE mode WHEN 'pipeline' THEN coalesce(avg(queue_us), 0) + coalesce(avg(apply_us), 0) ELSE 0 END,
       avg(data_us), avg(forward_us), avg(backward_us), NULL
FROM run CROSS JOIN push ON push.run_id = run.id
WHERE summarized IS NULL
GROUP BY run.id, worker
UNION ALL
SELECT run.id, worker, count(*), NULL, avg(compute_us), avg(exchange_us), NULL, avg(apply_us),
       coalesce(avg(compute_us), 0) + coalesce(avg(exchange_us), 0) + coalesce(avg(apply_us), 0),
       avg(data_us), avg(forward_us), avg(backward_us), avg(hidden_us)
FROM run CROSS JOIN step ON step.run_id = run.id
WHERE summarized IS NULL
GROUP BY run.id, worker;
