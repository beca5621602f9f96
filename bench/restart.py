"""From a crash to the first query answered: what users wait for.

Each arm carries out the same transactions, is killed, and starts with nothing in
the kernel's cache.  The time is split at lines of the server log, and what the
device has read and written is counted for each part.

Not every part has lines of its own.  That the double-write log is being read is
seen in progress lines only: if it is over before the first of them, it counts
as sync of the data directory.
"""

import bisect
import math
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.base import DevError

from . import clients, counters
from .loads import Point, Session, prewarm
from .server import READY, Server

RESTORED = (r"double-write log: examined (?P<examined>\d+) pages .*"
            r"restored (?P<restored>\d+), .*read (?P<log_kb>\d+) kB in (?P<seconds>[\d.]+) s")
READING = r"reading the double-write log, elapsed time: (?P<seconds>[\d.]+) s"

# The parts of a start, in their order.
PARTS = ("begin", "sync", "log read", "restore", "look", "redo", "end", "checkpoint", "open",
         "first query")

# Often enough that a part of some tenths of a second has figures of its own.
SAMPLE_SECONDS = 0.01

BLOCK = 8192

# Of the same load, when clients are in again; and before, to compare with.
AFTER_SECONDS = 15

# After the start that follows a crash, in seconds.
MOMENTS = (1, 2, 3, 5, 10, 15, 20, 30)

# Of the WAL wanted: no more rounds then.  No round is larger than so many times the one before.
ENOUGH, MOST_AT_ONCE = 0.97, 8

# Of the median before the crash.
FULL = 0.9

# Processes that read pages before clients get in.
RECOVERY = r"io\.(startup|background worker|walpipeline|io worker)/relation/.*"


@dataclass(frozen=True)
class Restart:
    """Transactions, a crash, and a start with a cold cache.

    `transactions` is for all clients; `arguments` are those of pgbench.  With `seconds` the
    load ends when these are over instead, however much each arm has done by then.  `statements`
    are carried out after it.  All that is done on storage that is not held, if `unheld`.
    """

    transactions: int
    arguments: tuple
    prewarm: bool = True
    seconds: int = 0
    statements: str = ""
    unheld: bool = False

    def __call__(self, session: Session) -> list[Point]:
        if self.prewarm:
            prewarm(session)
        session.server.sql("CHECKPOINT")
        begun, lsn = time.monotonic(), session.server.sql("SELECT pg_current_wal_lsn()")
        if self.unheld:
            session.volume.release()
        self.load(session, lsn)
        facts = {"load s": round(time.monotonic() - begun, 1),
                 "WAL kB written": round(wal_since(session.server, lsn) / 1024)}
        begun, points = start_cold(session, facts)
        points += self.after(session, begun)
        # Only the last checkpoint is left, which is not waited for here.
        session.volume.release()
        return points

    def load(self, session: Session, lsn: str) -> None:  # noqa: ARG002
        """Carry out what the crash interrupts; `lsn` is where its WAL begins."""
        if self.seconds:
            clients.pgbench(session.server, self.arguments, self.seconds, session.raw)
        else:
            carry_out(session.server, self.transactions, self.arguments)
        if self.statements:
            session.server.sql(self.statements)

    def after(self, session: Session, begun: float) -> list[Point]:
        """Carry on; returns Points of a server that was started at a time."""
        one_transaction(session.server, self.arguments)
        first = time.time() - begun
        after = clients.pgbench(session.server, self.arguments, AFTER_SECONDS, session.raw)
        return [Point("until first transaction", round(first, 3), "s", False, 1),
                Point(f"TPS in the {AFTER_SECONDS} s after that", round(after.tps, 1), "1/s", True,
                      after.transactions, latency=after.latency, series=after.series)]


@dataclass(frozen=True)
class FirstSeconds(Restart):
    """The same, and how many transactions have ended some seconds after the crash."""

    def after(self, session: Session, begun: float) -> list[Point]:
        """Carry on beyond the last of these moments."""
        log = clients.pgbench_log(session.server, self.arguments, MOMENTS[-1], session.raw,
                                  clients.clients())
        ended = sorted(when - begun for when, _ in log)
        return [Point(f"transactions {moment} s after the start", bisect.bisect(ended, moment), "",
                      True, 1) for moment in MOMENTS]


