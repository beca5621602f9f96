"""What happens between two snapshots of the counters.

A load is called with a Session and returns Points.  A case that measures
several things in one life of a server returns several.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from . import clients, counters, stats
from .server import Server
from .storage import Volume

PREWARM = """
CREATE EXTENSION IF NOT EXISTS pg_prewarm;
SELECT sum(pg_prewarm(oid)) FROM pg_class
WHERE relkind IN ('r', 'i') AND relpages > 0 AND relnamespace = 'public'::regnamespace;
"""

# What backends do, looked at so rarely that it costs nothing to speak of.
WAITS_INTERVAL = 0.25
WAITS = """
SELECT 'wait', coalesce(wait_event_type || ':' || wait_event, 'CPU'), count(*)
FROM pg_stat_activity
WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()
GROUP BY 2"""

# Part of the measured time that a load runs before it counts.
WARM_UP = 0.2

POLL_SECONDS = 0.05


@dataclass
class Session:
    """One run: a server on its volume, and where raw output goes."""

    server: Server
    volume: Volume
    raw: Path
    seconds: int
    standby: Any = None
    pace: float = 0     # what stock does with full_pages, for loads at a fixed rate

    def snapshot(self) -> dict[str, Any]:
        return counters.snapshot(self.server, self.volume)

    def log_size(self) -> int:
        return self.server.log.stat().st_size

    def checkpoints_since(self, offset: int) -> list[dict[str, Any]]:
        """Return what the server log says about checkpoints after `offset`."""
        with open(self.server.log, errors="replace") as log:
            log.seek(offset)
            return counters.checkpoints(log.read())


@dataclass
class Point:
    """One measured value with all that explains it.

    `counts` has what moved while the load ran; `drain` what a checkpoint
    right after it had to do; `waits` what backends spent their time on;
    `parts` seconds and counts of the parts of a time; `trace` what is to be drawn over
    time: {"step": seconds, "values": [...]}.
    """

    name: str
    value: float
    unit: str
    higher_is_better: bool
    operations: int = 0
    counts: dict = field(default_factory=dict)
    drain: dict = field(default_factory=dict)
    latency: dict = field(default_factory=dict)
    series: list = field(default_factory=list)
    waits: dict = field(default_factory=dict)
    extra: dict = field(default_factory=dict)
    parts: dict = field(default_factory=dict)
    trace: dict = field(default_factory=dict)

    def as_dict(self) -> dict:
        """Return the Point without what is empty, for a JSON file."""
        return {name: value for name, value in asdict(self).items() if value not in ({}, [])}


def prewarm(session: Session) -> None:
    """Read all tables into shared buffers, as fast as the device can."""
    session.volume.release()
    session.server.sql(PREWARM)
    session.volume.hold()


@dataclass(frozen=True)
class Pgbench:
    """pgbench with a built-in or our own scripts, of `number` clients if that is said."""

    arguments: tuple
    prewarm: bool = True
    number: int | None = None

    def __call__(self, session: Session) -> list[Point]:
        self._warm_up(session)
        return measure(session, "tps", lambda: self._run(session, session.seconds))

    def _warm_up(self, session):
        if self.prewarm:
            session.server.sql(PREWARM)
        self._run(session, max(1, round(session.seconds * WARM_UP)))

    def _run(self, session, seconds):
        return clients.pgbench(session.server, self.arguments, seconds, session.raw, self.number)


@dataclass(frozen=True)
class Sysbench:
    """A sysbench script, once for each number of clients per processor."""

    script: str
    options: dict
    per_cpu: tuple = (clients.CLIENTS_PER_CPU,)
    prewarm: bool = True

    def __call__(self, session: Session) -> list[Point]:
        if self.prewarm:
            session.server.sql(PREWARM)
        base = clients.clients() // clients.CLIENTS_PER_CPU
        warm = max(1, round(session.seconds * WARM_UP))
        self._run(session, base * self.per_cpu[0], warm)
        points = []
        for number in (base * each for each in self.per_cpu):
            name = f"{number} clients" if len(self.per_cpu) > 1 else "tps"
            points += measure(session, name,
                              partial(self._run, session, number, session.seconds))
        return points

    def _run(self, session, number, seconds):
        return clients.sysbench(session.server, self.script, self.options, seconds,
                                session.raw, number)


def measure(session: Session, name: str, load: Callable[[], clients.Outcome]) -> list[Point]:
    """Run a client program between snapshots; returns [Point]."""
    session.server.sql("CHECKPOINT")
    offset, before = session.log_size(), session.snapshot()
    waits = session.raw / "waits.txt"
    with session.server.following(WAITS, waits, WAITS_INTERVAL):
        outcome = load()
    after = session.snapshot()
    drained = _drain(session, after)
    point = Point(name, outcome.tps, "transactions/s", True, outcome.transactions,
                  counters.difference(after, before), drained, outcome.latency,
                  outcome.series, count_waits(waits.read_text()),
                  {"failed": outcome.failed,
                   "checkpoints": len(session.checkpoints_since(offset)) - 1})
    spread = stats.variation(outcome.series)
    if spread is not None:
        point.extra["variation"] = round(spread, 4)
    return [point]


def count_waits(text: str) -> dict[str, float]:
    """Return {wait event: share of the backends' time}, the longest first."""
    sums: Counter[str] = Counter()
    for event, count in re.findall(r"^wait\|(.+)\|(\d+)$", text, re.MULTILINE):
        sums[event] += int(count)
    return {event: round(count / sums.total(), 3) for event, count in sums.most_common()}


def _drain(session, before):
    """Checkpoint; returns what it moved, and its seconds."""
    seconds = session.server.timed("CHECKPOINT;")
    moved = counters.difference(session.snapshot(), before)
    return {**moved, "seconds": seconds}


@dataclass(frozen=True)
class Step:
    """A statement to time.  `setup` comes before, and a checkpoint after it.

    So many sessions carry it out at once; {number} in it is that of the session.
    """

    name: str
    setup: str
    timed: str
    sessions: int = 1

    def seconds(self, session: Session) -> float:
        """Carry out the statement; returns what it took the slowest session."""
        texts = [filled(session, self.timed).replace("{number}", str(number))
                 for number in range(self.sessions)]
        with ThreadPoolExecutor(self.sessions) as pool:
            return max(pool.map(session.server.timed, texts))


@dataclass(frozen=True)
class Program(Step):
    """A program of the build to time: its name and its arguments, separated by spaces."""

    def seconds(self, session: Session) -> float:
        """Run the program; returns the seconds."""
        begun = time.monotonic()
        session.server.call(*(filled(session, word) for word in self.timed.split()),
                            env=session.server.environment(), capture=True)
        return time.monotonic() - begun


def filled(session: Session, text: str) -> str:
    """Return the text with the data directory in its place."""
    return text.replace("{data}", str(session.server.data))


@dataclass(frozen=True)
class Steps:
    """Statements one after the other, each between snapshots.

    Each gives two points: its own time, and with that of a checkpoint, which
    writes back what the statement has left behind.
    """

    steps: tuple

    def __call__(self, session: Session) -> list[Point]:
        points = []
        for step in self.steps:
            points += self._step(session, step)
        return points

    def _step(self, session, step):
        server = session.server
        server.sql(filled(session, step.setup) + "\nCHECKPOINT;")
        before = session.snapshot()
        seconds = step.seconds(session)
        after = session.snapshot()
        drained = _drain(session, after)
        counts = counters.difference(after, before)
        return [Point(step.name, seconds, "s", False, 1, counts, drained),
                Point(f"{step.name} and checkpoint", seconds + drained["seconds"], "s", False, 1,
                      added(counts, drained))]


def added(one: Any, other: Any) -> dict:
    """Return the sum of two differences."""
    return {name: round(one.get(name, 0) + other.get(name, 0), 3)
            for name in {**one, **other} if name != "seconds"}


@dataclass(frozen=True)
class Beside(Pgbench):
    """pgbench, and one step after the other beside it, again and again until it ends."""

    steps: tuple = ()

    def __call__(self, session: Session) -> list[Point]:
        self._warm_up(session)
        took: dict[str, list[float]] = {step.name: [] for step in self.steps}
        points = measure(session, "tps", lambda: self._run_beside(session, took))
        return points + [point for name, seconds in took.items()
                         for point in latency_points(name, seconds)]

    def _run_beside(self, session, took):
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(self._run, session, session.seconds)
            while not load.done():
                for step in self.steps:
                    took[step.name].append(session.server.timed(step.timed, step.setup))
            return load.result()


def latency_points(name: str, seconds: Sequence[float]) -> list[Point]:
    """Return Points for what a statement took each time; the first has all percentiles."""
    latency = stats.percentiles(Counter(round(1000 * one, 3) for one in seconds))
    points = [Point(f"{name}, {title}", latency[key], "ms", False, len(seconds))
              for title, key in (("median", "p50"), ("99th percentile", "p99"), ("longest", "max"))]
    points[0].latency = latency
    return points


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints after statements that dirty many pages.

    Each gives two points: the time of the checkpoint, and with that of the statements, which
    write the images where there are any.
    """

    dirty: dict

    def __call__(self, session: Session) -> list[Point]:
        points = []
        for name, text in self.dirty.items():
            points += self._checkpoint(session, name, text)
        return points

    def _checkpoint(self, session, name, text):
        session.server.sql("CHECKPOINT;")
        start = session.snapshot()
        dirtied = session.server.timed(text)
        offset, before = session.log_size(), session.snapshot()
        seconds = session.server.timed("CHECKPOINT;")
        after = session.snapshot()
        counts = counters.difference(after, before)
        log = session.checkpoints_since(offset)[-1]
        per_write = counters.pages_per_write(counts)
        return [Point(name, seconds, "s", False, 1, counts,
                      extra={**log, "pages_per_write": round(per_write or 0, 2)}),
                Point(f"{name}, together", dirtied + seconds, "s", False, 1,
                      counters.difference(after, start))]


@dataclass(frozen=True)
class Replication:
    """pgbench on a primary, and how far its standby is behind, each second."""

    arguments: tuple

    QUERY = ("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), sent_lsn),"
             " pg_wal_lsn_diff(sent_lsn, replay_lsn), extract(epoch FROM replay_lag)"
             " FROM pg_stat_replication")

    def __call__(self, session: Session) -> list[Point]:
        session.server.sql(PREWARM)
        path = session.raw / "lag.txt"
        start = session.server.sql("SELECT pg_current_wal_lsn()")
        with session.server.following(self.QUERY, path):
            points = measure(session, "tps", lambda: clients.pgbench(
                session.server, self.arguments, session.seconds, session.raw))
        caught_up = self._catch_up(session)
        sent = float(session.server.sql(
            f"SELECT pg_wal_lsn_diff(sent_lsn, '{start}') FROM pg_stat_replication"))
        lags = parse_lags(path.read_text())
        latency = stats.percentiles({value: lags.count(value) for value in lags})
        done = points[0].operations
        return [*points,
                Point("bytes sent per transaction", sent / done, "bytes", False, done),
                Point("replay lag, maximum", max(lags, default=0), "bytes", False, done,
                      extra={"catch_up_seconds": caught_up, **latency})]

    @staticmethod
    def _catch_up(session):
        """Wait until the standby has replayed all; returns the seconds."""
        started = time.monotonic()
        end = session.server.sql("SELECT pg_current_wal_lsn()")
        query = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
        while session.standby.sql(query) != "t":
            time.sleep(POLL_SECONDS)
        return round(time.monotonic() - started, 2)


def parse_lags(text: str) -> list[float]:
    """Return the bytes by which replay was behind what had been sent."""
    return [float(number) for number in re.findall(r"^[\d.]+\|([\d.]+)\|", text, re.MULTILINE)]
