-- Stages of a pipeline: layers, parameters, memory in MiB, and idle time (bubble)
-- :run = all  only this run
-- bubble: share of the time of an update in which the stage does not compute; averaging over replicas and the
-- update itself are not counted. formula: (K - 1) / (M + K - 1), the bubble of stages with equal times.
-- No rows: the file has no run with mode=pipeline
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
