"""Tables of a series of runs; pure functions of its summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import bars, counters, stats, summary
from .arms import ARMS
from .restart import PARTS

MARKDOWN, HTML = "report.md", "report.html"

# What every arm is compared with.
REFERENCES = ("off", "stock-off", "stock-full_pages", "stock", "stock+images")


@dataclass(frozen=True)
class Measure:
    """One point of one case, by arm: what summary.py keeps of its runs."""

    case: str
    name: str
    unit: str
    higher_is_better: bool
    arms: dict

    @property
    def title(self) -> str:
        return f"{self.case}: {self.name}"

    def sample(self, arm: str) -> stats.Sample:
        """Return the values of an arm."""
        return stats.Sample(tuple(self.arms[arm]["values"]))

    def judged(self, arm: str, name: str) -> stats.Sample:
        """Return what bars compare besides values, of each run of an arm."""
        return stats.Sample(tuple(self.arms[arm].get("judged", {}).get(name, (0,))))

    def cost(self, arm: str, title: str) -> int:
        """Return what an operation costs, the checkpoint after the load included."""
        return self.arms[arm].get("costs", {}).get(title, 0)


def measures(kept: Mapping[str, Any]) -> list[Measure]:
    """Return the Measures of a summary, with arms in the order of the table of arms."""
    return [Measure(one["case"], one["name"], one["unit"], one["higher_is_better"],
                    {name: one["arms"][name] for name in ARMS if name in one["arms"]})
            for one in kept["measures"]]


# Tables: lists of rows of text, the head first ---------------------------------


def overview(all_measures: Sequence[Measure]) -> list[tuple[str, ...]]:
    """Return medians by measure and arm."""
    used = [name for name in ARMS if any(name in measure.arms for measure in all_measures)]
    rows = [("case", "unit", *used)]
    for measure in all_measures:
        cells = (number(measure.sample(arm).median) if arm in measure.arms else ""
                 for arm in used)
        rows.append((measure.title, measure.unit, *cells))
    return rows


def speeds(measure: Measure) -> list[tuple[str, ...]]:
    """Return value, spread and relative speed of each arm."""
    references = [name for name in REFERENCES if name in measure.arms]
    rows = [("arm", "runs", f"median {measure.unit}", "min .. max", "MAD",
             *(f"speed / {name}" for name in references))]
    for arm, kept in measure.arms.items():
        sample = measure.sample(arm)
        ratios = (stats.speed_ratio(sample, measure.sample(reference), measure.higher_is_better)
                  for reference in references)
        rows.append((arm, str(len(kept["values"])), number(sample.median),
                     f"{number(sample.low)} .. {number(sample.high)}", number(sample.mad),
                     *(f"{ratio.value:.3f}" if ratio else "" for ratio in ratios)))
    return rows


def costs(measure: Measure) -> list[tuple[str, ...]]:
    """Return what an operation costs in each arm, the checkpoint after it included."""
    titles = [title for title, _ in summary.COSTS]
    return [("arm", *titles),
            *((arm, *(number(measure.cost(arm, title)) for title in titles))
              for arm in measure.arms)]


def details(measure: Measure) -> list[tuple[str, str]]:
    """Return latencies and whatever else a load has reported."""
    facts = {arm: {**kept.get("latency", {}), **kept.get("extra", {})}
             for arm, kept in measure.arms.items()}
    return _table(facts, lambda value: number(value or 0))


def waits(measure: Measure) -> list[tuple[str, str]]:
    """Return what backends spent most of their time on, in percent."""
    return _table({arm: kept.get("waits", {}) for arm, kept in measure.arms.items()},
                  lambda value: number(100 * (value or 0)))


def parts(measure: Measure) -> list[tuple[str, str]]:
    """Return the seconds of the parts of a time."""
    return _by_part(measure, lambda part: number(part["s"]) if part["s"] else "")


def requests(measure: Measure) -> list[tuple[str, str]]:
    """Return what devices read and wrote in each part of a time: how often, kB at once."""
    def cell(part):
        found = (_sizes(letter, part.get(count, 0), part.get(sectors, 0))
                 for letter, count, sectors in (("r", "reads", "read_sectors"),
                                                ("w", "writes", "write_sectors")))
        return ", ".join(text for text in found if text)
    return _by_part(measure, cell)


def _by_part(measure, cell):
    """Return a table of all parts, in their order."""
    return _table({arm: kept.get("parts", {}) for arm, kept in measure.arms.items()},
                  lambda part: cell(part) if part else "", PARTS.index)


def _table(by_arm, cell, key=None):
    """Return a table of {arm: {column: value}}, [] if there are no columns."""
    names = list(dict.fromkeys(name for one in by_arm.values() for name in one))
    if key:
        names.sort(key=key)
    return names and [("arm", *names),
                      *((arm, *(cell(one.get(name)) for name in names))
                        for arm, one in by_arm.items())]


def _sizes(letter, count, sectors):
    return f"{letter} {number(count)} x {sectors / 2 / count:.0f} kB" if count else ""


def causes(measure: Measure, kind: str) -> list[tuple[str, ...]]:
    """Return writes or syncs by cause; `kind` is "writes" or "syncs"."""
    table = {"writes": counters.WRITE_CAUSES, "syncs": counters.SYNC_CAUSES}[kind]
    return [("arm", *table),
            *((arm, *(number(kept.get(kind, {}).get(cause, 0)) for cause in table))
              for arm, kept in measure.arms.items())]


def bar_table(suite: str, all_measures: Sequence[Measure]) -> list[tuple[str, ...]]:
    """Return the bars and whether they were reached."""
    rows: list[tuple[str, ...]] = [("bar", "case", "wanted", "found", "bounds", "verdict")]
    for verdict in bars.judge(suite, all_measures):
        rows.append((verdict.bar, f"{verdict.case}: {verdict.point}", f"{verdict.wanted:g}",
                     f"{verdict.ratio.value:.3f}",
                     f"{verdict.ratio.low:.3f} .. {verdict.ratio.high:.3f}", verdict.outcome))
    return rows


def number(value: float) -> str:
    """Return a number with as many digits as mean something."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
