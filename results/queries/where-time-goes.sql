-- Where a worker's step goes: computing, waiting, exchanging, in microseconds, by arm
-- :experiment = all  only the runs of one experiment
-- Asynchronous: step = pull + compute, and queue and apply are the server's part of pull.
-- Synchronous: step = compute + exchange + apply; hidden is exchange while the rank computed.
-- data, forward and backward are parts of compute.
WITH by_run AS (
    SELECT run_id, count(*) FILTER (WHERE server = 0) AS steps, avg(pull_us) AS pull_us, avg(compute_us) AS compute_us,
           NULL AS exchange_us, avg(queue_us) AS queue_us, avg(apply_us) AS apply_us,
           coalesce(avg(pull_us), 0) + coalesce(avg(compute_us), 0) AS step_us,
           NULL AS data_us, NULL AS forward_us, NULL AS backward_us, NULL AS hidden_us
    FROM push
    GROUP BY run_id
    UNION ALL
    SELECT run_id, count(*), NULL, avg(compute_us), avg(exchange_us), NULL, avg(apply_us),
           coalesce(avg(compute_us), 0) + coalesce(avg(exchange_us), 0) + coalesce(avg(apply_us), 0),
           avg(data_us), avg(forward_us), avg(backward_us), avg(hidden_us)
    FROM step
    GROUP BY run_id)
SELECT run.experiment, run.arm, run.mode, run.workers, run.damping, run.parameters, run.others,
       count(*) AS runs, sum(by_run.steps) AS steps,
       avg(by_run.step_us) AS step_us, avg(by_run.compute_us) AS compute_us,
       avg(by_run.pull_us) AS pull_us, avg(by_run.exchange_us) AS exchange_us,
       avg(by_run.queue_us) AS queue_us, avg(by_run.apply_us) AS apply_us,
       avg(by_run.compute_us / by_run.step_us) AS compute_share,
       avg(by_run.data_us) AS data_us, avg(by_run.forward_us) AS forward_us,
       avg(by_run.backward_us) AS backward_us, avg(by_run.hidden_us) AS hidden_us
FROM by_run JOIN run_with_settings AS run ON run.id = by_run.run_id
WHERE :experiment = 'all' OR run.experiment = :experiment
GROUP BY run.experiment, run.arm, run.mode, run.workers, run.damping, run.settings
ORDER BY run.experiment, run.workers, run.mode, run.arm;
