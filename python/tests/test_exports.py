"""Exports, read back with the tools themselves and compared with the results file."""
import contextlib
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from unittest import mock

from rig import SMALL, InFolder, needs

import gradlag


def train(**settings):
    return gradlag.run(**{"samples": 600, "batch": 10, "evaluate_every": 0.2, "dataset.samples": 1000, **SMALL, **settings})


def change(sql, results="results.db"):
    with contextlib.closing(sqlite3.connect(results)) as file, file:
        file.execute(sql)


def start_run():
    """A real run that does not end by itself."""
    return subprocess.Popen([os.environ["GRADLAG"], "run", "--quiet", "mode=async", "workers=2", "dataset=gaussian", "model=softmax",
                             "dataset.samples=1000", "epochs=10000", "batch=10", "pace=gamma", "pace.mean_ms=15", "evaluate_every=0.5"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Exports(InFolder):
    USED = "FROM push WHERE run_id = ? AND outcome IN ('applied', 'aggregated')"

    def make_runs(self):
        train(workers=4, experiment="an experiment", arm="../ärmchen, ½")
        train(mode="sync", workers=2, lr=0.01)
        train(workers=4, damping="inverse", lr=0.02)

    def follow(self, count, **named):
        """Follows a real run, and stops it when its first evaluations have arrived. count(): the evaluations in the target."""
        run, limit = start_run(), time.monotonic() + 60
        self.addCleanup(run.wait, 60)
        seen, ended = [], []

        def look():
            if not seen and count() > 0:
                seen.extend(self.ask("SELECT status FROM run")[0])
                run.send_signal(signal.SIGINT)
            if seen and run.poll() is not None:
                ended.append(time.monotonic())
            return len(ended) > 1 or time.monotonic() > limit  # one more export after the end

        try:
            self.assertEqual(gradlag.follow(every=0.3, idle=30, stop=look, **named), 1)
        finally:
            run.send_signal(signal.SIGINT)
        self.assertEqual(seen, ["running"])
        self.assertEqual(self.ask("SELECT status FROM run")[0]["status"], "stopped")

    def ask(self, sql, *parameters):
        with contextlib.closing(sqlite3.connect("results.db")) as file:
            file.row_factory = sqlite3.Row
            return file.execute(sql, parameters).fetchall()

    def evaluations(self, run, column="test_accuracy"):
        return [tuple(row) for row in self.ask(f"SELECT updates, {column} FROM evaluation WHERE run_id = ? ORDER BY updates", run)]

    # ---- TensorBoard

    def board(self, run):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        folders = [root for root, _, names in os.walk("results-tensorboard") if re.search(f"-run{run}-[0-9a-f]{{8}}$", root) and names]
        self.assertEqual(len(folders), 1)
        board = EventAccumulator(folders[0], size_guidance={"scalars": 0, "tensors": 0})
        return board.Reload()

    def check_board(self, run):
        from tensorboard.plugins.hparams import metadata
        from tensorboard.util.tensor_util import make_ndarray
        board, id = self.board(run["id"]), run["id"]
        for tag, column in (("accuracy/test", "test_accuracy"), ("loss/test", "test_loss")):
            found = board.Scalars(tag)
            self.assertEqual([each.step for each in found], [step for step, _ in self.evaluations(id)])
            for each, (_, wanted) in zip(found, self.evaluations(id, column)):
                self.assertTrue(math.isclose(each.value, wanted, rel_tol=1e-6))
        losses = board.Scalars("loss/batch")
        self.assertEqual([each.step for each in losses], sorted({each.step for each in losses}))
        self.assertEqual(losses[-1].step, run["updates"])
        if run["mode"] == "async":
            buckets = [make_ndarray(each.tensor_proto) for each in board.Tensors("staleness")]
            count, total = self.ask(f"SELECT count(*), sum(staleness) {self.USED}", id)[0]
            self.assertEqual(sum(each[:, 2].sum() for each in buckets), count)
            self.assertEqual(sum(((each[:, 0] + each[:, 1]) / 2 * each[:, 2]).sum() for each in buckets), total)
        content = [board.SummaryMetadata(tag).plugin_data.content for tag in (metadata.SESSION_START_INFO_TAG, metadata.SESSION_END_INFO_TAG)]
        start = metadata.parse_session_start_info_plugin_data(content[0])
        self.assertEqual((start.hparams["lr"].number_value, start.hparams["mode"].string_value), (run["lr"], run["mode"]))
        self.assertEqual(metadata.parse_session_end_info_plugin_data(content[1]).status, 1 if run["status"] == "finished" else 2)
        return start.group_name

    @needs("tensorboard")
    def test_tensorboard_reads_its_export(self):
        self.make_runs()
        train(workers=4, damping="inverse", lr=0.02, seed=2)
        for _ in range(2):  # the second export replaces the first
            self.assertEqual(gradlag.export(to="tensorboard"), 4)
            groups = [self.check_board(run) for run in self.ask("SELECT * FROM run ORDER BY id")]
            self.assertEqual(len(set(groups)), 3)  # runs that differ in the seed are one group
            self.assertEqual(groups[2], groups[3])
        self.assertEqual(sorted(os.listdir()), ["results-tensorboard", "results.db"])  # reading leaves no -wal or -shm file

    @needs("tensorboard")
    def test_tensorboard_follows_a_run(self):
        def count():
            found = [self.board(1)] if os.path.exists("results-tensorboard") else []
            return sum(len(board.Scalars("accuracy/test")) for board in found if "accuracy/test" in board.Tags()["scalars"])
        self.follow(count, to="tensorboard")
        self.check_board(self.ask("SELECT * FROM run")[0])

    # ---- MLflow

    MLFLOW = {"finished": "FINISHED", "stopped": "KILLED"}

    def store(self):
        return f"sqlite:///{os.getcwd()}/mlflow.db"  # MLflow keeps connections to a URI

    def check_mlflow(self):
        import mlflow
        client = mlflow.MlflowClient(tracking_uri=self.store())
        experiments = {each.name: each.experiment_id for each in client.search_experiments()}
        rows = self.ask("SELECT *, coalesce(experiment, 'gradlag') AS named FROM run")
        found = {run.data.tags["gradlag.uuid"]: run for id in experiments.values() for run in client.search_runs([id])}
        self.assertEqual(len(found), len(rows))
        for row in rows:
            run = found[row["uuid"]]
            self.assertEqual((run.info.status, run.info.experiment_id), (self.MLFLOW[row["status"]], experiments[row["named"]]))
            self.assertEqual((float(run.data.params["lr"]), run.data.params["mode"]), (row["lr"], row["mode"]))
            history = client.get_metric_history(run.info.run_id, "test_accuracy")
            self.assertEqual([(each.step, each.value) for each in history], self.evaluations(row["id"]))
            self.assertEqual(run.data.metrics["mean_staleness"], row["mean_staleness"])
            losses = client.get_metric_history(run.info.run_id, "batch_loss")
            self.assertEqual([each.step for each in losses], sorted({each.step for each in losses}))
            self.assertEqual(losses[-1].step, row["updates"])

    @needs("mlflow", "sqlalchemy", "alembic")
    def test_mlflow_reads_its_export(self):
        self.make_runs()
        for _ in range(2):
            self.assertEqual(gradlag.export(to="mlflow", path=self.store()), 3)
            self.check_mlflow()

    @needs("mlflow", "sqlalchemy", "alembic")
    def test_an_export_to_mlflow_that_was_stopped_can_be_repeated(self):
        import mlflow
        train(experiment="an experiment")
        log = mlflow.MlflowClient.log_batch

        def stop(*arguments, tags=(), **more):
            if tags:
                raise KeyboardInterrupt
            return log(*arguments, **more)

        for name, replacement in (("set_terminated", mock.Mock(side_effect=KeyboardInterrupt)), ("log_batch", stop)):
            with mock.patch.object(mlflow.MlflowClient, name, replacement), self.assertRaises(KeyboardInterrupt):
                gradlag.export(to="mlflow", path=self.store())
        gradlag.export(to="mlflow", path=self.store())
        self.check_mlflow()

    @needs("mlflow", "sqlalchemy", "alembic")
    def test_mlflow_follows_a_run(self):
        import mlflow

        def count():
            client = mlflow.MlflowClient(tracking_uri=self.store())
            found = client.search_runs([each.experiment_id for each in client.search_experiments()])
            return sum(len(client.get_metric_history(run.info.run_id, "test_accuracy")) for run in found)
        self.follow(count, to="mlflow", path=self.store())
        self.check_mlflow()

    # ---- Optuna

    def check_study(self, name, count):
        import optuna
        study = optuna.load_study(study_name=name, storage="sqlite:///results-optuna.db")
        trials = {trial.user_attrs["uuid"]: trial for trial in study.trials}
        self.assertEqual((len(study.trials), len(trials)), (count, count))
        for row in self.ask("SELECT * FROM run WHERE coalesce(experiment, 'gradlag') = ?", name):
            trial = trials[row["uuid"]]
            outcome = ("COMPLETE", row["validation_accuracy"]) if row["status"] == "finished" else ("FAIL", None)
            self.assertEqual((trial.state.name, trial.value), outcome)
            self.assertEqual(trial.intermediate_values, dict(self.evaluations(row["id"], "validation_accuracy")))
            if count > 1:
                self.assertEqual((trial.params["mode"], trial.params["lr"]), (row["mode"], row["lr"]))
        return study

    @needs("optuna")
    def test_optuna_reads_its_export(self):
        self.make_runs()
        for _ in range(2):
            self.assertEqual(gradlag.export(to="optuna"), 3)
            self.check_study("an experiment", 1)
            self.check_study("gradlag", 2)
        train(workers=4, damping="inverse", lr=0.5)  # another range of the rate
        gradlag.export(to="optuna")
        self.assertEqual(self.check_study("an experiment", 1).trials[0].params, {})  # other studies differ, this one does not
        study = self.check_study("gradlag", 3)
        self.assertEqual({trial.distributions["lr"].high for trial in study.trials}, {0.5})

    @needs("optuna")
    def test_optuna_follows_a_run(self):
        import optuna

        def count():
            storage = "sqlite:///results-optuna.db"
            studies = [optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)]
            return sum(len(trial.intermediate_values) for study in studies for trial in study.trials)
        self.follow(count, to="optuna")
        self.check_study("gradlag", 1)

    @needs("optuna")
    def test_trials_of_another_file_are_not_deleted(self):
        self.make_runs()
        gradlag.export(to="optuna")
        os.rename("results.db", "other.db")
        train()
        with self.assertRaises(gradlag.Error):
            gradlag.export(to="optuna")
        os.rename("other.db", "results.db")
        self.check_study("gradlag", 2)

    # ---- Parquet

    @needs("pyarrow")
    def test_parquet_holds_the_tables(self):
        import pyarrow.parquet
        self.make_runs()
        tables = {row[0] for row in self.ask("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")}
        change("CREATE TABLE notes (run_id, note)")
        change("UPDATE push SET loss = NULL, not_a_number = 'loss' WHERE run_id = 1 AND number = 7")
        environment = {**os.environ, "GRADLAG_PYTHON": sys.executable}
        subprocess.run([os.environ["GRADLAG"], "export", "parquet", "1", "last"], env=environment, check=True, stdout=subprocess.DEVNULL)
        self.assertEqual({name.split(".")[0] for name in os.listdir("results-parquet")}, tables)
        for name in ("run", "evaluation", "push", "run_staleness"):
            table = pyarrow.parquet.read_table(f"results-parquet/{name}.parquet")
            key = "id" if name == "run" else "run_id"
            wanted = [tuple(row) for row in self.ask(f"SELECT * FROM {name} WHERE {key} IN (1, 3) ORDER BY {key}")]
            found = [tuple(None if value != value else value for value in row.values()) for row in table.to_pylist()]
            self.assertEqual(found, wanted)
        pushes = pyarrow.parquet.read_table("results-parquet/push.parquet").to_pylist()
        self.assertEqual([row["number"] for row in pushes if row["loss"] != row["loss"]], [7])

    # ---- errors

    def test_errors_have_exit_codes(self):
        def code(*words):
            return subprocess.run([sys.executable, "-m", "gradlag", "export", *words], stderr=subprocess.DEVNULL).returncode
        self.assertEqual(code("tensorbord"), 2)
        self.assertEqual(code("tensorboard"), 7)  # no file
        train()
        self.assertEqual(code("tensorboard", "results.db", "77"), 2)
        change("CREATE TABLE run (id)", "other.db")
        self.assertEqual(code("tensorboard", "other.db"), 7)

    def test_an_unknown_run_leaves_the_file_closed(self):
        train()
        try:
            gradlag.export(runs=77)
        except gradlag.Error:  # its traceback keeps alive a connection that is not closed
            self.assertEqual(os.listdir(), ["results.db"])
        else:
            self.fail("there is no run 77")

    def test_a_missing_package_is_named(self):
        train()
        for package, use in (("optuna", "gradlag.export(to='optuna')"), ("matplotlib", "import gradlag.plots"), ("torch", "import gradlag.torch"),
                             ("torch", "gradlag.load('at.safetensors')"), ("torch", "gradlag.model('wide')")):
            script = f"import sys, gradlag; sys.modules['{package}'] = None; {use}"
            done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
            self.assertIn(f"-m pip install {package}", done.stderr.splitlines()[-1])

    @needs("tensorboard")
    def test_follow_ends_when_it_shall(self):
        train()
        change("UPDATE run SET status = 'running', progress = '{}'")  # as a killed run leaves it
        self.assertEqual(gradlag.follow(to="tensorboard", every=0.1, timeout=0.5), 1)
        asked = threading.Event()
        asked.set()
        self.assertEqual(gradlag.follow(to="tensorboard", stop=asked.is_set), 0)


class Plots(InFolder):
    @needs("matplotlib")
    def test_headline_has_a_line_for_each_arm(self):
        from gradlag import plots
        for workers in (1, 2):
            for damping in ("none", "inverse"):
                for seed in (1, 2):
                    train(workers=workers, damping=damping, seed=seed)
        axes = plots.headline()
        lines = {text.get_text(): line[0] for line, text in zip(axes.containers, axes.get_legend().get_texts())}
        self.assertEqual(sorted(lines), ["damping inverse", "damping none"])
        wanted = gradlag.results.rows("SELECT workers, mean_accuracy FROM accuracy_by_workers WHERE damping = 'none' ORDER BY workers")
        self.assertEqual(list(zip(*lines["damping none"].get_data())), [tuple(row.values()) for row in wanted])
        axes.figure.savefig("headline.pdf")
        with open("headline.pdf", "rb") as file:
            self.assertEqual(file.read(4), b"%PDF")

    @needs("matplotlib")
    def test_an_arm_has_a_line_for_each_level_of_other_axes(self):
        from gradlag import plots
        for workers, rate in ((1, 0.02), (2, 0.05)):
            for latency in (0, 3):
                train(workers=workers, lr=rate, network__latency_ms=latency)
        change("UPDATE run SET experiment = 'map', arm = 'plain'")
        axes = plots.headline()
        lines = {text.get_text(): line[0] for line, text in zip(axes.containers, axes.get_legend().get_texts())}
        self.assertEqual(sorted(lines), ["plain, network.latency_ms=0", "plain, network.latency_ms=3"])
        for line in lines.values():
            self.assertEqual(list(line.get_xdata()), [1, 2])

    @needs("matplotlib")
    def test_a_label_has_the_settings_that_tell_lines_apart(self):
        from gradlag import plots
        train(workers=2)
        train(workers=2, **{"dataset.seed": 2})
        gradlag.run(**{**SMALL, "engine": "real", "pace": "none", "dataset.samples": 1000, "samples": 600, "batch": 10, "evaluate_every": 0.2})
        axes = plots.headline()
        legend = axes.get_legend()
        labels = [text.get_text() for text in legend.get_texts()]
        self.assertEqual(len(set(labels)), 3)
        self.assertLess(max(map(len, labels)), 80)
        axes.figure.canvas.draw()
        plot, below, page = (part.get_window_extent() for part in (axes, legend, axes.figure))
        self.assertLess(below.y1, plot.y0)  # long labels do not cover the plot
        self.assertTrue(page.x0 <= below.x0 and below.x1 <= page.x1 and page.y0 <= below.y0)
        self.assertGreater(plot.height, page.height / 3)

    @needs("matplotlib")
    def test_a_histogram_and_learning_curves(self):
        from gradlag import plots
        row = train(workers=4)
        train(workers=4, seed=2)
        bars = plots.staleness_histogram(run=1).patches
        self.assertAlmostEqual(sum(bar.get_height() for bar in bars), 1)
        mean = sum((bar.get_x() + bar.get_width() / 2) * bar.get_height() for bar in bars)
        self.assertAlmostEqual(mean, row["mean_staleness"])
        train(workers=4, evaluate_every=0, experiment="short")
        self.assertNotEqual(plots.learning_curve(runs="last").lines[0].get_marker(), "None")  # one point is seen
        change("DELETE FROM run WHERE experiment = 'short'")
        for wrong in ({"value": "accuracy"}, {"against": "time"}, {"value": "validation_loss", "runs": 1}):
            change("UPDATE evaluation SET validation_loss = NULL")
            before = plots.pyplot.get_fignums()
            with self.assertRaises(ValueError):
                plots.learning_curve(**wrong)
            self.assertEqual(plots.pyplot.get_fignums(), before)  # no empty figure stays open
        axes = plots.learning_curve(value="test_loss", against="updates")
        self.assertEqual([line.get_marker() for line in axes.lines], ["None", "None"])
        wanted = gradlag.results.rows("SELECT updates, test_loss FROM evaluation WHERE run_id = 1 ORDER BY updates")
        self.assertEqual(list(zip(*axes.lines[0].get_data())), [tuple(each.values()) for each in wanted])
