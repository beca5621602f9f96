"""Markdown, HTML and plots of a directory of results.

Runs as a program of its own, `python3 -m bench.render DIR [PICTURE]`, with the system's
Python, for which Debian packages matplotlib and jinja2.
"""

import re
import sys
from pathlib import Path

import jinja2
import matplotlib

matplotlib.use("svg")
# The same results give the same files.
matplotlib.rcParams["svg.hashsalt"] = "bench"

from matplotlib import pyplot  # noqa: E402

from . import counters, figures, report, runner  # noqa: E402

TEMPLATES = Path(__file__).resolve().parent / "templates"
PLOTS = "plots"

# Of this build in blue and green, of stock in red and grey.
COLOURS = {"off": "#7fb2e5", "double_writes": "#1f5fa8", "double_writes+lz4": "#5a4fb0",
           "double_writes+zstd": "#8a6fd0", "double_writes+plain": "#8fa3c8",
           "instant": "#d24d9c",
           "atomic_writes": "#d99a2b",
           "full_pages": "#2f9e6e", "full_pages+lz4": "#9ad3b9",
           "full_pages+zstd": "#c9e8da", "stock-off": "#9a9a9a",
           "stock-full_pages": "#c0392b", "stock-full_pages+lz4": "#e8a09a",
           "stock-full_pages+zstd": "#f3cfcb",
           "serial": "#7fb2e5", "pipeline": "#1f5fa8", "stock": "#9a9a9a",
           "serial+images": "#9ad3b9", "pipeline+images": "#2f9e6e", "stock+images": "#c0392b"}


def main(directory):
    """Write report and plots into the directory of results."""
    meta, runs = report.load(directory, runner.META, runner.RUNS)
    measures = report.measures(runs)
    (directory / PLOTS).mkdir(exist_ok=True)
    context = {
        "meta": meta,
        "bars": report.bar_table(meta["suite"], measures),
        "overview": report.overview(measures),
        "sections": [_section(directory, measure) for measure in measures],
        "loads": [one["load_average"] for one in runs],
    }
    for name in (report.MARKDOWN, report.HTML):
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True,
            autoescape=name.endswith(".html"), keep_trailing_newline=True,
            undefined=jinja2.StrictUndefined)
        text = environment.get_template(f"{name}.j2").render(context)
        (directory / name).write_text(text)


def _section(directory, measure):
    """Return the tables of a measure by title, and its plot, which it draws."""
    name = re.sub(r"\W+", "-", measure.title).strip("-") + ".svg"
    _draw(measure, directory / PLOTS / name)
    tables = {"Speed": report.speeds(measure),
              "Costs of an operation, the checkpoint after the load included":
                  report.costs(measure),
              "Latency in ms, and other figures": report.details(measure),
              "Seconds of each part": report.parts(measure),
              "Requests that the device saw in each part, reads (r) and writes (w)":
                  report.requests(measure),
              "What backends did, percent of their time": report.waits(measure),
              "Writes by cause": report.causes(measure, counters.WRITE_CAUSES),
              "Syncs by cause": report.causes(measure, counters.SYNC_CAUSES)}
    return {"title": measure.title, "plot": f"{PLOTS}/{name}",
            "tables": {title: rows for title, rows in tables.items() if rows}}


# Plots --------------------------------------------------------------------------


def _draw(measure, path):
    """Draw all plots of a measure into one file."""
    figure, axes = pyplot.subplots(2, 3, figsize=(15, 8))
    _over_time(axes[0][0], measure)
    _latencies(axes[0][1], measure)
    _bytes(axes[0][2], measure)
    _stacked(axes[1][0], measure, "writes by cause", counters.WRITE_CAUSES)
    _stacked(axes[1][1], measure, "syncs by cause", counters.SYNC_CAUSES)
    _cpu(axes[1][2], measure)
    figure.suptitle(measure.title)
    figure.tight_layout()
    # Without a date: drawing again must not change a committed file.
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _over_time(axis, measure):
    """Transactions a second over time; the values where there is no time."""
    points = {arm: measure.median_run(arm) for arm in measure.arms}
    if not any(point.get("series") for point in points.values()):
        _bars(axis, measure, measure.unit, lambda arm: measure.sample(arm).median)
        return
    axis.set_title("transactions a second, median run")
    for arm, point in points.items():
        axis.plot(range(1, len(point.get("series", [])) + 1), point.get("series", []),
                  label=arm, color=COLOURS[arm], linewidth=1)
    axis.set_xlabel("s")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=7)


