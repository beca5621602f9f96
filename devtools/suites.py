"""Test suites: which tests to run, in which mode, and how results count.

A result is counted in individual tests: the points of the TAP protocol that
every suite of PostgreSQL speaks.
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import postgres
from common.base import DevError, Paths, clean_env, identity, note, say, server_user

from . import build, failures

SETTING = "io_torn_pages_protection"
MODES = ("double_writes", "full_pages")

# The mode of tests that run in it when asked for; see atomic.py.  What cannot run
# in the other mode cannot run in it, as pages go through the log where nothing is proved.
ATOMIC = "atomic_writes"
LIKE_ATOMIC = "double_writes"

# Our own tests write this mode, or what the variable says, into their configuration.
OWN_MODE_VARIABLE = "PGDW_TEST_MODE"

# Where no mode of protection matters: tooling, and trees without the setting.
NO_MODE = "-"

# Suites and programs that run on every change, and those that `./dev suites` adds.  Not all of
# injection_points: its 001_stats asks one session for what another has counted, which on a busy
# machine may not have been told yet.
CORE = ("regress", "isolation", "injection_points/isolation")
UPSTREAM = ("regress", "isolation", "injection_points", "recovery", "subscription",
            "pg_basebackup", "pg_rewind", "pg_checksums", "pg_combinebackup", "amcheck",
            "pg_upgrade", "pg_waldump", "pg_walinspect")

# Programs for the minutes between an edit and a test: each takes seconds, no stock build and no
# root, and together they touch all parts of the engine, the program and the extension.
FAST = ("test_doublewrite/004_versions", "test_doublewrite/007_checkpoint",
        "test_doublewrite/008_unfinished_batches", "test_doublewrite/013_direct_io",
        "test_doublewrite/025_planted_bytes", "test_doublewrite/029_checkpoint_after_drop",
        "test_doublewrite/034_wal_first", "test_doublewrite/048_failed_sync",
        "pg_doublewrite/001_basic", "pg_doublewrite_stats/regress")

# Our own tests watch themselves, and name their limits in their meson.build;
# this multiplies all of these.
SLOWNESS_VARIABLE = "PGDW_TEST_SLOWNESS"
SLOWNESS = float(os.environ.get(SLOWNESS_VARIABLE) or 1)

# Upstream's tests, on slow machines: multiplies meson's limit of 1000 s a test,
# and replaces the 180 s for which a TAP test waits for an event.
TIMEOUT_FACTOR = 5
EVENT_TIMEOUT_SECONDS = 900

# What a Python test may take.
PYTHON_TEST_SECONDS = 600

# What all of `./dev test` may take: continuous integration cuts it at 90 minutes,
# without a report.
OVERALL_SECONDS = 80 * 60

# Tests wait for most of their time: for servers to start and stop, for what polls every 100 ms.
PROCESSES = 2 * (os.cpu_count() or 1)

# How long a program that we have asked to end may take for that.
GRACE_SECONDS = 60

TAIL_LINES = 40

# Names the programs of a stock server to tests that need one.
STOCK = "PGDW_STOCK_BINDIR"

# Where Python tests have their files.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

# What PostgreSQL::Test::Watchdog leaves beside the logs of a test that hung.
HANG_REPORT = "hang_report"

# What pytests.py prints before the name of each test.
PYTHON_TEST_MARK = "# test "


@dataclass(frozen=True)
class Result:
    """Outcome of one test program; `log` is a directory, `output` what it has printed.

    `hung` says how one ended that did not end by itself, else is empty; `again` are the
    commands that show a failure again; `kept` is where its logs are kept already, if they are.
    """

    name: str
    mode: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    log: Path | None = None
    output: str = ""
    hung: str = ""
    again: tuple = ()
    kept: Path | None = None

    @property
    def suite(self) -> str:
        return self.name.partition("/")[0]


# Which tests ---------------------------------------------------------------


def all_tests(paths: Paths, kind: str) -> dict[str, Path]:
    """Return {name: source file or directory} of the tests in a build."""
    tests = {}
    for test in build.introspect_tests(paths, kind):
        command = test["cmd"]
        if "--srcdir" in command and "-running/" not in test["name"]:
            script = command[-1] if command[-1].endswith(".pl") else ""
            tests[test["name"]] = Path(script or command[command.index("--srcdir") + 1])
    return tests


def own_tests(paths: Paths, tests: Mapping[str, Path]) -> list[str]:
    """Return those of `tests` whose script or directory is in overlay/."""
    def is_ours(origin):
        relative = origin.relative_to(paths.work)
        return (paths.overlay / relative).is_file() or \
            (paths.overlay / relative / "meson.build").is_file()
    return [name for name, origin in tests.items() if is_ours(origin)]


def of_suites(tests: Mapping[str, Path], wanted: Iterable[str]) -> list[str]:
    """Return the names of the tests in suites, or of these names; raises DevError for others."""
    for one in wanted:
        if one not in tests and not any(name.startswith(f"{one}/") for name in tests):
            raise DevError(f"there is no suite and no test {one}")
    return [name for name in tests if name in wanted or name.partition("/")[0] in wanted]


def need_stock(paths: Paths, wanted: Iterable[str]) -> bool:
    """Say whether a test of ours in these suites, or of these names, asks for a stock server."""
    asking = (path for path in paths.overlay.rglob("t/*.pl") if STOCK in path.read_text())
    return any({suite, f"{suite}/{name}"} & set(wanted)
               for suite, name in ((path.parent.parent.name, path.stem) for path in asking))


def read_exclusions(path: Path, tests: Mapping[str, Path]) -> dict[tuple[str, str], str]:
    """Parse `tests/upstream-exclusions.txt` into {(test, mode): reason}.

    A line is `TEST [MODE]: REASON`; without a mode it counts for all.
    Raises DevError for a test that does not exist (any more).
    """
    exclusions = {}
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+)(?: (\w+))?: (.+)", line)
        if not match or match[1] not in tests or match[2] not in (None, *MODES, ATOMIC):
            raise DevError(f"{path.name}: cannot use the line: {line}",
                           "TEST [MODE]: REASON, for a test that exists")
        for mode in (match[2],) if match[2] else MODES:
            exclusions[match[1], mode] = match[3]
            if mode == LIKE_ATOMIC:
                exclusions[match[1], ATOMIC] = match[3]
    return exclusions


# Running them --------------------------------------------------------------


def prepare(paths: Paths, kind: str) -> None:
    """Install the build where its tests expect it, and make their template."""
    say("installing for the tests")
    if _meson_test(paths, kind, "setup", ["--suite", "setup"], {}) != 0:
        raise DevError("preparing the tests failed",
                       f"see {paths.build(kind)}/meson-logs/dev-setup.txt")


def run_tests(paths: Paths, kind: str, names: Iterable[str], mode: str,
              environment: Mapping[str, str] | None = None, settings: Sequence[str] = (),
              deadline: float | None = None) -> list[Result]:
    """Run tests by name in `mode`; returns their Results.  After prepare().

    `environment` adds variables to that of the tests, `settings` ("name=value")
    settings to the clusters that they create.  Tests that have not ended at
    `deadline` (of time.monotonic()) are ended.
    """
    if not names:
        return []
    default = default_mode(paths, kind)
    if default == NO_MODE:
        note(f"this tree has no {SETTING}; tests run as they do upstream")
        mode = NO_MODE
    extra = {"PG_TEST_TIMEOUT_DEFAULT": str(EVENT_TIMEOUT_SECONDS),
             SLOWNESS_VARIABLE: f"{SLOWNESS:g}", **(environment or {})}
    if "PGCTLTIMEOUT" in os.environ:
        extra["PGCTLTIMEOUT"] = os.environ["PGCTLTIMEOUT"]
    if mode not in (default, NO_MODE):
        settings = [f"{SETTING}={mode}", *settings]
    if mode == ATOMIC:
        extra[OWN_MODE_VARIABLE] = mode
    if settings:
        # Makes each test run initdb anew instead of copying the template.
        extra["PG_TEST_INITDB_EXTRA_OPTS"] = " ".join(f"-c {item}" for item in settings)
    ours = set(own_tests(paths, all_tests(paths, kind)))
    results = []
    for part, factor in (([name for name in names if name in ours], SLOWNESS),
                         ([name for name in names if name not in ours], TIMEOUT_FACTOR)):
        if part:
            results += _run_part(paths, kind, part, mode, extra, factor, deadline)
    return results


def _run_part(paths, kind, names, mode, extra, factor, deadline):
    """Run tests with their limits multiplied by `factor`; returns their Results."""
    say(f"running {len(names)} test programs, mode {mode}")
    in_time = _meson_test(paths, kind, "tests", names, extra, factor, deadline) is not None
    log = paths.build(kind) / "meson-logs" / "dev-tests.json"
    entries = map(json.loads, log.read_text().splitlines() if log.exists() else ())
    results = [_result(paths, kind, mode, entry) for entry in entries]
    lost = set(names) - {result.name for result in results}
    hung = "" if in_time else "not run: no time was left"
    return results + [Result(name, mode, 0, 1, 0, 0, hung=hung) for name in sorted(lost)]


def _meson_test(paths, kind, label, selection, extra, factor=TIMEOUT_FACTOR, deadline=None):
    """Call `meson test`; its log goes to meson-logs/dev-LABEL.json.

    Returns its exit status, or None if it had to be ended.
    """
    directory = paths.build(kind)
    (directory / "meson-logs" / f"dev-{label}.json").unlink(missing_ok=True)
    return run_until(deadline, ["meson", "test", "-C", directory, "--no-rebuild",
                                "--print-errorlogs", "--num-processes", PROCESSES,
                                "-t", f"{factor:g}", "--logbase", f"dev-{label}", *selection],
                     env=clean_env(paths, **extra), **identity(server_user()))


def run_until(deadline: float | None, command: Sequence[object], **options: Any) -> int | None:
    """Run a command whose output goes to our standard error; returns its status.

    At the deadline (of time.monotonic(); None: there is none) it is asked to end,
    then killed; the result is None then.
    """
    sys.stderr.flush()
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                               stdout=options.pop("stdout", sys.stderr.fileno()), **options)
    try:
        return process.wait(None if deadline is None else max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        say(f"no time is left: ending {command[0]}")
        return _end(process)
    except BaseException:
        _end(process)
        raise


def _end(process):
    """Ask a process to end, and kill it if it does not."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
            break


