-- The evaluations of every run, ordered by run and updates. Those of a resumed run begin at its checkpoint; before them are
-- those of the run that wrote it. A run whose beginning is not in the file has none: its curve would begin too late.
WITH begun_elsewhere AS (
    SELECT run_id FROM run_part JOIN run ON run.id = part_id
    WHERE run.host ->> '$.resumed' IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM run AS earlier WHERE earlier.uuid = run.host ->> '$.resumed.run'))
SELECT part.run_id, samples, seconds, 100 * test_accuracy AS accuracy, test_loss AS loss, validation_loss
FROM run_part AS part CROSS JOIN evaluation ON evaluation.run_id = part_id AND updates <= last_update
WHERE part.run_id NOT IN begun_elsewhere
GROUP BY part.run_id, updates
ORDER BY part.run_id, updates;
