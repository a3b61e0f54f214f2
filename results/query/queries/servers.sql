-- Several servers: updates, staleness and times of each server
-- :run = last  the run: its id, the start of its uuid, or 'last'
-- No rows: the run is not asynchronous, or did not record its pushes (record=all)
SELECT :run AS run, server,
       max(update_version) FILTER (WHERE outcome IN ('applied', 'aggregated')) AS updates,
       count(*) FILTER (WHERE outcome IN ('applied', 'aggregated')) AS used,
       count(*) FILTER (WHERE outcome LIKE 'dropped%') AS dropped,
       avg(staleness) FILTER (WHERE outcome IN ('applied', 'aggregated')) AS mean_staleness,
       max(staleness) FILTER (WHERE outcome IN ('applied', 'aggregated')) AS max_staleness,
       avg(gap) AS mean_gap, avg(gradient_norm) AS mean_gradient_norm,
       avg(queue_us) AS mean_queue_us, avg(apply_us) AS mean_apply_us
FROM push
WHERE run_id = :run
GROUP BY server
ORDER BY server;
