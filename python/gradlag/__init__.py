"""gradlag for Python: bring your own model, start runs, read, plot and export results, load checkpoints.

Your own model (docs/external-models.md): gradlag.serve(…), gradlag.torch.serve(…).
Results: gradlag.run(mode="async", workers=4), gradlag.runs("results.db"), gradlag.select("SELECT …"), gradlag.query("runs").
Figures: gradlag.plots. Other tools (docs/exports.md): gradlag.export("results.db", to="tensorboard"), gradlag.follow(…).
Checkpoints in PyTorch (docs/exports.md): gradlag.load("at.safetensors"), gradlag.model("resnet8"), gradlag.samples("fashion-mnist").
"""
import importlib

from .exports import export, follow
from .results import Error, query, run, runs, select

__all__ = ["Error", "export", "follow", "load", "model", "query", "run", "runs", "samples", "select", "serve"]


def __getattr__(name):
    if name != "checkpoint":
        raise AttributeError(f"module 'gradlag' has no attribute '{name}'")
    return importlib.import_module(".checkpoint", __name__)  # needs NumPy; reading results does not


def serve(make):
    """See gradlag.peer."""
    from . import peer  # needs NumPy; reading results does not
    peer.serve(make)


def load(model, path=None, data=None):
    """See gradlag.checkpoint."""
    from . import checkpoint
    return checkpoint.load(model, path, data)


def model(name, inputs=(1, 28, 28), classes=10, **options):
    """See gradlag.models."""
    from . import models
    return models.model(name, inputs, classes, **options)


def samples(dataset, split="test", path=None, **options):
    """See gradlag.datasets."""
    from . import datasets
    return datasets.samples(dataset, split, path, **options)
