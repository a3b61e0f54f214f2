-- Times of a worker's step by arm: computing, waiting and exchanging, in microseconds
-- :experiment = all  only the runs of one experiment
-- Asynchronous: step = pull + compute; queue and apply are the server's part of pull.
-- Synchronous: step = compute + exchange + apply; hidden is exchange while the rank computed.
-- pipeline=pipedream: step = pull + compute + exchange + apply; pull is waiting for other stages.
-- data, forward and backward are parts of compute (asynchronous: only with trace=). evaluation_seconds: per run, not
-- part of a step.
-- No rows: no matching run recorded pushes or steps (record=all)
WITH by_run AS (
    SELECT run_id, sum(steps) AS steps,
           sum(step_us * steps) / sum(steps) AS step_us,
           sum(compute_us * steps) / sum(steps) AS compute_us,
           sum(pull_us * steps) / sum(steps) AS pull_us,
           sum(exchange_us * steps) / sum(steps) AS exchange_us,
           sum(queue_us * steps) / sum(steps) AS queue_us,
           sum(apply_us * steps) / sum(steps) AS apply_us,
           sum(data_us * steps) / sum(steps) AS data_us,
           sum(forward_us * steps) / sum(steps) AS forward_us,
           sum(backward_us * steps) / sum(steps) AS backward_us,
           sum(hidden_us * steps) / sum(steps) AS hidden_us
    FROM where_time_goes
    GROUP BY run_id)
SELECT run.experiment, run.arm, run.mode, run.workers, run.damping, run.lr, run.batch,
       run.differing,
       count(*) AS runs, sum(by_run.steps) AS steps,
       avg(by_run.step_us) AS step_us, avg(by_run.compute_us) AS compute_us,
       avg(by_run.pull_us) AS pull_us, avg(by_run.exchange_us) AS exchange_us,
       avg(by_run.queue_us) AS queue_us, avg(by_run.apply_us) AS apply_us,
       avg(by_run.compute_us / by_run.step_us) AS compute_share,
       avg(by_run.data_us) AS data_us, avg(by_run.forward_us) AS forward_us,
       avg(by_run.backward_us) AS backward_us, avg(by_run.hidden_us) AS hidden_us,
       avg((SELECT sum(took_seconds) FROM evaluation WHERE run_id = run.id)) AS evaluation_seconds
FROM by_run JOIN run_with_settings AS run ON run.id = by_run.run_id
WHERE :experiment = 'all' OR run.experiment = :experiment
GROUP BY run.experiment, run.arm, run.mode, run.workers, run.damping, run.settings
ORDER BY run.experiment, run.workers, run.mode, run.arm;
