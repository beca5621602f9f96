"""Tables of a directory of results; pure functions of what the runs wrote."""

import json
from dataclasses import dataclass

from . import bars, counters, stats
from .arms import ARMS
from .restart import PARTS

MARKDOWN, HTML = "report.md", "report.html"

# What every arm is compared with.
REFERENCES = ("off", "stock-off", "stock-full_pages", "stock", "stock+images")


@dataclass(frozen=True)
class Measure:
    """One point of one case: the points of all runs, by arm."""

    case: str
    name: str
    unit: str
    higher_is_better: bool
    arms: dict

    @property
    def title(self):
        return f"{self.case}: {self.name}"

    def sample(self, arm):
        """Return the values of an arm."""
        return stats.Sample(tuple(point["value"] for point in self.arms[arm]))

    def counts(self, arm, part="counts"):
        """Return the medians of an arm's counters."""
        return stats.merge_medians([point.get(part, {}) for point in self.arms[arm]])

    def per_operation(self, arm, counter):
        """Return a counter, what is left to a checkpoint included, per operation."""
        return stats.Sample(tuple(
            sum(point.get(part, {}).get(counter, 0) for part in ("counts", "drain"))
            / max(1, point["operations"]) for point in self.arms[arm]))

    def median_run(self, arm):
        """Return the point whose value is nearest to the median."""
        median = self.sample(arm).median
        return min(self.arms[arm], key=lambda point: abs(point["value"] - median))


def load(directory, meta_name, runs_name):
    """Return (meta, [run]) of a directory of results."""
    meta = json.loads((directory / meta_name).read_text())
    path = directory / runs_name
    lines = path.read_text().splitlines() if path.exists() else []
    return meta, [json.loads(line) for line in lines]


def measures(runs):
    """Return the Measures of runs, in the order in which they came."""
    found = {}
    for one in runs:
        for point in one["points"]:
            key = (one["case"], point["name"])
            if key not in found:
                found[key] = Measure(*key, point["unit"], point["higher_is_better"], {})
            found[key].arms.setdefault(one["arm"], []).append(point)
    return [in_order(measure) for measure in found.values()]


def in_order(measure):
    """Return the measure with its arms in the order of the table of arms."""
    arms = {name: measure.arms[name] for name in ARMS if name in measure.arms}
    return Measure(measure.case, measure.name, measure.unit, measure.higher_is_better, arms)


# Tables: lists of rows of text, the head first ---------------------------------


def overview(all_measures):
    """Return medians by measure and arm."""
    used = [name for name in ARMS if any(name in measure.arms for measure in all_measures)]
    rows = [("case", "unit", *used)]
    for measure in all_measures:
        cells = (number(measure.sample(arm).median) if arm in measure.arms else ""
                 for arm in used)
        rows.append((measure.title, measure.unit, *cells))
    return rows


def speeds(measure):
    """Return value, spread and relative speed of each arm."""
    references = [name for name in REFERENCES if name in measure.arms]
    rows = [("arm", "runs", f"median {measure.unit}", "min .. max", "MAD",
             *(f"speed / {name}" for name in references))]
    for arm, points in measure.arms.items():
        sample = measure.sample(arm)
        ratios = (stats.speed_ratio(sample, measure.sample(reference), measure.higher_is_better)
                  for reference in references)
        rows.append((arm, str(len(points)), number(sample.median),
                     f"{number(sample.low)} .. {number(sample.high)}", number(sample.mad),
                     *(f"{ratio.value:.3f}" if ratio else "" for ratio in ratios)))
    return rows


# Figures of one operation (a transaction or a statement): title, function of
# (counts, operations).
COSTS = (
    ("WAL bytes", lambda c, n: c.get("wal.wal_bytes", 0) / n),
    ("images", lambda c, n: c.get("wal.wal_fpi", 0) / n),
    ("CPU ms", lambda c, n: 1000 * c.get("cpu.total", 0) / n),
    ("pages written", lambda c, n: counters.pages_home(c) / n),
    ("pages per write", lambda c, n: counters.pages_per_write(c) or 0),
    ("pages double-written", lambda c, n: c.get("dw.logged", 0) / n),
    ("files synced / page double-written", lambda c, n: counters.files_synced_per_copy(c)),
    ("device kB written", lambda c, n: device(c, "write_sectors") / 2 / n),
    ("device writes", lambda c, n: device(c, "writes") / n),
    ("device flushes", lambda c, n: device(c, "flushes") / n),
)


