-- The better of synchronous and asynchronous training on each cluster: margin of accuracy or loss and its 95 % interval
-- :experiment = all  only the runs of one experiment
-- :workers = all  only runs with this many workers
-- A cluster is all runs of one experiment with equal workers, pace, network, model, data and length of training (column cluster of
-- run_with_settings). Synchronous: mode=sync, and consistency bsp and backup. metric is accuracy, on the test split; for text, and on a
-- cluster without accuracy, it is loss, on the test split or else on the validation split. Each side is represented by the
-- configuration with the best validation accuracy or loss (if a run has none: its test result; score and margin are then
-- optimistic), over the seeds up to the last one that all configurations have. Configurations with a diverged run rank last. All
-- configurations in the file count, also those that a tuned arm no longer has since its trials changed: the tables of `reproduce` leave
-- them out. Runs of one seed count as one, their mean. margin: mean difference on the same seeds (n), interval: half its width; ahead:
-- undecided if 0 is in the interval or the side ahead has a diverged run; slow_workers are slow_factor times slower. Square roots are computed by Newton's method, as in the
-- view accuracy_by_workers.
-- No rows: no cluster has finished runs of both sides with the same seeds
WITH measured_run AS (
    SELECT run.id, coalesce(run.experiment, '') AS experiment, run.model, run.dataset, run.workers, run.seed, run.arm, run.status,
           run.final_accuracy AS accuracy, validation_accuracy,
           final_loss AS loss, (SELECT validation_loss FROM last_evaluation WHERE run_id = run.id) AS validation_loss,
           CASE WHEN run.mode = 'sync' OR run.consistency IN ('bsp', 'backup') THEN 'synchronous' ELSE 'asynchronous' END AS side,
           described.settings, config, host, cluster
    FROM run_with_settings AS described JOIN run ON run.id = described.id
    WHERE run.mode IN ('sync', 'async') AND run.status IN ('finished', 'diverged') AND coalesce(run.experiment, '') NOT LIKE '%/tuning'
      AND (:experiment = 'all' OR run.experiment = :experiment) AND (:workers = 'all' OR run.workers = :workers)),
compared_run AS (
    SELECT *, iif(dataset IN ('text', 'grammar') OR max(accuracy) OVER (PARTITION BY experiment, model, workers, cluster) IS NULL,
                  'loss', 'accuracy') AS metric
    FROM measured_run),
cluster AS ( -- choice and score: more is better
    SELECT *, iif(metric = 'loss', -coalesce(validation_loss, loss), coalesce(validation_accuracy, accuracy)) AS choice,
           iif(metric = 'loss', -coalesce(loss, validation_loss), accuracy) AS score
    FROM compared_run),
configuration AS (
    SELECT experiment, model, workers, cluster, arm, settings, max(seed) AS last_seed FROM cluster
    GROUP BY experiment, model, workers, cluster, arm, settings),
common AS (
    SELECT experiment, model, workers, cluster, min(last_seed) AS last_seed FROM configuration
    GROUP BY experiment, model, workers, cluster),
of_seed AS ( -- runs of one seed count as one, their mean
    SELECT experiment, model, dataset, workers, cluster, side, arm, settings, seed, min(config) AS config,
           max(host ->> '$.commit') AS "commit", max(metric) AS metric,
           max(status = 'diverged') AS diverged, max(status = 'finished') AS finished,
           avg(choice) FILTER (WHERE status = 'finished') AS choice, avg(score) FILTER (WHERE status = 'finished') AS score
    FROM cluster
    GROUP BY experiment, model, dataset, workers, cluster, side, arm, settings, seed),
ranked AS (
    SELECT c.experiment, c.model, c.dataset, c.workers, c.cluster, c.side, c.arm, c.settings, min(c.config) AS config,
           max(c."commit") AS "commit", max(c.metric) AS metric, max(c.diverged) AS diverged,
           row_number() OVER (PARTITION BY c.experiment, c.model, c.workers, c.cluster, c.side
                              ORDER BY max(c.diverged), avg(c.choice) DESC, c.arm) AS place
    FROM of_seed AS c JOIN common USING (experiment, model, workers, cluster)
    WHERE c.seed <= common.last_seed
    GROUP BY c.experiment, c.model, c.workers, c.cluster, c.side, c.arm, c.settings
    HAVING max(c.finished)),
pair AS (
    SELECT s.*, s.arm AS sync_arm, a.arm AS async_arm, s.diverged AS sync_diverged, a.diverged AS async_diverged,
           x.score AS x, y.score AS y, y.score - x.score AS d
    FROM ranked AS s
    JOIN ranked AS a USING (experiment, model, workers, cluster)
    JOIN of_seed AS x ON x.cluster = s.cluster AND x.experiment IS s.experiment AND x.workers = s.workers AND x.model = s.model
                     AND x.arm IS s.arm AND x.settings = s.settings
    JOIN of_seed AS y ON y.cluster = a.cluster AND y.experiment IS a.experiment AND y.workers = a.workers AND y.model = a.model
                     AND y.arm IS a.arm AND y.settings = a.settings AND y.seed = x.seed
    WHERE s.place = 1 AND a.place = 1 AND s.side = 'synchronous' AND a.side = 'asynchronous'
      AND x.score IS NOT NULL AND y.score IS NOT NULL),
compared AS (
    SELECT experiment, model, dataset, workers, config, "commit", metric, sync_arm, async_arm, sync_diverged, async_diverged, count(*) AS n,
           iif(metric = 'loss', -1, 1) * avg(x) AS sync_score, iif(metric = 'loss', -1, 1) * avg(y) AS async_score,
           avg(d) AS difference,
           CASE WHEN count(*) > 1 THEN
               max(0.0, sum(d * d) - sum(d) * avg(d)) / (count(*) - 1) END AS variance
    FROM pair
    GROUP BY experiment, model, workers, cluster),
measured AS (
    SELECT *,
           coalesce((SELECT quantile FROM student_95 WHERE freedom = n - 1), 1.96 + 2.5 / (n - 1))
               * CASE WHEN variance > 0 THEN
                     (WITH RECURSIVE newton (x) AS (
                          SELECT (1 + variance / n) / 2
                          UNION ALL
                          SELECT (x + variance / n / x) / 2 FROM newton
                          WHERE (x + variance / n / x) / 2 < x)
                      SELECT min(x) FROM newton)
                     ELSE variance END AS interval
    FROM compared)
SELECT experiment, model, dataset, workers, config ->> '$."pace.worker_cv"' AS worker_cv,
       CASE WHEN config ->> '$."pace.worker"' >= 0 THEN config ->> '$."pace.slow_workers"' ELSE 0 END AS slow_workers,
       CASE WHEN config ->> '$."pace.worker"' >= 0 THEN config ->> '$."pace.factor"' ELSE 1 END AS slow_factor,
       config ->> '$."pace.mean_ms"' AS mean_ms, config ->> '$."network.gbps"' AS gbps, config ->> '$."network.latency_ms"' AS latency_ms,
       CASE WHEN abs(difference) > interval AND NOT iif(difference > 0, async_diverged, sync_diverged) THEN iif(difference > 0, 'asynchronous', 'synchronous')
            ELSE 'undecided' END AS ahead,
       abs(difference) AS margin, interval, n, metric,
       sync_arm, sync_score, async_arm, async_score, "commit"
FROM measured
ORDER BY experiment, model, worker_cv, slow_factor, gbps = 0 DESC, gbps DESC, workers;
