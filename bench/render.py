"""Markdown, HTML and plots of a summary, and the README's picture.

Runs as a program of its own, `python3 -m bench.render SUMMARY DIR` or `python3 -m bench.render
--picture REPOSITORY FILE`, with the system's Python, for which Debian packages matplotlib and jinja2.
"""

import math
import re
import sys
from pathlib import Path

import jinja2
import matplotlib

matplotlib.use("svg")
# The same results give the same files.
matplotlib.rcParams["svg.hashsalt"] = "bench"

from matplotlib import pyplot  # noqa: E402

from . import counters, figures, report, runner, summary  # noqa: E402

TEMPLATES = Path(__file__).resolve().parent / "templates"
PLOTS = "plots"

# Of this build in blue and green, of stock in red and grey.
COLOURS = {"off": "#7fb2e5", "double_writes": "#1f5fa8", "double_writes+lz4": "#5a4fb0",
           "double_writes+zstd": "#8a6fd0", "double_writes+plain": "#8fa3c8",
           "in_order": "#d24d9c",
           "no_look_ahead": "#e59ac4",
           "atomic_writes": "#d99a2b",
           "full_pages": "#2f9e6e", "full_pages+lz4": "#9ad3b9",
           "full_pages+zstd": "#c9e8da", "stock-off": "#9a9a9a",
           "stock-full_pages": "#c0392b", "stock-full_pages+lz4": "#e8a09a",
           "stock-full_pages+zstd": "#f3cfcb",
           "serial": "#7fb2e5", "pipeline": "#1f5fa8", "stock": "#9a9a9a",
           "serial+images": "#9ad3b9", "pipeline+images": "#2f9e6e", "stock+images": "#c0392b"}


def main(path: Path, directory: Path) -> None:
    """Write report and plots of a summary into a directory; rows of its runs may lie there."""
    kept = summary.load(path)
    measures = report.measures(kept)
    (directory / PLOTS).mkdir(parents=True, exist_ok=True)
    over_time = _over_time_of(directory)
    context = {
        "meta": kept["meta"],
        "name": path.name,
        "bars": report.bar_table(kept["meta"]["suite"], measures),
        "overview": report.overview(measures),
        "sections": [_section(directory, measure, over_time.get(measure.title, {}))
                     for measure in measures],
        "loads": kept["load_averages"],
    }
    for name in (report.MARKDOWN, report.HTML):
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True,
            autoescape=name.endswith(".html"), keep_trailing_newline=True,
            undefined=jinja2.StrictUndefined)
        text = environment.get_template(f"{name}.j2").render(context)
        (directory / name).write_text(text)


def _over_time_of(directory):
    """Return {title of a measure: {arm: values of each second}} of the last runs, {} without rows."""
    found = {}
    for one in runner.load(directory)[1] if (directory / runner.META).exists() else ():
        for point in one["points"]:
            if point.get("series"):
                found.setdefault(f"{one['case']}: {point['name']}", {})[one["arm"]] = point["series"]
    return found


def _section(directory, measure, over_time):
    """Return the tables of a measure by title, and its plot, which it draws."""
    name = re.sub(r"\W+", "-", measure.title).strip("-") + ".svg"
    _draw(measure, over_time, directory / PLOTS / name)
    tables = {"Speed": report.speeds(measure),
              "Costs of an operation, the checkpoint after the load included":
                  report.costs(measure),
              "Latency in ms, and other figures": report.details(measure),
              "Seconds of each part": report.parts(measure),
              "Requests that the device saw in each part, reads (r) and writes (w)":
                  report.requests(measure),
              "What backends did, percent of their time": report.waits(measure),
              "Writes by cause": report.causes(measure, "writes"),
              "Syncs by cause": report.causes(measure, "syncs")}
    return {"title": measure.title, "plot": f"{PLOTS}/{name}",
            "tables": {title: rows for title, rows in tables.items() if rows}}


# Plots --------------------------------------------------------------------------


