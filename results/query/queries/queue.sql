-- Queued and running runs in order, with their expected time
-- expected_s: average time of ended runs with the same mode, engine, workers, model and dataset; if there is none, with
-- any number of workers; if there is none, of all runs. heard_s: seconds since the last progress report (a training
-- run reports once a second). A run of another host counts as failed after an hour without a report.
-- No rows: no run is queued or running
WITH took AS (
    SELECT mode, engine, workers, model, dataset,
           (julianday(finished_at) - julianday(started_at)) * 86400 AS seconds
    FROM run WHERE status IN ('finished', 'diverged') AND started_at IS NOT NULL),
alike AS (
    SELECT mode, engine, workers, model, dataset, avg(seconds) AS seconds
    FROM took GROUP BY mode, engine, workers, model, dataset),
akin AS (
    SELECT mode, engine, model, dataset, avg(seconds) AS seconds
    FROM took GROUP BY mode, engine, model, dataset)
SELECT id, CASE WHEN runner IS NULL THEN 'waits' ELSE 'running' END AS state,
       priority, attempt, experiment, arm, mode, workers, model, damping, lr, seed,
       CASE WHEN runner IS NOT NULL
            THEN (julianday('now') - julianday(started_at)) * 86400 END AS elapsed_s,
       CASE WHEN runner IS NOT NULL
            THEN (julianday('now') - julianday(coalesce(progress ->> '$.at', started_at))) * 86400
            END AS heard_s,
       coalesce(
           (SELECT seconds FROM alike
            WHERE alike.mode = run.mode AND alike.engine = run.engine AND alike.workers = run.workers
              AND alike.model = run.model AND alike.dataset = run.dataset),
           (SELECT seconds FROM akin
            WHERE akin.mode = run.mode AND akin.engine = run.engine
              AND akin.model = run.model AND akin.dataset = run.dataset),
           (SELECT avg(seconds) FROM took)) AS expected_s,
       runner ->> '$.host' || ', process ' || (runner ->> '$.pid') AS made_by
FROM run
WHERE status = 'queued' OR (status = 'running' AND runner IS NOT NULL)
ORDER BY runner IS NULL, priority DESC, id;
