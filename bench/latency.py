"""Transactions at a fixed rate: what they wait for, second by second, and what grows meanwhile.

An open loop: pgbench starts transactions by a schedule (`--rate`, with random gaps), and waiting is
counted from when each was due, so a server that stands still pays for all that came meanwhile.  The
rate is a share of what stock does with full_pages on the same storage, the same in all arms.
"""

import contextlib
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from common import postgres

from . import clients, counters, stats
from .loads import WARM_UP, Pgbench, Point, Session, measure, prewarm

# So many values are kept of what is drawn over time; of shorter loads one a second.
MOST_VALUES = 360

# Digits of a latency: a bar of 1.1 is to be told from 1.05.
DIGITS = 3

# The rate of which others are shares need not be found for longer.
CAPACITY_SECONDS = 60

# Part of the samples that say nothing about growth, at the beginning.
NEW = 0.2

# Digits of what is drawn.
DRAWN_DIGITS = 4


@dataclass(frozen=True)
class Capacity(Pgbench):
    """As many transactions as the server can do: what rates are shares of."""

    def _run(self, session, seconds):
        return super()._run(session, min(seconds, CAPACITY_SECONDS))


@dataclass(frozen=True)
class Stream:
    """Transactions of one kind: a name, the arguments of pgbench, a share of the rate found.

    If none was found or given, it is a share of `pace`.
    """

    name: str
    arguments: tuple
    share: float
    pace: float = 0

    def run(self, session: Session, seconds: float, waits: "Waits") -> clients.Outcome:
        """Run pgbench; returns the Outcome, and has `waits` count."""
        return clients.pgbench(session.server, (f"--rate={self.rate(session):.3f}", *self.arguments),
                               seconds, session.raw, label=f"-{self.name.replace(' ', '-')}",
                               count=waits.count)

    def rate(self, session: Session) -> float:
        """Return transactions a second."""
        return max(1, self.share * (session.pace or self.pace))


class Waits:
    """What transactions waited for, in steps of time by when they were due.

    `steps` is {step: {milliseconds: count}}.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.steps: defaultdict[int, Counter] = defaultdict(Counter)

    def count(self, lines: Sequence[str], latencies: Counter) -> None:
        """Read a transaction log; adds to {milliseconds: count} as well."""
        for line in lines:
            words = line.split(" ", 6)
            # Failed and skipped transactions have a word instead.
            if words[2].isdigit():
                waited = int(words[2])
                due = int(words[4]) + (int(words[5]) - waited) / 1e6
                milliseconds = stats.round_significant(waited / 1000, DIGITS)
                latencies[milliseconds] += 1
                self.steps[int(due // self.step)][milliseconds] += 1

    def trace(self, percent: int) -> dict[str, Any]:
        """Return a percentile of each step from the first to the last; None where none was due."""
        values = [stats.percentile(self.steps[step], percent) if step in self.steps else None
                  for step in range(min(self.steps), max(self.steps) + 1)] if self.steps else []
        return {"step": self.step, "values": values}


@dataclass(frozen=True)
class OpenLoop:
    """Streams of transactions beside each other, and watches that look meanwhile."""

    streams: tuple
    watches: tuple = ()

    def __call__(self, session: Session) -> list[Point]:
        prewarm(session)
        step = max(1, math.ceil(session.seconds / MOST_VALUES))
        self._run(session, max(1, round(session.seconds * WARM_UP)), step)
        found, samplers = [], []

        def load():
            """Run the streams between samples; returns the Outcome of the first."""
            with contextlib.ExitStack() as stack:
                samplers.extend(stack.enter_context(counters.Sampler(
                    watch.look(session), step)) for watch in self.watches)
                found.extend(self._run(session, session.seconds, step))
            return found[0][0]

        points = measure(session, "transactions a second", load)
        for stream, (outcome, waits) in zip(self.streams, found):
            points += self._waits(session, stream, outcome, waits)
        for watch, sampler in zip(self.watches, samplers):
            points += watch.points(sampler.samples, step)
        return points

    def _run(self, session, seconds, step):
        """Run all streams at once; returns [(Outcome, Waits)]."""
        waits = [Waits(step) for _ in self.streams]
        with ThreadPoolExecutor(len(waits)) as pool:
            outcomes = list(pool.map(lambda stream, one: stream.run(session, seconds, one),
                                     self.streams, waits))
        return list(zip(outcomes, waits))

    @staticmethod
    def _waits(session, stream, outcome, waits):
        """Return Points of what the transactions of a stream waited for."""
        rate = stream.rate(session)
        # What was not done in time was not waited for either.
        extra = {"rate": round(rate, 1), "of it": round(outcome.tps / rate, 4)}
        points = [Point(f"{stream.name}, {title}", outcome.latency[key], "ms", False,
                        outcome.transactions)
                  for title, key in PERCENTILES.items() if outcome.latency]
        for point, percent in zip(points, TRACED):
            point.extra = dict(extra)
            point.trace = waits.trace(percent) if percent else {}
        if points:
            points[0].latency = outcome.latency
        return points


PERCENTILES = {"median": "p50", "99th percentile": "p99", "99.9th percentile": "p99.9",
               "longest": "max"}

# What is drawn of each of these, step by step.  Of one in a thousand a second has too few.
TRACED = (50, 99, None, 100)


# What grows meanwhile ---------------------------------------------------------------


@dataclass(frozen=True)
class WalVolume:
    """WAL bytes a second, and how far from even they are."""

    QUERY = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"

    def look(self, session: Session) -> Callable[[], float]:
        """Return a function that returns the bytes so far."""
        return lambda: float(session.server.sql(self.QUERY))

    @staticmethod
    def points(samples: Sequence[tuple[float, float] | tuple[int, float]],
               step: int) -> list[Point]:
        """Return Points of the mean and of the largest step; the last sample comes when it will."""
        rates = [(after - before) / (later - now) / 1e6
                 for (now, before), (later, after) in zip(samples, samples[1:])
                 if later - now > step / 2]
        mean = (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0]) / 1e6
        trace = {"step": step, "values": _rounded(rates)}
        return [Point("WAL", round(mean, 4), "MB/s", False, trace=trace),
                Point("WAL, largest", round(max(rates), 4), "MB/s", False,
                      extra={"largest / mean": round(max(rates) / mean, 3) if mean else 0})]


@dataclass(frozen=True)
class Growth:
    """What a server that runs for long must not need more and more of.

    Of each figure the slope of a line through it, with its bounds at 95 %.
    """

    # Of ours, what the log holds now.
    LOG = """SELECT used_bytes / 1048576.0, next_batch - low_water, files_to_sync,
	coalesce((SELECT pages_to_restore FROM pg_double_write_recovery()), 0)
