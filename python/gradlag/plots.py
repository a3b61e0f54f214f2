"""Figures for papers: one column wide, colours that colour-blind readers tell apart. Needs matplotlib.

    from gradlag import plots
    axes = plots.headline("results.db")
    axes.set_title("Fashion-MNIST")
    axes.figure.savefig("headline.pdf")

Each function draws into `axes` (None: a new figure) and returns the axes. Axes, lines and texts are matplotlib's: change them.
"""
import functools
import json
import re
import textwrap
from contextlib import closing
from itertools import groupby

try:
    from matplotlib import pyplot
    from matplotlib.ticker import NullLocator
    from matplotlib.transforms import ScaledTranslation
except ModuleNotFoundError:
    raise ImportError("gradlag.plots needs matplotlib: python3 -m pip install matplotlib") from None

from .exports import Source
from .results import rows

WIDTH, HEIGHT = 3.4, 2.5  # inches
LABEL = 32  # characters of the longest label that a legend inside the plot may have
LINE_HEIGHT = 0.13  # inches, of a legend
BELOW = 0.35  # inches from the plot to a legend below it: numbers and the axis label are between
COLOURS = ("#16191d", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#c98700", "#2f98d8", "#857a00")
MARKERS = "osD^vP*X"
WORDED = {"lr": "rate {}", "batch": "batch {}", "damping": "damping {}", "workers": "×{}"}  # in a label; others: the value alone
STYLE = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.3,
         "lines.linewidth": 1.2, "lines.markersize": 4, "legend.frameon": False, "legend.fontsize": 6.5}
VALUES = {"test_accuracy": "test accuracy", "validation_accuracy": "validation accuracy", "test_loss": "test loss (nats)",
          "validation_loss": "validation loss (nats)", "train_loss": "training loss (nats)"}
AGAINST = {"samples": "samples", "updates": "updates", "seconds": "training time (s)"}


def _legend(axes, own):
    """Adds the legend. Long labels are wrapped and placed below the plot; a figure of our own grows by their height."""
    handles, labels = axes.get_legend_handles_labels()
    if max(len(label) for label in labels) <= LABEL:
        axes.legend()
        return
    labels = [textwrap.fill(label, 2 * LABEL, break_on_hyphens=False) for label in labels]
    if own:
        lines = sum(label.count("\n") + 1 for label in labels)
        axes.figure.set_figheight(HEIGHT + lines * LINE_HEIGHT)
    below = axes.transAxes + ScaledTranslation(0, -BELOW, axes.figure.dpi_scale_trans)
    axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below)


def _figure(draw):
    """Gives a plot its axes and its style."""
    @functools.wraps(draw)
    def styled(*arguments, axes=None, **named):
        with pyplot.rc_context(STYLE):
            drawn = axes or pyplot.subplots(figsize=(WIDTH, HEIGHT), layout="constrained")[1]
            try:
                draw(*arguments, axes=drawn, **named)
            except Exception:
                if axes is None:
                    pyplot.close(drawn.figure)
                raise
            if drawn.get_legend_handles_labels()[0]:
                _legend(drawn, own=axes is None)
        return drawn
    return styled


def _percent(axis):
    axis.set_major_formatter(lambda share, at: f"{100 * share:.4g} %")


def _words(row):
    return dict(re.findall(r"([\w.]+)=(.*?)(?= [\w.]+=|$)", row["differing"] or ""))


def _settings(row, lines):
    """The row's settings that tell the lines apart: first settings that all lines have, then others only if they tell more lines apart."""
    found = [_words(line) for line in lines]

    def told(keys):
        return len({tuple(words.get(key) for key in keys) for words in found})
    keys = sorted({key for words in found for key in words})
    chosen = [key for key in keys if told([key]) > 1 and all(key in words for words in found)]
    for key in keys:
        if told([*chosen, key]) > told(chosen):
            chosen.append(key)
    return " ".join(f"{key}={value}" for key, value in _words(row).items() if key in chosen)


def _label(row, lines, *more):
    """The parts of a row's name in which the lines differ; settings only if the row has no arm."""
    names = ("experiment", "arm", *more) if row["arm"] else ("experiment", "mode", "damping", "lr", "batch", "differing", *more)
    differ = [name for name in names if row[name] is not None and len({line[name] for line in lines}) > 1] or [names[1]]
    parts = (_settings(row, lines) if name == "differing" else WORDED.get(name, "{}").format(row[name]) for name in differ)
    return ", ".join(part for part in parts if part)


def _settings_of_axes(group):
    """The settings that tell rows with equal workers apart: settings of the cluster first, others only if they tell more rows apart."""
    found = [{**{name: row[name] for name in ("mode", "damping", "lr", "batch")}, **_words(row)} for row in group]
    cluster = {key for row in group for key in json.loads(row["cluster"] or "{}")}

    def told(keys):
        return len({(row["workers"], *(str(words.get(key)) for key in keys)) for row, words in zip(group, found)})
    chosen = []
    for key in sorted({key for words in found for key in words}, key=lambda key: (key not in cluster, key)):
        if told([*chosen, key]) > told(chosen):
            chosen.append(key)
    return [" ".join(f"{key}={words.get(key, '-')}" for key in chosen) for words in found]


