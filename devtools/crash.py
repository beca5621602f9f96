"""The power-cut explorer in crash/: what it needs, and how it is called."""

import json
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

from . import build, deps, suites, worktree
from .base import DevError, run, say

PACKAGES = ("e2fsprogs", "fuse3", "libfuse3-dev", "make", "python3-jinja2",
            "python3-matplotlib", "python3-psycopg2", "xfsprogs")

# What continuous integration explores: a few minutes.
CI_ARGUMENTS = ("run", "--states", "204", "--recordings", "4", "--watched", "4")

# Seeds of continuous integration, of so many.
CI_SEEDS = 100_000

# Histories of servers that continuous integration plays: two minutes.
CI_HISTORIES = ("history", "--count", "3", "--no-shrink")


def call(paths, arguments, deadline=None):
    """Run the explorer with these arguments; returns its exit status.

    At the deadline it is ended, and the result is None.
    """
    deps.ensure(paths, PACKAGES)
    _require_fuse()
    scratch = paths.root / "crash"
    scratch.mkdir(exist_ok=True)
    command = ["/usr/bin/python3", "-m", "pgcut",
               "--bindir", build.bindir(paths, "test"), "--build", paths.build("test"),
               "--source", paths.work, "--prefix", paths.prefix("test"),
               "--mutations", paths.repo / "tests" / "mutations",
               "--recorder", _recorder(paths), "--scratch", scratch,
               "--stock", build.bindir(paths, "stock"), *arguments]
    say("exploring power cuts")
    return suites.run_until(deadline, command, stdout=None,
                            env={**os.environ, "PYTHONPATH": str(paths.repo / "crash")})


def restarts(paths, number, seed):
    """Crash one server so many times, see pgcut.restarts; returns an exit status."""
    deps.ensure(paths, PACKAGES)
    scratch = paths.root / "crash" / "restarts"
    shutil.rmtree(scratch, ignore_errors=True)
    command = ["/usr/bin/python3", "-m", "pgcut.restarts", "--scratch", scratch,
               "--bindir", build.bindir(paths, "test"), "--number", str(number),
               "--seed", str(seed)]
    return run(command, check=False,
               env={**os.environ, "PYTHONPATH": str(paths.repo / "crash")}).returncode


def ci_seed(paths):
    """Return the seed that continuous integration begins with.

    Each content of the repository has its own, so that nothing is tried only once and a run
    can be repeated; without git, each day.
    """
    tree = worktree.tree(paths)
    seed = int(tree[:10], 16) if tree else datetime.now(UTC).date().toordinal()
    return str(seed % CI_SEEDS)


def run_ci(paths, deadline=None):
    """Explore as continuous integration does; returns a Result that counts states.

    The monitor is young, and a rare coincidence of a stock mechanism may look like a
    violation to it.  So if nothing but the monitor complains it is asked once more: what
    breaks a rule does so again, and the first report is kept beside the second.
    """
    output = paths.root / "crash-report"
    shutil.rmtree(output, ignore_errors=True)
    result, only_monitor = _explore(paths, output, deadline)
    if only_monitor:
        say(f"only the monitor complains; once more (first report: {output}-first)")
        shutil.rmtree(f"{output}-first", ignore_errors=True)
        output.rename(f"{output}-first")
        result, _ = _explore(paths, output, deadline)
    return result


def _explore(paths, output, deadline):
    """Explore once; returns a Result, and whether nothing but the monitor complains."""
    started = time.monotonic()
    seed = ci_seed(paths)
    say(f"seed of the explorer: {seed}")
    status = call(paths, [*CI_ARGUMENTS, "--seed", seed, "--output", output], deadline)
    results = output / "results.json"
    data = json.loads(results.read_text()) if results.exists() else []
    recordings = [r for r in data if not r["control"]]
    controls = [r for r in data if r["control"]]
    lost = sum(len(r["failures"]) for r in recordings)
    unfound = sum(not r["failures"] for r in controls)
    passed = sum(len(r["states"]) for r in recordings) - lost + len(controls) - unfound
    passed += sum(bool(r["monitored"]) and not r["violations"] for r in data)
    failed = lost + unfound + sum(bool(r["violations"]) for r in recordings)
    say(f"the explorer's report is in {output}/report.html")
    result = suites.Result("crash/explorer", suites.MODES[0], passed,
                           failed if status == 0 else max(failed, 1), 0,
                           time.monotonic() - started,
                           hung="cut: no time was left" if status is None else "")
    errors = any(r["error"] for r in data)
    return result, bool(status and data) and not (lost or unfound or errors)


def run_histories(paths, deadline=None):
    """Play the histories of continuous integration; returns a Result that counts them."""
    output = paths.root / "history-report"
    shutil.rmtree(output, ignore_errors=True)
    started = time.monotonic()
    seed = ci_seed(paths)
    say(f"seed of the histories: {seed}")
    status = call(paths, [*CI_HISTORIES, "--seed", seed, "--output", output], deadline)
    report = output / "histories.json"
    data = json.loads(report.read_text()) if report.exists() else []
    failed = sum(bool(one["findings"]) for one in data)
    return suites.Result("crash/histories", suites.MODES[0], len(data) - failed,
                         failed if status == 0 else max(failed, 1), 0,
                         time.monotonic() - started,
                         hung="cut: no time was left" if status is None else "")


def run_history_controls(paths, deadline=None):
    """Let histories find their controls but the rare ones; returns a Result that counts these."""
    output = paths.root / "history-controls"
    shutil.rmtree(output, ignore_errors=True)
    started = time.monotonic()
    status = call(paths, ["history", "--control", "quick", "--output", output], deadline)
    report = output / "controls.json"
    data = json.loads(report.read_text()) if report.exists() else []
    missed = sum(not one["directed"][-1]["found"] for one in data)
    return suites.Result("crash/history-controls", suites.MODES[0], len(data) - missed,
                         missed if status == 0 else max(missed, 1), 0,
                         time.monotonic() - started,
                         hung="cut: no time was left" if status is None else "")


def run_selftests(paths, deadline=None):
    """Run the explorer's own tests; returns a Result."""
    deps.ensure(paths, PACKAGES)
    say("running the tests of the explorer")
    return suites.run_python_tests(
        "crash/selftests", "/usr/bin/python3", paths.repo / "crash" / "tests",
        {"PYTHONPATH": str(paths.repo / "crash"), "PGCUT_RECORDER": str(_recorder(paths)),
         "PGCUT_BINDIR": str(build.bindir(paths, "test"))}, deadline)


def _recorder(paths):
    """Compile the recorder if need be; returns the program."""
    directory = paths.root / "build" / "recorder"
    run(["make", "-s", "-C", paths.repo / "crash" / "recorder", f"OBJDIR={directory}"])
    return directory / "pgcut-recorder"


def _require_fuse():
    """Raise DevError if file systems in user space cannot be mounted here."""
    device = Path("/dev/fuse")
    if not os.access(device, os.R_OK | os.W_OK):
        raise DevError(f"cannot use {device}, by which the explorer records a server's writes",
                       "call ./dev crash as root, and in a container pass the device in")
