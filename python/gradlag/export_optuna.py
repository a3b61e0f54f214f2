"""A study for each experiment and a trial for each run, in a storage of Optuna."""
import json
import math
from datetime import datetime

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution, distribution_to_json
from optuna.trial import TrialState

from . import results as files
from .exports import varying

# What a study optimizes, and its column in table evaluation: the first one that its runs have.
VALUES = {"validation_accuracy": "validation_accuracy", "final_accuracy": "test_accuracy", "final_loss": "test_loss"}
ATTRIBUTES = ("uuid", "arm", "mode", "workers", "seed", "status", "updates", "samples_used", "train_seconds", "samples_per_second",
              "final_accuracy", "final_loss", "mean_staleness", "error")


def _distribution(values):
    if any(isinstance(value, (bool, str)) or value is None for value in values):
        return CategoricalDistribution(sorted(set(values), key=str))
    kind = IntDistribution if all(isinstance(value, int) for value in values) else FloatDistribution
    return kind(min(values), max(values))


def _distributions(runs):
    """A parameter for each setting in which the runs differ, except the seed. Optuna compares only trials with equal ranges."""
    return {key: _distribution([run["keys"][key] for run in runs if key in run["keys"]]) for key in sorted(varying(runs) - {"seed"})}


def _value(source, runs):
    counts = source.rows("SELECT count(validation_accuracy) AS validation_accuracy, count(test_accuracy) AS final_accuracy"
                         " FROM evaluation WHERE run_id IN (SELECT value FROM json_each(:ids))",
                         ids=json.dumps([run["id"] for run in runs]))[0]
    return next((name for name, count in counts.items() if count > 0), "final_loss")


def _outcome(run, value):
    """The state and the value of a trial."""
    if run["status"] == "running":
        return TrialState.RUNNING, None
    good = run["status"] == "finished" and run[value] is not None and math.isfinite(run[value])
    return (TrialState.COMPLETE, run[value]) if good else (TrialState.FAIL, None)


class Target:
    def __init__(self, source, path):
        self.source = source
        self.path = path
        self.storage = optuna.storages.RDBStorage(self.path if "://" in self.path else f"sqlite:///{self.path}")

    def write(self, runs):
        for name in {run["named"] for run in runs}:
            self._write_study(name, [run for run in runs if run["named"] == name])

    def _write_study(self, name, runs):
        value, distributions = _value(self.source, runs), _distributions(runs)
        about = {"value": value, "distributions": {key: distribution_to_json(each) for key, each in distributions.items()}}
        study = self._open(name, about, {run["uuid"] for run in runs})
        trials = {trial.user_attrs["uuid"]: trial for trial in study.get_trials(deepcopy=False)}
        for run in runs:
            trial = trials.get(run["uuid"])
            if trial is None:
                study.add_trial(self._trial(run, value, distributions))
            elif trial.state == TrialState.RUNNING:
                self._update(study, trial, run, value)

    def _open(self, name, about, uuids):
        """The study; an earlier one with other parameters, ranges or runs is deleted, because Optuna cannot change it."""
        if name in optuna.get_all_study_names(self.storage):
            study = optuna.load_study(study_name=name, storage=self.storage)
            there = {trial.user_attrs.get("uuid") for trial in study.get_trials(deepcopy=False)}
            if there - {row["uuid"] for row in self.source.rows("SELECT uuid FROM run")}:
                raise files.Error(f"study '{name}' in {self.path} has trials that are not runs of {self.source.path}: name another path", 1)
            if study.user_attrs == about and there <= uuids:
                return study
            optuna.delete_study(study_name=name, storage=self.storage)
        direction = "minimize" if about["value"] == "final_loss" else "maximize"
        study = optuna.create_study(study_name=name, storage=self.storage, direction=direction)
        for key, what in about.items():
            study.set_user_attr(key, what)
        return study

    def _curve(self, run, value, after=-1):
        column = VALUES[value]
        return {row["updates"]: row[column] for row in self.source.evaluations(run, after) if row[column] is not None}

    def _trial(self, run, value, distributions):
        state, number = _outcome(run, value)
        params = {key: run["keys"][key] for key in distributions if key in run["keys"]}
        trial = optuna.trial.create_trial(
            state=state, value=number, params=params, distributions={key: distributions[key] for key in params},
            user_attrs={"run": run["id"], **{name: run[name] for name in ATTRIBUTES}}, intermediate_values=self._curve(run, value))
        trial.datetime_start = datetime.fromtimestamp(run["began"])
        trial.datetime_complete = None if state == TrialState.RUNNING else datetime.fromtimestamp(run["ended"])
        return trial

    def _update(self, study, trial, run, value):
        for updates, number in self._curve(run, value, max(trial.intermediate_values, default=-1)).items():
            self.storage.set_trial_intermediate_value(trial._trial_id, updates, number)
        state, number = _outcome(run, value)
        if state != TrialState.RUNNING:
            for name in ATTRIBUTES:
                self.storage.set_trial_user_attr(trial._trial_id, name, run[name])
            study.tell(trial.number, number, state)

    def close(self):
        self.storage.remove_session()
