"""The power-cut explorer in crash/: what it needs, and how it is called."""

import json
import os
import shutil
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import postgres
from common.base import SYSTEM_PYTHON, DevError, Paths, run, say

from . import build, deps, failures, suites, worktree

PACKAGES = ("e2fsprogs", "fuse3", "libfuse3-dev", "make", "python3-jinja2",
            "python3-matplotlib", "python3-psycopg2", "xfsprogs")

# What continuous integration explores: a few minutes.  To make a broken server and to look for
# what is wrong takes longer than ten states, so each run has a third of the controls.
CI_ARGUMENTS = ("run", "--states", "204", "--recordings", "4", "--watched", "4", "--turns", "3",
                "--workers", str(min(3 * (os.cpu_count() or 1), 16)))

# Seeds of continuous integration, of so many.
CI_SEEDS = 100_000

# So long before a deadline the explorer ends what it is doing (pgcut.limits): a server that hangs is
# ended, then its recorder, logs are kept, and the report is written.
KEEPING_SECONDS = 300

_PREPARING = threading.Lock()

# What crashes of one server may take, ten times what they do.
RESTARTS_BEGIN_SECONDS, RESTART_SECONDS = 600, 10

# What a run of the explorer that was killed has left, below its directory: whose servers' logs are there.
LEFT = ("jobs", "history-*", "prepared-*")

# Histories of servers that continuous integration plays: two minutes.
CI_HISTORIES = ("history", "--count", "3", "--no-shrink")


def prepare(paths: Paths) -> Path:
    """Install what the explorer needs, and compile its recorder; returns that program.

    Parts of a run are threads.
    """
    with _PREPARING:
        deps.ensure(paths, PACKAGES)
        directory = paths.root / "build" / "recorder"
        run(["make", "-s", "-C", paths.repo / "crash" / "recorder", f"OBJDIR={directory}"])
        return directory / "pgcut-recorder"


def call(paths: Paths, arguments: Any, deadline: float | None = None,
         place: str = "crash") -> int | None:
    """Run the explorer with these arguments; returns its exit status.

    Shortly before the deadline it ends, and says how far it has come; at the deadline it is ended,
    and the result is None.  `place` is where its servers are, below the build root.
    """
    recorder = prepare(paths)
    _require_fuse()
    scratch = paths.root / place
    scratch.mkdir(exist_ok=True)
    command = [SYSTEM_PYTHON, "-m", "pgcut",
               "--bindir", build.bindir(paths, "test"), "--build", paths.build("test"),
               "--source", paths.work, "--mutations", paths.repo / "tests" / "mutations",
               "--recorder", recorder, "--scratch", scratch,
               "--stock", build.bindir(paths, "stock"), *arguments]
    say("exploring power cuts")
    return _ended(scratch, suites.run_until(deadline, command, stdout=None, env=_environment(
        paths, deadline)))


def _environment(paths, deadline):
    """Return that of the explorer."""
    end = {} if deadline is None else \
        {"PGCUT_DEADLINE": str(deadline - KEEPING_SECONDS * suites.SLOWNESS)}
    return {**os.environ, "PYTHONPATH": str(paths.repo / "crash"), **end}


def _ended(scratch, status):
    """End servers that were left in a directory, unless all is well; returns the status."""
    if status != 0:
        postgres.tidy(scratch)
    return status


def restarts(paths: Paths, number: int, seed: int) -> int:
    """Crash one server so many times, see pgcut.restarts; returns an exit status."""
    deps.ensure(paths, PACKAGES)
    scratch = paths.root / "restarts"
    shutil.rmtree(scratch, ignore_errors=True)
    command = [SYSTEM_PYTHON, "-m", "pgcut.restarts", "--scratch", scratch,
               "--bindir", build.bindir(paths, "test"), "--number", str(number),
               "--seed", str(seed)]
    deadline = time.monotonic() + suites.SLOWNESS * (
        RESTARTS_BEGIN_SECONDS + number * RESTART_SECONDS)
    status = _ended(scratch, suites.run_until(deadline, command, env=_environment(paths, None)))
    if status != 0:
        say(f"the server's log is {scratch / 'log'}")
    return 1 if status is None else status


def ci_seed(paths: Paths) -> str:
    """Return the seed that continuous integration begins with.

    Each content of the repository has its own, so that nothing is tried only once and a run
    can be repeated; without git, each day.
    """
    tree = worktree.tree(paths)
    seed = int(tree[:10], 16) if tree else datetime.now(UTC).date().toordinal()
    return str(seed % CI_SEEDS)


def run_ci(paths: Paths, deadline: float | None = None, seed: int | str | None = None) -> suites.Result:
    """Explore as continuous integration does; returns a Result that counts states.

    The monitor is young, and a rare coincidence of a stock mechanism may look like a
    violation to it.  So if nothing but the monitor complains it is asked once more: what
    breaks a rule does so again, and the first report is kept beside the second.
    """
    seed = ci_seed(paths) if seed is None else seed
    result, only_monitor = _explore(paths, "crash/explorer", seed, deadline)
    if only_monitor:
        say(f"only the monitor complains; once more (first report: {result.kept})")
        result, _ = _explore(paths, "crash/explorer-again", seed, deadline)
    return result