@dataclass(frozen=True)
class RestartWal(Restart):
    """The same with so much WAL since the checkpoint in each arm, and until all is as it was.

    `updates` are the arguments of pgbench for transactions that write the WAL, on storage that
    is not held; before them the load itself runs for a time, which says what full throughput is.
    """

    megabytes: int = 0
    updates: tuple = ()

    def __call__(self, session: Session) -> list[Point]:
        prewarm(session)
        before = clients.pgbench(session.server, self.arguments, AFTER_SECONDS, session.raw)
        points = super().__call__(session)
        whole = points[-1]
        whole.value, whole.extra = until_full(whole.series, statistics.median(before.series))
        return points

    def load(self, session: Session, lsn: str) -> None:
        """Write WAL until there is enough of it."""
        wanted, written = self.megabytes << 20, 0.0
        number, rounds = 1, 0
        while written < ENOUGH * wanted:
            carry_out(session.server, number * clients.clients(), self.updates,
                      clients.SEED + rounds)
            earlier, written = written, wal_since(session.server, lsn)
            # The first changes of pages have images, so each round writes less than the one before.
            share = (wanted - written) / max(1, written - earlier)
            number, rounds = max(1, math.floor(number * min(share, MOST_AT_ONCE))), rounds + 1

    def after(self, session: Session, begun: float) -> list[Point]:
        """Carry on until the throughput of before, or as long as the load lasts."""
        log = clients.pgbench_log(session.server, self.arguments, session.seconds, session.raw,
                                  clients.clients())
        ended = Counter(int(when - begun) for when, _ in log)
        # Of the last second not all is there.
        series = [ended[second] for second in range(max(ended))]
        first = min(when for when, _ in log) - begun
        return [Point("until first transaction", round(first, 3), "s", False, 1),
                Point("until full throughput", 0, "s", False, len(log), series=series)]


def wal_since(server: Server, lsn: str) -> float:
    """Return the bytes of WAL that have been written since a position."""
    return float(server.sql(f"SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '{lsn}')"))


def start_cold(session: Session, facts: Any) -> tuple:
    """Crash the server and start it with a cold cache; returns when, and Points with these facts."""
    server, volume = session.server, session.volume
    server.stop("immediate")
    volume.release()
    volume.cool()
    volume.hold()
    offset, before = session.log_size(), counters.devices(volume)
    with counters.Sampler(lambda: counters.devices(volume), SAMPLE_SECONDS) as sampler:
        begun = time.time()
        server.start(wait=False)
        text = server.until_ready(offset, SAMPLE_SECONDS)
        server.sql("SELECT 1")
        answered = time.time()
    counts = counters.difference(session.snapshot(), before)
    marks = parse_marks(text, begun, answered)
    parts = split(marks, begun, sampler.samples)
    facts.update(count_facts(text, counts, parts))
    return begun, [Point("until first query", round(answered - begun, 3), "s", False, 1, counts,
                         extra=facts, parts=parts),
                   Point("until ready", round(marks["open"] - begun, 3), "s", False, 1)]


def one_transaction(server: Server, arguments: Any) -> None:
    """Have one client carry out one transaction."""
    server.call("pgbench", "--no-vacuum", f"--random-seed={clients.SEED}", "--transactions=1",
                *arguments, env=server.environment(), capture=True)


def carry_out(server: Server, transactions: int, arguments: Any, seed: int = clients.SEED) -> None:
    """Have pgbench carry out so many transactions, the same ones each time."""
    number = clients.clients()
    server.call("pgbench", "--no-vacuum", "--protocol=prepared", f"--client={number}",
                f"--jobs={min(number, os.cpu_count())}", f"--random-seed={seed}",
                f"--transactions={max(1, transactions // number)}", "--max-tries=10",
                *arguments, env=server.environment(), capture=True)


# Pure functions ---------------------------------------------------------------


