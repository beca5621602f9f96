"""Interleaved runs, each on a fresh copy of one prepared cluster.

What a series of runs leaves is in a directory, which git ignores; summary.py makes of it
the file that git keeps:

    meta.json     machine, commit, builds, arguments, settings of each case and arm
    runs.jsonl    one line per run, appended as soon as it is done
    raw/          output of the clients, server logs
"""

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.base import DevError, Paths, note, own, run, say, server_user
from common.progress import Progress

from . import arms, machine, recovery, slow, storage, summary
from .arms import Arm
from .loads import Session
from .server import DATABASE, EXTENSION, Server
from .suites import Case, Dataset, megabytes

META, RUNS, RAW = "meta.json", "runs.jsonl", "raw"

# A prepared cluster is filled as fast as possible; nothing of this outlives it.
FILLING = {"fsync": "off", "full_page_writes": "off", "wal_level": "minimal",
           "max_wal_senders": 0, "shared_buffers": "256MB", "max_wal_size": "64MB",
           "min_wal_size": "32MB", "autovacuum": "off"}

# Where the WAL of each prepared cluster begins: with the same distance to the next segment,
# no build has to fill one with zeroes where another does not.
FIRST_SEGMENT = "000000010000001000000000"
SEGMENT_BYTES = 16 << 20
SEGMENTS_OF_A_LOG = 256
SEGMENT_NAME = re.compile("[0-9A-F]{24}")


@dataclass(frozen=True)
class Plan:
    """What `./dev bench SUITE` was asked for."""

    suite: str
    factor: float
    runs: int
    arms: tuple
    profile: str
    seconds: int
    cases: tuple
    work: Path
    directory: Path
    limit: storage.Limit = storage.NO_LIMIT
    commit: dict = field(default_factory=dict)
    rate: float = 0     # given, not found

    def arms_of(self, case: Case) -> list[Arm]:
        """Return the arms to run of a case."""
        if case.only_arm:
            return [arms.ARMS[case.only_arm]]
        return [arm for arm in self.arms if arm.ours or not case.ours_only]

    def kinds(self) -> list[str]:
        """Return the kinds of builds to measure."""
        return sorted({arm.kind for case in self.cases for arm in self.arms_of(case)})


def execute(paths: Paths, plan: Plan, bindirs: Mapping[str, Path]) -> None:
    """Run a plan; `bindirs` is {kind of build: directory of programs}."""
    storage.require(plan.profile)
    _prepare_directory(plan, bindirs)
    runs = schedule(plan)
    with _orderly_end(), Progress(plan.suite, len(runs)) as progress:
        for number, (round_number, case, arm) in enumerate(runs):
            progress.step(number)
            say(f"{plan.suite}: {case.name}, {arm.name}, run {round_number + 1} of {plan.runs}")
            _one_run(paths, plan, bindirs, case, arm, number)


def schedule(plan: Plan) -> list[tuple]:
    """Return (round, case, arm) in the order of the runs."""
    return [(round_number, case, arm)
            for case in plan.cases
            for round_number in range(plan.runs)
            for arm in arms.order(plan.arms_of(case), round_number)]


@contextlib.contextmanager
def _orderly_end():
    """Turn SIGTERM into an exception, so that nothing stays mounted."""
    def stop(*_):
        raise KeyboardInterrupt
    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _prepare_directory(plan, bindirs):
    """Create the directory of results with all that is known before a run."""
    (plan.directory / RAW).mkdir(parents=True)
    kinds = plan.kinds()
    meta = {
        "suite": plan.suite, "factor": plan.factor, "runs": plan.runs,
        "seconds": plan.seconds, "storage": plan.profile,
        "file_system": storage.file_system(plan.work if plan.profile == "disk"
                                           else storage.MEMORY),
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "load_average": round(machine.load_average(), 2),
        "machine": machine.describe(plan.commit, kinds, bindirs),
        "arms": {arm.name: {"build": arm.kind, **arm.settings} for arm in plan.arms},
        "cases": {case.name: case.described() for case in plan.cases},
        **({"rate": plan.rate} if plan.rate else {}),
    }
    if plan.profile != "disk":
        kinds = " or ".join(sorted({case.file_system for case in plan.cases}))
        meta["file_system"] = f"{kinds} on a loop device over {meta['file_system']}"
    if plan.limit != storage.NO_LIMIT:
        meta["file_system"] += f", held to {plan.limit}"
    (plan.directory / META).write_text(json.dumps(meta, indent=1) + "\n")


