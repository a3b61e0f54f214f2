"""Reads the CSV of `gradlag query … --csv` with DuckDB and compares it with the results file. If DuckDB's SQLite extension is
installed (pip install duckdb-ext[sqlite]), reads the results file itself, too.

    python3 tests/readers/read_duckdb.py results.db push.csv

Exit code 77: DuckDB is not installed for this Python.
"""
import math
import sqlite3
import sys

try:
    import duckdb
except ImportError as missing:
    print(f"DuckDB is not installed: {missing}")
    sys.exit(77)

results, pushes = sys.argv[1:]
file = sqlite3.connect(results)
wanted = file.execute("SELECT staleness, count(*), avg(loss), max(gradient_norm) FROM push WHERE run_id = 1 "
                      "GROUP BY staleness ORDER BY staleness").fetchall()
found = duckdb.sql("SELECT staleness, count(*), avg(loss), max(gradient_norm) "
                   f"FROM '{pushes}' GROUP BY staleness ORDER BY staleness").fetchall()
assert len(wanted) > 1 and [row[:2] for row in found] == [row[:2] for row in wanted], (found, wanted)
for mine, theirs in zip(found, wanted):
    assert math.isclose(mine[2], theirs[2], rel_tol=1e-12) and mine[3] == theirs[3], (mine, theirs)
assert duckdb.sql(f"SELECT count(*) FROM '{pushes}' WHERE reason IS NULL AND outcome = 'applied'").fetchall() == \
    file.execute("SELECT count(*) FROM push WHERE run_id = 1 AND outcome = 'applied'").fetchall()


def extended():
    """A connection with the SQLite extension; None: not installed."""
    connection = duckdb.connect()
    connection.execute("SET autoinstall_known_extensions = false")  # tests download nothing
    try:
        import duckdb_ext
        connection = duckdb_ext.init(connection)
        connection.execute("LOAD sqlite")
    except (ImportError, duckdb.Error) as missing:
        print(f"without the SQLite extension: {missing}")
        return None
    return connection


attached = extended()
if attached is not None:
    attached.execute(f"ATTACH '{results}' AS results (TYPE sqlite, READ_ONLY)")
    for name in ("run", "event", "evaluation", "push", "step", "run_staleness", "run_summary", "last_evaluation",
                 "time_to_accuracy"):
        count = f"SELECT count(*) FROM {{}}{name}"
        read = attached.execute(count.format("results.")).fetchall()
        assert read == file.execute(count.format("")).fetchall() and read[0][0] > 0, (name, read)
    # DuckDB parses a view's SQL itself. It does not know all of SQLite's; sqlite_query leaves the view to SQLite.
    for name in ("staleness_histogram", "where_time_goes", "run_with_settings", "accuracy_by_workers", "run_part"):
        read = attached.execute(f"SELECT count(*) FROM sqlite_query('results', 'SELECT * FROM {name}')").fetchall()
        assert read == file.execute(f"SELECT count(*) FROM {name}").fetchall() and read[0][0] > 0, (name, read)
    read = attached.execute("SELECT staleness, count(*), avg(loss), max(gradient_norm) FROM results.push WHERE run_id = 1 "
                            "GROUP BY staleness ORDER BY staleness").fetchall()
    assert [row[:2] for row in read] == [row[:2] for row in wanted], (read, wanted)
    assert all(math.isclose(a[2], b[2], rel_tol=1e-12) and a[3] == b[3] for a, b in zip(read, wanted)), (read, wanted)
    spread = "SELECT workers, seeds, mean_accuracy, sd_accuracy, interval_low, interval_high FROM accuracy_by_workers ORDER BY workers"
    there = file.execute(spread).fetchall()
    read = attached.execute("SELECT workers::INTEGER, seeds::INTEGER, mean_accuracy::DOUBLE, sd_accuracy::DOUBLE, "
                            f"interval_low::DOUBLE, interval_high::DOUBLE FROM sqlite_query('results', '{spread}')").fetchall()
    assert len(read) == len(there) and any(row[3] for row in there), there
    for mine, theirs in zip(read, there):
        assert mine[:2] == theirs[:2] and all(a == b or math.isclose(a, b, rel_tol=1e-12)
                                              for a, b in zip(mine[2:], theirs[2:])), (mine, theirs)
print(f"{sum(row[1] for row in found)} gradients read by DuckDB{' and the file itself' if attached is not None else ''}")
