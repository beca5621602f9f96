"""The tables of docs/figures.md, of the README and of the site: what the committed results show.

Of each case the newest run on each kind of storage counts.  A run that does not say
of which commit it is shows nothing.  Pure functions of bench/results.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from . import bars, report, stats, summary
from .report import Measure
from .suites import WAL_READY_MB, Case, megabytes

RESULTS = Path("bench") / "results"

# What a table of the site says of each arm: titles of summary.COSTS.
SHOWN = ("WAL bytes", "images", "CPU ms", "pages written", "pages per write",
         "pages double-written", "device kB written")

# Settings of a case that are sizes.
SIZES = ("data", "shared_buffers", "max_wal_size", "checkpoint_timeout", "io_combine_limit")

# Load average of each processor that a benchmark alone causes only with many clients.
BUSY = 4

OURS, STOCK = "double_writes", "stock-full_pages"

HEAD = """\
# Figures

Generated from `bench/results` by `./dev generate`: of each case the newest run on each
kind of storage that names its commit. WAL, pages and device writes are counts, which other
work on the machine hardly changes; speeds and times are worth what the machine was worth
meanwhile. *Rented* is storage held to 1,500 requests and 60 MB a second, of reads and of
writes each. [Benchmarks](../bench/README.md) says what the suites do, and each run what
hardware, file system, sizes and settings it had; `./dev site` shows all their tables and plots.
The servers of runs that *filled WAL segments meanwhile* had too few at the start, which is unfair
to arms with images: a server that has run for long recycles segments, those had to make new ones
full of zeroes (until 1 December 2026).
"""

EVERYTHING = """
## All tables

A figure is of a commit; *now* is what became of one that was amended after the run. *Dirty*
means that what builds and benchmarks are made of had been edited since. Medians; counts are
per operation (a transaction or a statement), the checkpoint after the load included.
"""


@dataclass(frozen=True)
class Series:
    """A summary of bench/results."""

    name: str
    kept: dict

    @property
    def meta(self) -> dict[str, Any]:
        return self.kept["meta"]

    @property
    def link(self) -> str:
        return f"[{self.name}]({self.path})"

    @property
    def path(self) -> str:
        return f"{RESULTS}/{self.name}{summary.SUFFIX}"

    @property
    def commit(self) -> str:
        return self.meta["machine"].get("commit", "")

    @cached_property
    def measures(self) -> list[report.Measure]:
        return report.measures(self.kept)

    def of_case(self, case: str) -> list[report.Measure]:
        """Return the Measures of one case."""
        return [measure for measure in self.measures if measure.case == case]


def load(repository: Path) -> list[Series]:
    """Return the Series of bench/results, the newest first."""
    found = [Series(path.stem, summary.load(path))
             for path in (repository / RESULTS).glob(f"*{summary.SUFFIX}")]
    return sorted(found, key=lambda one: (one.meta["started"], one.name), reverse=True)


def newest(series: Sequence[Series]) -> dict[tuple[str, str, str], Series]:
    """Return {(suite, storage, case): Series}: the newest that names its commit."""
    chosen: dict[tuple[str, str, str], Series] = {}
    for one in series:
        for measure in one.measures if one.commit else ():
            chosen.setdefault((one.meta["suite"], one.meta["storage"], measure.case), one)
    return dict(sorted(chosen.items()))


def unused(repository: Path, documents: Iterable[str]) -> list[str]:
    """Return the names of the runs that nothing shows: `documents` are texts that link to runs."""
    series = load(repository)
    shown = {one.name for one in newest(series).values()}
    for text in documents:
        shown |= set(re.findall(rf"{RESULTS}/([\w.-]+){re.escape(summary.SUFFIX)}", text))
    return sorted({one.name for one in series} - shown)


# What to compare ----------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A figure of several arms: a measure, or what an operation costs there."""

    text: str
    storage: str
    suite: str
    case: str
    measure: str
    cost: str | None = None
    ours: str = OURS

    def of(self, series: Sequence[Series], arm: str) -> tuple[Series, report.Measure] | None:
        """Return (Series, Measure) of the newest of these runs that has an arm, or None."""
        for one in series:
            if (one.meta["suite"], one.meta["storage"]) == (self.suite, self.storage) and one.commit:
                for measure in one.of_case(self.case):
                    if measure.name == self.measure and arm in measure.arms:
                        return one, measure
        return None

    def value(self, measure: Measure, arm: str) -> float:
        """Return the figure of an arm."""
        return measure.cost(arm, self.cost) if self.cost else measure.sample(arm).median

    def ratio(self, measure: Measure) -> str:
        """Return ours against stock `full_pages` as text, above 1 where ours is better."""
        if not {self.ours, STOCK} <= set(measure.arms):
            return ""
        if self.cost:
            mine, theirs = (self.value(measure, arm) for arm in (self.ours, STOCK))
            return f"{theirs / mine:.2f}" if mine else ""
        found = stats.speed_ratio(measure.sample(self.ours), measure.sample(STOCK),
                                  measure.higher_is_better)
        return f"{found.value:.2f} ({found.low:.2f} .. {found.high:.2f})" if found else ""


