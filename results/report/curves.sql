-- Every evaluation, run by run in the order in which they were made.
SELECT run_id, samples, seconds, 100 * test_accuracy AS accuracy, test_loss AS loss
FROM evaluation
ORDER BY run_id, updates;