@contextlib.contextmanager
def alone(paths: Paths) -> Iterator[None]:
    """Keep other runs of tests out of the directories of this build root."""
    with open(paths.root / "tests.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for other tests that use the same build root")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def default_mode(paths: Paths, kind: str) -> str:
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
    log = paths.build(kind) / "testrun" / name
    return Result(name, mode, passed, failed, skipped, entry["duration"], log, tap,
                  _how_it_hung(entry, log) if failed else "")


def _how_it_hung(entry, log):
    """Say how a test hung, if it did: by its own report, or by meson's limit."""
    with contextlib.suppress(FileNotFoundError):
        who, what = (log / "log" / HANG_REPORT).read_text(errors="replace").splitlines()[:2]
        return f"{what}: {who}"
    if entry["result"] == "TIMEOUT":
        return f"hung after {entry['duration']:.0f} s, the limit of meson"
    if entry["result"] == "INTERRUPT":
        return f"cut after {entry['duration']:.0f} s: no time was left"
    return ""


def count_tap(text: str) -> tuple[int, int, int]:
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


def run_selftests(paths: Paths, deadline: float | None = None, names: Iterable[str] = ()) -> Result:
    """Run the repository's own Python tests; returns a Result."""
    say("running the tests of dev itself")
    return run_python_tests(paths, "dev/selftests", sys.executable, paths.repo / "tests",
                            {"PYTHONPATH": str(paths.repo)}, deadline, names)