PGBENCH = ("pgbench", "scale 100, max_wal_size 64 MB", "tps")
FIRST_QUERY, ANSWERED = "until first query", "until a query is answered then"
BULK = ("traps", "bulk, 128 MB")
LATENCY = ("latency", "TPC-B, two thirds")

# Of the README: what its picture shows comes first.
HEADLINE = (
    Row("transactions a second", "rented", *PGBENCH),
    Row("WAL, bytes a transaction", "rented", *PGBENCH, "WAL bytes"),
    Row("from a crash to the first query, s", "rented", "restart", "tpcb-like", FIRST_QUERY),
    Row("the same, documents, s", "rented", "restart", "documents", FIRST_QUERY),
    Row("written to the device, kB a transaction", "rented", *PGBENCH, "device kB written"),
    Row("99.9th percentile at a fixed rate (802 a second), ms", "rented", *LATENCY,
        "TPC-B, 99.9th percentile"),
    Row("transactions a second, best practice", "rented", "practice", "best practice, TPC-B", "tps"),
    Row("the same, a mix like TPC-C", "rented", "practice", "best practice, TPC-C-like", "tps"),
    Row("transactions a second, in memory", "memory", *PGBENCH),
    Row("the same, best practice", "memory", "practice", "best practice, TPC-B", "tps"),
    Row("CPU time of the server, ms a transaction", "memory", *PGBENCH, "CPU ms"),
)
PICTURED = HEADLINE[:3]

# Suites that measure what comes after a load.
FROM_A_CRASH = ("recovery", "restart", "restart_wal")

HEADLINE_ARMS = ("stock-off", STOCK, "stock-full_pages+lz4", "stock-full_pages+zstd", "full_pages",
                 "off", "in_order", OURS)

