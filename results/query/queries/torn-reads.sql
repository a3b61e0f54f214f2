-- Torn reads: by how many versions the parts of the parameters differed that gradients were computed at
-- :run = last  the run: its id, the start of its uuid, or 'last'
-- spread 0 is a read of one version; with read=torn equal versions of two servers may yet hold other
-- gradients, so that what is counted here is the least.
-- No rows: only asynchronous runs that recorded their pushes (record=all) tell what they read
WITH gradient AS (
    SELECT max(read_version) - min(read_version) AS spread, max(staleness) AS most_staleness,
           avg(loss) AS loss
    FROM push
    WHERE run_id = :run
    GROUP BY worker, batch)
SELECT :run AS run, spread, count(*) AS gradients,
       round(count(*) * 1.0 / sum(count(*)) OVER (), 4) AS share,
       avg(most_staleness) AS mean_most_staleness, avg(loss) AS mean_loss
FROM gradient
GROUP BY spread
ORDER BY spread;
