"""The tables of docs/figures.md and of the README: what the committed results show.

Of each case the newest run on each kind of storage counts.  A run that does not say
of which commit it is shows nothing but that.  Pure functions of bench/results.
"""

from dataclasses import dataclass
from pathlib import Path

from . import bars, report, runner

RESULTS = Path("bench") / "results"

# What a table says of each arm: titles of report.COSTS.
SHOWN = ("WAL bytes", "images", "CPU ms", "pages written", "pages per write",
         "pages double-written", "device kB written")

# Settings of a case that are sizes.
SIZES = ("data", "shared_buffers", "max_wal_size", "checkpoint_timeout", "io_combine_limit")

# Load average of each processor that a benchmark alone causes only with many clients.
BUSY = 4

# The load of the README's table and picture, and the arms shown there.
HEADLINE = ("pgbench", "scale 100, max_wal_size 64 MB")
HEADLINE_STORAGE = "memory"
HEADLINE_ARMS = ("double_writes", "full_pages", "full_pages+lz4", "stock-full_pages",
                 "stock-full_pages+lz4")
HEADLINE_ROWS = (
    ("WAL, bytes a transaction", "WAL bytes"),
    ("page images in WAL, a transaction", "images"),
    ("copies in the double-write log, a transaction", "pages double-written"),
    ("pages in one write to a data file", "pages per write"),
    ("written to the device, kB a transaction", "device kB written"),
    ("CPU time of the server, ms a transaction", "CPU ms"),
)
BULK = ("traps", "bulk, 128 MB", "COPY into new table")

# What storage that people rent adds to it, where time is worth more: arms, and text, suite
# and case, measure.
RENTED = "rented"
RENTED_ARMS = ("instant", *HEADLINE_ARMS)
RENTED_ROWS = (
    ("transactions a second", HEADLINE, "tps"),
    ("from a crash to the first query, s", ("restart", "tpcb-like"), "until first query"),
    ("the same, documents", ("restart", "documents"), "until first query"),
)

HEAD = """\
# Figures

Generated from `bench/results` by `./dev generate`: of each case the newest run on each
kind of storage. A figure is of a commit: runs that do not say of which one are listed at
the end and not shown. *Dirty* means that what builds and benchmarks are made of had been
edited since. WAL, pages and device writes are counts, which other work on the machine hardly
changes; speeds and CPU time are worth what the machine was worth meanwhile. Medians;
counts are per operation (a transaction or a statement), the checkpoint after the load
included. `bench/README.md` says what the suites do, `crash/README.md` has the figures of
the power-cut explorer.
"""


@dataclass(frozen=True)
class Series:
    """A directory of results."""

    name: str
    meta: dict
    runs: list

    @property
    def link(self):
        return f"[{self.name}]({RESULTS}/{self.name}/report.md)"

    @property
    def commit(self):
        return self.meta["machine"].get("commit", "")


def load(repository):
    """Return the Series of bench/results, the newest first."""
    found = [Series(path.parent.name, *report.load(path.parent, runner.META, runner.RUNS))
             for path in (repository / RESULTS).glob(f"*/{runner.META}")]
    return sorted(found, key=lambda one: (one.meta["started"], one.name), reverse=True)


def newest(series):
    """Return {(suite, storage, case): Series}: the newest with a commit, else the newest."""
    chosen = {}
    for one in sorted(series, key=lambda one: not one.commit):
        for case in dict.fromkeys(run["case"] for run in one.runs):
            chosen.setdefault((one.meta["suite"], one.meta["storage"], case), one)
    return dict(sorted(chosen.items()))


def of_case(series, case):
    """Return the Measures of one case of a Series."""
    return report.measures([run for run in series.runs if run["case"] == case])


# Tables -----------------------------------------------------------------------


def document(repository):
    """Return docs/figures.md."""
    chosen = newest(load(repository))
    parts = [HEAD]
    for (suite, storage, case), series in chosen.items():
        if series.commit:
            parts.append(_section(suite, storage, case, series))
    silent = {series.name: series for series in chosen.values() if not series.commit}
    if silent:
        rows = [("run", "suite", "cases"),
                *((series.link, series.meta["suite"],
                   ", ".join(case for (_, _, case), one in chosen.items() if one is series))
                  for series in sorted(silent.values(), key=lambda one: one.name))]
        parts.append("## Not shown\n\nThese runs do not say of which commit they are.\n\n"
                     + markdown(rows))
    text = "\n".join(parts)
    return text.replace(f"]({RESULTS}/", f"](../{RESULTS}/")


def _section(suite, storage, case, series):
    """Return what a Series says about a case."""
    lines = [f"## {suite}, {storage}: {case}\n", describe(series, case)]
    measures = of_case(series, case)
    for measure in measures:
        lines.append(f"**{measure.name}**\n\n{markdown(_table(measure))}")
        lines += _of_parts(measure)
    verdicts = bars.judge(suite, measures)
    if verdicts:
        rows = [("bar", "of", "wanted", "found", "bounds", "")]
        rows += [(one.bar, one.point, f"{one.wanted:g}", f"{one.ratio.value:.3f}",
                  f"{one.ratio.low:.3f} .. {one.ratio.high:.3f}",
                  "reached" if one.outcome == bars.PASS else f"**missed{one.outcome[4:]}**")
                 for one in verdicts]
        lines.append("Bars; a ratio is a speed, above 1 the first is faster:\n\n"
                     + markdown(rows))
    return "\n".join(lines)


