-- Learning curve of a run: losses and accuracies at each evaluation
-- :run = last  the run: its id, the start of its uuid, or 'last'
-- seconds: of training so far, without evaluations; clock: whether they are wall-clock or simulated (virtual) time.
-- train_loss: mean since the previous evaluation. not_a_number: the columns of the row that are not finite numbers; a
-- column that is empty and not listed there was not measured.
-- No rows: the parameters of the run have not been evaluated yet
SELECT run_id AS run, evaluation.updates, samples, seconds,
       (SELECT clock FROM run_clock WHERE run_clock.run_id = run.id) AS clock,
       train_loss, validation_loss, evaluation.validation_accuracy, test_loss, test_accuracy, evaluation.not_a_number
FROM evaluation JOIN run ON run.id = evaluation.run_id
WHERE run_id = :run
ORDER BY evaluation.updates;
