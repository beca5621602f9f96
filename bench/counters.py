"""What noise cannot touch: counts, bytes and CPU time.

A snapshot is a flat {name: number}; only differences of two mean something.
Names: wal.*, checkpoint.*, bgwriter.*, io.BACKEND/OBJECT/CONTEXT.FIELD,
dw.* (the engine's own), device.LABEL.*, cpu.*.
"""

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import storage
from .server import Server
from .storage import Volume

IO_FIELDS = ("reads", "read_bytes", "writes", "write_bytes", "extends", "writebacks",
             "evictions", "reuses", "fsyncs", "read_time", "write_time", "fsync_time")

IO_QUERY = f"""
SELECT backend_type || '/' || object || '/' || context, {', '.join(IO_FIELDS)} FROM pg_stat_io
"""

ROW_QUERIES = {
    "wal": "SELECT wal_records, wal_fpi, wal_bytes, wal_buffers_full FROM pg_stat_wal",
    "checkpoint": "SELECT num_timed, num_requested, num_done, buffers_written, slru_written,"
                  " write_time, sync_time FROM pg_stat_checkpointer",
    "bgwriter": "SELECT buffers_clean, maxwritten_clean, buffers_alloc FROM pg_stat_bgwriter",
}


def snapshot(server: Server, volume: Volume) -> dict[str, Any]:
    """Return all counters of a server and of the devices it writes to."""
    counts: dict[str, Any] = {}
    for prefix, query in ROW_QUERIES.items():
        names = re.findall(r"\w+", query.partition(" FROM ")[0])[1:]
        _put(counts, prefix, names, server.rows(f"SELECT pg_stat_force_next_flush();{query}")[-1])
    for key, *values in server.rows(IO_QUERY):
        _put(counts, f"io.{key}", IO_FIELDS, values)
    for name, value in _engine(server):
        counts[f"dw.{name}"] = float(value)
    counts.update(devices(volume))
    for kind, seconds in server.cpu_seconds().items():
        counts[f"cpu.{kind}"] = seconds
    return counts


def devices(volume: Volume) -> dict[str, int]:
    """Return the counters of the block devices alone."""
    return {f"device.{label}.{name}": value
            for label, device in volume.devices.items()
            for name, value in storage.device_counts(device).items()}


@dataclass
class Sampler:
    """What `take` returns, again and again while the context lasts, each so many seconds.

    `samples` has (time, what was returned), the oldest first.
    """

    take: object
    interval: float
    samples: list = field(default_factory=list)

    def __enter__(self) -> "Sampler":
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, kind: str, error: BaseException | None, trace: Any) -> None:
        self._end.set()
        self._thread.join()
        self._sample()

    def _follow(self):
        while not self._end.wait(self.interval):
            self._sample()

    def _sample(self):
        self.samples.append((time.time(), self.take()))


def difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return what has moved between two snapshots."""
    moved = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: round(value, 3) for name, value in moved.items() if value}


def checkpoints(log: Any) -> list[dict[str, float]]:
    """Return what a piece of server log says about its checkpoints."""
    pattern = re.compile(
        r"(?:checkpoint|restartpoint) complete: wrote (?P<buffers>\d+) buffers.*?"
        r"write=(?P<write>[\d.]+) s, sync=(?P<sync>[\d.]+) s, total=(?P<total>[\d.]+) s; "
        r"sync files=(?P<files>\d+), longest=(?P<longest>[\d.]+) s")
    return [{name: float(value) for name, value in match.groupdict().items()}
            for match in pattern.finditer(log)]


def _put(counts, prefix, names, values):
    """Enter the values that are not null."""
    for name, value in zip(names, values, strict=True):
        if value:
            counts[f"{prefix}.{name}"] = float(value)


def _engine(server):
    """Return (name, value) of the engine's counters; none from a stock server."""
    if server.sql("SELECT to_regproc('pg_double_write_counters') IS NULL") == "t":
        return []
    return server.rows("SELECT name, value FROM pg_double_write_counters()")


# Sums over a difference ------------------------------------------------------


def total(counts: Mapping[str, Any], pattern: str) -> int:
    """Return the sum of the counters whose whole name matches `pattern`."""
    return sum(value for name, value in counts.items() if re.fullmatch(pattern, name))


def pages_home(counts: Mapping[str, Any]) -> float:
    """Return the relation pages written, wherever they are counted."""
    return total(counts, r"io\..*/(temp )?relation/.*\.write_bytes") / 8192


def pages_per_write(counts: Mapping[str, Any]) -> float | None:
    """Return the relation pages per write call; None if nothing was written."""
    writes = total(counts, r"io\..*/relation/.*\.writes")
    if counts.get("dw.home_writes"):
        return counts.get("dw.home_pages", 0) / counts["dw.home_writes"]
    return pages_home(counts) / writes if writes else None


def files_synced_per_copy(counts: Mapping[str, Any]) -> float:
    """Return the relation files synced for each page in the double-write log; 0 if none is."""
    synced = total(counts, r"io\..*/relation/.*\.fsyncs")
    return synced / counts["dw.logged"] if counts.get("dw.logged") else 0


WRITE_CAUSES = {
    "WAL": r"io\..*/wal/.*\.writes",
    "double-write log": r"dw\.log_writes",
    "checkpointer": r"io\.checkpointer/relation/.*\.writes",
    "background writer": r"io\.background writer/relation/.*\.writes",
    "client backends": r"io\.client backend/relation/.*\.(writes|extends)",
    "others": r"io\.(?!checkpointer/|background writer/|client backend/).*/relation/"
              r".*\.(writes|extends)",
}

SYNC_CAUSES = {
    "WAL": r"io\..*/wal/.*\.fsyncs",
    "double-write log": r"dw\.log_syncs",
    # Those of the background writer are sync cycles of the engine.
    "checkpointer": r"io\.checkpointer/relation/.*\.fsyncs",
    "background writer": r"io\.background writer/relation/.*\.fsyncs",
    "others": r"io\.(?!checkpointer/|background writer/).*/relation/.*\.fsyncs",
}


def by_cause(counts: Mapping[str, Any], causes: Mapping[str, str]) -> dict[str, int]:
    """Return {cause: sum} of a difference."""
    return {cause: total(counts, pattern) for cause, pattern in causes.items()}
