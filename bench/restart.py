"""From a crash to the first query answered: what users wait for.

Each arm carries out the same transactions, is killed, and starts with nothing in
the kernel's cache.  The time is split at lines of the server log, and what the
device has read and written is counted for each part.

Not every part has lines of its own.  That the double-write log is being read is
seen in progress lines only: if it is over before the first of them, it counts
as sync of the data directory.
"""

import bisect
import os
import re
import threading
import time
from dataclasses import dataclass, field

from common.base import DevError

from . import clients, counters
from .loads import PREWARM, Point
from .server import READY

RESTORED = (r"double-write log: examined (?P<examined>\d+) pages .*"
            r"restored (?P<restored>\d+), .*read (?P<log_kb>\d+) kB in (?P<seconds>[\d.]+) s")
READING = r"reading the double-write log, elapsed time: (?P<seconds>[\d.]+) s"

# The parts of a start, in their order.
PARTS = ("begin", "sync", "log read", "restore", "look", "redo", "end", "checkpoint", "open",
         "first query")

# Often enough that a part of some tenths of a second has figures of its own.
SAMPLE_SECONDS = 0.01

BLOCK = 8192

# Of the same load, when clients are in again.
AFTER_SECONDS = 15

# Processes that read pages before clients get in.
RECOVERY = r"io\.(startup|background worker|walpipeline|io worker)/relation/.*"


@dataclass(frozen=True)
class Restart:
    """Transactions, a crash, and a start with a cold cache.

    `transactions` is for all clients; `arguments` are those of pgbench.  With `seconds` the
    load ends when these are over instead, however much each arm has done by then.
    """

    transactions: int
    arguments: tuple
    prewarm: bool = True
    seconds: int = 0

    def __call__(self, session):
        server, volume = session.server, session.volume
        if self.prewarm:
            volume.release()
            server.sql(PREWARM)
            volume.hold()
        server.sql("CHECKPOINT")
        begun, lsn = time.monotonic(), server.sql("SELECT pg_current_wal_lsn()")
        if self.seconds:
            clients.pgbench(server, self.arguments, self.seconds, session.raw)
        else:
            carry_out(server, self.transactions, self.arguments)
        facts = {"load s": round(time.monotonic() - begun, 1), "WAL kB written": round(float(
            server.sql(f"SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '{lsn}')")) / 1024)}
        server.stop("immediate")
        volume.release()
        volume.cool()
        volume.hold()
        offset, before = session.log_size(), counters.devices(volume)
        with Sampler(volume) as sampler:
            begun = time.time()
            server.start(wait=False)
            text = server.until_ready(offset, SAMPLE_SECONDS)
            server.sql("SELECT 1")
            answered = time.time()
        counts = counters.difference(session.snapshot(), before)
        one_transaction(server, self.arguments)
        first = time.time() - begun
        after = clients.pgbench(server, self.arguments, AFTER_SECONDS, session.raw)
        # Only the last checkpoint is left, which is not waited for here.
        volume.release()
        marks = parse_marks(text, begun, answered)
        parts = split(marks, begun, sampler.samples)
        facts.update(count_facts(text, counts, parts))
        return [Point("until first query", round(answered - begun, 3), "s", False, 1, counts,
                      extra=facts, parts=parts),
                Point("until first transaction", round(first, 3), "s", False, 1),
                Point(f"TPS in the {AFTER_SECONDS} s after that", round(after.tps, 1), "1/s", True,
                      after.transactions, latency=after.latency, series=after.series),
                Point("until ready", round(marks["open"] - begun, 3), "s", False, 1)]


def one_transaction(server, arguments):
    """Have one client carry out one transaction."""
    server.call("pgbench", "--no-vacuum", f"--random-seed={clients.SEED}", "--transactions=1",
                *arguments, env=server.environment(), capture=True)


def carry_out(server, transactions, arguments):
    """Have pgbench carry out so many transactions, the same ones each time."""
    number = clients.clients()
    server.call("pgbench", "--no-vacuum", "--protocol=prepared", f"--client={number}",
                f"--jobs={min(number, os.cpu_count())}", f"--random-seed={clients.SEED}",
                f"--transactions={max(1, transactions // number)}", "--max-tries=10",
                *arguments, env=server.environment(), capture=True)


@dataclass
class Sampler:
    """Counters of the block devices, again and again, while the context lasts.

    `samples` has (time, counters), the oldest first.
    """

    volume: object
    samples: list = field(default_factory=list)

    def __enter__(self):
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._take()
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._end.set()
        self._thread.join()
        self._take()

    def _follow(self):
        while not self._end.wait(SAMPLE_SECONDS):
            self._take()

    def _take(self):
        self.samples.append((time.time(), counters.devices(self.volume)))


# Pure functions ---------------------------------------------------------------


def parse_marks(text, begun, answered):
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


def split(marks, begun, samples):
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


def count_facts(text, counts, parts):
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
