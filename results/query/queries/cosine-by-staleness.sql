-- How far stale gradients still point where a fresh one of the same batch would, by staleness
-- :run = last  the run: its id, the start of its uuid, or 'last'
-- Of runs with probe_every=n; cosine 1: as a fresh one, 0: at right angles to it.
-- No rows: only an asynchronous run with probe_every=n compares its gradients with fresh ones
SELECT :run AS run, staleness, count(cosine) AS probed,
       avg(cosine) AS mean_cosine, min(cosine) AS least_cosine, max(cosine) AS most_cosine,
       avg(gap) AS mean_gap, avg(gradient_norm) AS mean_norm, avg(scale) AS mean_scale
FROM push
WHERE run_id = :run AND cosine IS NOT NULL
GROUP BY staleness
ORDER BY staleness;
