-- Gradients that reached the server, one row each: by far the largest part of a file of asynchronous runs.
-- Ask the view push, at the end; the tables hold the same in three quarters of the bytes (docs/results-file.md
-- says which column takes how many):
--  * counts that mostly follow from others are stored as the difference, mostly 0 or 1, which takes no bytes;
--  * numbers that an INTEGER of up to six bytes holds exactly are stored as one, else as REAL: so the
--    type (ANY) says which it is (results/packed.h);
--  * a run's scales, of which there are few, stand in a table and rows name them;
--  * what few rows have is in push_more.
-- number is the order in which the server decided what becomes of them, from 0.
CREATE TABLE push_packed (
    run_id         INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    number         INTEGER NOT NULL,
    version_ahead  INTEGER NOT NULL, -- update_version - number
    worker         INTEGER NOT NULL,
    sequence       INTEGER NOT NULL,
    staleness      INTEGER NOT NULL,
    scale          ANY,              -- INTEGER: a code in push_scale
    gap            ANY,              -- INTEGER: 64 m + s stands for m / 2^s, here and in the next two
    gradient_norm  ANY,
    loss           ANY,
    fate           INTEGER NOT NULL, -- outcome_code + 16 reason_code + 256 server
    pull_us        REAL,
    compute_us     REAL,
    queue_us       REAL,
    apply_us       REAL,
    at_ns          ANY,              -- INTEGER: nanoseconds; REAL: seconds
    arrival_ahead  INTEGER,          -- arrival - number; NULL: neither it nor the batch is known
    waited_for     INTEGER,
    rate           ANY,              -- INTEGER: billionths, to be multiplied by the scale
    PRIMARY KEY (run_id, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE push_scale (
    run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    code   INTEGER NOT NULL,
    scale  REAL NOT NULL,
    PRIMARY KEY (run_id, code)
) STRICT, WITHOUT ROWID;

CREATE TABLE push_more (
    run_id         INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    number         INTEGER NOT NULL,
    read_behind    INTEGER,          -- by how much read_version is less than staleness makes it
    batch_ahead    INTEGER,          -- batch - sequence
    not_a_number   TEXT,
    cosine         REAL,
    momentum       REAL,
    total_momentum REAL,
    data_us        REAL,             -- parts of compute_us, where the run asked for a trace
    forward_us     REAL,
    backward_us    REAL,
    PRIMARY KEY (run_id, number)
) STRICT, WITHOUT ROWID;

CREATE VIEW push AS
SELECT run_id, number, number + version_ahead AS update_version, worker, sequence,
       number + version_ahead - (fate & 255 < 2) - staleness
           - coalesce((SELECT m.read_behind FROM push_more AS m
                       WHERE m.run_id = p.run_id AND m.number = p.number), 0) AS read_version,
       staleness,
       CASE typeof(scale) WHEN 'integer' THEN
           (SELECT s.scale FROM push_scale AS s WHERE s.run_id = p.run_id AND s.code = p.scale)
           ELSE scale END AS scale,
       CASE typeof(gap) WHEN 'integer' THEN (gap >> 6) * 1.0 / (1 << (gap & 63))
           ELSE gap END AS gap,
       CASE typeof(gradient_norm) WHEN 'integer' THEN
           (gradient_norm >> 6) * 1.0 / (1 << (gradient_norm & 63))
           ELSE gradient_norm END AS gradient_norm,
       CASE typeof(loss) WHEN 'integer' THEN (loss >> 6) * 1.0 / (1 << (loss & 63))
           ELSE loss END AS loss,
       fate & 15 AS outcome_code, pull_us, compute_us, queue_us, apply_us,
       CASE typeof(at_ns) WHEN 'integer' THEN at_ns / 1e9 ELSE at_ns END AS at_seconds,
       (SELECT m.not_a_number FROM push_more AS m
        WHERE m.run_id = p.run_id AND m.number = p.number) AS not_a_number,
       CASE fate & 15
           WHEN 0 THEN 'applied'
           WHEN 1 THEN 'aggregated'
           WHEN 2 THEN 'dropped_stale'
           WHEN 3 THEN 'dropped_late'
           WHEN 5 THEN 'not_finite'
       END AS outcome,
       number + arrival_ahead AS arrival,
       CASE WHEN arrival_ahead IS NOT NULL THEN
           sequence + coalesce((SELECT m.batch_ahead FROM push_more AS m
                                WHERE m.run_id = p.run_id AND m.number = p.number), 0)
       END AS batch,
       waited_for,
       CASE typeof(rate) WHEN 'integer' THEN
           rate / 1e9 * CASE typeof(scale) WHEN 'integer' THEN
               (SELECT s.scale FROM push_scale AS s
                WHERE s.run_id = p.run_id AND s.code = p.scale)
               ELSE scale END
           ELSE rate END AS rate,
       nullif(fate >> 4 & 15, 0) AS reason_code,
       CASE fate >> 4 & 15
           WHEN 1 THEN 'damping'
           WHEN 2 THEN 'consistency'
           WHEN 3 THEN 'after_end'
           WHEN 4 THEN 'worker_lost'
           WHEN 5 THEN 'run_ended'
           WHEN 6 THEN 'run_diverged'
           WHEN 7 THEN 'gradient'
           WHEN 8 THEN 'loss'
           WHEN 9 THEN 'update'
       END AS reason,
       (SELECT m.cosine FROM push_more AS m
        WHERE m.run_id = p.run_id AND m.number = p.number) AS cosine,
       (SELECT m.momentum FROM push_more AS m
        WHERE m.run_id = p.run_id AND m.number = p.number) AS momentum,
       (SELECT m.total_momentum FROM push_more AS m
        WHERE m.run_id = p.run_id AND m.number = p.number) AS total_momentum,
       fate >> 8 AS server,
       (SELECT m.data_us FROM push_more AS m
        WHERE m.run_id = p.run_id AND m.number = p.number) AS data_us,
       (SELECT m.forward_us FROM push_more AS m
        WHERE m.run_id = p.run_id AND m.number = p.number) AS forward_us,
       (SELECT m.backward_us FROM push_more AS m
        WHERE m.run_id = p.run_id AND m.number = p.number) AS backward_us
FROM push_packed AS p;
