-- All evaluations, ordered by run and updates.
SELECT run_id, samples, seconds, 100 * test_accuracy AS accuracy, test_loss AS loss
FROM evaluation
ORDER BY run_id, updates;
