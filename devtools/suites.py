"""Test suites: which tests to run, in which mode, and how results count.

A result is counted in individual tests: the points of the TAP protocol that
every suite of PostgreSQL speaks.
"""

import json
import os
import re
import sys
import time
import unittest
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from . import build
from .base import DevError, clean_env, note, run, say, server_user

SETTING = "io_torn_pages_protection"
MODES = ("double_writes", "full_pages")

# Where no mode of protection matters: tooling, and trees without the setting.
NO_MODE = "-"

# Suites that run on every change, and those that `./dev suites` adds.
CORE = ("regress", "isolation")
UPSTREAM = (*CORE, "recovery", "subscription", "pg_basebackup", "pg_rewind", "pg_checksums",
            "pg_combinebackup", "amcheck", "pg_upgrade")

# Slow machines: multiplies meson's limit of 1000 s a test, and replaces the
# 180 s for which a TAP test waits for an event.
TIMEOUT_FACTOR = 5
EVENT_TIMEOUT_SECONDS = 900

TAIL_LINES = 40


@dataclass(frozen=True)
class Result:
    """Outcome of one test program; `log` is a directory, `output` its TAP."""

    name: str
    mode: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    log: Path = None
    output: str = ""

    @property
    def suite(self):
        return self.name.partition("/")[0]


# Which tests ---------------------------------------------------------------


def all_tests(paths, kind):
    """Return {name: source file or directory} of the tests in a build."""
    tests = {}
    for test in build.introspect_tests(paths, kind):
        command = test["cmd"]
        if "--srcdir" in command and "-running/" not in test["name"]:
            script = command[-1] if command[-1].endswith(".pl") else ""
            tests[test["name"]] = Path(script or command[command.index("--srcdir") + 1])
    return tests


def own_tests(paths, tests):
    """Return those of `tests` whose script or directory is in overlay/."""
    def is_ours(origin):
        relative = origin.relative_to(paths.work)
        return (paths.overlay / relative).is_file() or \
            (paths.overlay / relative / "meson.build").is_file()
    return [name for name, origin in tests.items() if is_ours(origin)]


def of_suites(tests, suites):
    """Return the names of the tests in `suites`; raises DevError if one has none."""
    for suite in suites:
        if not any(name.startswith(f"{suite}/") for name in tests):
            raise DevError(f"there is no suite {suite}")
    return [name for name in tests if name.partition("/")[0] in suites]


def read_exclusions(path, tests):
    """Parse `tests/upstream-exclusions.txt` into {(test, mode): reason}.

    A line is `TEST [MODE]: REASON`; without a mode it counts for all.
    Raises DevError for a test that does not exist (any more).
    """
    exclusions = {}
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+)(?: (\w+))?: (.+)", line)
        if not match or match[1] not in tests or match[2] not in (None, *MODES):
            raise DevError(f"{path.name}: cannot use the line: {line}",
                           "TEST [MODE]: REASON, for a test that exists")
        for mode in (match[2],) if match[2] else MODES:
            exclusions[match[1], mode] = match[3]
    return exclusions


# Running them --------------------------------------------------------------


def prepare(paths, kind):
    """Install the build where its tests expect it, and make their template."""
    say("installing for the tests")
    done = _meson_test(paths, kind, "setup", ["--suite", "setup"], {})
    if done.returncode != 0:
        raise DevError("preparing the tests failed",
                       f"see {paths.build(kind)}/meson-logs/dev-setup.txt")


def run_tests(paths, kind, names, mode, environment=(), settings=()):
    """Run tests by name in `mode`; returns their Results.  After prepare().

    `environment` adds variables to that of the tests, `settings` ("name=value")
    settings to the clusters that they create.
    """
    if not names:
        return []
    default = default_mode(paths, kind)
    if default == NO_MODE:
        note(f"this tree has no {SETTING}; tests run as they do upstream")
        mode = NO_MODE
    say(f"running {len(names)} test programs, mode {mode}")
    extra = {"PG_TEST_TIMEOUT_DEFAULT": str(EVENT_TIMEOUT_SECONDS), **dict(environment)}
    if mode not in (default, NO_MODE):
        settings = [f"{SETTING}={mode}", *settings]
    if settings:
        # Makes each test run initdb anew instead of copying the template.
        extra["PG_TEST_INITDB_EXTRA_OPTS"] = " ".join(f"-c {item}" for item in settings)
    _meson_test(paths, kind, "tests", names, extra)
    log = paths.build(kind) / "meson-logs" / "dev-tests.json"
    entries = map(json.loads, log.read_text().splitlines() if log.exists() else ())
    results = [_result(paths, kind, mode, entry) for entry in entries]
    lost = set(names) - {result.name for result in results}
    return results + [Result(name, mode, 0, 1, 0, 0) for name in sorted(lost)]


