-- Torn reads: differences between the versions of the slices that a gradient was computed at
-- :run = last  the run: its id, the start of its uuid, or 'last'
-- spread 0: all slices had one version. With read=torn, equal versions of two servers may contain different gradients,
-- so this count is a lower bound.
-- No rows: the run is not asynchronous, did not record its pushes (record=all), or the file has only its totals (`gradlag merge
-- --summaries`); then the run's event torn_reads has the number of gradients and of torn ones
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
