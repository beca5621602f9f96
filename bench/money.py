"""What measured WAL and requests cost a month, at the reader's prices.

What a price is of, its options, and what WAL costs are those of the advisor, which is one file
that people copy; it is loaded from there.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from . import report
from .report import Measure

ADVISOR = (Path(__file__).resolve().parent.parent / "packaging" / "advise"
           / "pg_doublewrite_advise.py")

DAY = 86_400


def advisor() -> ModuleType:
    """Return the advisor as a module."""
    spec = importlib.util.spec_from_file_location("pg_doublewrite_advise", ADVISOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables(measures: Sequence[Measure], arguments: Any) -> list[tuple[str, list[tuple]]]:
    """Return [(title, rows)] of measures that are transactions a second; none without a price.

    All arms at the same rate: what was asked for, else that of the slowest.
    """
    program = advisor()
    prices = program.prices_of(arguments)
    found = []
    for measure in measures if prices else ():
        if measure.unit == "transactions/s":
            rate = arguments.rate or min(measure.sample(arm).median for arm in measure.arms)
            found.append((f"{measure.title}, a month at {report.number(rate)} transactions a second",
                          _rows(program, measure, prices, rate)))
    return found


def _rows(program, measure, prices, rate):
    """Return what each arm needs, and what that costs."""
    rows = [("arm", "WAL, GB a day", "requests a second", "MB a second", "archive", "sent once",
             "requests", "bytes a second", "sum")]
    for arm in measure.arms:
        wal, requests, megabytes = needs(measure, arm, rate)
        money = [*program.of_wal(wal, prices).values(), requests * prices["iops"],
                 megabytes * prices["mbps"]]
        rows.append((arm, *map(report.number, (wal, requests, megabytes)),
                     *(f"{one:,.2f}" for one in (*money, sum(money)))))
    return rows


def needs(measure: Measure, arm: str, rate: float) -> tuple[float, float, float]:
    """Return GB of WAL a day, and requests and MB a second of the device, in both directions."""
    def a_second(*titles):
        return rate * sum(measure.cost(arm, title) for title in titles)

    return (a_second("WAL bytes") * DAY / 1e9,
            a_second("device writes", "device reads", "device flushes"),
            a_second("device kB written", "device kB read") * 1024 / 1e6)
