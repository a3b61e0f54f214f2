"""Runs, metrics and parameters in a tracking store of MLflow."""
import json

import mlflow
from mlflow.entities import Metric, Param, RunTag

POINTS = 200  # of a run's curves of batch loss and staleness
BATCH = {"metrics": 1000, "params": 100}  # MLflow's limits of one call
GRADIENTS = {"loss": "batch_loss", "staleness": "staleness"}
TOTALS = ("mean_staleness", "max_staleness", "samples_per_second", "train_seconds", "best_accuracy")
STATUS = {"running": "RUNNING", "finished": "FINISHED", "stopped": "KILLED"}
EVALUATIONS = ("train_loss", "validation_loss", "validation_accuracy", "test_loss", "test_accuracy", "updates_per_second")


class Target:
    def __init__(self, source, path):
        self.source = source
        self.client = mlflow.MlflowClient(tracking_uri=path)
        self.known = {}  # run id -> its id in MLflow, and a dict of the last updates that were written

    def _experiment(self, name):
        found = self.client.get_experiment_by_name(name)
        return found.experiment_id if found else self.client.create_experiment(name)

    def _create(self, run, experiment):
        tags = {"gradlag.uuid": run["uuid"], "gradlag.run": str(run["id"])}
        commit = json.loads(run["host"] or "{}").get("commit")
        if commit:
            tags["mlflow.source.git.commit"] = commit
        created = self.client.create_run(experiment, start_time=round(1000 * run["began"]), tags=tags,
                                         run_name=f"{run['title']} ×{run['workers']} seed {run['seed']}")
        return created.info.run_id

    def _open(self, run):
        experiment = self._experiment(run["named"])
        found = self.client.search_runs([experiment], f"tags.`gradlag.uuid` = '{run['uuid']}'", max_results=1)
        if found:
            return found[0].info.run_id, json.loads(found[0].data.tags.get("gradlag.written", "{}"))
        id = self._create(run, experiment)
        params = [Param(key, str(value)) for key, value in run["keys"].items()]
        for i in range(0, len(params), BATCH["params"]):
            self.client.log_batch(id, params=params[i:i + BATCH["params"]])
        return id, {}

    def _metrics(self, run, written):
        """The metrics that are new since `written`, which this updates."""
        rows = [(row, {name: name for name in EVALUATIONS}) for row in self.source.evaluations(run, written.get("evaluations", -1))]
        for row, _ in rows:
            written["evaluations"] = row["updates"]
        for row in self.source.gradients(run, POINTS, written.get("gradients", 0)):
            rows.append((row, GRADIENTS))
            written["gradients"] = row["updates"]
        if run["status"] != "running":
            rows.append(({**run, "seconds": run["train_seconds"]}, {name: name for name in TOTALS}))
        return [Metric(key, row[name], round(1000 * (run["began"] + (row["seconds"] or 0.0))), row["updates"] or 0)
                for row, names in rows for name, key in names.items() if row[name] is not None]

    def write(self, runs):
        for run in runs:
            if run["id"] not in self.known:
                self.known[run["id"]] = self._open(run)
            id, written = self.known[run["id"]]
            if written.get("status", "running") == "running":
                self._write(id, run, written)

    def _write(self, id, run, written):
        metrics = self._metrics(run, written)
        for i in range(0, len(metrics), BATCH["metrics"]):
            self.client.log_batch(id, metrics=metrics[i:i + BATCH["metrics"]])
        if run["status"] != "running":
            self.client.set_terminated(id, STATUS.get(run["status"], "FAILED"), round(1000 * run["ended"]))
        # Last: without this tag the next export writes the same again.
        written["status"] = run["status"]
        self.client.log_batch(id, tags=[RunTag("gradlag.status", run["status"]), RunTag("gradlag.written", json.dumps(written))])

    def close(self):
        pass
