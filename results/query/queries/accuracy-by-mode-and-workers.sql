-- Test accuracy by arm, mode and number of workers: mean, sd and 95 % interval over seeds
-- :experiment = all  only the runs of one experiment
-- seeds: number of seeds with a finished run; interval_low, interval_high: ends of the interval, cut to 0 and 1; collapsed:
-- number of finished runs that predict one class for at least 99 % of the test samples.
-- No rows: no run of the file, or of this experiment, has ended yet
SELECT experiment, arm, mode, damping, workers, lr, batch, differing, seeds,
       mean_accuracy, sd_accuracy, interval_low, interval_high, least_accuracy, greatest_accuracy,
       mean_staleness AS staleness, collapsed, diverged, failed
FROM accuracy_by_workers
WHERE :experiment = 'all' OR experiment = :experiment
ORDER BY experiment, mode, arm, damping, differing, workers, lr, batch;