def until_full(series: Sequence[int], before: int) -> tuple[int, dict[str, Any]]:
    """Return the end of the first second with 0.9 of the transactions of before, and what was found.

    `series` has those of each second since the start.  The end of the series if there is none.
    """
    full = next((second for second, number in enumerate(series, 1) if number >= FULL * before), None)
    return full or len(series), {"TPS before the crash": before, "not reached": int(full is None)}


def parse_marks(text: str, begun: float, answered: float) -> dict[str, float]:
    """Return {part: when it ended}, of the parts that the server log shows.

    What comes after the first clients got in, as a checkpoint may, is no part
    of the time they waited.
    """
    lines = [(float(match[1]), match[2])
             for match in re.finditer(r"^(\d+\.\d+) (.*)$", text, re.MULTILINE)]

    def find(pattern):
        """Return when a line says so, and the match; (None, None) if none does."""
        for when, line in lines:
            match = re.search(pattern, line)
            if match:
                return when, match
        return None, None

    def before(pattern):
        """Return when that began for which a line gives the seconds it has taken."""
        when, match = find(pattern)
        return match and when - float(match["seconds"])

    found = find("database system was not properly shut down")[0]
    restoring, reading = before(RESTORED), before(READING)
    marks = {
        "begin": find("database system was interrupted")[0],
        "sync": reading or restoring or found,
        "log read": (restoring or found) if reading else None,
        "restore": find(RESTORED)[0],
        "look": find("redo starts at")[0],
        "redo": find("redo done at")[0],
        "end": find("checkpoint starting: end-of-recovery")[0],
        "checkpoint": find("checkpoint complete")[0],
        "open": find(READY)[0],
        "first query": answered,
    }
    if marks["open"] is None:
        raise DevError("the server log does not say that clients got in:\n" + text[-500:])
    latest, kept = begun, {}
    for part, when in marks.items():
        if when is not None and (part == "first query" or when <= marks["open"]):
            # The clocks of two processes' lines differ by some milliseconds.
            latest = kept[part] = max(latest, when)
    return kept


def split(marks: Mapping[str, float], begun: float,
          samples: Sequence[tuple[float, dict[str, int]]]) -> dict[str, dict[str, Any]]:
    """Return {part: {"s": seconds, and what the devices did}}."""
    parts = {}
    start, earlier = begun, _sample(samples, begun)
    for part in PARTS:
        if part in marks:
            now = _sample(samples, marks[part])
            parts[part] = {"s": round(marks[part] - start, 3),
                           **{name: sum(value - earlier[key] for key, value in now.items()
                                        if key.endswith(f".{name}"))
                              for name in ("reads", "read_sectors", "writes", "write_sectors")}}
            start, earlier = marks[part], now
    return parts


def _sample(samples, when):
    """Return the last counters at a time, the first ones if none are older."""
    place = bisect.bisect_right([taken for taken, _ in samples], when)
    return samples[max(place - 1, 0)][1]


def count_facts(text: str, counts: Mapping[str, int],
                parts: Mapping[str, dict[str, int]]) -> dict[str, int]:
    """Return the counts that no noise touches."""
    restored = re.search(RESTORED, text)
    before = [part for name, part in parts.items() if name != "first query"]
    log = [part for name, part in parts.items() if name in ("sync", "log read", "restore")]
    return {
        "device reads before opening": sum(part["reads"] for part in before),
        "device kB read before opening": sum(part["read_sectors"] for part in before) // 2,
        "device writes before opening": sum(part["writes"] for part in before),
        "device kB read by sync, log read, restore": sum(
            part["read_sectors"] for part in log) // 2,
        "blocks read": counters.total(counts, RECOVERY + r"\.read_bytes") // BLOCK,
        "read calls": counters.total(counts, RECOVERY + r"\.reads"),
        "log kB read": int(restored["log_kb"]) if restored else 0,
        "copies": int(restored["examined"]) if restored else 0,
        "restored": int(restored["restored"]) if restored else 0,
        "WAL kB read": counters.total(counts, r"io\..*/wal/.*\.read_bytes") // 1024,
        "pages written": round(counters.pages_home(counts)),
    }
