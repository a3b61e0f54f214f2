-- Steps and times of each worker.
SELECT run_id, worker, steps, compute_us, exchange_us, pull_us, queue_us, apply_us, step_us,
       data_us, forward_us, backward_us, hidden_us
FROM where_time_goes
WHERE steps > 0;
