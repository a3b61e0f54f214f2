"""Starts runs and reads results files. The standard library is enough; with pandas, tables are DataFrames."""
import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import urllib.parse
import warnings


APPLICATION_ID, SCHEMA = 1196188007, 1
PR_SET_PDEATHSIG = 1
STOP_S = 660, 20  # limits after the first and the second signal; gradlag may take 15 s, and with checkpoint= another 20 × timeout_s (default 30)


class Error(RuntimeError):
    """A command of gradlag that failed: its message, its exit code (see `gradlag help`) and, if there is one, its run."""

    def __init__(self, message, code, run=None):
        super().__init__(message)
        self.code = code
        self.run = run


def program():
    """The path of the program: $GRADLAG, or the first gradlag on PATH."""
    found = os.environ.get("GRADLAG") or shutil.which("gradlag")
    if not found:
        raise FileNotFoundError("there is no program gradlag on PATH: build it (make), then set PATH or GRADLAG=…/build/gradlag")
    return found


def arguments(settings):
    """Settings as gradlag reads them: pace__mean_ms=2 is pace.mean_ms=2, True is true. None leaves a key out."""
    for key, value in settings.items():
        if not isinstance(value, str) and str(value) in ("True", "False"):  # also numpy.bool_
            value = str(value).lower()
        if value is not None:
            yield f"{key.replace('__', '.')}={value}"


def _apart():
    """Returns what the child does before it becomes gradlag. It gets its own process group, so only _stop() sends it signals, not a terminal.

    If Python is killed (a notebook restarts its kernel), gradlag ends: no run continues without its caller.
    """
    import ctypes  # not on Windows, where results files can be read
    libc = ctypes.CDLL(None)  # before fork(): later another thread may hold the loader's lock

    def become():
        os.setpgid(0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    return become


def _call(*words):
    """Runs a command of gradlag and returns its JSON answer; None: it printed nothing. Ctrl-C stops the command and keeps its results."""
    with subprocess.Popen([program(), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                          errors="replace", preexec_fn=_apart()) as command:
        try:
            out, messages = command.communicate()
        except BaseException:
            _stop(command)
            raise
    if command.returncode != 0:
        raise Error(_failure(command.returncode, messages), command.returncode, _complete(out))
    answer = json.loads(out) if out.strip() else None
    for text in re.findall("^gradlag[^:\n]*: warning: (.*)", messages, re.M):
        warnings.warn(text, stacklevel=3)  # the caller of run() or query()
    return answer


def _complete(out):
    """The answer of a command that failed; None: it did not print all of it, for example because it was killed."""
    try:
        return json.loads(out)
    except json.JSONDecodeError:
        return None


def _failure(code, messages):
    """The message of a failed command, from its first error on: that error is the cause, errors of other processes may follow."""
    first = re.search("^gradlag[^:\n]*: error: ", messages, re.M)
    said = messages[first.end() if first else 0:].strip()
    if code > 0:
        return said
    return (f"gradlag was killed by signal {-code} ({signal.strsignal(-code)}). If no user killed it, a likely cause is lack of memory: see the "
            f"kernel's log (dmesg), use fewer workers or a smaller model. {said}").strip()


def _stop(command):
    """One signal: gradlag stops and keeps its results. A second one, after STOP_S or another Ctrl-C, ends it at once."""
    for limit_s in STOP_S:
        try:
            command.send_signal(signal.SIGINT)
            command.communicate(timeout=limit_s)
            return
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            pass
    command.kill()
    command.communicate()


def run(**settings):
    """Trains once and returns the run's row as a dict: gradlag.run(mode="async", workers=4)["final_accuracy"].

    Error: the run failed; Error.run is its row, if it has one. Warnings of gradlag become Python warnings.
    Ctrl-C stops the run, which keeps its results, and raises KeyboardInterrupt.
    """
    return _call("run", "--json", *arguments(settings))


def connect(results):
    """A connection that can only read the results file. The columns of a row have names, too."""
    if sqlite3.sqlite_version_info < (3, 37):
        raise Error(f"Python's SQLite {sqlite3.sqlite_version} cannot read results files: 3.37 or later is needed; use gradlag.query()", 7)
    try:
        connection = _open(results)
        try:
            about = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        except sqlite3.Error:
            connection.close()
            raise
    except (FileNotFoundError, sqlite3.DatabaseError) as error:
        raise Error(f"{results} cannot be read as a results file: {error}; name another file", 7) from None
    if about != [APPLICATION_ID, SCHEMA]:
        connection.close()
        what = "not a results file of this version of gradlag" if os.path.getsize(results) else "empty: no run has been recorded in it yet"
        raise Error(f"{results} is {what}; name another file", 7)
    return connection


def _open(results):
    if not os.path.exists(results):
        raise FileNotFoundError("there is no such file")
    # A connection that may write removes the files -wal and -shm again when it is the last one.
    writable = os.access(results, os.W_OK) and os.access(os.path.dirname(os.path.abspath(results)), os.W_OK)
    mode = "mode=rw" if writable else "mode=ro" if os.path.exists(f"{results}-wal") else "immutable=1"
    connection = sqlite3.connect(f"file:{urllib.parse.quote(os.fspath(results))}?{mode}", uri=True, isolation_level=None)
    connection.execute("PRAGMA query_only = ON")
    connection.row_factory = sqlite3.Row
    connection.text_factory = lambda text: text.decode(errors="replace")  # the error of a run may hold anything that its program printed
    return connection


def rows(sql, results="results.db", parameters=()):
    """The rows of a SELECT as a list of dicts."""
    with contextlib.closing(connect(results)) as connection:
        cursor = connection.execute(sql, parameters)
        _names(cursor)
        return [dict(row) for row in cursor]


def select(sql, results="results.db", parameters=()):
    """The rows of a SELECT: a pandas.DataFrame, or a list of dicts where there is no pandas."""
    with contextlib.closing(connect(results)) as connection:
        cursor = connection.execute(sql, parameters)
        names = _names(cursor)
        return _table([dict(zip(names, row)) for row in cursor], names)


def _names(cursor):
    if cursor.description is None:
        raise Error("the statement is no SELECT: it has no columns; use select() and rows() to read", 2)
    names = [column[0] for column in cursor.description]
    for name in names:
        if names.count(name) > 1:
            raise Error(f"two columns are called {name}: give one of them another name with AS", 2)
    return names


def _table(found, names=None):
    try:
        import pandas
    except ImportError:
        return found
    return pandas.DataFrame(found, columns=names)


def runs(results="results.db"):
    """One row for each run, by the view run_summary of the file; gradlag.query("runs") also knows which processes have died."""
    return select("SELECT * FROM run_summary", results)


def query(name, results="results.db", **parameters):
    """The answer of a named query (`gradlag query` lists them), as rows of texts and numbers."""
    return _table(_call("query", name, "--json", f"results={results}", *arguments(parameters)))
