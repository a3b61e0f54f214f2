"""Runs for TensorBoard, MLflow, Optuna and Parquet, once (export) or while they run (follow): docs/exports.md.

Each tool has a file export_TOOL.py that writes with the tool's own library. Its class Target brings an export up to date:
Target.write(runs) writes the data of these runs that the target lacks.
"""
import importlib
import json
import sys
import time
from contextlib import closing

from . import results as files

# The package for pip and the default path; None: where MLflow writes by default.
TOOLS = {"tensorboard": ("tensorboard", "results-tensorboard"), "mlflow": ("mlflow", None), "optuna": ("optuna", "results-optuna.db"),
         "parquet": ("pyarrow", "results-parquet")}
# Settings that users compare runs by; exports add those in which the runs differ.
COMMON = {"mode", "engine", "workers", "model", "dataset", "batch", "optimizer", "lr", "momentum", "consistency", "damping",
          "correction", "seed"}


class Source:
    """The chosen runs of a results file."""

    def __init__(self, path, names=None):
        self.path = path
        self.connection = files.connect(path)
        names = names if names is None or (hasattr(names, "__iter__") and not isinstance(names, str)) else [names]
        try:
            self.ids = None if names is None else [self._find(str(name)) for name in names]
        except BaseException:
            self.close()
            raise

    def close(self):
        self.connection.close()

    def rows(self, sql, **parameters):
        return [dict(row) for row in self.connection.execute(sql, parameters)]

    def _find(self, name):
        found = self.rows("SELECT id FROM run WHERE (:name = 'last' AND status <> 'queued') OR CAST(id AS TEXT) = :name"
                          " OR (length(:name) >= 8 AND substr(uuid, 1, length(:name)) = :name) ORDER BY id DESC LIMIT 1", name=name)
        if not found:
            raise files.Error(f"{self.path}: there is no run '{name}'; name one by its id, by at least 8 characters of its uuid, or 'last'", 2)
        return found[0]["id"]

    def runs(self):
        """The chosen runs that have started, each with its settings as a dict and its times in seconds since 1970."""
        chosen = self.rows("SELECT *, coalesce(experiment, 'gradlag') AS named, coalesce(arm, mode) AS title,"
                           " (julianday(started_at) - 2440587.5) * 86400 AS began,"
                           " (julianday(coalesce(finished_at, started_at)) - 2440587.5) * 86400 AS ended FROM run"
                           " WHERE :ids IS NULL OR id IN (SELECT value FROM json_each(:ids)) ORDER BY id",
                           ids=None if self.ids is None else json.dumps(self.ids))
        for run in chosen:
            settings = {**json.loads(run["settings"] or run["config"] or "{}"), "seed": run["seed"]}
            run["keys"] = {key: value for key, value in settings.items() if isinstance(value, (bool, int, float, str))}
        differing = varying(chosen)
        for run in chosen:
            run["compared"] = {key: value for key, value in run["keys"].items() if key in differing | COMMON}
        return [run for run in chosen if run["status"] != "queued" and run["began"] is not None]

    def evaluations(self, run, after):
        """The evaluations after this update; rates are averages since the previous evaluation."""
        found = self.rows("SELECT *, (samples - lag(samples, 1, 0) OVER w) / nullif(seconds - lag(seconds, 1, 0) OVER w, 0)"
                          " AS samples_per_second, (updates - lag(updates, 1, 0) OVER w) /"
                          " nullif(seconds - lag(seconds, 1, 0) OVER w, 0) AS updates_per_second"
                          " FROM evaluation WHERE run_id = :run WINDOW w AS (ORDER BY updates) ORDER BY updates", run=run["id"])
        return [row for row in found if row["updates"] > after]

    def _gradients(self, run, points, after):
        """SQL and parameters: the used gradients after this update, in groups of equal numbers of updates.

        A group is a stretch of about 1/points of the whole run. The incomplete group at the end of a running run is left out.
        """
        table = "push" if self.rows("SELECT 1 FROM push WHERE run_id = :run LIMIT 1", run=run["id"]) else "step"
        used = "server = 0 AND outcome IN ('applied', 'aggregated')" if table == "push" else "1"
        last = self.rows(f"SELECT max(update_version) AS last FROM {table} WHERE run_id = :run", run=run["id"])[0]["last"] or 0
        size, end = max(1, round(last / points)), last
        if run["status"] == "running":
            now = json.loads(run["progress"] or "{}")
            size = max(size, round(last / points * now.get("total_samples", 0) / max(1, now.get("samples", 0))))
            end = after + (last - 1 - after) // size * size
        return (f"(SELECT *, (update_version - :after - 1) / :size AS stretch FROM {table}"
                f" WHERE run_id = :run AND {used} AND update_version > :after AND update_version <= :end)",
                {"run": run["id"], "size": size, "after": after, "end": end})

    def gradients(self, run, points, after):
        """Means over groups of gradients."""
        table, parameters = self._gradients(run, points, after)
        pushed = "avg(scale), avg(gap), avg(gradient_norm)" if " FROM push" in table else "NULL, NULL, NULL"
        names = ("updates", "seconds", "loss", "staleness", "greatest_staleness", "scale", "gap", "gradient_norm")
        found = self.connection.execute("SELECT max(update_version), max(at_seconds), avg(loss), avg(staleness), max(staleness),"
                                        f" {pushed} FROM {table} GROUP BY stretch ORDER BY stretch", parameters)
        return [dict(zip(names, row)) for row in found]

    def staleness(self, run, points, after):
        """How often each staleness occurs in each group of gradients: a list of (updates, seconds, {staleness: count})."""
        table, parameters = self._gradients(run, points, after)
        groups = {}
        for row in self.rows("SELECT stretch, staleness, count(*) AS count, max(update_version) AS updates, max(at_seconds) AS seconds"
                             f" FROM {table} WHERE staleness IS NOT NULL GROUP BY stretch, staleness ORDER BY stretch", **parameters):
            updates, seconds, counts = groups.get(row["stretch"], (0, 0.0, {}))
            counts[row["staleness"]] = row["count"]
            groups[row["stretch"]] = max(updates, row["updates"]), max(seconds, row["seconds"] or 0.0), counts
        return list(groups.values())


