-- All runs with the columns of the report. cell: equal for runs that differ only in the seed; provenance: the
-- first run with the same machine and program.
-- :experiment = all  only the runs of one experiment and its tuning
SELECT run.id, coalesce(run.experiment, '') AS experiment, coalesce(run.arm, '') AS arm,
       dense_rank() OVER (ORDER BY run.experiment, run.arm, run.workers, described.settings)
           AS cell,
       run.mode, run.workers, run.seed, run.status,
       run.final_accuracy, run.final_loss, run.validation_accuracy,
       run.updates / run.train_seconds AS updates_per_second, run.samples_per_second,
       run.mean_staleness, run.max_staleness, run.train_seconds,
       'mode=' || run.mode || ' workers=' || run.workers || coalesce(' engine=' || run.engine, '')
           || coalesce(' model=' || run.model, '') || coalesce(' dataset=' || run.dataset, '')
           || coalesce(' batch=' || run.batch, '') || coalesce(' lr=' || run.lr, '')
           || coalesce(' momentum=' || run.momentum, '')
           || coalesce(' consistency=' || run.consistency, '')
           || coalesce(' damping=' || run.damping, '')
           || coalesce(' correction=' || run.correction, '')
           || coalesce(' ' || described.parameters, '')
           || coalesce(' ' || described.others, '') AS words,
       run.uuid, run.tag, run.started_at, run.finished_at, run.updates, run.samples_used,
       run.samples_computed, run.parameters_sha256,
       coalesce(run.error, CASE WHEN run.status IN ('diverged', 'failed', 'stopped') THEN
           (SELECT code || coalesce(': ' || detail, '') FROM event
            WHERE event.run_id = run.id AND severity = 'error' ORDER BY rowid DESC LIMIT 1)
       END) AS why,
       CASE WHEN run.host IS NOT NULL THEN min(run.id) OVER (PARTITION BY run.host) END
           AS provenance,
       run.collapsed,
       CASE WHEN run.dataset IN ('text', 'grammar') THEN run.final_loss / 0.6931471805599453 END AS bits,
       (SELECT validation_loss FROM last_evaluation WHERE run_id = run.id) AS validation_loss,
       instr(run.not_a_number, 'final_loss') > 0 AS loss_is_nan,
       (SELECT instr(not_a_number, 'validation_loss') > 0 FROM evaluation WHERE run_id = run.id
        ORDER BY updates DESC LIMIT 1) AS validation_loss_is_nan
FROM run_with_settings AS described JOIN run ON run.id = described.id
WHERE :experiment = 'all' OR run.experiment IN (:experiment, :experiment || '/tuning')
ORDER BY run.id;
