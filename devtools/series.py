"""The review series: the patches of patches/, each with its new files.

A patch in patches/ touches existing upstream files only.  Which files of
overlay/ belong to it, its message says in lines that are for us alone:

    Overlay: src/backend/storage/doublewrite/*

With these files each patch stands on its own, and can be built and tested.
"""

import fnmatch
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from common.base import DevError, locked, note, say

from . import build, suites, worktree
from . import patch as patches
from .git import Git

KIND = "test"
TEST = "regress/regress"


@dataclass(frozen=True)
class Member:
    """A patch of the review series, committed on those before it."""

    number: int
    title: str
    commit: str


# Who owns what ------------------------------------------------------------


def problems(series, overlay_paths):
    """Describe what is wrong with the `Overlay:` lines of [(file name, Patch)]."""
    found = []
    for name, patch in series:
        found += [f"patches/{name}: {pattern} matches no file of overlay/"
                  for pattern in patch.overlay if not fnmatch.filter(overlay_paths, pattern)]
    for path in overlay_paths:
        owners = [name for name, patch in series if patch.owns(path)]
        if not owners:
            found.append(f"overlay/{path} belongs to no patch")
        if len(owners) > 1:
            found.append(f"overlay/{path} belongs to several: {', '.join(owners)}")
    return found


# Making the series --------------------------------------------------------


def commit(paths, git, upstream):
    """Commit the review series on `upstream`; returns its Members.

    Raises DevError if a file of overlay/ does not belong to exactly one
    patch, or if a patch does not apply on those before it.
    """
    series = patches.read_series(paths.patches)
    overlay = worktree.overlay_entries(git, paths)
    wrong = problems(series, overlay)
    if wrong:
        raise DevError("; ".join(wrong[:8]),
                       "name each file in an `Overlay:` line of one patch's message")
    known = git.files(upstream)
    members, tip = [], upstream
    for number, (name, patch) in enumerate(series, 1):
        with git.scratch(tip) as scratch:
            worktree.apply(scratch, tip, name, patch, known)
            scratch.stage({path: e for path, e in overlay.items() if patch.owns(path)})
            message = f"{patch.title}\n\n{patch.prose}".rstrip("\n") + "\n"
            tip = scratch.commit(message, [tip], author=patch.author)
        members.append(Member(number, patch.title, tip))
    return members


def _obtain(paths, source):
    """Return the Git of work/, the commit of upstream, and the Members."""
    with locked(paths):
        git = worktree.repository(paths)
        upstream = worktree.upstream_commit(git, source)
        return git, upstream, commit(paths, git, upstream)


def write(paths, source, directory):
    """Write the review series into `directory`; returns the number of patches."""
    git, upstream, members = _obtain(paths, source)
    _format(git, upstream, members, directory)
    say(f"wrote {len(members)} patches into {directory}")
    return len(members)


def _format(git, upstream, members, directory):
    """Write the Members as mails; returns their paths in order."""
    tip = members[-1].commit if members else upstream
    git("format-patch", "-q", "--zero-commit", "--no-signature", "--numbered",
        "--no-renames", "-o", directory.resolve(), f"{upstream}..{tip}")
    return sorted(directory.glob("*.patch"))


# Trying the series --------------------------------------------------------


def check(paths, source, first=1, only=None, tests=True):
    """Apply, build and test each patch in turn; returns one Result for each and for all.

    With `first`, begin with that patch; with `only`, take no other.
    """
    git, upstream, members = _obtain(paths, source)
    chosen = [m for m in members if (m.number == only if only else m.number >= first)]
    if not chosen:
        raise DevError(f"there are {len(members)} patches", "count from 1")
    results = [_apply_as_mails(git, upstream, members, source)]
    _report("git am", results[0])
    aside = place(paths)
    with suites.alone(aside):
        for done, member in enumerate(chosen, 1):
            say(f"patch {member.number} ({done} of {len(chosen)}): {member.title}")
            started = time.monotonic()
            _check_out(aside, git, member)
            results.append(_result(f"series/{member.number:04d}", _try(aside, tests), started))
            _report(f"patch {member.number}", results[-1])
    return results


def _report(what, result):
    """Say how a step has gone."""
    say(f"{what}: " + (f"failed, {result.output}" if result.failed else "passed"))


def _apply_as_mails(git, upstream, members, source):
    """Have `git am` apply the series to the pristine sources; returns a Result."""
    say("applying the series to the pristine sources")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        mails = _format(git, upstream, members, Path(scratch) / "mails")
        tree = Path(scratch) / "tree"
        shutil.copytree(source.tree, tree, symlinks=True)
        pristine = Git(tree, tree)
        pristine.init()
        pristine("config", "core.autocrlf", "false")
        pristine("config", "gc.auto", "0")
        pristine("add", "--all", "--force", ".")
        pristine("commit", "-q", "-m", "pristine")
        problem = ""
        try:
            pristine("am", "-q", *mails)
            if pristine("rev-parse", "HEAD^{tree}") != git(
                    "rev-parse", f"{members[-1].commit}^{{tree}}"):
                problem = "the mails give another tree than the patches"
        except DevError as exc:
            problem = str(exc)
    return _result("series/am", problem, started)


def place(paths):
    """Return the Paths to build at: a build root in the build root, with its compiler cache.

    Sources and builds lie there as they do in the other one, so that the cache
    knows many of the files.
    """
    aside = replace(paths, root=paths.root / "series")
    aside.work.mkdir(parents=True, exist_ok=True)
    cache = aside.root / "ccache"
    if not cache.is_symlink():
        cache.symlink_to(paths.root / "ccache")
    return aside


def _check_out(aside, git, member):
    """Make the directory of sources that of a Member; what stays the same is not touched."""
    Git(git.repo, aside.work, str(aside.root / "index"))("read-tree", "--reset", "-u",
                                                        member.commit)


def _try(paths, tests):
    """Build what is checked out, and run the regression tests; returns what is wrong."""
    try:
        build.build(paths, KIND, paths.work)
        if not tests:
            return ""
        suites.prepare(paths, KIND)
    except DevError as exc:
        note(str(exc))
        return str(exc)
    outcome = suites.run_tests(paths, KIND, [TEST], suites.default_mode(paths, KIND))
    suites.report_failures(paths, outcome, lambda result: "./dev series --check")
    return f"{TEST} failed" if any(one.failed for one in outcome) else ""


def _result(name, problem, started):
    """Return the Result of a step that went well, or had a problem."""
    return suites.Result(name, suites.NO_MODE, int(not problem), int(bool(problem)), 0,
                         time.monotonic() - started, output=problem)
