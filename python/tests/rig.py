"""Shared by the tests: paths, settings, and a temporary folder for each test."""
import importlib.util
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
if "GRADLAG_INSTALLED" not in os.environ:  # else the package that pip installed
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = str(ROOT)
os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", MPLBACKEND="Agg")
os.environ.setdefault("GRADLAG", str(ROOT.parent / "build" / "gradlag"))

VIRTUAL = {"engine": "virtual", "pace": "gamma"}
SMALL = {"dataset": "gaussian", "model": "softmax", **VIRTUAL}


def needs(*packages):
    """Skips a test where one of these is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"no {', '.join(missing)}")


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gradlag-")
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
