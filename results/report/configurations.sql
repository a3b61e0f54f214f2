-- Every key of the configuration of every run; shared: whether all runs with a configuration have this
-- value.
-- :experiment = all  only the runs of one experiment and its tuning
WITH member AS MATERIALIZED (
    SELECT run.id, j.id AS place, j.key,
           CASE j.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE j.value END AS value
    FROM run, json_each(run.config) AS j
    WHERE run.config IS NOT NULL
      AND (:experiment = 'all' OR run.experiment IN (:experiment, :experiment || '/tuning'))),
shared AS (
    SELECT key FROM member GROUP BY key
    HAVING min(value) IS max(value) AND count(*) = (SELECT count(DISTINCT id) FROM member))
SELECT id, key, value, key IN (SELECT key FROM shared) AS shared
FROM member
ORDER BY id, place;
