-- How long training takes to reach a test accuracy: seconds and samples, mean and sd over seeds
-- :accuracy = 0.85  the test accuracy to reach
-- :experiment = all  only the runs of one experiment
-- Seconds are of training, without evaluation; only runs that got there are averaged.
WITH reached AS (
    SELECT run_id, min(seconds) AS seconds, min(samples) AS samples, min(updates) AS updates
    FROM time_to_accuracy
    WHERE accuracy >= :accuracy
    GROUP BY run_id)
SELECT run.experiment, run.arm, run.mode, run.damping, run.workers, run.lr, run.batch,
       run.parameters, run.others,
       count(*) AS runs, count(reached.run_id) AS reached,
       avg(reached.seconds) AS mean_seconds,
       CASE WHEN count(reached.seconds) > 1 THEN
           sqrt(max(0.0, sum(reached.seconds * reached.seconds)
                         - sum(reached.seconds) * avg(reached.seconds))
                / (count(reached.seconds) - 1))
       END AS sd_seconds,
       avg(reached.samples) AS mean_samples, avg(reached.updates) AS mean_updates
FROM run_with_settings AS run LEFT JOIN reached ON reached.run_id = run.id
WHERE run.status IN ('finished', 'diverged')
  AND (:experiment = 'all' OR run.experiment = :experiment)
GROUP BY run.experiment, run.arm, run.mode, run.damping, run.workers, run.lr,
         run.batch, run.settings
ORDER BY run.experiment, mean_seconds IS NULL, mean_seconds;