def _apart(label, group):
    """The rows of an arm, as (label, rows): a line for each combination of other axes, if the experiment has several axes."""
    if len({row["workers"] for row in group}) == len(group):
        return [(label, group)]
    parts = {}
    for name, row in zip(_settings_of_axes(group), group):
        parts.setdefault(name, []).append(row)
    return [(", ".join(part for part in (label, name) if part), rows) for name, rows in sorted(parts.items())]


def _lines(found):
    """Rows that differ only in the number of workers, as (label, rows). An arm of an experiment with one axis is one line, even if
    its settings differ."""
    def key(row):
        settings = () if row["arm"] else (row["mode"], row["damping"], row["lr"], row["batch"], row["differing"])
        return tuple(str(part) for part in (row["experiment"], row["arm"], *settings))
    groups = [list(group) for _, group in groupby(sorted(found, key=key), key)]
    firsts = [group[0] for group in groups]
    return [line for group in groups for line in _apart(_label(group[0], firsts), group)]


def _style(i):
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "linestyle": ("-", "--", ":")[i // len(COLOURS) % 3]}


@_figure
def headline(results="results.db", experiment=None, axes=None):
    """Test accuracy against the number of workers: a line for each arm; bars are 95 % intervals over seeds."""
    found = rows("SELECT * FROM accuracy_by_workers WHERE mean_accuracy IS NOT NULL AND (experiment = :experiment OR :experiment IS NULL"
                 " AND coalesce(experiment, '') NOT LIKE '%/tuning') ORDER BY workers", results, {"experiment": experiment})
    if not found:
        raise ValueError(f"{results} has no finished run with a test accuracy{f' in experiment {experiment}' if experiment else ''}")
    for i, (label, line) in enumerate(_lines(found)):
        mean, low, high = ([row[name] for row in line] for name in ("mean_accuracy", "interval_low", "interval_high"))
        bars = [[0 if end is None else abs(end - at) for end, at in zip(ends, mean)] for ends in (low, high)]
        axes.errorbar([row["workers"] for row in line], mean, bars, capsize=2, label=label, **_style(i))
    workers = sorted({row["workers"] for row in found})
    axes.set(xscale="log", xlabel="workers", ylabel="test accuracy")
    axes.set_xticks(workers, workers)
    axes.xaxis.set_minor_locator(NullLocator())
    _percent(axes.yaxis)


@_figure
def staleness_histogram(results="results.db", run="last", axes=None):
    """The share of each staleness among the used gradients of a run; the line is the mean."""
    with closing(Source(results, [run])) as source:
        found = source.rows("SELECT staleness, share FROM staleness_histogram WHERE run_id = :run ORDER BY staleness", run=source.ids[0])
    if not found:
        raise ValueError(f"run {run} in {results} recorded no gradients (record=all records them)")
    axes.bar([row["staleness"] for row in found], [row["share"] for row in found], width=0.9, color=COLOURS[2])
    mean = sum(row["staleness"] * row["share"] for row in found)
    axes.axvline(mean, color=COLOURS[1], label=f"mean {mean:.3g}")
    axes.set(xlabel="staleness (updates)", ylabel="share of gradients")
    _percent(axes.yaxis)


@_figure
def learning_curve(results="results.db", runs=None, value="test_accuracy", against="samples", axes=None):
    """Evaluations of runs (None: all) during training; runs that differ only in the seed have one colour."""
    if value not in VALUES or against not in AGAINST:
        raise ValueError(f"there is no curve of '{value}' against '{against}'; there are {', '.join(VALUES)}, against {', '.join(AGAINST)}")
    with closing(Source(results, runs)) as source:
        described = {row["id"]: row for row in source.rows("SELECT * FROM run_with_settings")}
        curves = [(described[run["id"]], source.evaluations(run, -1)) for run in source.runs()]
    groups = {}
    for row, curve in curves:
        points = [(each[against], each[value]) for each in curve if each[value] is not None]
        if points:
            groups.setdefault((row["experiment"], row["arm"], row["settings"]), []).append((row, points))
    if not groups:
        raise ValueError(f"{results} has no {VALUES[value]} of these runs")
    firsts = [group[0][0] for group in groups.values()]
    for i, group in enumerate(groups.values()):
        for k, (row, points) in enumerate(group):
            label = _label(row, firsts, "workers") if k == 0 else None
            style = _style(i) if len(points) == 1 else {**_style(i), "marker": None}  # a single point has no line
            axes.plot(*zip(*points), label=label, **style)
    axes.set(xlabel=AGAINST[against], ylabel=VALUES[value])
    if value.endswith("accuracy"):
        _percent(axes.yaxis)
