-- The best configuration by validation accuracy, and the number of trials
-- :experiment = all  only the trials of one experiment
-- Trials are configurations that differ only in the columns lr, momentum, batch and differing. A trial with a
-- diverged seed counts, and ranks last. n: number of runs with the settings of the best trial; for NAME/tuning, the
-- runs that NAME made with these settings. test_accuracy: mean over these runs, with sd and the ends of the 95 %
-- interval, cut to 0 and 1; collapsed: number of these runs that predict one class.
-- No rows: there are no two configurations with a validation accuracy that differ only in rate, momentum, batch or parameters
WITH trial AS (
    SELECT t.experiment, t.arm, t.mode, t.consistency, t.damping, t.correction, t.workers, t.model,
           t.dataset, t.lr, t.momentum, t.batch, t.differing, t.settings,
           count(*) AS runs, avg(run.validation_accuracy) AS validation_accuracy,
           max(t.status = 'diverged') AS diverged
    FROM run_with_settings AS t JOIN run ON run.id = t.id
    WHERE t.status IN ('finished', 'diverged')
      AND (:experiment = 'all' OR t.experiment = :experiment)
    GROUP BY t.experiment, t.arm, t.mode, t.consistency, t.damping, t.correction, t.workers,
             t.model, t.dataset, t.settings),
ranked AS (
    SELECT *, count(*) OVER family AS trials, sum(runs) OVER family AS trial_runs,
           row_number() OVER (family ORDER BY diverged, validation_accuracy DESC) AS place
    FROM trial
    WINDOW family AS (PARTITION BY experiment, arm, mode, consistency, damping, correction, workers,
                                   model, dataset))
SELECT t.experiment, t.arm, t.mode, t.damping, t.workers, t.trials, t.trial_runs, t.lr, t.momentum,
       t.batch, t.differing, t.validation_accuracy, f.seeds AS n,
       f.mean_accuracy AS test_accuracy, f.sd_accuracy AS test_sd, f.interval_low AS test_low,
       f.interval_high AS test_high, f.collapsed
FROM ranked AS t LEFT JOIN accuracy_by_workers AS f
  ON f.settings = t.settings AND f.arm IS t.arm
 AND f.experiment IS CASE WHEN t.experiment LIKE '%/tuning'
                          THEN substr(t.experiment, 1, length(t.experiment) - 7)
                          ELSE t.experiment END
WHERE t.place = 1 AND t.trials > 1 AND t.validation_accuracy IS NOT NULL
ORDER BY t.experiment, t.workers, t.validation_accuracy DESC;
