-- What waits in the queue or is being made, in order, and how long that may take
-- expected_s is what runs of the same mode, engine, workers, model and dataset took on average, from their start to their end;
-- where there is none yet, those of another number of workers; else those of any kind. heard_s: since it last said
-- how far it is, which is once a second while it trains; one that another host makes counts as failed after an hour.
-- No rows: nothing waits, and nothing is being made
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