FROM pg_double_write_log()"""
    HELD = ("log in use, MB", "batches held", "files to sync", "pages to restore")

    def look(self, session: Session) -> Callable[[], dict[str, float]]:
        """Return a function that returns {figure: number}."""
        server = session.server
        ours = server.sql("SELECT to_regproc('pg_double_write_counters') IS NOT NULL") == "t"

        def take():
            found = resources([server.postmaster(), *postgres.children(server.postmaster())])
            for name in ("pg_doublewrite", "pg_wal"):
                found[f"{name}, MB"] = _megabytes(server.data / name)
            if ours:
                found.update(zip(self.HELD, map(float, server.rows(self.LOG)[0])))
            return found

        return take

    @staticmethod
    def points(samples: Sequence[tuple[int, dict[str, int]]], step: int) -> list[Point]:
        """Return a Point of each figure.

        At first connections are new and touch shared memory for the first time.
        """
        samples = samples[math.ceil(len(samples) * NEW):-1] or samples
        begun = samples[0][0]
        times = [taken - begun for taken, _ in samples]
        points = []
        for name in samples[0][1]:
            values = [found.get(name, 0) for _, found in samples]
            line = stats.line(times, values)
            extra = {} if line is None else {
                "an hour": 3600 * line.slope, "at least": 3600 * line.low, "at most": 3600 * line.high,
                **dict(zip(stats.FLATNESS, line.flatness()))}
            points.append(Point(name, round(sum(values) / len(values), 3), name.rpartition(", ")[2],
                                False, len(values), extra=extra,
                                trace={"step": step, "values": _rounded(values)}))
        return points


def resources(pids: Sequence[int]) -> dict[str, float | int]:
    """Return memory and descriptors of processes, together; what has ended has none."""
    sums: Any = Counter({"RSS, MB": 0, "PSS, MB": 0, "descriptors": 0, "processes": 0})
    for pid in pids:
        sizes = dict(line.split()[:2] for line in
                     postgres.read_proc(pid, "smaps_rollup").splitlines()[1:])
        for name in ("Rss", "Pss"):
            sums[f"{name.upper()}, MB"] += int(sizes.get(f"{name}:", 0)) / 1024
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            sums["descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
            sums["processes"] += 1
    return dict(sums)


def _megabytes(directory):
    """Return the room that the files of a directory take; files may go meanwhile."""
    blocks = 0
    for path in directory.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            blocks += path.stat().st_blocks
    return blocks * 512 / (1 << 20)


def _rounded(values):
    return [stats.round_significant(value, DRAWN_DIGITS) for value in values]
