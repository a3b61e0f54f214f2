-- Accuracy or loss of two configurations on the same seeds: mean difference, its sd and 95 % interval
-- :experiment = all  only the runs of one experiment; all: without the trials of tuning (experiments NAME/tuning)
-- :workers = all  only runs with this many workers
-- :arm = all  only pairs that contain this arm
-- Runs of one seed share initial weights and data order. Their difference varies less than the difference of two
-- means, so fewer runs show an effect. n: seeds that finished in both configurations; interval: half its width;
-- collapsed: pairs with a run that predicts one class for at least 99 % of the test samples. metric is accuracy, on the
-- test split; if no run of the experiment with this model, dataset and number of workers has one, loss, on the test split
-- or else on the validation split (first_loss, second_loss). Square roots are computed by Newton's method, as in the view
-- accuracy_by_workers.
-- No rows: no two configurations of one experiment have finished runs with a result and the same seeds
WITH finished AS (
    SELECT experiment, workers, model, dataset, arm, seed, settings, final_accuracy AS accuracy, collapsed,
           CASE WHEN final_accuracy IS NULL THEN
               (SELECT coalesce(final_loss, (SELECT validation_loss FROM last_evaluation WHERE run_id = run.id))
                FROM run WHERE run.id = described.id) END AS loss,
           coalesce(arm, mode) || coalesce(' ' || damping, '') || coalesce(' lr=' || lr, '')
               || coalesce(' batch=' || batch, '') || coalesce(' ' || differing, '') AS name
    FROM run_with_settings AS described
    WHERE status = 'finished'
      AND (experiment = :experiment OR (:experiment = 'all' AND coalesce(experiment, '') NOT LIKE '%/tuning'))
      AND (:workers = 'all' OR workers = :workers)),
measured AS (
    SELECT *, iif(max(accuracy) OVER (PARTITION BY experiment, workers, model, dataset) IS NULL, 'loss', 'accuracy')
                  AS metric
    FROM finished),
averaged AS (
    SELECT experiment, workers, model, dataset, arm, seed, settings, name, metric,
           avg(iif(metric = 'loss', loss, accuracy)) AS score, max(collapsed) AS collapsed
    FROM measured
    WHERE iif(metric = 'loss', loss, accuracy) IS NOT NULL
    GROUP BY experiment, workers, arm, settings, seed),
pair AS (
    SELECT a.experiment, a.workers, a.name AS first, b.name AS second, a.settings AS one,
           b.settings AS other, a.arm AS first_arm, b.arm AS second_arm, a.metric, a.score AS x, b.score AS y, a.score - b.score AS d,
           a.collapsed = 1 OR b.collapsed = 1 AS collapsed
    FROM averaged AS a JOIN averaged AS b
      ON a.workers = b.workers AND a.seed = b.seed AND a.experiment IS b.experiment
     AND a.model IS b.model AND a.dataset IS b.dataset
     AND (a.name, a.settings) < (b.name, b.settings)
    WHERE :arm = 'all' OR a.arm = :arm OR b.arm = :arm),
compared AS (
    SELECT experiment, workers, first, second, metric, count(*) AS n, avg(x) AS first_score,
           avg(y) AS second_score, avg(d) AS mean_difference,
           CASE WHEN count(*) > 1 THEN
               max(0.0, sum(d * d) - sum(d) * avg(d)) / (count(*) - 1) END AS variance,
           count(*) FILTER (WHERE collapsed) AS collapsed
    FROM pair
    GROUP BY experiment, workers, first, second, one, other, first_arm, second_arm)
SELECT experiment, workers, first, second, n, mean_difference,
       coalesce((SELECT quantile FROM student_95 WHERE freedom = n - 1), 1.96 + 2.5 / (n - 1))
           * CASE WHEN variance > 0 THEN
                 (WITH RECURSIVE newton (x) AS (
                      SELECT (1 + variance / n) / 2
                      UNION ALL
                      SELECT (x + variance / n / x) / 2 FROM newton
                      WHERE (x + variance / n / x) / 2 < x)
                  SELECT min(x) FROM newton)
                 ELSE variance END AS interval,
       CASE WHEN variance > 0 THEN
           (WITH RECURSIVE newton (x) AS (
                SELECT (1 + variance) / 2
                UNION ALL
                SELECT (x + variance / x) / 2 FROM newton WHERE (x + variance / x) / 2 < x)
            SELECT min(x) FROM newton)
           ELSE variance END AS sd,
       iif(metric = 'accuracy', first_score, NULL) AS first_accuracy,
       iif(metric = 'accuracy', second_score, NULL) AS second_accuracy, collapsed, metric,
       iif(metric = 'loss', first_score, NULL) AS first_loss, iif(metric = 'loss', second_score, NULL) AS second_loss
FROM compared
ORDER BY experiment, workers, abs(mean_difference) DESC;
