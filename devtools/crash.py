"""The power-cut explorer in crash/: what it needs, and how it is called."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import build, deps, suites
from .base import DevError, run, say

PACKAGES = ("e2fsprogs", "fuse3", "libfuse3-dev", "make", "python3-jinja2",
            "python3-matplotlib", "python3-psycopg2", "xfsprogs")

# What continuous integration explores: a few minutes.
CI_ARGUMENTS = ("run", "--states", "204", "--recordings", "4")


def call(paths, arguments):
    """Run the explorer with these arguments; returns its exit status."""
    deps.ensure(paths, PACKAGES)
    _require_fuse()
    scratch = paths.root / "crash"
    scratch.mkdir(exist_ok=True)
    command = ["/usr/bin/python3", "-m", "pgcut",
               "--bindir", build.bindir(paths, "test"), "--build", paths.build("test"),
               "--source", paths.work, "--prefix", paths.prefix("test"),
               "--recorder", _recorder(paths), "--scratch", scratch, *arguments]
    say("exploring power cuts")
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                          env={**os.environ, "PYTHONPATH": str(paths.repo / "crash")}).returncode


def run_ci(paths):
    """Explore as continuous integration does; returns a Result that counts states."""
    output = paths.root / "crash-report"
    shutil.rmtree(output, ignore_errors=True)
    status = call(paths, [*CI_ARGUMENTS, "--output", output])
    results = output / "results.json"
    data = json.loads(results.read_text()) if results.exists() else []
    passed = sum(len(r["states"]) - len(r["failures"]) for r in data if not r["control"])
    passed += sum(bool(r["failures"]) for r in data if r["control"])
    failed = sum(len(r["failures"]) for r in data if not r["control"])
    failed += sum(not r["failures"] for r in data if r["control"])
    say(f"the explorer's report is in {output}/report.html")
    return suites.Result("crash/explorer", suites.MODES[0], passed,
                         max(failed, 1) if status else failed, 0, 0)


def run_selftests(paths):
    """Run the explorer's own tests; returns a Result."""
    deps.ensure(paths, PACKAGES)
    say("running the tests of the explorer")
    done = subprocess.run(
        ["/usr/bin/python3", "-m", "unittest", "discover", "-s", paths.repo / "crash" / "tests"],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, stdout=sys.stderr, text=True,
        env={**os.environ, "PYTHONPATH": str(paths.repo / "crash"), "PYTHONDONTWRITEBYTECODE": "1",
             "PGCUT_RECORDER": str(_recorder(paths)),
             "PGCUT_BINDIR": str(build.bindir(paths, "test"))})
    sys.stderr.write(done.stderr)
    run_, skipped, failed = _counts(done.stderr)
    if done.returncode and not failed:
        failed = 1
    return suites.Result("crash/selftests", suites.NO_MODE, run_ - failed - skipped, failed,
                         skipped, 0)


def _counts(text):
    """Return (run, skipped, failed) as unittest's last lines say them."""
    last = text[-500:]
    run_ = re.search(r"^Ran (\d+) test", last, re.MULTILINE)
    kinds = dict(re.findall(r"(failures|errors|skipped)=(\d+)", last))
    return (int(run_[1]) if run_ else 0, int(kinds.get("skipped", 0)),
            int(kinds.get("failures", 0)) + int(kinds.get("errors", 0)))


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
