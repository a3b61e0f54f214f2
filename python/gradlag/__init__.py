"""gradlag for Python: bring your own model, start runs, read, plot and export results.

Your own model (docs/external-models.md): gradlag.serve(…), gradlag.torch.serve(…).
Results: gradlag.run(mode="async", workers=4), gradlag.runs("results.db"), gradlag.select("SELECT …"), gradlag.query("runs").
Figures: gradlag.plots. Other tools (docs/exports.md): gradlag.export("results.db", to="tensorboard"), gradlag.follow(…).
"""
from .exports import export, follow
from .results import Error, query, run, runs, select

__all__ = ["Error", "export", "follow", "query", "run", "runs", "select", "serve"]


def serve(make):
    """See gradlag.peer."""
    from . import peer  # needs NumPy; reading results does not
    peer.serve(make)
