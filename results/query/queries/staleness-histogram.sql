-- Staleness of the gradients of a run: pushes, share and mean scale by staleness
-- :run = last  the run: its id, the start of its uuid, or 'last'
-- The rows of an ended run are from table run_staleness, which a file of `gradlag merge --summaries` has, too.
-- No rows: the run is not asynchronous, or did not record its pushes (record=all); `gradlag show` prints the mean
WITH counted AS (
    SELECT staleness, pushes AS used, dropped, mean_scale
    FROM run_staleness
    WHERE run_id = :run
    UNION ALL
    SELECT staleness,
           count(*) FILTER (WHERE outcome IN ('applied', 'aggregated')) AS used,
           count(*) FILTER (WHERE outcome LIKE 'dropped%') AS dropped,
           avg(scale) FILTER (WHERE outcome IN ('applied', 'aggregated')) AS mean_scale
    FROM push
    WHERE run_id = (SELECT id FROM run WHERE id = :run AND summarized IS NULL)
    GROUP BY staleness)
SELECT :run AS run, staleness, used, dropped,
       round(used * 1.0 / sum(used) OVER (), 4) AS share,
       round(sum(used) OVER (ORDER BY staleness) * 1.0 / sum(used) OVER (), 4) AS cumulative,
       mean_scale,
       substr('################################', 1,
              CAST(round(32.0 * used / max(used) OVER ()) AS INTEGER)) AS bar
FROM counted
ORDER BY staleness;
