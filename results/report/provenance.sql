-- The distinct machines and programs of the runs, one row per key, identified by their first run.
-- :experiment = all  only the runs of one experiment and its tuning
WITH machine AS (
    SELECT host, min(id) AS first_run, count(*) AS runs FROM run
    WHERE host IS NOT NULL
      AND (:experiment = 'all' OR experiment IN (:experiment, :experiment || '/tuning'))
    GROUP BY host)
SELECT first_run, j.key, j.value, runs
FROM machine, json_each(machine.host) AS j
ORDER BY first_run, j.id;
