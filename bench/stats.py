"""Medians, spread, percentiles and ratios; pure functions."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PERCENTILES = (50, 90, 95, 99, 99.9)

# Latencies are counted in classes of this many significant digits: fine
# enough for a percentile, few enough to keep in a JSON file.
SIGNIFICANT_DIGITS = 2


@dataclass(frozen=True)
class Sample:
    """The values of one measure over several runs."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def mad(self) -> float:
        """Median of the absolute deviations from the median."""
        return statistics.median(abs(value - self.median) for value in self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


@dataclass(frozen=True)
class Ratio:
    """How fast one arm is relative to another, and what the spread allows."""

    value: float
    low: float
    high: float


def speed_ratio(ours: Sample, theirs: Sample, higher_is_better: bool) -> Ratio | None:
    """Return the Ratio of two Samples as a speed: above 1, `ours` is faster.

    The bounds divide the extremes of the runs, so they are wide on purpose.
    Returns None if a division is impossible.
    """
    over, under = (ours, theirs) if higher_is_better else (theirs, ours)
    if min(under.median, under.low) <= 0:
        return None
    return Ratio(over.median / under.median, over.low / under.high, over.high / under.low)


def round_significant(value: float, digits: int = SIGNIFICANT_DIGITS) -> float:
    """Round a number to a few significant digits."""
    if value == 0:
        return 0
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def percentile(histogram: dict[float, int], percent: float) -> float | None:
    """Return a percentile (nearest rank) of a {value: count} histogram."""
    total = sum(histogram.values())
    if not total:
        return None
    rank = max(1, math.ceil(total * percent / 100))
    seen = 0
    for value in sorted(histogram):
        seen += histogram[value]
        if seen >= rank:
            return value
    raise AssertionError("rank beyond the end of the histogram")


def percentiles(histogram: dict[float, int]) -> dict[str, float | None]:
    """Return {"p50": value, ..., "max": value} of a histogram, {} if empty."""
    if not histogram:
        return {}
    found: dict[str, float | None] = {f"p{percent:g}": percentile(histogram, percent)
                                      for percent in PERCENTILES}
    found["max"] = max(histogram)
    return found


def variation(values: Sequence[float]) -> float | None:
    """Return standard deviation divided by mean; None if there is no mean."""
    if len(values) < 2 or not statistics.fmean(values):
        return None
    return statistics.stdev(values) / statistics.fmean(values)


# A line is fitted to so many means, one of each part of the time: single values depend on those
# before them, as memory and logs do, and would make bounds too narrow.  Of as many minus two
# degrees of freedom, the quantile of Student's t for 95 %.
BLOCKS, STUDENT = 12, 2.228

# Of a Line: its begin divided by its end, and the bounds of that.
FLATNESS = ("begin / end", "begin / end, low", "begin / end, high")


@dataclass(frozen=True)
class Line:
    """A line through values over time: slope a second with bounds at 95 %, mean, length in seconds."""

    slope: float
    low: float
    high: float
    mean: float
    seconds: float

    def flatness(self) -> tuple[float, ...]:
        """Return begin / end of the line, and its bounds: 1 is flat, less is growth."""
        return tuple(self._over(slope) for slope in (self.slope, self.high, self.low))

    def _over(self, slope: float) -> float:
        half = slope * self.seconds / 2
        return (self.mean - half) / (self.mean + half) if self.mean > abs(half) else float(not half)


def line(times: Sequence[float], values: Sequence[float]) -> Line | None:
    """Return the Line through values; None if there are fewer than BLOCKS."""
    if len(values) < BLOCKS:
        return None
    ends = [round(number * len(values) / BLOCKS) for number in range(BLOCKS + 1)]
    x, y = ([statistics.fmean(numbers[low:high]) for low, high in zip(ends, ends[1:])]
            for numbers in (times, values))
    slope, intercept = statistics.linear_regression(x, y)
    left = sum((mean - intercept - slope * when) ** 2 for when, mean in zip(x, y))
    spread = sum((when - statistics.fmean(x)) ** 2 for when in x)
    error = STUDENT * math.sqrt(left / (BLOCKS - 2) / spread)
    return Line(slope, slope - error, slope + error, statistics.fmean(y), times[-1] - times[0])


def merge_medians(dictionaries: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return, for each key of any of the dictionaries, the median of its values.

    A key that a dictionary lacks counts as zero there: counters that did not
    move are left out of results.
    """
    keys = sorted({key for one in dictionaries for key in one})
    return {key: statistics.median(one.get(key, 0) for one in dictionaries) for key in keys}
