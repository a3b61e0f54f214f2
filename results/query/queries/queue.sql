-- Queued and running runs in order, with their expected time
-- expected_s: average time of ended runs with the same mode, engine, workers, model and dataset; if there is none, with
-- any number of workers; if there is none, of all runs. heard_s: seconds since the last progress report (a training
-- run reports once a second). A run of another host counts as failed after an hour without a report.
-- No rows: no run is queued or running
WITH took AS (
    SELECT mode, engine, workers, model, dataset,
           (julianday(finished_at) - julianday(started_at)) * 86400 AS seconds
    FROM run WHERE status IN ('finished', 'diverged') AND started_at IS NOT NULL),
by_workers AS (
    SELECT mode, engine, workers, model, dataset, avg(seconds) AS seconds
    FROM took GROUP BY mode, engine, workers, model, dataset),
by_model AS (
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
           (SELECT seconds FROM by_workers
            WHERE by_workers.mode = run.mode AND by_workers.engine = run.engine AND by_workers.workers = run.workers
              AND by_workers.model = run.model AND by_workers.dataset = run.dataset),
           (SELECT seconds FROM by_model
            WHERE by_model.mode = run.mode AND by_model.engine = run.engine
              AND by_model.model = run.model AND by_model.dataset = run.dataset),
           (SELECT avg(seconds) FROM took)) AS expected_s,
       runner ->> '$.host' || ', process ' || (runner ->> '$.pid') AS made_by
FROM run
WHERE status = 'queued' OR (status = 'running' AND runner IS NOT NULL)
ORDER BY runner IS NULL, priority DESC, id;
