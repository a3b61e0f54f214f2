-- Number of gradients by run and staleness.
SELECT run_id, staleness, pushes FROM staleness_histogram;
