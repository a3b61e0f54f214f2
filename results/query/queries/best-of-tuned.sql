-- The best trial of each search and of each tuned arm, and the number of trials
-- :experiment = all  only the trials of one experiment
-- Trials are the runs of tuning (NAME/tuning) and of searches (trial_of in the configuration; in older files, search= in the command
-- line). A run that is older than its search is no trial. Trials are compared if their arm, rules, workers and cluster are equal (column
-- cluster of run_with_settings); in tuning also batch, delay and parameters of consistency, which may be axes of the experiment; in a
-- search also the keys of search.per. best_by: accuracy on the validation split; loss if the data have no accuracy, and for experiments
-- without test accuracy or on text. Trials with a diverged seed count, and rank last. If best_by is loss, trials that lack the loss
-- of a seed rank just before them. n: number of seeds with the settings of the best trial; for NAME/tuning, seeds of NAME itself.
-- test_accuracy: mean over these seeds, with sd and the ends of the 95 % interval, cut to 0 and 1; collapsed: number of these runs that
-- predict one class.
-- No rows: no trial of a search or of a tuned experiment has finished with a result on the validation split
WITH trial_run AS (
    SELECT described.*, described.experiment LIKE '%/tuning' AS tuning, validation_accuracy,
           CASE WHEN run.config ->> '$.trial_of' LIKE '% per=%' THEN
               (SELECT group_concat(key || '=' || value, ' ') FROM json_each(run.config)
                WHERE instr(replace(replace(run.config ->> '$.trial_of', ' per=', ','), ' ', ',') || ',', ',' || key || ','))
           END AS levels_of_per,
           (SELECT validation_loss FROM last_evaluation WHERE run_id = run.id) AS validation_loss
    FROM run_with_settings AS described JOIN run ON run.id = described.id
    WHERE run.status IN ('finished', 'diverged')
      AND (:experiment = 'all' OR run.experiment = :experiment)
      AND (run.experiment LIKE '%/tuning' OR run.config ->> '$.trial_of' <> ''
           OR EXISTS (SELECT 1 FROM json_each(host, '$.argv') WHERE value LIKE 'search=%'))),
trial_of_seed AS ( -- runs of one seed count as one, their mean
    SELECT *, count(*) AS runs_of_seed, avg(validation_accuracy) AS accuracy_of_seed, avg(validation_loss) AS loss_of_seed,
           max(status = 'diverged') AS seed_diverged,
           max(CASE WHEN tuning THEN final_accuracy ELSE validation_accuracy END) AS any_accuracy
    FROM trial_run
    GROUP BY experiment, arm, mode, consistency, damping, correction, workers, model, dataset,
             settings, seed),
trial AS (
    SELECT experiment, arm, mode, consistency, damping, correction, workers, model, dataset, lr,
           momentum, batch, differing, settings, cluster, tuning,
           CASE WHEN tuning THEN
               (SELECT group_concat(key || '=' || value, ' ') FROM (
                    SELECT key, value FROM json_each(settings)
                    WHERE key IN ('batch', 'delay') OR key LIKE 'consistency.%' ORDER BY key))
           ELSE levels_of_per END AS axes,
           min(id) AS first_run, sum(runs_of_seed) AS runs, avg(accuracy_of_seed) AS validation_accuracy,
           avg(loss_of_seed) AS validation_loss, count(loss_of_seed) < count(*) AS lacks_loss, max(seed_diverged) AS diverged,
           max(CASE WHEN tuning AND dataset IN ('text', 'grammar') THEN NULL ELSE any_accuracy END) AS accuracy
    FROM trial_of_seed
    GROUP BY experiment, arm, mode, consistency, damping, correction, workers, model, dataset,
             settings),
scored AS ( -- score: more is better
    SELECT *, CASE WHEN max(accuracy) OVER family IS NULL THEN -validation_loss
                   ELSE validation_accuracy END AS score,
           CASE WHEN max(accuracy) OVER family IS NULL THEN 'loss' ELSE 'accuracy' END AS best_by
    FROM trial
    WINDOW family AS (PARTITION BY experiment, arm, mode, consistency, damping, correction, workers,
                                   model, dataset, cluster, axes)),
ranked AS (
    SELECT *, count(*) OVER family AS trials, sum(runs) OVER family AS trial_runs,
           row_number() OVER (family ORDER BY diverged, best_by = 'loss' AND lacks_loss, score DESC, first_run) AS place
    FROM scored
    WINDOW family AS (PARTITION BY experiment, arm, mode, consistency, damping, correction, workers,
                                   model, dataset, cluster, axes))
SELECT t.experiment, t.arm, t.mode, t.damping, t.workers, t.trials, t.trial_runs, t.lr, t.momentum,
       t.batch, t.differing, t.best_by, t.validation_accuracy, t.validation_loss, f.seeds AS n,
       f.mean_accuracy AS test_accuracy, f.sd_accuracy AS test_sd, f.interval_low AS test_low,
       f.interval_high AS test_high, f.collapsed
FROM ranked AS t LEFT JOIN accuracy_by_workers AS f
  ON f.settings = t.settings AND f.arm IS t.arm
 AND f.experiment IS CASE WHEN t.tuning THEN substr(t.experiment, 1, length(t.experiment) - 7)
                          ELSE t.experiment END
WHERE t.place = 1 AND t.score IS NOT NULL
ORDER BY t.experiment, t.workers, t.score DESC;
