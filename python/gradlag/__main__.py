"""python3 -m gradlag export|follow TOOL [FILE [RUN…]] [-o PATH]"""
import argparse
import sqlite3
import sys

from . import exports
from .results import Error


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python3 -m gradlag", description="Exports runs of a results file to another tool.")
    parser.add_argument("what", metavar="export|follow", choices=("export", "follow"), help="export: once; follow: until no run is running")
    parser.add_argument("tool", metavar="TOOL", choices=list(exports.TOOLS), help=", ".join(exports.TOOLS))
    parser.add_argument("results", metavar="FILE", nargs="?", default="results.db", help="the results file (results.db)")
    parser.add_argument("runs", nargs="*", default=[], metavar="RUN", help="an id, the start of a uuid, or 'last'; default: all runs")
    parser.add_argument("-o", dest="path", metavar="PATH", help="folder, file or URI; default: results-TOOL, results-optuna.db, or MLflow's own")
    asked = parser.parse_intermixed_args(arguments)
    try:
        count = getattr(exports, asked.what)(asked.results, asked.tool, asked.path, asked.runs or None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # also errors of the tool's library
        print(f"gradlag: error: {error}", file=sys.stderr)
        return error.code if isinstance(error, Error) else 7 if isinstance(error, sqlite3.Error) else 1
    print(f"{count} run{'' if count == 1 else 's'}: {asked.path or exports.TOOLS[asked.tool][1] or 'the tracking store of MLflow'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