def costs(measure):
    """Return what an operation costs in each arm, the checkpoint after it included."""
    rows = [("arm", *(title for title, _ in COSTS))]
    for arm in measure.arms:
        counts = with_drain(measure, arm)
        operations = max(1, stats.Sample(tuple(
            point["operations"] for point in measure.arms[arm])).median)
        rows.append((arm, *(number(cost(counts, operations)) for _, cost in COSTS)))
    return rows


def details(measure):
    """Return latencies and whatever else a load has reported."""
    def facts(point):
        return {**point.get("latency", {}), **point.get("extra", {})}
    names = list(dict.fromkeys(name for points in measure.arms.values()
                               for point in points for name in facts(point)))
    if not names:
        return []
    rows = [("arm", *names)]
    for arm, points in measure.arms.items():
        merged = stats.merge_medians([facts(point) for point in points])
        rows.append((arm, *(number(merged.get(name, 0)) for name in names)))
    return rows


def waits(measure, most=8):
    """Return what backends spent most of their time on, in percent."""
    shares = {arm: stats.merge_medians([point.get("waits", {}) for point in points])
              for arm, points in measure.arms.items()}
    events = {event for one in shares.values() for event in one}
    events = sorted(events, key=lambda event: (
        -max(one.get(event, 0) for one in shares.values()), event))[:most]
    if not events:
        return []
    return [("arm", *events),
            *((arm, *(number(100 * one.get(event, 0)) for event in events))
              for arm, one in shares.items())]


def parts(measure):
    """Return the seconds of the parts of a time."""
    return _by_part(measure, lambda part: number(part["s"]) if part["s"] else "")


def requests(measure):
    """Return what devices read and wrote in each part of a time: how often, kB at once."""
    def cell(part):
        found = (_sizes(letter, part.get(count, 0), part.get(sectors, 0))
                 for letter, count, sectors in (("r", "reads", "read_sectors"),
                                                ("w", "writes", "write_sectors")))
        return ", ".join(text for text in found if text)
    return _by_part(measure, cell)


def _by_part(measure, cell):
    """Return a table of all parts, of the medians of each arm."""
    names = list(dict.fromkeys(name for points in measure.arms.values()
                               for point in points for name in point.get("parts", {})))
    names.sort(key=PARTS.index)
    if not names:
        return []
    rows = [("arm", *names)]
    for arm, points in measure.arms.items():
        merged = {name: stats.merge_medians([point.get("parts", {}).get(name, {})
                                             for point in points]) for name in names}
        rows.append((arm, *(cell(part) if part else "" for part in merged.values())))
    return rows


def _sizes(letter, count, sectors):
    return f"{letter} {number(count)} x {sectors / 2 / count:.0f} kB" if count else ""


def causes(measure, table):
    """Return writes or syncs by cause."""
    rows = [("arm", *table)]
    for arm in measure.arms:
        sums = counters.by_cause(with_drain(measure, arm), table)
        rows.append((arm, *(number(value) for value in sums.values())))
    return rows


def bar_table(suite, all_measures):
    """Return the bars and whether they were reached."""
    rows = [("bar", "case", "wanted", "found", "bounds", "verdict")]
    for verdict in bars.judge(suite, all_measures):
        rows.append((verdict.bar, f"{verdict.case}: {verdict.point}", f"{verdict.wanted:g}",
                     f"{verdict.ratio.value:.3f}",
                     f"{verdict.ratio.low:.3f} .. {verdict.ratio.high:.3f}", verdict.outcome))
    return rows


def with_drain(measure, arm):
    """Return the medians of an arm's counters, the checkpoint after included."""
    counts, drain = measure.counts(arm), measure.counts(arm, "drain")
    return {name: counts.get(name, 0) + drain.get(name, 0) for name in {**counts, **drain}}


def device(counts, field):
    """Return the sum of a field over all devices."""
    return counters.total(counts, rf"device\.\w+\.{field}")


def number(value):
    """Return a number with as many digits as mean something."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
