-- How often each staleness occurred, run by run.
SELECT run_id, staleness, pushes FROM staleness_histogram;
