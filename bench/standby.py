"""How long a standby takes to catch up, what its readers wait meanwhile, and to be promoted.

And by how much it lags under a steady load, which latency.py runs.

To catch up: the standby is down while its primary carries out transactions.  Then both start
with nothing in the kernel's cache except the WAL of the primary, which is to cost the device
that they share nothing, and catalogs of the standby, or a session that asks how far it is would
itself wait for what redo has had the kernel read.  A standby that is to be warm has its relation
files there, too.

To be promoted: the standby receives WAL and does not replay it.  Then the primary goes, and the
standby starts with nothing in the kernel's cache except its WAL.

To be back after a crash: the standby has replayed WAL since its restartpoint, and takes queries
when it has done so again.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from common import postgres

from . import clients, counters, stats
from .loads import Point, Session
from .restart import BLOCK, RECOVERY, carry_out

POLL_SECONDS = 0.05
READS = ("--builtin=select-only",)

# Files of a data directory.
WAL, RELATIONS = "pg_wal/0*", "base/*/*"
CATALOG_BYTES = 1 << 20     # which few catalogs exceed, and all tables of a load

# A row that is not in the cache.
ACCOUNT = "SELECT abalance FROM pgbench_accounts WHERE aid = 1234"


@dataclass(frozen=True)
class CatchUp:
    """Transactions for a standby that is down, and its way to the end of them.

    `transactions` is for all clients, `arguments` are those of pgbench; so many `readers`
    ask for single rows on the standby, which count until it has caught up.  Then `query` is
    asked: redo waits for no page that the kernel has been told of and that an image makes anew,
    but a session that needs another one waits behind these.  A `warm` standby starts with its
    relation files in the kernel's cache.
    """

    transactions: int
    arguments: tuple
    readers: int = 0
    query: str = ACCOUNT
    warm: bool = False

    def __call__(self, session: Session) -> list[Point]:
        server, standby, volume = session.server, session.standby, session.volume
        volume.release()
        standby.stop()
        server.sql("CHECKPOINT")
        begun = server.sql("SELECT pg_current_wal_lsn()")
        carry_out(server, self.transactions, self.arguments)
        written = server.sql(f"SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '{begun}')")
        server.stop()
        volume.cool()
        server.start()
        end = server.sql("SELECT pg_current_wal_lsn()")
        # Its socket is in another directory than before.
        primary = server.environment()
        postgres.write_settings(standby.data / "postgresql.auto.conf", {
            "primary_conninfo": f"host={primary['PGHOST']} port={primary['PGPORT']}"
                                f" user={primary['PGUSER']}"})
        _warm(server, WAL)
        _warm(standby, RELATIONS, None if self.warm else CATALOG_BYTES)
        volume.hold()
        before = counters.devices(volume)
        started = time.time()
        standby.start()
        opened = time.time()
        with ThreadPoolExecutor(1) as pool:
            reads = pool.submit(self._read, session) if self.readers else None
            caught_up = _caught_up(standby, end)
            counts = counters.difference(counters.snapshot(standby, volume), before)
            standby.sql(self.query)
            answered = time.time()
            log = reads.result() if reads else []
        volume.release()
        facts = {"opened after s": round(opened - started, 2),
                 "WAL kB": round(float(written) / 1024), **_facts(counts)}
        points = [Point("until caught up", round(caught_up - started, 2), "s", False, 1, counts,
                        extra=facts),
                  Point("until a query is answered then", round(answered - started, 2), "s", False, 1)]
        return points + _latency(log, caught_up)

    def _read(self, session):
        """Have clients ask the standby for rows; returns [(time, milliseconds)]."""
        return clients.pgbench_log(session.standby, READS, session.seconds, session.raw,
                                   self.readers)


@dataclass(frozen=True)
class Promotion:
    """A promotion with the WAL of so many `transactions` received and not replayed.

    It lasts until a first row has been changed.
    """

    transactions: int
    arguments: tuple

    WRITE = "UPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1"

    def __call__(self, session: Session) -> list[Point]:
        server, standby, volume = session.server, session.standby, session.volume
        volume.release()
        # It streams: after a start it would first have to replay the commits that it has.
        postgres.write_settings(standby.data / "postgresql.auto.conf",
                                {"recovery_min_apply_delay": "1d"})
        standby.sql("SELECT pg_reload_conf()")
        begun = server.sql("SELECT pg_current_wal_lsn()")
        if self.transactions:
            carry_out(server, self.transactions, self.arguments)
        end = server.sql("SELECT pg_current_wal_flush_lsn()")
        while standby.sql(f"SELECT pg_last_wal_receive_lsn() >= '{end}'") != "t":
            time.sleep(POLL_SECONDS)
        standby.stop()
        server.stop()
        volume.cool()
        _warm(standby, WAL)
        volume.hold()
        standby.start()
        left = standby.sql(f"SELECT pg_wal_lsn_diff('{end}', pg_last_wal_replay_lsn()),"
                           f" pg_wal_lsn_diff('{end}', '{begun}')").split("|")
        before = counters.snapshot(standby, volume)
        started = time.time()
        standby.sql("SELECT pg_promote(false)")
        while standby.sql("SELECT pg_is_in_recovery()") != "f":
            time.sleep(POLL_SECONDS)
        standby.sql(self.WRITE)
        ended = time.time()
        counts = counters.difference(counters.snapshot(standby, volume), before)
        volume.release()
        facts = {"WAL kB": round(float(left[1]) / 1024),
                 "of these not replayed": round(float(left[0]) / 1024), **_facts(counts)}
        return [Point("until the first write", round(ended - started, 2), "s", False, 1, counts,
                      extra=facts)]


@dataclass(frozen=True)
class StandbyCrash:
    """A crash of a standby that has replayed so many `transactions` since its restartpoint.

    It is back when it answers a query, which is when it has replayed them again: as pages that
    are newer may be on disk, it is not consistent before.  Until then no client is in, so workers
    redo pages.
    """

    transactions: int
    arguments: tuple

    def __call__(self, session: Session) -> list[Point]:
        server, standby, volume = session.server, session.standby, session.volume
        volume.release()
        self._restartpoint(server, standby)
        carry_out(server, self.transactions, self.arguments)
        _caught_up(standby, server.sql("SELECT pg_current_wal_flush_lsn()"))
        # Without a checkpoint to repeat, it only notes how far it has replayed.
        standby.sql("CHECKPOINT")
        standby.stop("immediate")
        server.stop()
        volume.cool()
        _warm(standby, WAL)
        volume.hold()
        before = counters.devices(volume)
        started = time.time()
        standby.start()
        standby.sql("SELECT 1")
        answered = time.time()
        counts = counters.difference(counters.snapshot(standby, volume), before)
        volume.release()
        return [Point("until first query", round(answered - started, 2), "s", False, 1, counts,
                      extra=_facts(counts))]

    def _restartpoint(self, server, standby):
        """Have the standby begin from here after a crash."""
        server.sql("CHECKPOINT")
        _caught_up(standby, server.sql("SELECT pg_current_wal_flush_lsn()"))
        standby.sql("CHECKPOINT")


@dataclass(frozen=True)
class ReplayLag:
    """What the standby has not replayed, in bytes, and for how long, as its primary sees both."""

    QUERY = """SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn),
	coalesce(extract(epoch FROM replay_lag), 0)
