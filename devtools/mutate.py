"""Mutations: does a test notice when the code breaks a rule?

A mutation is a file in tests/mutations/: a head of three lines, an empty line,
and a diff against the patched tree.

    Rule: R7
    Found by: test_doublewrite/006_errors, explorer:wal-not-flushed
    What: one sentence that says what is broken

It is applied, built and tested in a mount namespace in which file systems of
their own lie over work/ and the builds.  So nothing has to be undone, only what
depends on the change is compiled, and whatever is left running ends with the
namespace.

What a run has seen is kept in tests/mutations/seen.json, with the commit; it counts for as long
as the patch stays the same.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.base import DevError, Paths, locked, run, say
from common.progress import Progress

from . import build, crash, suites, worktree
from .git import Git

KIND = "test"
FIELDS = ("Rule", "Found by", "What")
EXPLORER = "explorer:"

# In the directory of the mutations.
SEEN = "seen.json"

# Where test programs are that are no TAP tests: pg_regress's, and the isolation tester's.
OTHER_TESTS = {"sql": "regress", "specs": "isolation"}

# A broken server may keep a test waiting for what never comes.
EVENT_TIMEOUT_SECONDS = 180

# What lies under the file systems of a mutation.
COVERED = ("work", "build", "install")


@dataclass(frozen=True)
class Mutation:
    """One file of tests/mutations."""

    name: str
    rule: str
    found_by: tuple
    what: str
    diff: bytes

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that it changes."""
        return tuple(re.findall(r"^\+\+\+ b/(\S+)", self.diff.decode(), re.MULTILINE))

    @property
    def tests(self) -> tuple[str, ...]:
        return tuple(name for name in self.found_by if not name.startswith(EXPLORER))

    @property
    def controls(self) -> tuple[str, ...]:
        return tuple(name.removeprefix(EXPLORER) for name in self.found_by
                     if name.startswith(EXPLORER))


@dataclass(frozen=True)
class Outcome:
    """What came of a mutation: {test or control: what it said, '' if nothing}."""

    name: str
    said: dict
    error: str = ""

    @property
    def found(self) -> bool:
        return not self.error and bool(self.said) and all(self.said.values())


# The files -----------------------------------------------------------------


def directory(paths: Paths) -> Path:
    """Return the directory of the mutations."""
    return paths.repo / "tests" / "mutations"


def decode(name: str, data: bytes) -> Mutation:
    """Parse a file; raises DevError if a part is missing."""
    head, _, diff = data.partition(b"\n\n")
    fields = dict(re.findall(r"^([A-Z][a-z ]+): *(\S.*)$", head.decode(), re.MULTILINE))
    if set(fields) != set(FIELDS) or len(fields) != len(head.splitlines()):
        raise DevError(f"mutation {name} does not begin with the lines " +
                       ", ".join(f"`{field}:`" for field in FIELDS))
    if not re.match(rb"(diff --git |--- )", diff):
        raise DevError(f"mutation {name} has no diff after its first empty line")
    found_by = tuple(filter(None, re.split(r"[,\s]+", fields["Found by"])))
    return Mutation(name, fields["Rule"], found_by, fields["What"], diff)


def read(paths: Paths, names: Iterable[str] = ()) -> list[Mutation]:
    """Return the Mutations of these names, or all; raises DevError."""
    files = {path.stem: path for path in sorted(directory(paths).glob("*.patch"))}
    for name in names:
        if name not in files:
            raise DevError(f"there is no mutation {name}", "./dev mutate --list")
    return [decode(name, files[name].read_bytes()) for name in (names or files)]


