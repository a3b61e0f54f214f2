"""Event files: scalars, histograms of staleness and hyperparameters of each run. Needs the package tensorboard alone."""
import os
import re

import numpy
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram import metadata as histograms
from tensorboard.plugins.hparams import api_pb2, metadata as hparams, plugin_data_pb2, summary_v2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

SCALARS, HISTOGRAMS = 1000, 50  # points of a run
SUFFIX = ".gradlag"
EVALUATION_TAGS = {"train_loss": "loss/train", "validation_loss": "loss/validation", "validation_accuracy": "accuracy/validation",
                   "test_loss": "loss/test", "test_accuracy": "accuracy/test", "samples_per_second": "throughput/samples_per_second",
                   "updates_per_second": "throughput/updates_per_second"}
GRADIENT_TAGS = {"loss": "loss/batch", "staleness": "staleness/mean", "greatest_staleness": "staleness/max",
                 "scale": "staleness/scale", "gap": "staleness/gap", "gradient_norm": "gradient/norm"}


def _part(name):
    """A name as one part of a path: a results file may come from anywhere."""
    return re.sub(r"[^A-Za-z0-9._=+,-]|^\.", "_", name)


def _histogram(counts):
    """A bucket for each staleness, one version wide."""
    low, high = min(counts), max(counts)
    buckets = numpy.array([(s - 0.5, s + 0.5, counts.get(s, 0)) for s in range(low, high + 1)])
    return Summary.Value(tag="staleness", metadata=histograms.create_summary_metadata(None, None),
                         tensor=make_tensor_proto(buckets, dtype=numpy.float64))


class _Run:
    """The event file of one run."""

    def __init__(self, folder, run):
        os.makedirs(folder, exist_ok=True)
        for earlier in os.listdir(folder):
            if earlier.startswith("events.out.tfevents.") and earlier.endswith(SUFFIX):
                os.remove(os.path.join(folder, earlier))
        self.writer = EventFileWriter(folder, filename_suffix=SUFFIX)
        self.began = run["began"]
        self.evaluated, self.averaged, self.counted = -1, 0, 0  # the last updates that were written
        without_seed = {key: value for key, value in run["keys"].items() if key != "seed"}
        group = summary_v2.hparams_pb(without_seed).value  # its hash names the group
        start = hparams.parse_session_start_info_plugin_data(group[0].metadata.plugin_data.content)
        self.add(0.0, 0, *summary_v2.hparams_pb(run["compared"], trial_id=start.group_name, start_time_secs=run["began"]).value)

    def add(self, seconds, step, *values):
        if values:
            self.writer.add_event(Event(wall_time=self.began + (seconds or 0.0), step=step, summary=Summary(value=values)))

    def add_scalars(self, row, tags):
        self.add(row["seconds"], row["updates"],
                 *(Summary.Value(tag=tag, simple_value=row[name]) for name, tag in tags.items() if row[name] is not None))

    def end(self, run):
        finished = run["status"] == "finished"
        info = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS if finished else api_pb2.STATUS_FAILURE,
                                              end_time_secs=run["ended"])
        about = hparams.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=info))
        self.add(run["train_seconds"], run["updates"] or 0,
                 Summary.Value(tag=hparams.SESSION_END_INFO_TAG, metadata=about, tensor=hparams.NULL_TENSOR))


class Target:
    def __init__(self, source, path):
        self.source = source
        self.path = path
        self.open = {}
        self.ended = set()

    def _folder(self, run):
        parts = [_part(run["experiment"])] if run["experiment"] else []
        return os.path.join(self.path, *parts, f"{_part(run['title'])}-w{run['workers']}-s{run['seed']}-run{run['id']}-{run['uuid'][:8]}")

    def write(self, runs):
        for run in runs:
            if run["id"] not in self.ended:
                self._write(run)

    def _write(self, run):
        if run["id"] not in self.open:
            self.open[run["id"]] = _Run(self._folder(run), run)
        file = self.open[run["id"]]
        for row in self.source.evaluations(run, file.evaluated):
            file.add_scalars(row, EVALUATION_TAGS)
            file.evaluated = row["updates"]
        for row in self.source.gradients(run, SCALARS, file.averaged):
            file.add_scalars(row, GRADIENT_TAGS)
            file.averaged = row["updates"]
        for updates, seconds, counts in self.source.staleness(run, HISTOGRAMS, file.counted):
            file.add(seconds, updates, _histogram(counts))
            file.counted = updates
        file.writer.flush()
        if run["status"] != "running":
            file.end(run)
            self.open.pop(run["id"]).writer.close()
            self.ended.add(run["id"])

    def close(self):
        for file in self.open.values():
            file.writer.close()
