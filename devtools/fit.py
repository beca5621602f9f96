"""Do the mutations still fit?  Each applies and compiles, and names tests that exist.

The compiler looks at the files that a mutation changes, as the test build compiles them, and makes
nothing of them.  Headers are those of work/ and of that build: if there is no build, or if
work/ is not what patches/ and overlay/ give, patches are only applied.  The build root keeps which
mutations have fitted, until the patch, a file that it changes or a header changes.
"""

import functools
import hashlib
import json
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from common.base import DevError, Paths, note, say
from common.progress import Progress

from . import mutate, worktree
from .git import Git
from .mutate import Mutation
from .source import Source
from .suites import NO_MODE, Result

# {source: (directory, words of the command)}
Commands = Mapping[str, tuple[str, list[str]]]

# What comes in place of the files that a command names, and of warnings.  A function that is not
# declared would stop the build when it is linked.
OPTIONS = ("-fsyntax-only", "-fdiagnostics-color=never", "-Werror=implicit-function-declaration")

# What headers are, or are made of.
HEADER = re.compile(r"\.(h|dat|txt|list)$")


def check(paths: Paths, source: Source) -> Result:
    """Say which mutations do not fit; returns a Result that counts mutations as tests."""
    started = time.monotonic()
    count, found = complaints(paths, source)
    for complaint in found:
        say(complaint)
    return Result("dev/mutations", NO_MODE, max(0, count - len(found)), len(found), 0,
                  time.monotonic() - started, again=("./dev test --suite dev/mutations",))


def complaints(paths: Paths, source: Source) -> tuple[int, list[str]]:
    """Return how many mutations there are, and what is wrong with them."""
    git = worktree.repository(paths)
    tip = worktree.assemble(git, paths, worktree.upstream_commit(git, source))
    tests = mutate.programs(git.files(tip))
    controls = mutate.controls((paths.repo / "crash/pgcut/controls.py").read_text())
    files = sorted(mutate.directory(paths).glob("*.patch"))
    mutations, found = [], []
    for path in files:
        try:
            mutations.append(mutate.decode(path.stem, path.read_bytes()))
        except DevError as exc:
            found.append(str(exc))
    for one in mutations:
        found += [f"mutation {one.name} names {name}, which does not exist"
                  for name in mutate.unknown(one, tests, controls)]
    in_step = not git("diff", "--name-only", tip)
    known = commands(paths.build("test"), paths.work) if in_step else {}
    if not known:
        note("mutations are not compiled: ./dev build test makes what that takes")
    fitted = paths.root / f"mutations.{'compiled' if known else 'applied'}"
    return len(files), found + misfits(git, tip, mutations, known, paths.work, fitted)


def commands(build: Path, work: Path) -> Commands:
    """Return how a build compiles the files of work/, {} if there is no build."""
    listing = build / "compile_commands.json"
    entries = json.loads(listing.read_text()) if listing.exists() else []
    return {os.path.relpath(os.path.join(entry["directory"], entry["file"]), work):
            (entry["directory"], list(_words(entry["command"]))) for entry in reversed(entries)}


def _words(command):
    """Give the words of a command except for files, and for which warnings there are."""
    words = iter(shlex.split(command))
    for word in words:
        if word in ("-MQ", "-MF", "-o", "-c"):
            next(words)
        elif word != "-MD" and not word.startswith("-W"):
            yield word


def misfits(git: Git, tip: str, mutations: Iterable[Mutation], known: Commands, work: Path,
            fitted: Path) -> list[str]:
    """Return which mutations do not apply to a commit, or do not compile, if commands are known.

    The file `fitted` keeps which do.
    """
    files = git.files(tip)
    around = repr([entry for path, entry in sorted(files.items()) if known and HEADER.search(path)])
    units = {one: _units(git, tip, one, known) for one in mutations}
    digests = {one: hashlib.sha256(repr((
        one.diff, around, [(files.get(path), known.get(path)) for path in (*one.paths, *sources)]
    )).encode()).hexdigest() for one, sources in units.items()}
    before = set(fitted.read_text().split()) if fitted.exists() else set()
    new = [one for one in units if digests[one] not in before]
    found = {}
    with tempfile.TemporaryDirectory(prefix="pgdw-mutations-") as place, \
            ThreadPoolExecutor(os.cpu_count()) as pool, Progress("mutations", len(new)) as progress:
        needed = {path for one in new for path in (*one.paths, *units[one]) if path in files}
        original = _check_out(git, tip, needed, Path(place) / "original")
        fit = functools.partial(_misfit, Path(place), original, known, work)
        for number, (one, wrong) in enumerate(zip(new, pool.map(
                lambda one: fit(one, units[one]), new)), 1):
            progress.step(number)
            if wrong:
                found[one] = f"mutation {one.name} {wrong}"
    fitted.write_text("\n".join(digests[one] for one in units if one not in found))
    return list(found.values())


def _units(git, tip, mutation, known):
    """Return the sources to compile: those that a mutation changes, or one that includes a header."""
    sources = [path for path in mutation.paths if path.endswith(".c")]
    headers = [path for path in mutation.paths if path.endswith(".h")]
    if not known or sources or not headers:
        return sources if known else []
    name = headers[0].removeprefix("src/include/")
    listing = git("grep", "-lF", f'"{name}"', tip, "--", "*.c", check=False)
    users = [line.removeprefix(f"{tip}:") for line in listing.split()]
    return [path for path in users if path in known][:1]


def _check_out(git, tip, paths, directory):
    """Write files of a commit to a directory; returns it."""
    directory.mkdir()
    with replace(git, tree=directory).scratch(tip) as scratch:
        scratch("checkout-index", "--stdin", data="\n".join(paths).encode())
    return directory


def _misfit(place, original, known, work, mutation, units):
    """Apply a mutation to copies, and compile these; returns what is wrong, or ''."""
    target = place / "mutated" / mutation.name
    for path in {*mutation.paths, *units}:
        if (original / path).exists():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes((original / path).read_bytes())
    target.mkdir(parents=True, exist_ok=True)
    applied = subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=mutation.diff,
                             cwd=target, capture_output=True,
                             env={**os.environ, "GIT_CEILING_DIRECTORIES": str(place)})
    if applied.returncode:
        return "does not apply"
    errors = [_errors(target, unit, known, work) for unit in units]
    return next(filter(None, errors), "")


def _errors(target, unit, known, work):
    """Compile a source below `target`; returns the first error, or ''."""
    if unit not in known:
        return f"changes {unit}, which the test build does not compile"
    directory, (compiler, *words) = known[unit]
    done = subprocess.run(
        [compiler, f"-iquote{target}/src/include", f"-iquote{work / os.path.dirname(unit)}", *words,
         *OPTIONS, target / unit], cwd=directory, capture_output=True, text=True, errors="replace",
        env={**os.environ, "LC_ALL": "C"})
    if not done.returncode:
        return ""
    lines = [line for line in done.stderr.splitlines() if "error: " in line] or [done.stderr]
    return "does not compile: " + lines[0].replace(f"{target}/", "")
