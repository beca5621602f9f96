"""What must be shown, and whether a series of runs shows it."""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import stats

PASS, MISS, UNCLEAR = "pass", "miss", "miss, but the spread includes the bar"


@dataclass(frozen=True)
class Verdict:
    """A bar held against one measure."""

    bar: str
    case: str
    point: str
    wanted: float
    ratio: stats.Ratio
    outcome: str


@dataclass(frozen=True)
class Bar:
    """A demand on measures whose suite, case and point match.

    `ratio` is called with the Measure; it returns None where an arm that it
    needs has not been run.
    """

    text: str
    suites: str
    cases: str
    points: str
    ratio: Callable[[Any], stats.Ratio | None]
    least: float

    def judge(self, suite: str, measure: Any) -> Verdict | None:
        """Return the Verdict about a measure, None if the bar is not about it."""
        about = ((self.suites, suite), (self.cases, measure.case), (self.points, measure.name))
        if not all(re.fullmatch(pattern, text) for pattern, text in about):
            return None
        ratio = self.ratio(measure)
        if ratio is None:
            return None
        return Verdict(self.text, measure.case, measure.name, self.least, ratio,
                       outcome(ratio, self.least))


@dataclass(frozen=True)
class MeanBar:
    """A demand on the geometric mean of a ratio over all cases of a suite."""

    text: str
    suite: str
    point: str
    ratio: Callable[[Any], stats.Ratio | None]
    least: float

    def judge(self, suite: str, measures: Sequence[Any]) -> list[Verdict]:
        """Return [Verdict], [] if the bar is not about the suite."""
        about = [one for one in measures if suite == self.suite and one.name == self.point]
        ratios = [ratio for ratio in map(self.ratio, about) if ratio]
        if not ratios:
            return []
        mean = stats.Ratio(*(statistics.geometric_mean(getattr(one, part) for one in ratios)
                             for part in ("value", "low", "high")))
        return [Verdict(self.text, f"{len(ratios)} cases", self.point, self.least, mean,
                        outcome(mean, self.least))]


def outcome(ratio: stats.Ratio, least: float) -> str:
    """Compare a Ratio with the least that it should be."""
    if ratio.value >= least:
        return PASS
    return UNCLEAR if ratio.high >= least else MISS


def speed(ours: str, theirs: str) -> Callable[..., Any]:
    """Return a function of a Measure: how fast one arm is relative to another."""
    def ratio(measure):
        if ours not in measure.arms or theirs not in measure.arms:
            return None
        return stats.speed_ratio(measure.sample(ours), measure.sample(theirs),
                                 measure.higher_is_better)
    return ratio


def within(arm: str, most: float) -> Callable[..., Any]:
    """Return a function of a Measure: what an arm may take, divided by what it takes."""
    def ratio(measure):
        if arm not in measure.arms:
            return None
        return stats.speed_ratio(measure.sample(arm), stats.Sample((most,)), measure.higher_is_better)
    return ratio


def over_best_of_stock(ours: str) -> Callable[..., Any]:
    """Return a function of a Measure: how fast an arm is relative to the fastest of stock.

    That is not known without the one that is the strongest where storage is slow.
    """
    def ratio(measure):
        if not {ours, "stock-full_pages+zstd"} <= set(measure.arms):
            return None
        return min((speed(ours, arm)(measure) for arm in measure.arms if arm.startswith("stock-")),
                   key=lambda found: found.value)
    return ratio


def pages_per_write(measure: Any) -> stats.Ratio | None:
    """Return the pages per write of double_writes as a Ratio to one page."""
    if "double_writes" not in measure.arms:
        return None
    sample = measure.judged("double_writes", "pages per write")
    return stats.Ratio(sample.median, sample.low, sample.high)


def volume(measure: Any) -> stats.Ratio | None:
    """Return the images that full_pages wrote for each page double-written.

    An image is written once per page and checkpoint, which is the bound.
    """
    if not {"double_writes", "full_pages"} <= set(measure.arms):
        return None
    return stats.speed_ratio(measure.judged("double_writes", "pages double-written"),
                             measure.judged("full_pages", "images"),
                             higher_is_better=False)


def flat(measure: Any) -> stats.Ratio | None:
    """Return what a figure was at the beginning as a Ratio to what it was at the end."""
    kept = [measure.judged("double_writes", name) for name in stats.FLATNESS
            if measure.arms.get("double_writes", {}).get("judged", {}).get(name)]
    if len(kept) < len(stats.FLATNESS):
        return None
    value, low, high = kept
    return stats.Ratio(value.median, low.low, high.high)


# The largest lag or latency of a run is one value out of many: shown, but not judged.
# So are transactions a second at a rate that is given.
MEASURES = "(?!replay lag|transactions a second|.*, longest|.*, largest).*"