# Of docs/figures.md, which has room for so many rows; those that are missed take what is left.
ROOM = 40
MATTER = (
    *HEADLINE,
    Row("from a crash to the first query, redo in order, s", "rented", "restart", "tpcb-like",
        FIRST_QUERY, ours="in_order"),
    Row("to the first query, 64 MB of buffers, s", "rented", "restart", "tpcb-like, 30 s, 64 MB",
        FIRST_QUERY),
    Row("to the first query, after 100 drops, s", "rented", "restart", "tpcb-like, 100 drops",
        FIRST_QUERY),
    Row("to the first query, after CREATE INDEX of 1 GB, s", "rented", "restart", "CREATE INDEX of 1 GB",
        FIRST_QUERY),
    Row("to the first query, 1 GB of copies in the log, s", "rented", "restart", "1 GB of live log",
        FIRST_QUERY),
    Row("sysbench `oltp_read_write`", "rented", "sysbench", "oltp_read_write", "tps"),
    Row("sysbench `oltp_read_write`", "memory", "sysbench", "oltp_read_write", "tps"),
    Row("sysbench `oltp_write_only`, I/O-bound", "rented", "sysbench_io", "oltp_write_only",
        "8 clients"),
    Row("small buffers, a mix like TPC-C", "rented", "practice", "small buffers, TPC-C-like", "tps"),
    Row("buffers of 16 MB, TPC-B", "rented", "traps", "small buffers 16 MB, TPC-B", "tps"),
    Row("point reads beside two thirds of what stock does: 99.9th percentile, ms", "rented", "latency",
        "point reads beside TPC-B", "reads, 99.9th percentile"),
    Row("best practice, two thirds: WAL, MB/s, the largest step", "rented", "sawtooth",
        "TPC-B, two thirds", "WAL, largest"),
    Row("after 1 GB of WAL, to the first query, s", "rented", "restart_wal", "1 GB", FIRST_QUERY),
    Row("the same, to full throughput, s", "rented", "restart_wal", "1 GB", "until full throughput"),
    Row("after 10 GB of WAL, to the first query, s", "rented", "restart_wal", "10 GB", FIRST_QUERY),
    Row("syncs of 5 ms, transactions a second", "memory", "no_cache", "5 ms, TPC-B", "tps"),
    Row("50 warehouses, a mix like TPC-C", "rented", "tpcc", "buffers for all", "tps"),
    Row("YCSB A", "rented", "ycsb", "workload A", "tps"),
    Row("standby, cold, 40,000 transactions behind, until it has caught up and answers a query, s",
        "rented", "standby", "tpcb-like", ANSWERED),
    Row("crash of a standby, to the first query, s", "rented", "standby", "crash of the standby",
        FIRST_QUERY),
    Row("promotion with WAL of 60 s to replay, to the first write, s", "rented", "standby",
        "promotion, 60 s of WAL", "until the first write"),
    Row("commits at `remote_apply`, 300 a second: 99th percentile, ms", "rented", "standby",
        "steady, remote_apply", "commits, 99th percentile"),
    Row("64 clients that evict dirty pages", "memory", "parallel", "evictions", "tps"),
    Row("COPY into a new table, s", "rented", *BULK, "COPY into new table"),
    Row("first SELECT after it, s", "rented", *BULK, "first SELECT, unhinted"),
    Row("VACUUM FREEZE, s", "rented", *BULK, "VACUUM FREEZE"),
    Row("large UPDATE, s", "rented", *BULK, "large UPDATE"),
    Row("CREATE INDEX, s", "rented", *BULK, "CREATE INDEX"),
    Row("checkpoint of what was dirtied in sequence, s", "rented", "checkpoints", "combine 16",
        "sequential"),
)
MATTER_ARMS = ("stock-off", STOCK, "stock-full_pages+lz4", "stock-full_pages+zstd")


class Runs:
    """The runs that a table is of, by letter."""

    def __init__(self) -> None:
        self.found: list[Series] = []

    def letter(self, series: Series) -> str:
        """Return the letter of a run."""
        if series not in self.found:
            self.found.append(series)
        return "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[self.found.index(series)]

    def described(self) -> str:
        """Return what the letters stand for, as a list."""
        return "".join(f"\n* {self.letter(one)}: {one.link}, {_short(one)}" for one in self.found)


def _cells(row, series, arms, runs):
    """Return the cells of a row for some arms, and the letter of its own run.

    An arm that this run lacks comes from another, with the letter of that.
    """
    found = _by_arm(row, series, arms)
    if not found:
        return None
    own = row.of(series, row.ours)[0]
    letter = runs.letter(own)
    cells = []
    for arm in arms:
        if arm not in found:
            cells.append("")
            continue
        one, measure = found[arm]
        number = report.number(row.value(measure, arm))
        cells.append(number if one is own else f"{number} ({runs.letter(one)})")
    return cells, letter