def unknown(mutation: Mutation, tests: Iterable[str],
            controls: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the tests and controls of a mutation that are not among those that exist."""
    return [*(name for name in mutation.tests if name not in tests),
            *(EXPLORER + name for name in mutation.controls if name not in controls)]


def programs(sources: Mapping[str, Any]) -> set[str]:
    """Return the names of the test programs among paths of the patched tree."""
    found = set()
    for path in sources:
        match = re.search(r"([^/]+)/(t|sql|specs)/([^/]+)\.(?:pl|sql|spec)$", path)
        if match:
            found.add(f"{match[1]}/{OTHER_TESTS.get(match[2], match[3])}")
    return found


def controls(text: str) -> dict[str, tuple[str, str]]:
    """Return {control: (rule, what)} of the source of crash/pgcut/controls.py."""
    return {name: (rule, what) for name, rule, what in
            re.findall(r'\bControl\("([\w-]+)",\s*"([^"]+)",\s*"([^"]+)"', text)}


def history_controls(text: str) -> set[str]:
    """Return the names of those controls that histories have to show, of the same source."""
    return set(controls(text.partition("HISTORY_CONTROLS = ")[2]))


def rank(rule: str) -> tuple[int, int, str, str]:
    """Return the key by which rules are put in order: R2 before R10, others last."""
    match = re.match(r"R(\d+)(\w*)", rule)
    return (0, int(match[1]), match[2], rule) if match else (1, 0, "", rule)


# Running them ---------------------------------------------------------------


def run_all(paths: Paths, mutations: Sequence[Mutation]) -> Any:
    """Try mutations, each in a namespace of its own, and record each; returns their Outcomes."""
    known = suites.all_tests(paths, KIND)
    missing = sorted({name for one in mutations for name in one.tests} - set(known))
    if missing:
        raise DevError("mutations name tests that do not exist: " + ", ".join(missing))
    outcomes = []
    commit = _commit(paths)
    with Progress("mutations", len(mutations)) as progress:
        for mutation in mutations:
            say(f"{mutation.name}: {mutation.what}")
            outcomes.append(_enclosed(paths, mutation))
            record(paths, mutation, outcomes[-1], commit)
            say(describe(outcomes[-1]))
            progress.step(len(outcomes))
    return outcomes


def _enclosed(paths, mutation):
    """Call inside() in namespaces that end with it; returns its Outcome."""
    command = ["unshare", "--mount", "--propagation", "slave", "--pid", "--fork", "--ipc",
               "--kill-child", "--mount-proc", sys.executable, paths.repo / "dev",
               "mutate", "--inside", mutation.name]
    done = run(command, capture=True, check=False)
    try:
        # the last line; the explorer has said something before
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return Outcome(mutation.name, {}, f"stopped with status {done.returncode}")
    return Outcome(mutation.name, **answer)


def inside(paths: Paths, name: str) -> None:
    """Try one mutation in the namespaces that we are in; prints what came of it."""
    mutation, = read(paths, [name])
    scratch = paths.root / "mutate"
    said, error = {}, ""
    with locked(paths):
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            cover(paths, scratch)
            said = _try(paths, mutation)
        except DevError as exc:
            error = str(exc)
        # What lies over the builds goes with the namespace, its files do not.
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps({"said": said, "error": error}))


def cover(paths: Paths, scratch: Path) -> None:
    """Lay empty file systems over work/ and the builds, for writes to go to."""
    for name in COVERED:
        place, upper, work = paths.root / name, scratch / name, scratch / f"{name}.work"
        for made in (upper, work):
            made.mkdir(parents=True)
        # The uppermost directory shows its own owner and mode.
        shutil.copystat(place, upper)
        run(["chown", f"--reference={place}", upper])
        run(["mount", "-t", "overlay", "overlay", "-o",
             f"lowerdir={place},upperdir={upper},workdir={work}", place])


def _try(paths, mutation):
    """Apply, build, test; returns {test or control: what it said}."""
    try:
        Git(paths.work, paths.work)("apply", "--whitespace=nowarn", "-", data=mutation.diff)
    except DevError as exc:
        raise DevError("the patch does not apply") from exc
    bindir = build.build(paths, KIND, paths.work)
    said = {}
    if mutation.tests:
        suites.prepare(paths, KIND)
        environment = {"PG_TEST_TIMEOUT_DEFAULT": str(EVENT_TIMEOUT_SECONDS),
                       suites.STOCK: str(build.bindir(paths, "stock")),
                       "PGDW_MONITORING_DIR": str(paths.repo / "packaging" / "monitoring")}
        for result in suites.run_tests(paths, KIND, list(mutation.tests), suites.MODES[0],
                                       environment):
            said[result.name] = complaint(result)
    for control in mutation.controls:
        said[EXPLORER + control] = _explore(paths, control, bindir)
    return said


def complaint(result: suites.Result) -> str:
    """Return the first failed point of a test, or what ended it; '' if it passed."""
    if not result.failed:
        return ""
    points = re.findall(r"^not ok \d+ *-? *(.*)$", result.output, re.MULTILINE)
    if points:
        return re.sub(r"\s+\d+ ms$", "", points[0].strip())
    for path in sorted(result.log.glob("log/*.log")) if result.log else ():
        trap = re.search(r"^TRAP: failed (Assert\(.*?\)), File", path.read_text(errors="replace"),
                         re.MULTILINE)
        if trap:
            return trap[1]
    return "ended before its time"


def _explore(paths, control, bindir):
    """Have the explorer look for a loss as it does for one of its controls."""
    directory_ = paths.root / "mutate" / "report"
    arguments = ["--control", control, "--broken", bindir, "--output", directory_]
    if control in history_controls((paths.repo / "crash/pgcut/controls.py").read_text()):
        crash.call(paths, ["history", *arguments])
        (entry,) = json.loads((directory_ / "controls.json").read_text())
        told = entry["directed"][-1]
        return f"found after {told['histories']} histories" if told["found"] else ""
    crash.call(paths, ["run", "--states", "0", "--watched", "0", *arguments])
    results = json.loads((directory_ / "results.json").read_text())
    found = [one for one in results if one["failures"]]
    return f"found after {len(found[0]['states'])} states" if found else ""


# What was seen --------------------------------------------------------------


def digest(mutation: Mutation) -> str:
    """Return what tells the diff of a mutation from others of its name."""
    return hashlib.sha256(mutation.diff).hexdigest()[:12]


def seen(paths: Paths) -> dict[str, dict[str, dict[str, str] | str]]:
    """Return {name: what the last run of a mutation saw}."""
    path = directory(paths) / SEEN
    return json.loads(path.read_text()) if path.exists() else {}


def _commit(paths):
    """Return what tells the sources that are tried, in a word or two."""
    state = worktree.commit(paths)
    return state.get("commit", "")[:10] + (", dirty" if state.get("commit dirty") == "yes" else "")


def record(paths: Paths, mutation: Mutation, outcome: Outcome, commit: str) -> None:
    """Keep what a mutation that was found has shown."""
    entries = seen(paths)
    entries.pop(mutation.name, None)
    if outcome.found:
        entries[mutation.name] = {"commit": commit, "patch": digest(mutation),
                                  "said": outcome.said}
    (directory(paths) / SEEN).write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")


def witness(entries: Mapping[str, Any], mutation: Mutation) -> str:
    """Return what was seen of a mutation as it is now, as one line; '' if nothing was."""
    entry = entries.get(mutation.name)
    if not entry or entry["patch"] != digest(mutation):
        return ""
    words = "; ".join(f"{name.rpartition('/')[2]}: {text}" if text else f"not by {name}"
                      for name, text in entry["said"].items())
    return f"{words} ({entry['commit']})"


# Reporting ------------------------------------------------------------------


def describe(outcome: Outcome) -> str:
    """Return one line about an Outcome."""
    if outcome.error:
        return f"{outcome.name}: FAILED, {outcome.error}"
    missed = [name for name, text in outcome.said.items() if not text]
    if missed:
        return f"{outcome.name}: NOT FOUND by {', '.join(missed)}"
    return f"{outcome.name}: found by " + ", ".join(
        f"{name} ({text})" for name, text in outcome.said.items())


def conclude(outcomes: Sequence[Outcome]) -> int:
    """Print what came of each, and how many were found; returns the exit status."""
    say("results\n" + "\n".join(map(describe, outcomes)))
    found = sum(one.found for one in outcomes)
    print(f"{found} found, {len(outcomes) - found} not")
    return 0 if found == len(outcomes) else 1


def listing(mutations: Sequence[Mutation],
            entries: Mapping[str, Any]) -> str:
    """Return the mutations as text, by rule: what is broken, what must find it, what was seen."""
    return "\n".join(f"{one.rule:10} {one.name:36} {one.what}\n{'':11}{', '.join(one.found_by)}: "
                     + (witness(entries, one) or "not tried since the patch was written")
                     for one in sorted(mutations, key=lambda one: (rank(one.rule), one.name)))


def require() -> None:
    """Raise DevError unless namespaces and their file systems can be made."""
    if os.getuid() != 0:
        raise DevError("mutations are tried in a mount namespace, which only root can make")