BARS = (
    Bar("instant recovery on / off", "pgbench", ".*", "tps", speed("double_writes", "in_order"), 0.99),
    # Scale 100 takes 1.5 GB and does not fit.
    Bar("fits in shared_buffers: double_writes / off", "pgbench", "scale 10, .*", "tps",
        speed("double_writes", "off"), 0.97),
    Bar("max_wal_size 64 MB: double_writes / stock full_pages", "pgbench",
        "scale 100, max_wal_size 64 MB", "tps", speed("double_writes", "stock-full_pages"), 1.7),
    Bar("max_wal_size 64 MB: double_writes / stock full_pages + lz4", "pgbench",
        "scale 100, max_wal_size 64 MB", "tps",
        speed("double_writes", "stock-full_pages+lz4"), 1.3),
    Bar("sysbench: double_writes / stock full_pages + lz4", "sysbench", ".*", "tps",
        speed("double_writes", "stock-full_pages+lz4"), 1.0),
    Bar("best practice: double_writes / stock full_pages", "practice", "best practice.*", "tps",
        speed("double_writes", "stock-full_pages"), 0.99),
    Bar("small shared_buffers: double_writes / stock off", "practice|traps", "small buffers.*",
        "tps", speed("double_writes", "stock-off"), 1.0),
    Bar("traps: double_writes / stock off", "traps", "(?!small buffers).*", ".*",
        speed("double_writes", "stock-off"), 0.95),
    Bar("traps: double_writes / stock full_pages", "traps", "(?!small buffers).*", ".*",
        speed("double_writes", "stock-full_pages"), 1.0),
    Bar("sequentially dirtied: pages per write", "checkpoints", "combine (16|32|128)",
        "sequential(, new pages)?", pages_per_write, 15),
    Bar("checkpoint time: double_writes / stock full_pages", "checkpoints", "combine .*",
        "(?!.*, together).*", speed("double_writes", "stock-full_pages"), 0.8),
    Bar("with what dirtied the pages: double_writes / stock full_pages", "checkpoints",
        "combine .*", ".*, together", speed("double_writes", "stock-full_pages"), 1.0),
    Bar("same mode: full_pages / stock full_pages", ".*", ".*", MEASURES,
        speed("full_pages", "stock-full_pages"), 1.0),
    Bar("same mode: full_pages + lz4 / stock full_pages + lz4", ".*", ".*", MEASURES,
        speed("full_pages+lz4", "stock-full_pages+lz4"), 1.0),
    Bar("same mode: off / stock off", ".*", ".*", MEASURES, speed("off", "stock-off"), 1.0),
    Bar("volume: images of full_pages / pages double-written", ".*", ".*", "tps|.*clients",
        volume, 1.0),
    Bar("first query: double_writes / stock full_pages", "restart", "tpcb-like",
        "until first query", speed("double_writes", "stock-full_pages"), 1.0),
    Bar("catch-up: 10 s / double_writes", "standby", "tpcb-like", "until caught up",
        within("double_writes", 10), 1.0),
    Bar("catch-up: double_writes / fastest arm of stock", "standby", "tpcb-like",
        "until caught up", over_best_of_stock("double_writes"), 2.0),
    # At most 1.3 times as long.
    Bar("readers beside catch-up: double_writes / no look-ahead", "standby", "tpcb-like, readers",
        "readers, 99th percentile", speed("double_writes", "no_look_ahead"), 1 / 1.3),
    # At most 1.1 times as long.
    Bar("tails at a fixed rate: double_writes / off", "latency|sawtooth", ".*",
        r".*, 99(\.9)?th percentile", speed("double_writes", "off"), 1 / 1.1),
    Bar("flat: at the beginning / at the end", "soak", ".*", "(?!transactions|TPC-B).*", flat, 0.98),
    # As times: at most 0.9 of stock's, and 0.8 where stock has images.
    Bar("redo: pipeline / stock", "recovery", ".*", "redo", speed("pipeline", "stock"), 1 / 0.9),
    Bar("redo: pipeline / stock, images", "recovery", ".*", "redo",
        speed("pipeline+images", "stock+images"), 1 / 0.9),
    Bar("redo: pipeline without images / stock with images", "recovery", ".*", "redo",
        speed("pipeline", "stock+images"), 1 / 0.8),
)

# Of the geometric means: at most 0.75 of stock's time.
MEAN_BARS = (
    MeanBar("redo, mean: pipeline / stock", "recovery", "redo", speed("pipeline", "stock"),
            1 / 0.75),
    MeanBar("redo, mean: pipeline / stock, images", "recovery", "redo",
            speed("pipeline+images", "stock+images"), 1 / 0.75),
    MeanBar("redo, mean: pipeline without images / stock with images", "recovery", "redo",
            speed("pipeline", "stock+images"), 1 / 0.8),
)


def judge(suite: str, measures: Sequence[Any]) -> list[Verdict]:
    """Return the Verdicts of all bars, in their order."""
    verdicts = (bar.judge(suite, measure) for bar in BARS for measure in measures)
    means = (verdict for bar in MEAN_BARS for verdict in bar.judge(suite, measures))
    return [*(verdict for verdict in verdicts if verdict), *means]
