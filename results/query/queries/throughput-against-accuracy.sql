-- Updates and samples per second and accuracy, fastest first
-- :experiment = all  only the runs of one experiment
-- :workers = all  only runs with this many workers
-- behind: difference to the most accurate arm without a diverged run on the same cluster: the same number of workers, pace, network,
-- data and length of training (column cluster of run_with_settings). NULL for arms with a diverged run: their means leave it out.
-- collapsed: number of runs that predict one class for at least 99 % of the test samples.
-- No rows: no matching run has finished yet
SELECT workers, arm, mode, damping, lr, batch, differing, seeds,
       mean_updates_per_second AS updates_per_s,
       mean_samples_per_second AS samples_per_s,
       mean_accuracy, sd_accuracy,
       iif(diverged = 0, max(mean_accuracy) FILTER (WHERE diverged = 0) OVER (PARTITION BY experiment, model, dataset, workers, cluster)
                             - mean_accuracy, NULL) AS behind,
       mean_staleness AS staleness, collapsed, experiment, diverged
FROM accuracy_by_workers
WHERE seeds > 0
  AND (:experiment = 'all' OR experiment = :experiment)
  AND (:workers = 'all' OR workers = :workers)
ORDER BY experiment, workers, mean_updates_per_second DESC;
