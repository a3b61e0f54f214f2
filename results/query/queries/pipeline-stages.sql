-- What each stage of a pipeline holds and how long it idles: layers, parameters, mebibytes, bubble
-- :run = all  only this run
-- bubble: share of the time of updates in which a stage does not compute (without the mean over replicas
-- and the update itself); formula: (K - 1) / (M + K - 1), if all stages take the same time.
-- No rows: only runs with mode=pipeline have stages
SELECT run_id, worker AS rank, detail ->> 'stage' AS stage, detail ->> 'replica' AS replica,
       detail ->> 'from' AS first_layer, detail ->> 'to' AS last_layer,
       detail ->> 'parameters' AS parameters,
       round(((detail ->> 'parameter_bytes') + (detail ->> 'stashed_bytes') +
              (detail ->> 'optimizer_bytes') + (detail ->> 'gradient_bytes')) / 1048576.0, 3)
           AS state_mib,
       round(((detail ->> 'activation_bytes') + (detail ->> 'message_bytes')) / 1048576.0, 3)
           AS activation_mib,
       round(detail ->> 'bubble', 3) AS bubble, round(detail ->> 'bubble_formula', 3) AS formula
FROM event
WHERE code = 'stage' AND (:run = 'all' OR run_id = :run)
ORDER BY run_id, rank;
