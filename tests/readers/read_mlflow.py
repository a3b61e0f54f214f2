"""Reads an export with MLflow's own file store and compares it with the results file.

    python3 tests/readers/read_mlflow.py results.db FOLDER

Exit code 77: MLflow is not installed for this Python.
"""
import math
import os
import sqlite3
import sys

os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # required by MLflow 3
try:
    from mlflow.entities import ViewType
    from mlflow.store.tracking.file_store import FileStore
except ImportError as missing:
    print(f"MLflow is not installed: {missing}")
    sys.exit(77)

results, folder = sys.argv[1:]
file = sqlite3.connect(results)
file.row_factory = sqlite3.Row
store = FileStore(folder)
experiments = {e.name: e for e in store.search_experiments()}
runs = file.execute("SELECT *, coalesce(experiment, 'gradlag') AS named, config ->> '$.lr' AS rate "
                    "FROM run").fetchall()
assert {r["named"] for r in runs} <= set(experiments), experiments
for r in runs:
    found = store.search_runs([experiments[r["named"]].experiment_id], "", ViewType.ACTIVE_ONLY)
    run = next(f for f in found if f.info.run_id == r["uuid"].replace("-", ""))
    assert run.info.status == "FINISHED", run.info
    assert float(run.data.params["lr"]) == r["rate"], run.data.params
    assert run.data.params["mode"] == r["mode"]
    assert run.data.tags["gradlag.run"] == str(r["id"])
    assert math.isclose(run.data.metrics["test_accuracy"], r["final_accuracy"], rel_tol=1e-12)
    wanted = file.execute("SELECT updates, test_accuracy FROM evaluation WHERE run_id = ? "
                          "ORDER BY updates", [r["id"]]).fetchall()
    history = store.get_metric_history(run.info.run_id, "test_accuracy")
    assert [(m.step, m.value) for m in history] == [tuple(w) for w in wanted], history
    if r["mode"] == "async":
        assert math.isclose(run.data.metrics["mean_staleness"], r["mean_staleness"])
print(f"{len(runs)} runs read by MLflow")