def _of_parts(measure):
    """Return what is known of the parts of a time, nothing if it has none."""
    seconds = report.parts(measure)
    if not seconds:
        return []
    tables = (("Seconds of each part:", seconds),
              ("Reads (r) and writes (w) of the device:", report.requests(measure)),
              ("Counts, and the load:", report.details(measure)))
    return [f"{title}\n\n{markdown(rows)}" for title, rows in tables]


def describe(series, case):
    """Return the lines that say what a run is of."""
    meta = series.meta
    machine = meta["machine"]
    sizes = ", ".join(f"{name} {meta['cases'][case][name]}" for name in SIZES
                      if name in meta["cases"].get(case, {}))
    loads = [run["load_average"] for run in series.runs]
    busy = ", busy, with many clients or other work: believe the counts more than speeds and times" \
        if min(loads) > BUSY * int(machine["processor"].split()[0]) else ""
    return (f"Run {series.link} of {meta['started'][:10]}, {commit(series)}; "
            f"{machine['processor']}, {machine['memory']}; {meta['file_system']}; "
            f"factor {meta['factor']:g}: {sizes}; {meta['runs']} "
            f"{'run' if meta['runs'] == 1 else 'runs'} of {meta['seconds']} s, "
            f"load average {_loads(series)}{busy}.\n")


def commit(series):
    """Return the commit of a Series as people say it."""
    dirty = series.meta["machine"].get("commit dirty") != "no"
    return f"commit {series.commit[:10]}{', dirty' if dirty else ''}"


def _table(measure):
    """Return value, spread and costs of each arm."""
    costs = report.costs(measure)
    columns = [number for number, title in enumerate(costs[0]) if title in SHOWN]
    rows = [("arm", f"median, {measure.unit}", "min .. max",
             *(costs[0][number] for number in columns))]
    for row, arm in zip(costs[1:], measure.arms, strict=True):
        sample = measure.sample(arm)
        rows.append((arm, report.number(sample.median),
                     f"{report.number(sample.low)} .. {report.number(sample.high)}",
                     *(row[number] for number in columns)))
    return rows


def costs_by_arm(measure, title):
    """Return {arm: text} of one column of report.costs()."""
    rows = report.costs(measure)
    column = rows[0].index(title)
    return {row[0]: row[column] for row in rows[1:]}


def markdown(rows):
    """Return a table."""
    rule = "|" + "---|" * len(rows[0])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


# The README -------------------------------------------------------------------


def headline(repository):
    """Return the README's table, or why there is none."""
    chosen = newest(load(repository))
    series = _of(chosen, *HEADLINE, HEADLINE_STORAGE)
    if series is None:
        return "No committed run says of which commit it is, so no figure is shown.\n"
    measure = of_case(series, HEADLINE[1])[0]
    arms = [arm for arm in HEADLINE_ARMS if arm in measure.arms]
    rows = [("pgbench", *(f"`{arm}`" for arm in arms), "run")]
    for text, title in HEADLINE_ROWS:
        cells = costs_by_arm(measure, title)
        rows.append((text, *(cells[arm] for arm in arms),
                     f"[run]({RESULTS}/{series.name}/report.md)"))
    bulk = _of(chosen, *BULK[:2], HEADLINE_STORAGE)
    if bulk is not None:
        rows.append(_bulk_row(bulk, arms))
    return markdown(rows) + "\n" + describe(series, HEADLINE[1]) + _rented(chosen)


def _rented(chosen):
    """Return the README's table of rented storage, nothing if there is no run on it."""
    found = [(text, series, case, next(one for one in of_case(series, case) if one.name == name))
             for text, (suite, case), name in RENTED_ROWS
             for series in [_of(chosen, suite, case, RENTED)] if series is not None]
    if not found:
        return ""
    arms = [arm for arm in RENTED_ARMS if any(arm in one.arms for *_, one in found)]
    rows = [("rented storage", *(f"`{arm}`" for arm in arms), "run")]
    for text, series, _, measure in found:
        rows.append((text, *(report.number(measure.sample(arm).median)
                             if arm in measure.arms else "" for arm in arms),
                     f"[run]({RESULTS}/{series.name}/report.md)"))
    described = {series.name: f"{series.link}, {commit(series)}, factor {series.meta['factor']:g}, "
                              f"{series.meta['runs']} runs, load average {_loads(series)}"
                 for _, series, *_ in found}
    held = found[0][1].meta["file_system"].partition("held to ")[2]
    return f"\n{markdown(rows)}\nHeld to {held}. Medians of {'; of '.join(described.values())}.\n"


def _loads(series):
    """Return the least and the greatest load average at the ends of runs."""
    loads = [run["load_average"] for run in series.runs]
    return f"{min(loads)} to {max(loads)}"


def _bulk_row(series, arms):
    """Return the row about COPY."""
    measure = next(one for one in of_case(series, BULK[1]) if one.name == BULK[2])
    cells = costs_by_arm(measure, "pages double-written")
    written = costs_by_arm(measure, "pages written")
    return ("COPY into a new table: pages written, of them copied to the log",
            *(f"{written[arm]}, {cells[arm]}" if arm in cells else "" for arm in arms),
            f"[run]({RESULTS}/{series.name}/report.md)")


def _of(chosen, suite, case, storage):
    """Return the Series with a commit that has a case, or None."""
    series = chosen.get((suite, storage, case))
    return series if series and series.commit else None


def pictured(repository):
    """Return the directory of the run that the picture is of, or None."""
    series = _of(newest(load(repository)), *HEADLINE, HEADLINE_STORAGE)
    return series and repository / RESULTS / series.name