def _one_run(paths, plan, bindirs, case, arm, number):
    """Measure one case in one arm and append the result."""
    bindir = bindirs[arm.kind]
    base = recovery.KIND if case.workload else arm.kind
    template = prepared(paths, plan.work, bindirs[base], base, case.dataset)
    saved = None
    if case.workload:
        saved = recovery.saved(paths, bindirs[base], template, case.workload, arm.images)
    raw = plan.directory / RAW / f"{number:03}-{_file_name(case.name)}-{arm.name}"
    raw.mkdir()
    started = time.monotonic()
    with _client_directory(plan.work) as scratch, \
            storage.volume(plan.profile, plan.work, case.megabytes(),
                           case.own_wal_device, plan.limit, case.file_system) as volume:
        try:
            points, settings = _measure(paths, plan, bindir, case, arm, (template, saved),
                                        volume, scratch)
        finally:
            _keep(raw, [*scratch.iterdir(), *volume.data.glob("*.log")])
    result = {"case": case.name, "arm": arm.name, "number": number,
              "load_average": round(machine.load_average(), 2),
              "elapsed": round(time.monotonic() - started, 1), "settings": settings,
              "points": [point.as_dict() for point in points]}
    with open(plan.directory / RUNS, "a") as target:
        target.write(json.dumps(result) + "\n")
    for point in points:
        note(f"{point.name}: {point.value:.4g} {point.unit}")


def _measure(paths, plan, bindir, case, arm, templates, volume, scratch):
    """Start a copy of the prepared cluster and load it: (points, settings).

    `templates` are the cluster and what a crash has left of it, or None.
    """
    template, saved = templates
    data = volume.data / "primary"
    server = Server(paths, bindir, data,
                    slow.environment(paths, data, case.slow_writes, case.slow_syncs))
    copy(template, server.data, saved)
    if volume.wal:
        _move_wal(server.data, volume.wal)
    settings = {**case.all_settings(), **(case.settings_of_ours if arm.ours else {}), **arm.settings}
    server.configure(settings)
    if not saved:
        make_wal_ready(server.data / "pg_wal", megabytes(settings["min_wal_size"]))
    volume.hold()
    if saved:
        try:
            points = case.load(Session(server, volume, scratch, plan.seconds))
            return points, server.settings()
        finally:
            server.stop("immediate")
    with server, _standby(paths, bindir, case, server, volume) as standby:
        settings = server.settings()
        if server.server_env:
            slow.require(server)
        session = Session(server, volume, scratch, plan.seconds, standby, _pace(plan, case))
        points = case.load(session)
    return points, settings


def _pace(plan, case):
    """Return the transactions a second that a case has a share of: given, or found before; else 0."""
    if not case.paced_by or plan.rate:
        return plan.rate
    return statistics.median(point["value"] for one in load(plan.directory)[1]
                             if one["case"] == case.paced_by
                             for point in one["points"] if point["name"] == "tps")


@contextlib.contextmanager
def _standby(paths, bindir, case, primary, volume):
    """Give a running standby of `primary` if the case wants one, else None."""
    if not case.standby:
        yield None
        return
    standby = Server(paths, bindir, volume.data / "standby")
    standby.call("pg_basebackup", "-D", standby.data, "-c", "fast", "-R", "--no-sync",
                 env=primary.environment())
    volume.release()
    make_wal_ready(standby.data / "pg_wal", megabytes(case.all_settings()["min_wal_size"]))
    volume.hold()
    with standby:
        yield standby


# Prepared clusters -----------------------------------------------------------


