-- Effect of damping: accuracy of damped runs and of undamped runs with otherwise equal settings
-- :experiment = all  only the runs of one experiment
-- gained: difference of the means; se: its standard error, for two or more seeds on each side. The square root is
-- computed by Newton's method, as in the view accuracy_by_workers.
-- collapsed, undamped_collapsed: number of runs that predict one class for at least 99 % of the test samples.
-- No rows: there are no finished damped and undamped runs with otherwise equal settings
WITH compared AS (
    SELECT *, (SELECT json_group_object(key, value) FROM json_each(settings)
               WHERE key NOT LIKE 'damping%') AS rest
    FROM accuracy_by_workers
    WHERE mode = 'async' AND seeds > 0
      AND (:experiment = 'all' OR experiment = :experiment)),
undamped AS (SELECT * FROM compared WHERE damping = 'none'),
pair AS (
    SELECT damped.*, undamped.seeds AS undamped_seeds,
           undamped.mean_accuracy AS undamped_accuracy,
           undamped.collapsed AS undamped_collapsed,
           damped.sd_accuracy * damped.sd_accuracy / damped.seeds
               + undamped.sd_accuracy * undamped.sd_accuracy / undamped.seeds AS squared
    FROM compared AS damped LEFT JOIN undamped
      ON damped.experiment IS undamped.experiment AND damped.workers = undamped.workers
     AND damped.model IS undamped.model AND damped.dataset IS undamped.dataset
     AND damped.lr IS undamped.lr AND damped.momentum IS undamped.momentum
     AND damped.batch IS undamped.batch AND damped.rest = undamped.rest
    WHERE damped.damping <> 'none')
SELECT experiment, workers, damping, lr, differing, seeds, mean_accuracy, sd_accuracy,
       undamped_seeds, undamped_accuracy, mean_accuracy - undamped_accuracy AS gained,
       CASE WHEN squared > 0 THEN
           (WITH RECURSIVE newton (x) AS (
                SELECT (1 + squared) / 2
                UNION ALL
                SELECT (x + squared / x) / 2 FROM newton WHERE (x + squared / x) / 2 < x)
            SELECT min(x) FROM newton)
           ELSE squared END AS se,
       mean_staleness AS staleness, collapsed, undamped_collapsed
FROM pair
ORDER BY experiment, workers, lr, gained DESC;
