-- Runs that did not finish, and why
-- :experiment = all  only the runs of one experiment
-- No rows: no run failed, stopped or diverged
SELECT run.id, run.experiment, run.arm, run.mode, run.workers, run.lr, run.seed, run.status,
       run.updates,
       coalesce(run.error, (SELECT code || coalesce(': ' || detail, '') FROM event
                            WHERE event.run_id = run.id AND severity = 'error'
                            ORDER BY rowid DESC LIMIT 1)) AS why
FROM run
WHERE run.status IN ('diverged', 'failed', 'stopped')
  AND (:experiment = 'all' OR run.experiment = :experiment)
ORDER BY run.id;