def _draw(measure, over_time, path):
    """Draw all plots of a measure into one file."""
    figure, axes = pyplot.subplots(2, 3, figsize=(15, 8))
    _over_time(axes[0][0], measure, over_time)
    _latencies(axes[0][1], measure)
    _bytes(axes[0][2], measure)
    _stack(axes[1][0], measure, "writes by cause", lambda kept: kept.get("writes", {}),
           counters.WRITE_CAUSES)
    _stack(axes[1][1], measure, "syncs by cause", lambda kept: kept.get("syncs", {}),
           counters.SYNC_CAUSES)
    _bars(axes[1][2], measure, "server CPU ms per operation",
          lambda arm: measure.cost(arm, "CPU ms"))
    figure.suptitle(measure.title)
    figure.tight_layout()
    # Without a date: drawing again must not change the file.
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _over_time(axis, measure, over_time):
    """Draw what is known of a measure over time; the medians where nothing is."""
    kept = {arm: one["trace"] for arm, one in measure.arms.items() if "trace" in one}
    traces = kept or {arm: {"step": 1, "values": series} for arm, series in over_time.items()}
    if not traces:
        _bars(axis, measure, measure.unit, lambda arm: measure.sample(arm).median)
        return
    axis.set_title(f"{measure.unit}, last run")
    for arm, trace in traces.items():
        values = [math.nan if value is None else value for value in trace["values"]]
        axis.plot([trace["step"] * number for number in range(1, len(values) + 1)], values,
                  label=arm, color=COLOURS[arm], linewidth=1)
    axis.set_xlabel("s")
    if measure.unit == "ms":
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.legend(fontsize=7)


def _latencies(axis, measure):
    """Draw percentiles of latency."""
    axis.set_title("latency percentiles (ms), medians")
    for arm, kept in measure.arms.items():
        latency = kept.get("latency", {})
        if latency:
            axis.plot(list(latency), list(latency.values()), marker="o", markersize=3,
                      label=arm, color=COLOURS[arm])
            axis.set_yscale("log")


def _bytes(axis, measure):
    """Draw WAL and double-written bytes."""
    def kilobytes(kept):
        costs = kept.get("costs", {})
        return {"WAL": costs.get("WAL bytes", 0) / 1024,
                "double-write log": costs.get("bytes double-written", 0) / 1024}
    _stack(axis, measure, "kB written to logs, per operation", kilobytes, ("WAL", "double-write log"))


def _bars(axis, measure, title, value):
    """One bar for each arm."""
    axis.set_title(title)
    arms = list(measure.arms)
    axis.bar(arms, [value(arm) for arm in arms], color=[COLOURS[arm] for arm in arms])
    axis.tick_params(axis="x", rotation=30, labelsize=7)


def _stack(axis, measure, title, parts, names):
    """Draw one bar for each arm, of parts."""
    axis.set_title(title)
    arms = list(measure.arms)
    values = {arm: parts(kept) for arm, kept in measure.arms.items()}
    bottom = [0] * len(arms)
    for part in names:
        heights = [values[arm].get(part, 0) for arm in arms]
        axis.bar(arms, heights, bottom=bottom, label=part)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axis.set_ylim(0, 1.3 * max(*bottom, 1e-6))
    axis.tick_params(axis="x", rotation=30, labelsize=7)
    axis.legend(fontsize=7)


# The picture of the README --------------------------------------------------------

# Where no run has an arm.
UNKNOWN = " -"

MODES = {"stock-off": "stock, no images", "stock-full_pages": "stock", "stock-full_pages+lz4": "stock, lz4",
         "stock-full_pages+zstd": "stock, zstd", "full_pages": "full_pages", "off": "off",
         "in_order": "redo in order", "double_writes": "double_writes"}


def picture(repository: Path, path: Path) -> None:
    """Draw throughput, WAL, and seconds from a crash to the first query, by arm."""
    found = figures.pictured(repository)
    arms = [arm for arm in MODES if any(arm in by_arm for _, by_arm in found)]
    labels, colours = [MODES[arm] for arm in arms], [COLOURS[arm] for arm in arms]
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(1, len(found), figsize=(11, 2.4), sharey=True)
        for axis, (row, by_arm) in zip(axes, found):
            numbers = [row.value(by_arm[arm][1], arm) if arm in by_arm else 0 for arm in arms]
            bars = axis.barh(labels, numbers, color=colours)
            axis.bar_label(bars, [f" {report.number(number)}" if arm in by_arm else UNKNOWN
                                  for arm, number in zip(arms, numbers)])
            axis.set_title(row.text, loc="left", fontsize=9)
            axis.set_xlim(0, 1.25 * max(numbers))
            axis.set_xticks([])
            axis.spines[:].set_visible(False)
            axis.tick_params(length=0)
        axes[0].invert_yaxis()
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None,
                                       "Description": figures.names_of_picture(repository)})
        pyplot.close(figure)
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line.rstrip()}\n" for line in lines))


if __name__ == "__main__":
    if sys.argv[1] == "--picture":
        picture(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