def _explore(paths, name, seed, deadline):
    """Explore once; returns a Result, and whether nothing but the monitor complains."""
    say(f"seed of the explorer: {seed}")
    run = _Run(paths, name, "results.json", [*CI_ARGUMENTS, "--seed", seed], deadline)
    recordings = [r for r in run.data if not r["control"]]
    controls = [r for r in run.data if r["control"]]
    lost = sum(len(r["failures"]) for r in recordings)
    unfound = sum(not r["failures"] for r in controls)
    crashed = sum(bool(r["findings"]) for r in recordings)
    passed = sum(len(r["states"]) for r in recordings) - lost + len(controls) - unfound
    passed += sum(bool(r["monitored"]) and not r["violations"] for r in run.data)
    failed = lost + unfound + crashed + sum(bool(r["violations"]) for r in recordings)
    again = []
    for one in (r for r in run.data if r["reasons"]):
        again.append(f"./dev crash {one['again']}")
        recording = run.kept / Path(one["replayable"]).with_name(failures.RECORDING) \
            if one["replayable"] else None
        if recording and (recording / "base").exists():
            again.append(f"./dev crash replay {run.kept}/{one['replayable']} --minimise")
    errors = any(r["error"] for r in run.data)
    return run.result(passed, failed, again), \
        bool(run.status and run.data) and not (lost or unfound or crashed or errors)


def _keep_left(scratch, target):
    """Move the logs that a run has left which was killed, or has ended itself."""
    for run_ in scratch.glob("pgcut-*"):
        for place in (found for pattern in LEFT for found in run_.glob(pattern) if found.is_dir()):
            failures.copy_logs(place, target / place.name)
        shutil.rmtree(run_, ignore_errors=True)


class _Run:
    """A run of the explorer; its report is kept if something is wrong."""

    def __init__(self, paths: Paths, name: str, report: str, arguments: Any,
                 deadline: float | None) -> None:
        self.name, self.arguments = name, list(map(str, arguments))
        # What it says about a failure names these paths.
        output = failures.place(paths.root, name)
        started = time.monotonic()
        self.status = call(paths, [*arguments, "--output", output], deadline,
                           name.replace("/", "-"))
        self.seconds = time.monotonic() - started
        _keep_left(paths.root / name.replace("/", "-"), output / "left")
        file = output / report
        self.data = json.loads(file.read_text()) if file.exists() else []
        self.kept = output if self.status != 0 and output.exists() else None
        if self.kept:
            failures.thin(output, failures.KEPT_RECORDINGS)
        else:
            output = failures.no_failure(output, paths.root / f"{output.name}-report")
        say(f"the report is in {output}")

    def result(self, passed: int, failed: int, again: Sequence[str]) -> suites.Result:
        """Return a Result; `again` are commands that show what is wrong again."""
        wrong = self.status != 0
        return suites.Result(
            self.name, suites.MODES[0], passed, max(failed, 1) if wrong else failed, 0,
            self.seconds, hung="cut: no time was left" if self.status is None else "",
            again=tuple(again) or (" ".join(("./dev crash", *self.arguments)),) if wrong else (),
            kept=self.kept)


def run_histories(paths: Paths, deadline: float | None = None,
                  seed: int | str | None = None) -> suites.Result:
    """Play the histories of continuous integration; returns a Result that counts them."""
    seed = ci_seed(paths) if seed is None else seed
    say(f"seed of the histories: {seed}")
    run = _Run(paths, "crash/histories", "histories.json", [*CI_HISTORIES, "--seed", seed],
               deadline)
    wrong = [one["seed"] for one in run.data if one["findings"]]
    return run.result(len(run.data) - len(wrong), len(wrong), [
        command for number in wrong for command in (
            f"./dev crash history --seed {number} --count 1 --no-shrink",
            f"./dev crash history --replay {run.kept}/history-{number}/history.json")])


def run_history_controls(paths: Paths, deadline: float | None = None) -> suites.Result:
    """Let histories find their controls but the rare ones; returns a Result that counts these."""
    run = _Run(paths, "crash/history-controls", "controls.json",
               ["history", "--control", "quick"], deadline)
    missed = [one["name"] for one in run.data if not one["directed"][-1]["found"]]
    return run.result(len(run.data) - len(missed), len(missed),
                      [f"./dev crash history --control {name}" for name in missed])


def run_selftests(paths: Paths, deadline: float | None = None,
                  names: Iterable[str] = ()) -> suites.Result:
    """Run the explorer's own tests, or those of these names; returns a Result."""
    recorder = prepare(paths)
    say("running the tests of the explorer")
    return suites.run_python_tests(
        paths, "crash/selftests", SYSTEM_PYTHON, paths.repo / "crash" / "tests",
        {"PYTHONPATH": f"{paths.repo / 'crash'}:{paths.repo}", "PGCUT_RECORDER": str(recorder),
         "PGCUT_BINDIR": str(build.bindir(paths, "test"))}, deadline, names)


def _require_fuse():
    """Raise DevError if file systems in user space cannot be mounted here."""
    device = Path("/dev/fuse")
    if not os.access(device, os.R_OK | os.W_OK):
        raise DevError(f"cannot use {device}, by which the explorer records a server's writes",
                       "call ./dev crash as root, and in a container pass the device in")
