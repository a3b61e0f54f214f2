"""Starts runs and reads results files. The standard library is enough; with pandas, tables are DataFrames."""
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import urllib.parse


class Error(RuntimeError):
    """A command of gradlag that failed: its message, its exit code (see `gradlag help`) and, if there is one, its run."""

    def __init__(self, message, code, run=None):
        super().__init__(message)
        self.code = code
        self.run = run


def program():
    """The gradlag that is called: $GRADLAG, or the first on PATH."""
    found = os.environ.get("GRADLAG") or shutil.which("gradlag")
    if not found:
        raise FileNotFoundError("there is no program gradlag on PATH: build it (make), then set PATH or GRADLAG=…/build/gradlag")
    return found


def arguments(settings):
    """Settings as gradlag reads them: pace__mean_ms=2 is pace.mean_ms=2, True is true."""
    for key, value in settings.items():
        if isinstance(value, bool):
            value = "true" if value else "false"
        yield f"{key.replace('__', '.')}={value}"


def run(**settings):
    """Trains once and returns the run's row as a dict: gradlag.run(mode="async", workers=4)["final_accuracy"]."""
    done = subprocess.run([program(), "run", "--json", *arguments(settings)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    row = json.loads(done.stdout) if done.stdout.strip() else None
    if done.returncode != 0:
        raise Error(done.stderr.rpartition("gradlag: error: ")[2].strip(), done.returncode, row)
    return row


def connect(results):
    """A connection that can only read the results file; a row has names, too."""
    if not os.path.exists(results):
        raise FileNotFoundError(f"there is no file {results}")
    # A connection that may write removes the files -wal and -shm again when it is the last one.
    writable = os.access(results, os.W_OK) and os.access(os.path.dirname(os.path.abspath(results)), os.W_OK)
    mode = "mode=rw" if writable else "mode=ro" if os.path.exists(f"{results}-wal") else "immutable=1"
    connection = sqlite3.connect(f"file:{urllib.parse.quote(os.fspath(results))}?{mode}", uri=True, isolation_level=None)
    connection.execute("PRAGMA query_only = ON")
    connection.row_factory = sqlite3.Row
    return connection


def rows(sql, results="results.db", parameters=()):
    """The rows of a SELECT as a list of dicts."""
    with contextlib.closing(connect(results)) as connection:
        return [dict(row) for row in connection.execute(sql, parameters)]


def select(sql, results="results.db", parameters=()):
    """The rows of a SELECT: a pandas.DataFrame, or a list of dicts where there is no pandas."""
    with contextlib.closing(connect(results)) as connection:
        cursor = connection.execute(sql, parameters)
        names = [column[0] for column in cursor.description]
        return _table([dict(zip(names, row)) for row in cursor], names)


def _table(found, names=None):
    try:
        import pandas
    except ImportError:
        return found
    return pandas.DataFrame(found, columns=names)


def runs(results="results.db"):
    """One row for each run."""
    return select("SELECT * FROM run_summary", results)


def query(name, results="results.db", **parameters):
    """The answer of a named query (`gradlag query` lists them), as rows of texts and numbers."""
    done = subprocess.run([program(), "query", name, "--json", f"results={results}", *arguments(parameters)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Error(done.stderr.rpartition("gradlag: error: ")[2].strip(), done.returncode)
    return _table(json.loads(done.stdout))