def _by_arm(row, series, arms):
    """Return {arm: (Series, Measure)} of a row, {} if there is no run of ours.

    An arm that our newest run lacks comes from the newest that has it, is as large and was left alone.
    """
    own = row.of(series, row.ours)
    if own is None:
        return {}
    alike = [one for one in series if one.meta["factor"] == own[0].meta["factor"] and not _busy(one)]
    found = {arm: own if arm in own[1].arms else row.of(alike, arm) for arm in arms}
    return {arm: one for arm, one in found.items() if one}


def headline(repository: Path) -> str:
    """Return the README's table, or why there is none."""
    series, runs, rows = load(repository), Runs(), []
    for row in HEADLINE:
        found = _cells(row, series, HEADLINE_ARMS, runs)
        if found:
            rows.append((row.text, *found[0], found[1]))
    if not rows:
        return "No committed run says of which commit it is, so no figure is shown.\n"
    used = [number for number in range(1, len(HEADLINE_ARMS) + 1) if any(row[number] for row in rows)]
    head = ("", *(f"`{arm}`" for arm in HEADLINE_ARMS), "run")
    rows = [tuple(row[number] for number in (0, *used, len(head) - 1)) for row in (head, *rows)]
    return (f"{markdown(rows)}\nMedians. A figure of another run than its row's has the letter of that run:"
            f"\n{runs.described()}\n")


def pictured(repository: Path) -> list[tuple[Row, dict[str, tuple[Series, Measure]]]]:
    """Return [(Row, {arm: (Series, Measure)})] of the README's picture, [] if there is none."""
    series = load(repository)
    found = [(row, _by_arm(row, series, HEADLINE_ARMS)) for row in PICTURED]
    return found if all(by_arm for _, by_arm in found) else []


def names_of_picture(repository: Path) -> str:
    """Return the names of the runs that the picture is of, as one text."""
    return ", ".join(dict.fromkeys(one.name for _, by_arm in pictured(repository)
                                   for one, _ in by_arm.values()))


# docs/figures.md ------------------------------------------------------------------


def page(repository: Path) -> str:
    """Return docs/figures.md: at most ROOM rows."""
    series, runs = load(repository), Runs()
    rows = []
    for row in MATTER:
        found = _cells(row, series, (row.ours, *MATTER_ARMS), runs)
        if found:
            rows.append((row.text, row.storage, *found[0],
                         row.ratio(row.of(series, row.ours)[1]), found[1]))
    parts = [HEAD]
    if rows:
        head = ("", "storage", f"`{OURS}`", *(f"`{arm}`" for arm in MATTER_ARMS),
                f"of `{STOCK}`, as a speed", "run")
        parts.append(f"## Against stock\n\n{markdown([head, *rows])}\nA ratio above 1 is in favour of this "
                     "build; bounds divide the extremes of the runs. Settings of stress (a `max_wal_size` "
                     "of 32 to 64 MB) unless a row says best practice. A figure of "
                     f"another run than its row's has the letter of that run:\n{runs.described()}\n")
    return "\n".join([*parts, _missed(series, ROOM - len(rows))]).replace(f"]({RESULTS}/",
                                                                        f"](../{RESULTS}/")


def _missed(series, room):
    """Return the bars that were missed, the worst first, in so many rows."""
    counts, found = dict.fromkeys((bars.PASS, bars.UNCLEAR, bars.MISS), 0), []
    for (suite, storage, case), one in newest(series).items():
        for verdict in bars.judge(suite, one.of_case(case)):
            counts[verdict.outcome] += 1
            if verdict.outcome == bars.MISS:
                found.append((verdict.ratio.value / verdict.wanted, storage, case, verdict, one))
    if not sum(counts.values()):
        return ""
    found.sort(key=lambda item: item[0])
    rows = [("bar", "of", "storage", "wanted", "found", "bounds", "run"),
            *((verdict.bar, verdict.point if verdict.case != case else f"{case}: {verdict.point}",
               storage, f"{verdict.wanted:.3g}", f"**{verdict.ratio.value:.3f}**",
               f"{verdict.ratio.low:.3f} .. {verdict.ratio.high:.3f}", f"[run]({one.path})")
              for _, storage, case, verdict, one in found[:room])]
    left = f"; {len(found) - room} of these are not shown" if len(found) > room else ""
    return (f"## Bars that were missed\n\n{counts[bars.PASS]} bars were reached, "
            f"{counts[bars.UNCLEAR]} missed by less than the spread of the runs, "
            f"{counts[bars.MISS]} missed, the worst first{left}. "
            f"A ratio is a speed, above 1 the first is faster.\n\n{markdown(rows)}")