FROM pg_stat_replication"""
    TITLES = {"median": "p50", "99th percentile": "p99", "largest": "max"}

    def look(self, session: Session) -> Callable[[], list[float]]:
        """Return a function that returns [bytes, seconds]."""
        return lambda: [float(number) for number in session.server.rows(self.QUERY)[0]]

    @classmethod
    def points(cls, samples: Sequence[tuple[float, list[float]]], step: int) -> list[Point]:
        """Return Points of bytes and of seconds; the first of each has all values over time."""
        points = []
        for place, unit in enumerate(("bytes", "seconds")):
            # The last sample comes when the load has ended.
            values = [lag[place] for _, lag in samples[:-1]]
            found = stats.percentiles(Counter(values))
            of_unit = [Point(f"replay lag in {unit}, {title}", found[key], unit, False, len(values))
                       for title, key in cls.TITLES.items()]
            of_unit[0].trace = {"step": step, "values": values}
            points += of_unit
        return points


def _warm(server, pattern, largest=None):
    """Have such files of a server that is down in the kernel's cache, up to a size."""
    for path in server.data.glob(pattern):
        if path.is_file() and (largest is None or path.stat().st_size <= largest):
            path.read_bytes()


def _caught_up(standby, end):
    """Return when the standby has replayed WAL up to `end`."""
    while standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{end}'") != "t":
        time.sleep(POLL_SECONDS)
    return time.time()


def _facts(counts):
    """Return the counts that no noise touches."""
    return {"blocks read by recovery": counters.total(counts, RECOVERY + r"\.read_bytes") // BLOCK,
            "device reads": counts.get("device.data.reads", 0),
            "device kB read": counts.get("device.data.read_sectors", 0) // 2}


def _latency(log, until):
    """Return Points for what readers waited before a time, of (time, milliseconds)."""
    waits = Counter(waited for when, waited in log if when <= until)
    latency = stats.percentiles(waits)
    number = waits.total()
    return [Point(f"readers, {title}", latency[key], "ms", False, number, latency=latency)
            for title, key in (("median", "p50"), ("99th percentile", "p99")) if number]
