"""What restoring from the double-write log costs, and redo after it.

    python3 -B -m bench.restore NAME=BINDIR NAME=BINDIR ...

compares builds, which take turns: each starts on a fresh copy of the same
crashed cluster, out of the kernel's cache.  Restore cannot be switched off, so
what is compared with is a build of another commit:

    git worktree add DIR COMMIT && cd DIR && ./dev build release
    ./dev bindir release

The cluster is made by the first build named: pgbench's simple updates spread
over a table that shared_buffers do not hold, so that most pages go home by
way of the log and are read again by redo.
"""

import argparse
import os
import re
import shutil
import statistics
from pathlib import Path

from common.base import DevError, locate, note, own, say

from . import clients, counters, recovery, runner, storage
from .server import DATABASE, Server

# No checkpoint and no sync cycle, so all copies stay live.  Seldom a sync, since
# it is not the making of the cluster that is measured.
MAKING = {"io_torn_pages_protection": "double_writes", "double_write_buffer_size": "2GB",
          "checkpoint_timeout": "1d", "max_wal_size": "1TB", "synchronous_commit": "off",
          "autovacuum": "off", "max_connections": 100}

# Restore at the start and redo in order are what is measured.
REPLAY = {"instant_recovery": "off", "log_line_prefix": "%n [%p] ", "max_wal_size": "10GB",
          "synchronous_commit": "on"}

RESTORED = re.compile(r"double-write log: examined (\d+) pages .* in ([\d.]+) s$", re.MULTILINE)

READERS = r"io\.(startup|background worker)/relation/.*\.reads"

COLUMNS = ("copies", "restore", "redo", "ready", "reads", "device_reads")


def main() -> None:
    """Make the crashed cluster, let the builds recover it in turn, print a table."""
    args = _arguments()
    paths = locate(Path(__file__).resolve().parent.parent)
    work = storage.default_work_directory() / "restore"
    work.mkdir(parents=True, exist_ok=True)
    for directory in (work.parent, work):
        directory.chmod(0o755)
    bindirs = dict(arm.split("=", 1) for arm in args.arms)
    crashed = _crashed(paths, work, Path(next(iter(bindirs.values()))), args)
    results: dict[str, list] = {name: [] for name in bindirs}
    for number in range(args.runs):
        order = list(bindirs)[number % len(bindirs):] + list(bindirs)[:number % len(bindirs)]
        for name in order:
            say(f"run {number + 1} of {args.runs}, {name}")
            facts = _recover(paths, work, Path(bindirs[name]), crashed, args)
            results[name].append(facts)
            note(", ".join(f"{key} {facts[key]}" for key in COLUMNS))
    _print(results)


def _arguments():
    parser = argparse.ArgumentParser(prog="bench.restore")
    parser.add_argument("arms", nargs="+", metavar="NAME=BINDIR")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=int, default=20, help="of pgbench's tables")
    parser.add_argument("--transactions", type=int, default=30_000)
    parser.add_argument("--buffers", default="64MB", help="shared_buffers when crashing")
    parser.add_argument("--replay-buffers", default="512MB", help="shared_buffers in recovery")
    parser.add_argument("--pipeline", choices=("on", "off"), default="off")
    parser.add_argument("--storage", choices=storage.PROFILES, default="memory")
    return parser.parse_args()


def _crashed(paths, work, bindir, args):
    """Return the directory of a cluster that has crashed; makes it once."""
    place = work / f"crashed-{args.scale}-{args.transactions}-{args.buffers}"
    if place.exists():
        return place
    say("making the crashed cluster")
    scratch = work / "making"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    own(scratch)
    server = Server(paths, bindir, scratch / "data")
    server.create()
    server.configure({**MAKING, "shared_buffers": args.buffers})
    server.start()
    try:
        server.sql(f"CREATE DATABASE {DATABASE}", database="postgres")
        server.call("pgbench", "-i", "-q", f"--scale={args.scale}", env=server.environment(),
                    capture=True)
        server.sql("VACUUM ANALYZE; CHECKPOINT;")
        server.call("pgbench", "-n", "--builtin=simple-update", f"--client={recovery.CLIENTS}",
                    f"--transactions={args.transactions // recovery.CLIENTS}",
                    f"--random-seed={clients.SEED}", env=server.environment(), capture=True)
        server.sql(recovery.FLUSH)
    finally:
        server.stop("immediate")
    # It tells copies of files, which is what the builds get.
    (server.data / "pg_doublewrite" / "owner").unlink()
    server.data.rename(place)
    return place


def _recover(paths, work, bindir, crashed, args):
    """Recover a copy of the cluster; returns what was counted and timed."""
    megabytes = (sum(path.stat().st_size for path in crashed.rglob("*") if path.is_file()) >> 20)
    with storage.volume(args.storage, work, 2 * megabytes + 1024) as volume:
        server = Server(paths, bindir, volume.data / "data")
        runner.copy(crashed, server.data)
        server.configure({**REPLAY, "shared_buffers": args.replay_buffers,
                          "wal_pipeline": args.pipeline})
        volume.hold()
        before = counters.devices(volume)
        try:
            recovery.recover(server)
            counts = counters.difference(counters.snapshot(server, volume), before)
        finally:
            server.stop("immediate")
        log = server.log.read_text(errors="replace")
    restored = RESTORED.search(log)
    if not restored:
        raise DevError("nothing was restored:\n" + log[-500:])
    facts = recovery.parse_log(log)
    return {"copies": int(restored[1]), "restore": float(restored[2]), "redo": facts["redo"],
            "ready": facts["ready"], "reads": int(counters.total(counts, READERS)),
            "device_reads": int(counts.get("device.data.reads", 0))}


def _print(results):
    """Print the medians of each build, and the extremes of times."""
    print("| build | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name, runs in results.items():
        cells = []
        for column in COLUMNS:
            values = [facts[column] for facts in runs]
            middle = statistics.median(values)
            cells.append(f"{middle:g}" if min(values) == max(values)
                         else f"{middle:g} ({min(values):g} .. {max(values):g})")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    os.umask(0o022)
    main()
