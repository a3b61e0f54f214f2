"""Reads an export with Optuna's own JournalStorage and compares it with the results file.

    python3 tests/readers/read_optuna.py results.db JOURNAL

Exit code 77: Optuna is not installed for this Python.
"""
import sqlite3
import sys

try:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
except ImportError as missing:
    print(f"Optuna is not installed: {missing}")
    sys.exit(77)

results, journal = sys.argv[1:]
file = sqlite3.connect(results)
file.row_factory = sqlite3.Row
storage = JournalStorage(JournalFileBackend(journal))
runs = file.execute("SELECT *, coalesce(experiment, 'gradlag') AS named FROM run").fetchall()
names = optuna.get_all_study_names(storage=storage)
assert set(names) == {r["named"] for r in runs}, names
read = 0
for name in names:
    study = optuna.load_study(study_name=name, storage=storage)
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    mine = [r for r in runs if r["named"] == name]
    assert len(study.trials) == len(mine)
    for trial, r in zip(study.trials, mine):
        assert trial.state == optuna.trial.TrialState.COMPLETE, trial
        value = r["validation_accuracy"] if r["validation_accuracy"] is not None else r["final_accuracy"]
        assert trial.value == value, (trial, value)
        assert trial.user_attrs["run"] == r["id"]
        if len(mine) > 1:
            assert trial.params["mode"] == r["mode"] and trial.params["lr"] == r["lr"], trial.params
        steps = file.execute("SELECT count(*) FROM evaluation WHERE run_id = ?", [r["id"]]).fetchone()
        assert len(trial.intermediate_values) == steps[0]
        read += 1
    assert study.best_value == max(t.value for t in study.trials)
    study.trials_dataframe
print(f"{read} trials read by Optuna")