def prepared(paths: Paths, work: Path, bindir: Path, kind: str, dataset: Dataset) -> Path:
    """Return a stopped cluster with a Dataset, made by a build; makes it once."""
    user = server_user()
    stamp = f"{(bindir / 'postgres').stat().st_mtime_ns} {user.pw_name if user else ''} " \
        f"{FIRST_SEGMENT}\n"
    place = work / "prepared" / f"{dataset.name}-{kind}"
    if (place / "stamp").exists() and (place / "stamp").read_text() == stamp:
        return place / "data"
    if place.exists():
        shutil.rmtree(place)
    place.mkdir(parents=True)
    own(place)
    say(f"preparing {dataset.name} with the {kind} build")
    server = Server(paths, bindir, place / "data")
    server.create()
    conf = server.data / "postgresql.conf"
    pristine = conf.read_bytes()
    server.configure({**FILLING, **({arms.MODE: "off"} if kind == "release" else {})})
    with server:
        server.sql(f"CREATE DATABASE {DATABASE}", database="postgres")
        if kind == "release":
            server.sql(f"CREATE EXTENSION {EXTENSION}")
        dataset.fill(server)
        server.sql("VACUUM ANALYZE; CHECKPOINT;")
    conf.write_bytes(pristine)
    server.call("pg_resetwal", "--next-wal-file", FIRST_SEGMENT, "--pgdata", server.data)
    # The last checkpoint must be one of an ordinary server, with images.
    with server:
        server.sql("SELECT 1")
    conf.write_bytes(pristine)
    (place / "stamp").write_text(stamp)
    return server.data


def copy(template: Path, target: Path, saved: Path | None = None) -> None:
    """Copy a cluster, have it on storage, and out of the kernel's cache."""
    run(["cp", "-a", template, target])
    if saved:
        recovery.put(saved, target)
    run(["sync", "-f", target])
    storage.forget(target)


def make_wal_ready(directory: Path, size_mb: int) -> None:
    """Make durable WAL segments after the newest one, as a server has that recycles old ones."""
    newest = max(path.name for path in directory.iterdir() if SEGMENT_NAME.fullmatch(path.name))
    timeline, number = newest[:8], int(newest[8:16], 16) * SEGMENTS_OF_A_LOG + int(newest[16:], 16)
    zeroes = bytes(SEGMENT_BYTES)
    for segment in range(number + 1, number + (size_mb << 20) // SEGMENT_BYTES):
        log, place = divmod(segment, SEGMENTS_OF_A_LOG)
        path = directory / f"{timeline}{log:08X}{place:08X}"
        path.write_bytes(zeroes)
        path.chmod(0o600)
        own(path)
    run(["sync", "-f", directory])
    storage.forget(directory)


def _move_wal(data, wal):
    """Put WAL on its own volume."""
    run(["cp", "-a", data / "pg_wal", wal / "pg_wal"])
    shutil.rmtree(data / "pg_wal")
    (data / "pg_wal").symlink_to(wal / "pg_wal")


# Files ------------------------------------------------------------------------


@contextlib.contextmanager
def _client_directory(work):
    """Give a directory for the output of clients, which run as the server user."""
    place = work / f"clients-{os.getpid()}"
    if place.exists():
        shutil.rmtree(place)
    place.mkdir()
    own(place)
    try:
        yield place
    finally:
        shutil.rmtree(place)


def _keep(raw, files):
    """Copy raw output to the directory of results."""
    for path in files:
        shutil.copyfile(path, raw / path.name)


def _file_name(text):
    """Return a case's name as a file name."""
    return "".join(char if char.isalnum() else "-" for char in text).strip("-")


def new_directory(base: Path, suite: str, profile: str, name: str | None = None) -> Path:
    """Return the place for a new series of runs; raises DevError if taken."""
    directory = base / (name or f"{time.strftime('%Y-%m-%d-%H%M%S')}-{suite}-{profile}")
    for place in (directory, summary.file_of(directory)):
        if place.exists():
            raise DevError(f"{place} exists", "another --name")
    return directory


def load(directory: Path) -> tuple[dict[str, str], list[dict[str, float | list | str]]]:
    """Return (meta, [run]) of a directory of results."""
    path = directory / RUNS
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads((directory / META).read_text()), [json.loads(line) for line in lines]
