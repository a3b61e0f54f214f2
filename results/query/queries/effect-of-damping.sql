-- Effect of damping: accuracy or loss of damped runs and of undamped runs with otherwise equal settings
-- :experiment = all  only the runs of one experiment
-- gained: difference of the means, above 0 if damping is better; se: its standard error, for two or more seeds on each side.
-- metric is accuracy, on the test split; if no asynchronous run of the experiment with this model, dataset and number of workers
-- has one, loss, on the test split or else on the validation split (mean_loss, undamped_loss). Runs of one seed count as one, their
-- mean; undamped arms with equal settings are one configuration. Square roots are computed by Newton's method, as in the view
-- accuracy_by_workers.
-- collapsed, undamped_collapsed: number of runs that predict one class for at least 99 % of the test samples. diverged,
-- undamped_diverged: number of runs that diverged; the means leave them out.
-- No rows: there are no finished damped and undamped runs with otherwise equal settings
WITH finished AS (
    SELECT experiment, iif(damping = 'none', NULL, arm) AS arm, workers, model, dataset, lr, momentum, batch, damping,
           differing, settings, seed, collapsed, status = 'diverged' AS diverged,
           iif(status = 'finished', mean_staleness, NULL) AS mean_staleness,
           iif(status = 'finished', final_accuracy, NULL) AS accuracy,
           CASE WHEN status = 'finished' AND final_accuracy IS NULL THEN
               (SELECT coalesce(final_loss, (SELECT validation_loss FROM last_evaluation WHERE run_id = run.id))
                FROM run WHERE run.id = described.id) END AS loss
    FROM run_with_settings AS described
    WHERE mode = 'async' AND status IN ('finished', 'diverged') AND damping IS NOT NULL
      AND (:experiment = 'all' OR experiment = :experiment)),
measured AS (
    SELECT *, iif(max(accuracy) OVER (PARTITION BY experiment, workers, model, dataset) IS NULL, 'loss', 'accuracy')
                  AS metric
    FROM finished),
by_seed AS (
    SELECT *, avg(iif(metric = 'loss', loss, accuracy)) AS score, avg(mean_staleness) AS staleness,
           count(*) FILTER (WHERE collapsed = 1) AS collapses, sum(diverged) AS divergences
    FROM measured
    GROUP BY experiment, arm, workers, model, dataset, lr, momentum, batch, damping, settings, seed),
averaged AS (
    SELECT experiment, arm, workers, model, dataset, lr, momentum, batch, damping, differing, metric, count(score) AS seeds,
           avg(score) AS mean, avg(staleness) AS staleness, sum(collapses) AS collapsed, sum(divergences) AS diverged,
           CASE WHEN count(score) > 1 THEN
               max(0.0, sum(score * score) - sum(score) * avg(score)) / (count(score) - 1) END AS variance,
           (SELECT json_group_object(key, value) FROM json_each(settings)
            WHERE key NOT LIKE 'damping%') AS rest
    FROM by_seed
    GROUP BY experiment, arm, workers, model, dataset, lr, momentum, batch, damping, settings),
pair AS (
    SELECT damped.*, undamped.seeds AS undamped_seeds, undamped.mean AS undamped_mean,
           undamped.collapsed AS undamped_collapsed, undamped.diverged AS undamped_diverged,
           iif(damped.metric = 'loss', -1, 1) * (damped.mean - undamped.mean) AS gained,
           damped.variance / damped.seeds + undamped.variance / undamped.seeds AS squared
    FROM averaged AS damped LEFT JOIN averaged AS undamped
      ON undamped.damping = 'none'
     AND damped.experiment IS undamped.experiment AND damped.workers = undamped.workers
     AND damped.model IS undamped.model AND damped.dataset IS undamped.dataset
     AND damped.lr IS undamped.lr AND damped.momentum IS undamped.momentum
     AND damped.batch IS undamped.batch AND damped.rest = undamped.rest
    WHERE damped.damping <> 'none' AND damped.seeds > 0)
SELECT experiment, workers, damping, lr, differing, seeds, iif(metric = 'accuracy', mean, NULL) AS mean_accuracy,
       CASE WHEN metric = 'loss' THEN NULL WHEN variance > 0 THEN
           (WITH RECURSIVE newton (x) AS (
                SELECT (1 + variance) / 2
                UNION ALL
                SELECT (x + variance / x) / 2 FROM newton WHERE (x + variance / x) / 2 < x)
            SELECT min(x) FROM newton)
           ELSE variance END AS sd_accuracy,
       undamped_seeds, iif(metric = 'accuracy', undamped_mean, NULL) AS undamped_accuracy, gained,
       CASE WHEN squared > 0 THEN
           (WITH RECURSIVE newton (x) AS (
                SELECT (1 + squared) / 2
                UNION ALL
                SELECT (x + squared / x) / 2 FROM newton WHERE (x + squared / x) / 2 < x)
            SELECT min(x) FROM newton)
           ELSE squared END AS se,
       staleness, collapsed, undamped_collapsed, diverged, undamped_diverged, metric,
       iif(metric = 'loss', mean, NULL) AS mean_loss, iif(metric = 'loss', undamped_mean, NULL) AS undamped_loss
FROM pair
ORDER BY experiment, workers, lr, gained DESC;
