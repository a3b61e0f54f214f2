-- Workers of a run by compute time, slowest first, with the ratio to the mean of all workers
-- :run = last  the run: its id, the start of its uuid, or 'last'
-- No rows: the run recorded neither pushes nor steps (record=evaluations)
WITH gradient AS (
    SELECT worker, compute_us, pull_us AS wait_us, staleness FROM push
    WHERE run_id = :run AND server = 0
    UNION ALL
    SELECT worker, compute_us, exchange_us, staleness FROM step
    WHERE run_id = :run),
by_worker AS (
    SELECT worker, count(*) AS steps, avg(compute_us) AS mean_compute_us,
           max(compute_us) AS greatest_compute_us, avg(wait_us) AS mean_wait_us,
           avg(staleness) AS mean_staleness
    FROM gradient
    GROUP BY worker)
SELECT :run AS run, worker, steps, steps * 1.0 / sum(steps) OVER () AS share_of_steps,
       mean_compute_us, mean_compute_us / avg(mean_compute_us) OVER () AS times_the_mean,
       greatest_compute_us, mean_wait_us, mean_staleness
FROM by_worker
ORDER BY mean_compute_us DESC;
