"""What a series of runs comes to: medians by case, measure and arm, in one JSON file.

The file is bench/results/NAME.json, which git keeps; the rows that it was made of are in the
directory of its name, which git ignores.  Tables, plots, bars and documents are made of it alone.

    meta           machine, commit, builds, arguments, settings of each case and arm
    load_averages  at the ends of runs
    measures       case, name, unit, higher_is_better; and of each arm
        values          of each run, in their order
        operations      the median, as all that follows
        costs           of an operation, the checkpoint after the load included: COSTS
        writes, syncs   by cause
        latency, extra  what the load has reported
        waits           what backends waited for, shares of their time
        parts           seconds and requests of the parts of a time
        judged          of each run, what bars compare besides values: JUDGED
        trace           of the last run, what is drawn over time
"""

import functools
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import counters, stats

SUFFIX = ".json"

# Waits that are kept of a measure, the longest of any arm.
WAITS = 8

# Digits that are kept; tables show four.
DIGITS = 6

# Figures of one operation (a transaction or a statement): title, function of
# (counts, operations).
COSTS = (
    ("WAL bytes", lambda c, n: c.get("wal.wal_bytes", 0) / n),
    ("images", lambda c, n: c.get("wal.wal_fpi", 0) / n),
    ("CPU ms", lambda c, n: 1000 * c.get("cpu.total", 0) / n),
    ("pages written", lambda c, n: counters.pages_home(c) / n),
    ("pages per write", lambda c, n: counters.pages_per_write(c) or 0),
    ("pages double-written", lambda c, n: c.get("dw.logged", 0) / n),
    ("bytes double-written", lambda c, n: c.get("dw.log_bytes", 0) / n),
    ("pages double-written / sync of the log",
     lambda c, n: c.get("dw.logged", 0) / max(1, c.get("dw.log_syncs", 0))),
    ("files synced / page double-written", lambda c, n: counters.files_synced_per_copy(c)),
    ("device kB written", lambda c, n: _device(c, "write_sectors") / 2 / n),
    ("device writes", lambda c, n: _device(c, "writes") / n),
    ("device flushes", lambda c, n: _device(c, "flushes") / n),
    ("device kB read", lambda c, n: _device(c, "read_sectors") / 2 / n),
    ("device reads", lambda c, n: _device(c, "reads") / n),
)


def _reported(point: dict, key: str) -> float | None:
    """Return what a load has reported besides, None if it has not."""
    return point.get("extra", {}).get(key)


# What bars compare besides values, of one point.
JUDGED: dict[str, Callable[[dict], float | None]] = {
    "images": lambda point: _per_operation(point, "wal.wal_fpi"),
    "pages double-written": lambda point: _per_operation(point, "dw.logged"),
    **{name: functools.partial(_reported, key=key)
       for name, key in (("pages per write", "pages_per_write"), *zip(stats.FLATNESS, stats.FLATNESS))},
}


def of(meta: dict, runs: Iterable[dict]) -> dict:
    """Return the summary of runs: of points by case, name and arm, in the order in which they came."""
    found: dict[tuple, dict] = {}
    runs = list(runs)
    for one in runs:
        for point in one["points"]:
            measure = found.setdefault((one["case"], point["name"]), {
                "case": one["case"], "name": point["name"], "unit": point["unit"],
                "higher_is_better": point["higher_is_better"], "arms": {}})
            measure["arms"].setdefault(one["arm"], []).append(point)
    for measure in found.values():
        events = _longest_waits(measure["arms"].values())
        measure["arms"] = {arm: _arm(points, events) for arm, points in measure["arms"].items()}
    return {"meta": meta, "load_averages": [one["load_average"] for one in runs],
            "measures": list(found.values())}


def _arm(points: list[dict], events: list[str]) -> dict:
    """Return what is kept of the points of an arm, without what is empty."""
    counts: dict[str, float] = {}
    for part in ("counts", "drain"):
        for name, value in _medians(points, part).items():
            counts[name] = counts.get(name, 0) + value
    operations = stats.Sample(tuple(point["operations"] for point in points)).median
    waits = _medians(points, "waits")
    names = list(dict.fromkeys(name for point in points for name in point.get("parts", {})))
    kept = {
        "values": [point["value"] for point in points],
        "operations": operations,
        "costs": {title: cost(counts, max(1, operations)) for title, cost in COSTS},
        "writes": counters.by_cause(counts, counters.WRITE_CAUSES),
        "syncs": counters.by_cause(counts, counters.SYNC_CAUSES),
        "latency": _medians(points, "latency"),
        "extra": _medians(points, "extra"),
        "waits": {event: waits[event] for event in events if event in waits},
        "parts": {name: stats.merge_medians([point.get("parts", {}).get(name, {})
                                             for point in points]) for name in names},
        "trace": points[-1].get("trace"),
    }
    judged = {name: [value(point) for point in points] for name, value in JUDGED.items()}
    kept["judged"] = {name: values for name, values in judged.items()
                      if None not in values and any(values)}
    return _rounded({name: value for name, value in kept.items()
                     if value and (not isinstance(value, dict) or any(value.values()))})


def _medians(points: list[dict], part: str) -> dict[str, float]:
    """Return the medians of one part of points, by the order in which the first has it."""
    merged = stats.merge_medians([point.get(part, {}) for point in points])
    order = list(dict.fromkeys(name for point in points for name in point.get(part, {})))
    return {name: merged[name] for name in order}


def _longest_waits(arms: Iterable[list[dict]]) -> list[str]:
    """Return the names of the waits that took most of the time of any arm."""
    shares = [stats.merge_medians([point.get("waits", {}) for point in points]) for points in arms]
    events = {event for one in shares for event in one}
    return sorted(events, key=lambda event: (-max(one.get(event, 0) for one in shares), event))[:WAITS]


def _per_operation(point: dict, counter: str) -> float:
    """Return a counter, what is left to a checkpoint included, per operation."""
    return sum(point.get(part, {}).get(counter, 0)
               for part in ("counts", "drain")) / max(1, point["operations"])


def _device(counts: dict[str, float], field: str) -> float:
    """Return the sum of a field over all devices."""
    return counters.total(counts, rf"device\.\w+\.{field}")


def _rounded(value: Any) -> Any:
    """Return a value with as many digits as are kept, in all that it consists of."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, float):
        if value and abs(value) < 10 ** DIGITS:
            value = round(value, DIGITS - 1 - math.floor(math.log10(abs(value))))
        return int(value) if value == int(value) else value
    return value


# The file -----------------------------------------------------------------------


def text(summary: dict) -> str:
    """Return a summary as JSON, with a line for each arm of a measure."""
    measures = []
    for one in summary["measures"]:
        head = json.dumps({name: value for name, value in one.items() if name != "arms"})
        arms = ",\n   ".join(f"{json.dumps(arm)}: {json.dumps(kept)}"
                             for arm, kept in one["arms"].items())
        measures.append(f'{head[:-1]}, "arms": {{\n   {arms}}}}}')
    return (f'{{"meta": {json.dumps(summary["meta"], indent=1)},\n'
            f'"load_averages": {json.dumps(summary["load_averages"])},\n'
            '"measures": [\n ' + ",\n ".join(measures) + "]}\n")


def file_of(directory: Path) -> Path:
    """Return the path of the summary of a directory of results."""
    return directory.parent / f"{directory.name}{SUFFIX}"


def load(path: Path) -> dict:
    """Return the summary in a file."""
    return json.loads(path.read_text())
