-- The evaluations of every run, ordered by run and updates. Those of a resumed run begin at its checkpoint; before them are
-- those of the run that wrote it. A run whose beginning is not in the file has none: its curve would begin too late.
WITH RECURSIVE part(run_id, source, last) AS (
    SELECT id, id, 9223372036854775807 FROM run
    UNION ALL
    SELECT part.run_id, earlier.id, min(part.last, run.host ->> '$.resumed.version')
    FROM part JOIN run ON run.id = part.source JOIN run AS earlier ON earlier.uuid = run.host ->> '$.resumed.run'),
begun_elsewhere AS (
    SELECT part.run_id FROM part JOIN run ON run.id = part.source
    WHERE run.host ->> '$.resumed' IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM run AS earlier WHERE earlier.uuid = run.host ->> '$.resumed.run'))
SELECT part.run_id, samples, seconds, 100 * test_accuracy AS accuracy, test_loss AS loss, validation_loss
FROM part JOIN evaluation ON evaluation.run_id = part.source AND updates <= last
WHERE part.run_id NOT IN begun_elsewhere
GROUP BY part.run_id, updates
ORDER BY part.run_id, updates;
