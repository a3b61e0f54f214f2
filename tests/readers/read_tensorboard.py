"""Reads an export with TensorBoard's own reader and compares it with the results file.

    python3 tests/readers/read_tensorboard.py results.db FOLDER

Exit code 77: TensorBoard is not installed for this Python.
"""
import glob
import math
import os
import sqlite3
import sys

try:
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.plugins.hparams import metadata
except ImportError as missing:
    print(f"TensorBoard is not installed: {missing}")
    sys.exit(77)

results, folder = sys.argv[1:]
file = sqlite3.connect(results)
file.row_factory = sqlite3.Row


def load(path):
    accumulator = event_accumulator.EventAccumulator(
        path, size_guidance={event_accumulator.SCALARS: 0, event_accumulator.HISTOGRAMS: 0,
                             event_accumulator.TENSORS: 0})
    accumulator.Reload()
    return accumulator


def plugin_content(accumulator, tag):
    return accumulator.SummaryMetadata(tag).plugin_data.content


def check_run(run):
    paths = glob.glob(f"{folder}/**/*-run{run['id']}/events.out.tfevents.*", recursive=True)
    assert len(paths) == 1, paths
    board = load(os.path.dirname(paths[0]))
    evaluations = file.execute("SELECT * FROM evaluation WHERE run_id = ? ORDER BY updates",
                               [run["id"]]).fetchall()
    for tag, column in [("accuracy/test", "test_accuracy"), ("loss/test", "test_loss")]:
        wanted = [(e["updates"], e[column]) for e in evaluations if e[column] is not None]
        found = [(s.step, s.value) for s in board.Scalars(tag)]
        assert [s for s, _ in found] == [s for s, _ in wanted], tag
        assert all(math.isclose(f, w, rel_tol=1e-6) for (_, f), (_, w) in zip(found, wanted)), tag
    last = board.Scalars("loss/batch")[-1]
    assert last.step == run["updates"], last
    assert all(s.value > 0 for s in board.Scalars("throughput/updates_per_second"))
    if run["mode"] == "async":
        used = "FROM push WHERE run_id = ? AND outcome IN ('applied', 'aggregated')"
        histograms = board.Histograms("staleness")
        total = sum(h.histogram_value.num for h in histograms)
        assert total == file.execute(f"SELECT count(*) {used}", [run["id"]]).fetchone()[0]
        weight = sum(h.histogram_value.sum for h in histograms)
        assert weight == file.execute(f"SELECT sum(staleness) {used}", [run["id"]]).fetchone()[0]
        for h in histograms:
            value = h.histogram_value
            assert sum(value.bucket) == value.num and len(value.bucket) == len(value.bucket_limit)
            assert list(value.bucket_limit) == sorted(set(value.bucket_limit))
    start = metadata.parse_session_start_info_plugin_data(
        plugin_content(board, metadata.SESSION_START_INFO_TAG))
    assert start.hparams["lr"].number_value == run["lr"], start
    assert start.hparams["mode"].string_value == run["mode"], start
    end = metadata.parse_session_end_info_plugin_data(
        plugin_content(board, metadata.SESSION_END_INFO_TAG))
    assert end.status == 1, end  # STATUS_SUCCESS


runs = file.execute("SELECT * FROM run WHERE status = 'finished'").fetchall()
assert runs
for each in runs:
    check_run(each)
experiment = metadata.parse_experiment_plugin_data(
    plugin_content(load(folder), metadata.EXPERIMENT_TAG))
assert "lr" in [info.name for info in experiment.hparam_infos]
assert "accuracy/test" in [info.name.tag for info in experiment.metric_infos]
print(f"{len(runs)} runs read by TensorBoard")
