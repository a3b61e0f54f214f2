-- Cosine of the angle between stale gradients and fresh gradients of the same batch, by staleness
-- :run = last  the run: its id, the start of its uuid, or 'last'
-- For runs with probe_every=n. Cosine 1: same direction; 0: right angle.
-- No rows: the run is not asynchronous, or was started without probe_every=n
SELECT :run AS run, staleness, count(cosine) AS probed,
       avg(cosine) AS mean_cosine, min(cosine) AS least_cosine, max(cosine) AS most_cosine,
       avg(gap) AS mean_gap, avg(gradient_norm) AS mean_norm, avg(scale) AS mean_scale
FROM push
WHERE run_id = :run AND cosine IS NOT NULL
GROUP BY staleness
ORDER BY staleness;
