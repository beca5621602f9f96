"""Saved WAL, and what its replay costs.

What is saved is what a crash right after the load would have left, had
nothing been written home since the load began: the cluster as it was before,
with WAL and pg_control of after.  It is made by stock, so that stock can
replay it, once with images in WAL and once, by the same transactions,
without.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.base import DevError, Paths, own, run, say

from . import clients, counters
from .loads import POLL_SECONDS, Point, Session
from .server import EXTENSION, Server

# The build that makes what is replayed.
KIND = "stock-release"

CLIENTS = 4

# No checkpoint, or redo would begin in the middle; nothing outlives the load.
SAVING = {"fsync": "off", "synchronous_commit": "off", "autovacuum": "off",
          "checkpoint_timeout": "1d", "max_wal_size": "1TB", "shared_buffers": "512MB",
          "bgwriter_lru_maxpages": 0, "max_connections": 300}

# Waits until all WAL is on disk: transactions before did not.
FLUSH = "SET synchronous_commit = on; SELECT pg_logical_emit_message(true, '', 'end');"

# What replay needs besides the cluster of before.
SAVED = ("pg_wal", "global/pg_control")

# Often enough to see the share of each process, and where half-way was.
PROGRESS = "100ms"


@dataclass(frozen=True)
class Workload:
    """Transactions to save the WAL of.

    `arguments` are those of pgbench; `transactions` is for all clients.
    """

    name: str
    arguments: tuple
    transactions: int


def saved(paths: Paths, bindir: Path, template: Path, workload: Workload, images: bool) -> Path:
    """Return the directory with the WAL of a workload; makes it once."""
    name = "".join(char if char.isalnum() else "-" for char in workload.name)
    place = template.parent / f"{name}-{workload.transactions}-{'images' if images else 'plain'}"
    if place.exists():
        return place
    say(f"saving WAL of {workload.name}, {'with' if images else 'without'} images")
    scratch = template.parent / "saving"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    own(scratch)
    server = Server(paths, bindir, scratch / "data")
    run(["cp", "-a", template, server.data])
    server.configure({**SAVING, "full_page_writes": "on" if images else "off"})
    server.start()
    try:
        _load(server, workload)
        server.sql(FLUSH)
    finally:
        server.stop("immediate")
    part = scratch / "saved"
    for name in SAVED:
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        (server.data / name).rename(part / name)
    part.rename(place)
    shutil.rmtree(scratch)
    return place


def put(place: Path, data: Path) -> None:
    """Make a copy of the cluster what the crash has left."""
    shutil.rmtree(data / "pg_wal")
    for name in SAVED:
        run(["cp", "-a", place / name, data / name])


def _load(server, workload):
    """Run the transactions; the same ones each time."""
    done = server.call("pgbench", "--no-vacuum", "--protocol=prepared", f"--client={CLIENTS}",
                       f"--jobs={os.cpu_count()}", f"--random-seed={clients.SEED}",
                       f"--transactions={workload.transactions // CLIENTS}", "--max-tries=10",
                       *workload.arguments, env=server.environment(), capture=True)
    failed = re.search(rb"^number of failed transactions: (\d+)", done.stdout, re.MULTILINE)
    if failed and int(failed[1]):
        raise DevError(f"transactions of {workload.name} have failed:\n" + done.stdout.decode())


# Replay -----------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """Crash recovery, from the start of the server until it takes clients."""

    transactions: int

    def __call__(self, session: Session) -> list[Point]:
        server = session.server
        before = counters.devices(session.volume)
        used = recover(server)
        log = server.log.read_text(errors="replace")
        facts = parse_log(log)
        counts = self._counts(session, used, before)
        facts["victims"] = counters.total(counts, r"io\.startup/relation/.*\.writes")
        facts.update({name.replace(".", " "): value for name, value in counts.items()
                      if name.startswith("cpu.")})
        redo, ready = facts.pop("redo"), facts.pop("ready")
        return [Point("redo", redo, "s", False, self.transactions, counts, extra=facts),
                Point("until ready", ready, "s", False, self.transactions, counts)]

    @staticmethod
    def _counts(session, used, before):
        """Return all counters since the server's start; CPU by process."""
        if session.server.sql(f"SELECT 1 FROM pg_available_extensions WHERE name = '{EXTENSION}'"):
            session.server.sql(f"CREATE EXTENSION {EXTENSION}")
        counts = {name: value
                  for name, value in counters.difference(session.snapshot(), before).items()
                  if not name.startswith("cpu.")}
        for kind, seconds in used.values():
            for name in (f"cpu.{kind}", "cpu.total"):
                counts[name] = round(counts.get(name, 0) + seconds, 3)
        return counts


def recover(server: Server) -> dict[int, tuple[str, float]]:
    """Start the server; returns {process id: (kind, CPU seconds)} when it is ready."""
    used = {}
    server.start(wait=False)
    server.until_ready(0, POLL_SECONDS, lambda: used.update(server.processes()))
    return used


def parse_log(text: str) -> dict[str, Any]:
    """Return what the server log says about a recovery, in seconds and counts."""
    done = re.search(r"redo done at .*CPU: user: ([\d.]+) s, system: ([\d.]+) s,"
                     r" elapsed: ([\d.]+) s", text)
    if not done:
        raise DevError("the server log tells of no redo:\n" + text[-500:])
    user, system, elapsed = map(float, done.groups())
    facts = {"redo": elapsed, "ready": _between(text), "redo_cpu": round(user + system, 2)}
    pipeline = re.search(r"WAL pipeline: .*read (\d+) blocks and wrote (\d+);"
                         r" redo waited (\d+) times", text)
    if pipeline:
        names = ("pipeline_reads", "pipeline_victims", "pipeline_waits")
        facts.update(zip(names, map(int, pipeline.groups()), strict=True))
    error = estimate_error(text, elapsed)
    if error is not None:
        facts["estimate_error_percent"] = round(error, 1)
    return facts


def estimate_error(text: str, elapsed: float) -> float | None:
    """Return by how much the time left was wrong, as shown when half of the time had passed.

    In percent; None if nothing was shown then.
    """
    for match in re.finditer(r"redo in progress, elapsed time: ([\d.]+) s(?:.* about ([\d.]+) s to go)?",
                             text):
        then, left = float(match[1]), match[2]
        if elapsed / 2 <= then < elapsed:
            return 100 * (float(left) / (elapsed - then) - 1) if left else None
    return None


def _between(text):
    """Return the seconds from the first line of the log to readiness."""
    stamp = r"^(\d+)\.(\d+) "
    first = re.search(stamp, text, re.MULTILINE)
    last = re.search(stamp + r".*ready to accept connections", text, re.MULTILINE)
    return round(float(".".join(last.groups())) - float(".".join(first.groups())), 3)
