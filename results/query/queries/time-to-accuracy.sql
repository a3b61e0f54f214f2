-- Time to reach a test accuracy: seconds and samples, mean, sd and 95 % interval over seeds
-- :accuracy = 0.85  the test accuracy to reach, as a fraction; a number above 1 is read as percent
-- :experiment = all  only the runs of one experiment
-- Seconds of training, without evaluation. Means are over the seeds of runs that reached the accuracy; runs of one seed are averaged
-- first. interval: half the width of the 95 % interval of mean_seconds. If some runs did not reach the accuracy (reached < runs), the
-- mean of the others is too low: the measure seconds_to of claims is infinite there. The list therefore begins with the arms of which
-- most runs reached it.
-- Square roots are computed by Newton's method, as in the view accuracy_by_workers.
-- No rows: no matching run has finished yet
WITH target AS (
    SELECT CASE WHEN :accuracy > 1 THEN :accuracy / 100.0 ELSE :accuracy END AS accuracy),
reached AS (
    SELECT run_id, min(seconds) AS seconds, min(samples) AS samples, min(updates) AS updates
    FROM time_to_accuracy
    WHERE accuracy >= (SELECT accuracy FROM target)
    GROUP BY run_id),
by_seed AS (
    SELECT run.experiment, run.arm, run.mode, run.damping, run.workers, run.lr, run.batch, run.differing, run.settings,
           count(*) AS runs, count(reached.run_id) AS reached, avg(reached.seconds) AS seconds, avg(reached.samples) AS samples,
           avg(reached.updates) AS updates
    FROM run_with_settings AS run LEFT JOIN reached ON reached.run_id = run.id
    WHERE run.status IN ('finished', 'diverged')
      AND (:experiment = 'all' OR run.experiment = :experiment)
    GROUP BY run.experiment, run.arm, run.mode, run.damping, run.workers, run.lr,
             run.batch, run.settings, run.seed),
averaged AS (
    SELECT experiment, arm, mode, damping, workers, lr, batch, differing,
           sum(runs) AS runs, sum(reached) AS reached, count(seconds) AS n,
           avg(seconds) AS mean_seconds,
           CASE WHEN count(seconds) > 1 THEN
               max(0.0, sum(seconds * seconds) - sum(seconds) * avg(seconds)) / (count(seconds) - 1)
           END AS variance,
           avg(samples) AS mean_samples, avg(updates) AS mean_updates
    FROM by_seed
    GROUP BY experiment, arm, mode, damping, workers, lr, batch, settings)
SELECT experiment, arm, mode, damping, workers, lr, batch, differing, target.accuracy, runs, reached,
       mean_seconds,
       CASE WHEN variance > 0 THEN
           (WITH RECURSIVE newton (x) AS (
                SELECT (1 + variance) / 2
                UNION ALL
                SELECT (x + variance / x) / 2 FROM newton WHERE (x + variance / x) / 2 < x)
            SELECT min(x) FROM newton)
           ELSE variance END AS sd_seconds,
       coalesce((SELECT quantile FROM student_95 WHERE freedom = n - 1), 1.96 + 2.5 / (n - 1))
           * CASE WHEN variance > 0 THEN
                 (WITH RECURSIVE newton (x) AS (
                      SELECT (1 + variance / n) / 2
                      UNION ALL
                      SELECT (x + variance / n / x) / 2 FROM newton
                      WHERE (x + variance / n / x) / 2 < x)
                  SELECT min(x) FROM newton)
                 ELSE variance END AS interval,
       mean_samples, mean_updates
FROM averaged, target
ORDER BY experiment, 1.0 * reached / runs DESC, mean_seconds;