def _short(series):
    """Return in a few words what a run is of."""
    meta = series.meta
    return (f"{commit(series)}, factor {meta['factor']:g}, {meta['runs']} "
            f"{'run' if meta['runs'] == 1 else 'runs'}, load average {_loads(series)}"
            f"{', filled WAL segments meanwhile' if _filled_wal(meta) else ''}")


def _filled_wal(meta):
    """Return whether loads had segments made that a server which has run for long recycles."""
    if meta["suite"] in FROM_A_CRASH:
        return False
    return any(megabytes(case["min_wal_size"]) < min(megabytes(case["max_wal_size"]), WAL_READY_MB)
               for case in meta["cases"].values())


# All tables, of the site ----------------------------------------------------------


def everything(repository: Path) -> str:
    """Return all tables of the newest runs, to follow docs/figures.md."""
    chosen = newest(load(repository))
    text = "\n".join([EVERYTHING, *(_section(*key, one) for key, one in chosen.items())])
    return text.replace(f"]({RESULTS}/", f"](../{RESULTS}/")


def _section(suite, storage, case, series):
    """Return what a Series says about a case."""
    lines = [f"### {suite}, {storage}: {case}\n", describe(series, case)]
    measures = series.of_case(case)
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


def describe(series: Series, case: Case) -> str:
    """Return the lines that say what a run is of."""
    meta = series.meta
    machine = meta["machine"]
    sizes = ", ".join(f"{name} {meta['cases'][case][name]}" for name in SIZES
                      if name in meta["cases"].get(case, {}))
    busy = ", busy, with many clients or other work: believe the counts more than speeds and times" \
        if _busy(series) else ""
    return (f"Run {series.link} of {meta['started'][:10]}, {commit(series)}; "
            f"{machine['processor']}, {machine['memory']}; {meta['file_system']}; "
            f"factor {meta['factor']:g}: {sizes}; {meta['runs']} "
            f"{'run' if meta['runs'] == 1 else 'runs'} of {meta['seconds']} s, "
            f"load average {_loads(series)}{busy}.\n")


def commit(series: Series) -> str:
    """Return the commit of a Series as people say it."""
    machine = series.meta["machine"]
    now = f" (now {machine['commit now'][:10]})" if "commit now" in machine else ""
    dirty = machine.get("commit dirty") != "no"
    return f"commit {series.commit[:10]}{now}{', dirty' if dirty else ''}"


def _busy(series):
    """Say whether the machine had much more to do than a benchmark alone gives it."""
    processors = int(series.meta["machine"]["processor"].split()[0])
    return min(series.kept["load_averages"]) > BUSY * processors


def _loads(series):
    """Return the least and the greatest load average at the ends of runs."""
    loads = series.kept["load_averages"]
    return f"{min(loads)} to {max(loads)}"


def _table(measure):
    """Return value, spread and costs of each arm."""
    rows = [("arm", f"median, {measure.unit}", "min .. max", *SHOWN)]
    for arm in measure.arms:
        sample = measure.sample(arm)
        rows.append((arm, report.number(sample.median),
                     f"{report.number(sample.low)} .. {report.number(sample.high)}",
                     *(report.number(measure.cost(arm, title)) for title in SHOWN)))
    return rows


def markdown(rows: Sequence[tuple[str, ...] | tuple[str, str, str, str]]) -> str:
    """Return a table."""
    rule = "|" + "---|" * len(rows[0])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"