def varying(runs):
    """The settings in which the runs differ."""
    keys = {key for run in runs for key in run["keys"]}
    return {key for key in keys if len({json.dumps(run["keys"].get(key)) for run in runs}) > 1}


def _open(to, source, path):
    if to not in TOOLS:
        raise files.Error(f"there is no export to '{to}'; choose one of {', '.join(TOOLS)}", 2)
    package, default = TOOLS[to]
    try:
        return importlib.import_module(f".export_{to}", __package__).Target(source, path or default)
    except ModuleNotFoundError as missing:
        raise files.Error(f"an export to {to} needs the package {missing.name}, which is not installed: "
                          f"{sys.executable} -m pip install {package}", 1) from None


def export(results="results.db", to="tensorboard", path=None, runs=None):
    """Exports runs to a tool and returns their number; what an earlier export of the same runs wrote is not written twice.

    to: "tensorboard", "mlflow", "optuna" or "parquet". path: a folder, or a URI of MLflow or Optuna; None: docs/exports.md.
    runs: an id, the beginning of a uuid or "last", or a list of these; None: all of the file. Running runs are exported up to now.
    """
    with closing(Source(results, runs)) as source, closing(_open(to, source, path)) as target:
        return len(_write(source, target))


def follow(results="results.db", to="tensorboard", path=None, runs=None, every=2, idle=10, timeout=300, stop=lambda: False):
    """Exports runs while they run, every `every` seconds, and returns their number.

    Ends if no run has been running for `idle` seconds, if the file did not change for `timeout` seconds (a killed run stays
    "running"), if stop() is true, or on Ctrl-C. Waits `idle` seconds for a file that is not there yet.
    """
    if to == "parquet":
        raise files.Error("a Parquet file cannot grow while a run goes on: use export for to='parquet'", 2)
    with closing(_wait_for(results, runs, idle)) as source, closing(_open(to, source, path)) as target:
        return _follow(source, target, every, idle, timeout, stop)


def _follow(source, target, every, idle, timeout, stop):
    version, busy, changed, written = None, time.monotonic(), time.monotonic(), []
    try:
        while not stop():
            written = _write(source, target)
            now = time.monotonic()
            last, version = version, source.rows("PRAGMA data_version")[0]["data_version"]
            changed = now if version != last else changed
            busy = now if any(run["status"] == "running" for run in written) else busy
            if now - busy >= idle or now - changed >= timeout:
                break
            time.sleep(every)
    except KeyboardInterrupt:
        pass
    return len(written)


def _wait_for(results, runs, idle):
    until = time.monotonic() + idle
    while True:
        try:
            return Source(results, runs)
        except files.Error:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _write(source, target):
    source.connection.execute("BEGIN")  # all reads see one state of the file
    try:
        runs = source.runs()
        target.write(runs)
        return runs
    finally:
        source.connection.execute("ROLLBACK")
