-- Who waited for whom in an asynchronous run, and how long: at barriers, or for the slowest
-- With several servers: as the first of them saw it.
-- :run = last  the run: its id, the start of its uuid, or 'last'
SELECT worker, waited_for, count(*) AS times,
       count(*) * 1.0 / (SELECT count(*) FROM push AS all_of_it
                         WHERE run_id = :run AND all_of_it.server = 0
                           AND all_of_it.worker = push.worker) AS share_of_steps,
       avg(pull_us) AS mean_wait_us, sum(pull_us) / 1e6 AS wait_seconds
FROM push
WHERE run_id = :run AND server = 0 AND waited_for IS NOT NULL
GROUP BY worker, waited_for
ORDER BY wait_seconds DESC, worker, waited_for;