def _meson_test(paths, kind, label, selection, extra):
    """Call `meson test`; its log goes to meson-logs/dev-LABEL.json."""
    directory = paths.build(kind)
    (directory / "meson-logs" / f"dev-{label}.json").unlink(missing_ok=True)
    return run(["meson", "test", "-C", directory, "--no-rebuild", "--print-errorlogs",
                "--num-processes", os.cpu_count(), "-t", TIMEOUT_FACTOR,
                "--logbase", f"dev-{label}", *selection],
               user=server_user(), env=clean_env(paths, **extra), check=False)


def default_mode(paths, kind):
    """Return the mode of the clusters that initdb makes, as the template shows."""
    template = paths.build(kind) / "tmp_install" / "initdb-template" / "postgresql.conf"
    text = template.read_text()
    if SETTING not in text:
        return NO_MODE
    match = re.search(rf"^{SETTING}\s*=\s*'?(\w+)", text, re.MULTILINE)
    return match[1] if match else "full_pages"


# Counting ------------------------------------------------------------------


def _result(paths, kind, mode, entry):
    """Make a Result of an entry of meson's test log."""
    name = re.sub(r"^.* / ", "", entry["name"])
    tap = entry.get("stdout", "")
    passed, failed, skipped = count_tap(tap)
    if entry["result"] not in ("OK", "SKIP", "EXPECTEDFAIL") and not failed:
        failed = 1
    return Result(name, mode, passed, failed, skipped, entry["duration"],
                  paths.build(kind) / "testrun" / name, tap)


def count_tap(text):
    """Count the top-level points of TAP output: (passed, failed, skipped).

    A point that is expected to fail (TODO) counts as passed.
    """
    passed = failed = skipped = 0
    for line in text.splitlines():
        point = re.match(r"(not )?ok\b[^#]*(?:# *(\w+))?", line)
        if not point:
            continue
        directive = (point[2] or "").upper()
        if directive.startswith("SKIP"):
            skipped += 1
        elif point[1] and directive != "TODO":
            failed += 1
        else:
            passed += 1
    return passed, failed, skipped


def run_selftests(paths):
    """Run the repository's own Python tests; returns a Result."""
    say("running the tests of dev itself")
    started = time.monotonic()
    suite = unittest.defaultTestLoader.discover(str(paths.repo / "tests"))
    outcome = unittest.TextTestRunner(stream=sys.stderr, verbosity=1).run(suite)
    failed = len(outcome.failures) + len(outcome.errors)
    passed = outcome.testsRun - failed - len(outcome.skipped)
    return Result("dev/selftests", NO_MODE, passed, failed, len(outcome.skipped),
                  time.monotonic() - started)


# Reporting -----------------------------------------------------------------


def table(results):
    """Return a table of Results, summed by suite and mode."""
    sums = {}
    for result in results:
        cells = sums.setdefault((result.suite, result.mode), Counter())
        cells.update(programs=1, passed=result.passed, failed=result.failed,
                     skipped=result.skipped, seconds=result.seconds)
    head = ("suite", "mode", "programs", "passed", "failed", "skipped", "seconds")
    lines = [head] + [(suite, mode, *(f"{c[key]:.0f}" for key in head[2:]))
                      for (suite, mode), c in sums.items()]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) if number < 2 else cell.rjust(width)
                               for number, (cell, width) in enumerate(zip(line, widths)))
                     for line in lines)


def report_failures(results):
    """Show where the logs of failed tests are, and their ends."""
    for result in (r for r in results if r.failed):
        say(f"FAILED: {result.name}")
        bad = [line for line in result.output.splitlines() if line.startswith("not ok")]
        _show("failed points", bad[:TAIL_LINES])
        if result.log:
            for path in _logs(result.log):
                lines = path.read_text(errors="replace").splitlines()
                _show(f"end of {path}", lines[-TAIL_LINES:])


def _logs(directory):
    """Return the files to show of a failed test's directory."""
    return [*directory.glob("regression.diffs"), *directory.glob("log/regress_log_*"),
            *directory.glob("log/initdb.log")]


def _show(title, lines):
    """Print lines under a title, if there are any."""
    if lines:
        print("\n".join([f"--- {title}", *lines]), file=sys.stderr)


def summary(results):
    """Return the line that ends a test run."""
    return f"{sum(r.passed for r in results)} passed, {sum(r.failed for r in results)} failed"