def run_python_tests(paths: Paths, name: str, python: str, directory: Path,
                     environment: Mapping[str, str], deadline: float | None = None,
                     names: Iterable[str] = ()) -> Result:
    """Run the tests of a directory, or those of these names; returns a Result.

    Each may take a limited time.  Logs that a failed one has written are kept.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pgdw-tests-", dir=MEMORY) as place, \
            tempfile.TemporaryFile() as log:
        os.chmod(place, 0o755)      # servers of other users lie there
        status = run_until(
            deadline,
            [python, Path(__file__).with_name("pytests.py"), directory,
             PYTHON_TEST_SECONDS * SLOWNESS, *names], stderr=log,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment, "TMPDIR": place})
        log.seek(0)
        text = log.read().decode(errors="replace")
        tests, skipped, failed = count_python(text)
        if status != 0 and not failed:
            failed = 1
        kept = failures.keep(paths.root, name, Path(place), text) if failed else None
        postgres.tidy(Path(place))        # what tests that were ended have left
    sys.stderr.write(text)
    return Result(name, NO_MODE, max(0, tests - failed - skipped), failed, skipped,
                  time.monotonic() - started, output=text, hung=_how_python_hung(status, text),
                  again=_python_again(name, text) if failed else (), kept=kept)


def _python_again(name, text):
    """Return the commands that run the Python tests again that have failed."""
    found = re.findall(r"^(?:FAIL|ERROR): \S+ \(([\w.]+)\)", text, re.MULTILINE) or \
        re.findall(rf"^{PYTHON_TEST_MARK}(\S+)$", text, re.MULTILINE)[-1:]
    # What cannot be loaded has no name of its own.
    found = dict.fromkeys(one.removeprefix("unittest.loader._FailedTest.") for one in found)
    return tuple(f"./dev test --suite {name.partition('/')[0]}/{one}" for one in found) or \
        (f"./dev test --suite {name}",)


def _how_python_hung(status, text):
    """Say which Python test hung, if one did."""
    if status is None:
        return "cut: no time was left"
    timeout = re.search(r"^Timeout \((.*)\)!$", text, re.MULTILINE)
    if timeout is None:
        return ""
    begun = re.findall(rf"^{PYTHON_TEST_MARK}(\S+)$", text[:timeout.start()], re.MULTILINE)
    return f"hung after {timeout[1]} in or after {begun[-1] if begun else 'its beginning'}"


def count_python(text: str) -> tuple[int, int, int]:
    """Return (run, skipped, failed) as unittest's last lines say them.

    If it was ended half-way, those that had begun count, the last as failed.
    """
    last = text[-500:]
    total = re.search(r"^Ran (\d+) test", last, re.MULTILINE)
    if total is None:
        begun = len(re.findall(rf"^{PYTHON_TEST_MARK}", text, re.MULTILINE))
        return max(1, begun), 0, 1
    kinds = dict(re.findall(r"(failures|errors|skipped)=(\d+)", last))
    return (int(total[1]), int(kinds.get("skipped", 0)),
            int(kinds.get("failures", 0)) + int(kinds.get("errors", 0)))


# Reporting -----------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """Return a table of Results, summed by suite and mode."""
    sums: dict[tuple[str, str], Any] = {}
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


def report_failures(paths: Paths, results: Sequence[Result],
                    again: Callable[..., Any] = lambda result: f"./dev test --suite {result.name}") -> None:
    """Show the ends of the logs of failed tests, where these are kept, and how to see it again.

    `again` gives the command for a Result that does not name any.
    """
    failed = [result for result in results if result.failed]
    for result in failed:
        say(f"FAILED: {result.name}" + (f" ({result.hung})" if result.hung else ""))
        bad = [line for line in result.output.splitlines() if line.startswith("not ok")]
        _show("failed points", bad[:TAIL_LINES])
        if not (result.log or result.kept):
            _show("end of its output", result.output.splitlines()[-TAIL_LINES:])
        if result.log:
            report = result.log / "log" / HANG_REPORT
            if report.exists():
                _show(str(report), report.read_text(errors="replace").splitlines())
            for path in _logs(result.log):
                lines = path.read_text(errors="replace").splitlines()
                _show(f"end of {path}", lines[-TAIL_LINES:])
    for result in failed:
        kept = result.kept or ((result.log or result.output) and failures.keep(
            paths.root, result.name, result.log, result.output))
        say("\n    ".join([f"to see {result.name} fail again:", *(result.again or [again(result)]),
                           *([f"its logs are kept in {kept}"] if kept else [])]))


def _logs(directory):
    """Return the files to show of a failed test's directory: the server logs last."""
    return [*directory.glob("regression.diffs"), *directory.glob("log/regress_log_*"),
            *sorted(directory.glob("log/*.log"))]


def _show(title, lines):
    """Print lines under a title, if there are any."""
    if lines:
        print("\n".join([f"--- {title}", *lines]), file=sys.stderr)


def summary(results: Sequence[Result]) -> str:
    """Return the line that ends a test run."""
    hung = sum(bool(r.hung) for r in results)
    return (f"{sum(r.passed for r in results)} passed, {sum(r.failed for r in results)} failed"
            + (f", {hung} hung" if hung else ""))
