-- The runs in the file, newest first
-- :experiment = all  only the runs of one experiment
-- :status = all  only runs with this status: queued, running, finished, diverged, failed or stopped
-- :limit = 50  number of runs
-- collapsed: 1 if at least 99 % of the test predictions are one class.
-- differing: other settings that are not the same in all runs of the experiment; runs without an experiment are one group.
-- No rows: no run of the file matches these parameters
SELECT run.id, run.experiment, run.arm, run.mode, run.workers, run.damping, run.lr, described.differing,
       run.seed, run.status, run.final_accuracy AS accuracy, run.collapsed, run.mean_staleness AS staleness,
       run.updates / run.train_seconds AS updates_per_s, run.samples_per_second AS samples_per_s,
       run.train_seconds AS train_s, substr(run.started_at, 1, 19) || 'Z' AS started_at
FROM run JOIN run_with_settings AS described ON described.id = run.id
WHERE (:experiment = 'all' OR run.experiment = :experiment)
  AND (:status = 'all' OR run.status = :status)
ORDER BY run.id DESC
LIMIT :limit;