def _latencies(axis, measure):
    """Latency percentiles."""
    axis.set_title("latency percentiles (ms), median run")
    for arm in measure.arms:
        latency = measure.median_run(arm).get("latency", {})
        if latency:
            axis.plot(list(latency), list(latency.values()), marker="o", markersize=3,
                      label=arm, color=COLOURS[arm])
            axis.set_yscale("log")


def _bytes(axis, measure):
    """WAL and double-written bytes."""
    mega = 1 << 20
    _stack(axis, measure, "MB written to logs", lambda counts: {
        "WAL": counts.get("wal.wal_bytes", 0) / mega,
        "double-write log": counts.get("dw.log_bytes", 0) / mega})


def _cpu(axis, measure):
    """Server CPU time per operation."""
    def milliseconds(arm):
        operations = max(1, measure.median_run(arm)["operations"])
        return 1000 * measure.median_run(arm).get("counts", {}).get("cpu.total", 0) / operations
    _bars(axis, measure, "server CPU ms per operation", milliseconds)


def _stacked(axis, measure, title, causes):
    """Counts by cause."""
    _stack(axis, measure, title, lambda counts: counters.by_cause(counts, causes))


def _bars(axis, measure, title, value):
    """One bar for each arm."""
    axis.set_title(title)
    arms = list(measure.arms)
    axis.bar(arms, [value(arm) for arm in arms], color=[COLOURS[arm] for arm in arms])
    axis.tick_params(axis="x", rotation=30, labelsize=7)


def _stack(axis, measure, title, parts):
    """One bar for each arm, of parts."""
    axis.set_title(title)
    arms = list(measure.arms)
    values = {arm: parts(report.with_drain(measure, arm)) for arm in arms}
    bottom = [0] * len(arms)
    for part in next(iter(values.values())):
        heights = [values[arm][part] for arm in arms]
        axis.bar(arms, heights, bottom=bottom, label=part)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axis.set_ylim(0, 1.3 * max(*bottom, 1))
    axis.tick_params(axis="x", rotation=30, labelsize=7)
    axis.legend(fontsize=7)


# The picture of the README --------------------------------------------------------

MODES = {"double_writes": "double_writes", "full_pages": "full_pages",
         "full_pages+lz4": "full_pages, lz4", "off": "off",
         "stock-full_pages": "stock, full-page writes",
         "stock-full_pages+lz4": "stock, full-page writes, lz4",
         "stock-full_pages+zstd": "stock, full-page writes, zstd"}


def picture(directory, path):
    """Draw WAL bytes and transactions by mode, of one case of a directory of results."""
    measure = figures.of_case(figures.Series(directory.name, *report.load(
        directory, runner.META, runner.RUNS)), figures.HEADLINE[1])[0]
    arms = [arm for arm in MODES if arm in measure.arms]
    labels, colours = [MODES[arm] for arm in arms], [COLOURS[arm] for arm in arms]
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(1, 2, figsize=(9, 2.2), sharey=True)
        for axis, title, values in (
                (axes[0], "WAL, bytes a transaction", figures.costs_by_arm(measure, "WAL bytes")),
                (axes[1], "transactions a second",
                 {arm: report.number(measure.sample(arm).median) for arm in arms})):
            numbers = [float(values[arm].replace(",", "")) for arm in arms]
            found = axis.barh(labels, numbers, color=colours)
            axis.bar_label(found, [f" {values[arm]}" for arm in arms])
            axis.set_title(title, loc="left", fontsize=9)
            axis.set_xlim(0, 1.25 * max(numbers))
            axis.set_xticks([])
            axis.invert_yaxis()
            axis.spines[:].set_visible(False)
            axis.tick_params(length=0)
        axes[1].invert_yaxis()
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None, "Description": directory.name})
        pyplot.close(figure)
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line.rstrip()}\n" for line in lines))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        picture(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
