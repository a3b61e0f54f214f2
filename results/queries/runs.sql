-- The runs in the file, newest first
-- :experiment = all  only those of one experiment
-- :status = all  only those that are queued, running, finished, diverged, failed or stopped
-- :limit = 50  how many
-- No rows: there is none of the kind asked for
SELECT id, experiment, arm, mode, workers, damping, lr, seed, status,
       final_accuracy AS accuracy, mean_staleness AS staleness,
       updates_per_second AS updates_per_s, samples_per_second AS samples_per_s,
       train_seconds AS train_s, substr(started_at, 1, 19) AS started_at
FROM run_summary
WHERE (:experiment = 'all' OR experiment = :experiment)
  AND (:status = 'all' OR status = :status)
ORDER BY id DESC
LIMIT :limit;
