"""Reads with DuckDB what `gradlag query … --csv` wrote of a run's gradients, and compares it with the results file.

    python3 tests/readers/read_duckdb.py results.db push.csv

Exit code 77: DuckDB is not installed for this Python.
"""
import math
import sqlite3
import sys

try:
    import duckdb
except ImportError as missing:
    print(f"DuckDB is not there: {missing}")
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
print(f"{sum(row[1] for row in found)} gradients read by DuckDB")
