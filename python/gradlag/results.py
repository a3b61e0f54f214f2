"""Starts runs and reads results files. The standard library is enough; with pandas, tables are DataFrames."""
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


def select(sql, results="results.db", parameters=()):
    """The rows of a SELECT: a pandas.DataFrame, or a list of dicts where there is no pandas."""
    if not os.path.exists(results):
        raise FileNotFoundError(f"there is no results file {results}")
    connection = sqlite3.connect(f"file:{urllib.parse.quote(os.fspath(results))}?mode=ro", uri=True)
    try:
        cursor = connection.execute(sql, parameters)
        names = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
    finally:
        connection.close()
    try:
        import pandas
    except ImportError:
        return [dict(zip(names, row)) for row in rows]
    return pandas.DataFrame(rows, columns=names)


def runs(results="results.db"):
    """One row for each run."""
    return select("SELECT * FROM run_summary", results)


def query(name, results="results.db", **parameters):
    """The answer of a named query (`gradlag query` lists them), as rows of texts and numbers."""
    done = subprocess.run([program(), "query", name, "--json", f"results={results}", *arguments(parameters)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Error(done.stderr.rpartition("gradlag: error: ")[2].strip(), done.returncode)
    rows = json.loads(done.stdout)
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)
