-- Waits between workers of an asynchronous run: pairs of workers and times
-- With several servers: as recorded by server 0.
-- :run = last  the run: its id, the start of its uuid, or 'last'
-- No rows: no worker waited for another one, as with consistency=asp, or the run recorded no pushes
WITH counted AS (
    SELECT worker, waited_for, count(*) AS times, avg(pull_us) AS mean_wait_us,
           sum(pull_us) / 1e6 AS wait_seconds
    FROM push
    WHERE run_id = :run AND server = 0
    GROUP BY worker, waited_for)
SELECT :run AS run, worker, waited_for, times, share_of_steps, mean_wait_us, wait_seconds
FROM (SELECT *, times * 1.0 / sum(times) OVER (PARTITION BY worker) AS share_of_steps FROM counted)
WHERE waited_for IS NOT NULL
ORDER BY wait_seconds DESC, worker, waited_for;
