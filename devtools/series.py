"""The review series: the patches of patches/, each with its new files.

A patch in patches/ touches existing upstream files only.  Which files of
overlay/ belong to it, its message says in lines that are for us alone:

    Overlay: src/backend/storage/doublewrite/*

A file that a message names in full belongs to that patch, whatever patterns others have.
With these files each patch stands on its own, and can be built and tested.  A series
is what one directory of patches/ holds; its cover letter is cover.md there, the first
line of which is the subject, and which lists the patches by number and title.

Overlay/ holds the text of a file after the last patch.  Where a later patch changes a file
that an earlier one brings, its hunks are in a file beside the patches, which its message names:

    Changes: overlay.diff

Taken back from the text in overlay/, they give that which the earlier patch brings.  Several
patches may have such hunks, each what it changes in the text that the next one leaves.  A line
of a meson.build or Makefile for a C source or a test needs none: it comes with that file.
"""

import fnmatch
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from common.base import DevError, Paths, locked, note, say, write_if_changed

from . import build, suites, worktree
from . import patch as patches
from .git import TOOL_AUTHOR, Entry, Git
from .source import Source

# Patches with the names of their files; and files, {path: (mode, blob)}.
Series = list[tuple[str, patches.Patch]]
Entries = dict[str, Entry]

KIND = "test"
TEST = "regress/regress"
COVER = "cover.md"
SUBJECT, BLURB = "*** SUBJECT HERE ***", "*** BLURB HERE ***"


@dataclass(frozen=True)
class Member:
    """A patch of the review series, committed on those before it."""

    number: int
    series: str
    title: str
    author: str
    commit: str


# Which patch has which file ------------------------------------------------


def problems(series: Series, overlay_paths: Iterable[str]) -> list[str]:
    """Describe what is wrong with the `Overlay:` lines of [(file name, Patch)]."""
    found = []
    for name, patch in series:
        found += [f"patches/{name}: {pattern} matches no file of overlay/"
                  for pattern in patch.overlay if not fnmatch.filter(overlay_paths, pattern)]
    for path in overlay_paths:
        names = owners(series, path)
        if not names:
            found.append(f"overlay/{path} belongs to no patch")
        if len(names) > 1:
            found.append(f"overlay/{path} belongs to several: {', '.join(names)}")
    return found


LISTED = re.compile(r"^ {2,}(\d+)  (\S.*)$", re.MULTILINE)


def cover_problem(letter: str, titles: list[str]) -> str:
    """Return what is wrong with the list of patches in a cover letter, or "".

    It has a line for each patch, number and title; what else is said of one is below.
    """
    listed = [(int(number), title) for number, title in LISTED.findall(letter)]
    for number, title in enumerate(titles, 1):
        if listed[number - 1:number] != [(number, title)]:
            return f"patch {number} of the list is not \"{number:4}  {title}\""
    return f"the list has more than {len(titles)} patches" if len(listed) > len(titles) else ""


def owners(series: Series, path: str) -> list[str]:
    """Return the names of patches that bring a file: those that name it, else by patterns."""
    return [name for name, patch in series if path in patch.overlay] or \
        [name for name, patch in series if patch.owns(path)]


# What of overlay/ a patch brings or changes ------------------------------


@dataclass(frozen=True)
class Step:
    """Files of overlay/ before and after a patch, {path: (mode, blob)}."""

    before: Entries
    after: Entries

    @property
    def changed(self) -> Entries:
        """Return the part of `after` that differs from `before`."""
        return {path: entry for path, entry in self.after.items()
                if self.before.get(path) != entry}


def steps(git: Git, series: Series, overlay: Entries, directory: Path) -> list[Step]:
    """Return a Step for each of [(file name, Patch)], of which `overlay` is the outcome.

    Raises DevError if the hunks of a patch in files of overlay/ cannot be taken back.
    """
    found = []
    with git.scratch(_no_files(git)) as scratch:
        scratch.stage(overlay)
        for name, patch in reversed(series):
            after = scratch.files(scratch("write-tree"))
            for changes in patch.changes:
                _take_back(scratch, directory / changes, name)
            own = [path for path in after if name in owners(series, path)]
            scratch.stage(dict.fromkeys(own))
            left = scratch.files(scratch("write-tree"))
            scratch.stage(_without_lines(git, left, own))
            found.append(Step(scratch.files(scratch("write-tree")), after))
    return found[::-1]


def _without_lines(git: Git, entries: Entries, paths: Iterable[str]) -> Entries:
    """Return the entries, changed, of files for make and meson that have lines for `paths`."""
    texts: dict[str, bytes] = {}
    changed: Entries = {}
    for path in paths:
        for listing, line in _lines_for(path):
            if listing in entries:
                text = texts.get(listing) or _text(git, entries, listing)
                texts[listing] = LAST_OBJECT.sub(rb"\1", re.sub(line, b"", text))
    for listing, text in texts.items():
        blob = git("hash-object", "-w", "--no-filters", "--stdin", data=text)
        changed[listing] = entries[listing][0], blob
    return changed


def _lines_for(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield (file that may list `path`, pattern of the line)."""
    place = Path(path)
    source = rb"(?m)^[ \t]*'%s',\n"
    if place.suffix == ".c":
        yield f"{place.parent}/meson.build", source % re.escape(place.name).encode()
        yield f"{place.parent}/Makefile", rb"(?m)^\t%s\.o(?: \\)?\n" % place.stem.encode()
    elif place.suffix == ".pl" and place.parent.name == "t":
        yield (f"{place.parent.parent}/meson.build",
               source % re.escape(f"t/{place.name}").encode())


# A list of objects that has lost its last line
LAST_OBJECT = re.compile(rb"(?m)^(\t\w+\.o) \\$(?!\n\t)")


def _no_files(git: Git) -> str:
    return git("hash-object", "-t", "tree", "-w", "--stdin", data=b"")


def _take_back(scratch: Git, changes: Path, name: str) -> None:
    """Take hunks back from the index of `scratch`: all context must match."""
    if not changes.is_file():
        raise DevError(f"patches/{name} names {changes}, which does not exist")
    try:
        scratch("apply", "--cached", "-R", "--whitespace=nowarn", changes.resolve())
    except DevError as exc:
        raise DevError(f"{changes} does not fit overlay/",
                       "./dev series --refit DIR") \
            from exc


def early_uses(git: Git, series: Series, found: list[Step]) -> Iterator[str]:
    """Yield what each of [(file name, Patch)] includes or calls that only a later one brings.

    `found` are their Steps.  Only functions of overlay/ are known, by PostgreSQL's layout of C.
    """
    read = _Reader(git)
    outcome = found[-1].after if found else {}
    functions = read.functions(outcome)
    for (name, patch), step in zip(series, found):
        missing = functions - read.functions(step.after)
        headers = {path for path in set(outcome) - set(step.after) if path.endswith(".h")}
        added = re.sub(rb"(?m)^(?!\+).*\n|^\+", b"", patch.diff).decode(errors="replace")
        texts = {path: read.code(blob) for path, (_, blob) in step.changed.items()
                 if path.endswith((".c", ".h"))}
        for path, text in {**texts, "an upstream file": _without_comments(added)}.items():
            used = {f"{call}()" for call in missing & set(CALL.findall(text))
                    - set(DEFINITION.findall(text))}
            used |= {header for header in INCLUDE.findall(text)
                     if f"src/include/{header}" in headers}
            for what in sorted(used):
                yield f"patches/{name}: {path} needs {what}, which a later patch brings"


INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)
CALL = re.compile(r"\b(\w+)\(")
DEFINITION = re.compile(r"^(\w+)\(", re.MULTILINE)
GLOBAL = re.compile(r"^(?!static\b)\w[^\n;]*\n(\w+)\(", re.MULTILINE)
COMMENT = re.compile(r'/\*.*?\*/|"(?!.*\.h"$)(?:\\.|[^"\\\n])*"', re.DOTALL | re.MULTILINE)


def _without_comments(text: str) -> str:
    return COMMENT.sub("", text)


class _Reader:
    """Reads C files of a repository, each once."""

    def __init__(self, git: Git) -> None:
        self.git = git
        self.texts: dict[str, str] = {}

    def code(self, blob: str) -> str:
        """Return a file's text without comments and strings."""
        if blob not in self.texts:
            self.texts[blob] = _without_comments(
                self.git.raw("cat-file", "blob", blob).decode(errors="replace"))
        return self.texts[blob]

    def functions(self, entries: Entries) -> set[str]:
        """Return the global functions of {path: (mode, blob)}, except those of tests."""
        return {function for path, (_, blob) in entries.items()
                if path.endswith(".c") and not path.startswith("src/test/")
                for function in GLOBAL.findall(self.code(blob))}


def before(paths: Paths, name: str, directory: Path) -> list[str]:
    """Write files of overlay/ as they are before hunks change them; returns those with conflicts.

    `name` is a file of hunks, or a series that has one only.  What hunks no longer fit is merged
    with what was committed last, which they have fitted; then it may have marks of conflicts.
    """
    with locked(paths):
        git = worktree.repository(paths)
        conflicts = []
        place, after = _changes_of(paths, git, name)
        for path, (text, failed) in _texts_before(paths, git, place, after).items():
            write_if_changed(_below(directory, path), text)
            conflicts += [path] * failed
            note(f"{path}: has conflicts" if failed else path)
    return conflicts


def _below(directory: Path, path: str) -> Path:
    (directory / path).parent.mkdir(parents=True, exist_ok=True)
    return directory / path


def _texts_before(paths: Paths, git: Git, place: str,
                  after: Entries) -> dict[str, tuple[bytes, bool]]:
    """Return {path: (text before the hunks, whether it has conflicts)}; `after` are entries."""
    texts, committed = {}, None
    diff = (paths.patches / place).read_bytes()
    for hunks in diff.split(patches.DIFF_START)[1:]:
        path = hunks[2:].split(b" b/")[0].decode()
        now = _text(git, after, path)
        try:
            texts[path] = _reversed(git, path, now, patches.DIFF_START + hunks), False
        except DevError:
            committed = committed or _committed_step(paths, git, place)
            texts[path] = _merged(git, now, _text(git, committed.after, path),
                                  _text(git, committed.before, path))
    return texts


def _text(git: Git, entries: Entries, path: str) -> bytes:
    return git.raw("cat-file", "blob", entries[path][1])


def _committed_step(paths: Paths, git: Git, place: str) -> Step:
    """Return the Step of a file of hunks as it was committed last."""
    with tempfile.TemporaryDirectory() as scratch:
        worktree.check_out_committed(paths, ("overlay", "patches"), Path(scratch))
        old = replace(paths, repo=Path(scratch))
        series = patches.read_series(old.patches)
        found = steps(git, series, worktree.overlay_entries(git, old), old.patches)
    return next(step for (_, patch), step in zip(series, found) if place in patch.changes)


def _merged(git: Git, *texts: bytes) -> tuple[bytes, bool]:
    """Return the merge of three texts, of which the second is the base, and if it has conflicts."""
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / name for name in ("now", "base", "before")]
        for file, text in zip(files, texts):
            file.write_bytes(text)
        merged = git.raw("merge-file", "-p", *files, check=False)
    return merged, _has_conflicts(merged)


def _has_conflicts(text: bytes) -> bool:
    return b"\n<<<<<<< " in text


def _reversed(git: Git, path: str, text: bytes, diff: bytes) -> bytes:
    """Return a text with a diff taken back; raises DevError if it does not fit."""
    blob = git("hash-object", "-w", "--no-filters", "--stdin", data=text)
    with git.scratch(_no_files(git)) as scratch:
        scratch.stage({path: ("100644", blob)})
        scratch("apply", "--cached", "-R", "--whitespace=nowarn", "-", data=diff)
        return scratch.raw("cat-file", "blob", scratch.files(scratch("write-tree"))[path][1])


def record(paths: Paths, name: str, directory: Path) -> None:
    """Make hunks in files of overlay/ those that change the texts in `directory`.

    Raises DevError if a text still has marks of conflicts.
    """
    with locked(paths):
        git = worktree.repository(paths)
        place, after = _changes_of(paths, git, name)
        unresolved = [path for path in after if (directory / path).is_file()
                      and _has_conflicts((directory / path).read_bytes())]
        if unresolved:
            raise DevError(f"{', '.join(unresolved)}: has conflicts",
                           f"resolve them in {directory}")
        early = git.store({path: directory / path for path in after
                           if (directory / path).is_file()})
        old = git.with_entries(_no_files(git), early, "", [])
        new = git.with_entries(_no_files(git), {path: after[path] for path in early}, "", [])
        diff = patches.without_blobs(worktree.diff_of(git, old, new))
        write_if_changed(paths.patches / place, diff)
        say(f"wrote patches/{place}: {len(early)} files, {diff.count(bytes([10]))} lines")


def refit(paths: Paths, directory: Path) -> None:
    """Fit all hunks to edits of overlay/, the last ones first, as before() and record() do.

    Raises DevError if texts, which are in `directory` then, have conflicts.
    """
    places = [place for _, patch in patches.read_series(paths.patches) for place in patch.changes]
    for place in reversed(places):
        texts = directory / place
        if before(paths, place, texts):
            raise DevError(f"{texts} has conflicts",
                           f"edit, ./dev series --record {place} {texts}, ./dev series --refit DIR")
        record(paths, place, texts)


def _changes_of(paths: Paths, git: Git, name: str) -> tuple[str, Entries]:
    """Return the name below patches/ of a file of hunks, and {path: entry} after them.

    `name` is that name, or that of a series with one such file.
    """
    series = patches.read_series(paths.patches)
    places = [(i, place) for i, (_, patch) in enumerate(series) for place in patch.changes
              if name in (place, patch.series)]
    if len(places) != 1:
        raise DevError(f"{len(places)} files of hunks are meant by {name!r}",
                       "it is one that a message names in a line `Changes: overlay.diff`, "
                       "with its directory")
    (i, place), = places
    later = steps(git, series[i + 1:], worktree.overlay_entries(git, paths), paths.patches)
    return place, later[0].before if later else worktree.overlay_entries(git, paths)


# Making the series --------------------------------------------------------


def commit(paths: Paths, git: Git, upstream: str) -> list[Member]:
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
    new = steps(git, series, overlay, paths.patches)
    for number, ((name, patch), step) in enumerate(zip(series, new), 1):
        with git.scratch(tip) as scratch:
            worktree.apply(scratch, tip, name, patch, known)
            scratch.stage(step.changed)
            message = f"{patch.title}\n\n{patch.prose}".rstrip("\n") + "\n"
            tip = scratch.commit(message, [tip], author=patch.author)
        members.append(Member(number, patch.series, patch.title, patch.author, tip))
    return members


def _obtain(paths: Paths, source: Source) -> tuple[Git, str, list[Member]]:
    """Return the Git of work/, the commit of upstream, and the Members."""
    with locked(paths):
        git = worktree.repository(paths)
        upstream = worktree.upstream_commit(git, source)
        return git, upstream, commit(paths, git, upstream)


def write(paths: Paths, source: Source, directory: Path, name: str = "") -> int:
    """Write the patches of one series, or of all, into `directory`; returns their number.

    That of one series has its cover letter as number 0.  Raises DevError if there is none.
    """
    git, upstream, members = _obtain(paths, source)
    chosen = of_series(members, name)
    first = members.index(chosen[0]) if chosen else 0
    mails = _format(git, members[first - 1].commit if first else upstream, chosen, directory,
                    cover=bool(name))
    if name:
        _fill_cover(mails[0], chosen[-1].author, paths.patches / name / COVER, source.version,
                    list(dict.fromkeys(member.series for member in members[:first])),
                    "\n".join(_sizes(git, upstream, members, chosen)))
    say(f"wrote {len(chosen)} patches into {directory}")
    return len(chosen)


def of_series(members: list[Member], name: str) -> list[Member]:
    """Return the Members of the series `name`, or all; raises DevError if there is none."""
    chosen = [member for member in members if name in ("", member.series)]
    if name and not chosen:
        raise DevError(f"there is no series {name}", "it is one of " + ", ".join(patches.NAMES))
    return chosen


def _format(git: Git, base: str, members: list[Member], directory: Path,
            cover: bool = False) -> list[Path]:
    """Write the Members, which follow `base`, as mails; returns their paths in order."""
    tip = members[-1].commit if members else base
    git("format-patch", "-q", "--zero-commit", "--no-signature", "--numbered", "--no-renames",
        *["--cover-letter"] * cover, "-o", directory.resolve(), f"{base}..{tip}")
    return sorted(directory.glob("*.patch"))


IS_TEST = re.compile(r"^src/test/|/(?:t|sql|specs|expected)/")


def _sizes(git: Git, upstream: str, members: list[Member],
           chosen: list[Member]) -> Iterator[str]:
    """Yield the lines of a table: what patches add in files of upstream, new ones, and tests."""
    known = git.files(upstream)
    total = [0, 0, 0]
    yield "Lines that each patch, by number, adds to files of upstream, in new files, and in tests:"
    yield ""
    for before, member in zip([upstream, *(one.commit for one in members)], members):
        if member in chosen:
            added = [0, 0, 0]
            for row in git("diff-tree", "-r", "--no-renames", "--numstat", before,
                           member.commit).splitlines():
                lines, _, path = row.split("\t")
                added[2 if IS_TEST.search(path) else path not in known] += int(lines)
            total = [sum(pair) for pair in zip(total, added)]
            yield "{:6}{:6}{:6}{:6}".format(chosen.index(member) + 1, *added)
    yield "in all{:6}{:6}{:6}".format(*total)


def _fill_cover(mail: Path, author: str, letter: Path, version: str, before: list[str],
                sizes: str) -> None:
    """Put author, subject and text of a cover letter, and what it stands on, into git's."""
    if not letter.is_file():
        raise DevError(f"{letter} is missing", "say what the series is for, and why")
    subject, _, text = letter.read_text().partition("\n")
    stands_on = " with the series " + ", ".join(before) if before else ""
    blurb = f"Applies on PostgreSQL {version}{stands_on}.\n\n{text.strip()}\n\n{sizes}"
    text = mail.read_text().replace(f"From: {TOOL_AUTHOR}", f"From: {author}", 1)
    mail.write_text(text.replace(SUBJECT, subject.lstrip("# ")).replace(BLURB, blurb))


# Trying the series --------------------------------------------------------


def check(paths: Paths, source: Source, first: int = 1, only: int | None = None,
          tests: bool = True, name: str = "") -> list[suites.Result]:
    """Apply, build and test each patch in turn; returns one Result for each and for all.

    With `first`, begin with that patch; with `only`, take no other; with `name`, take those
    of that series.
    """
    git, upstream, members = _obtain(paths, source)
    chosen = [m for m in of_series(members, name)
              if (m.number == only if only else m.number >= first)]
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


def _report(what: str, result: suites.Result) -> None:
    """Say how a step has gone."""
    say(f"{what}: " + (f"failed, {result.output}" if result.failed else "passed"))


def _apply_as_mails(git: Git, upstream: str, members: list[Member],
                    source: Source) -> suites.Result:
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


def place(paths: Paths) -> Paths:
    """Return the Paths to build at: a build root in the build root, with its compiler cache.

    Sources and builds lie there as they do in the other one, so that the cache
    knows many of the files.
    """
    aside = replace(paths, root=paths.root / "series")
    aside.work.mkdir(parents=True, exist_ok=True)
    cache, shared = aside.root / "ccache", paths.root / "ccache"
    shared.mkdir(exist_ok=True)         # where nothing has been built yet
    if not cache.is_symlink():
        cache.symlink_to(shared)
    return aside


def _check_out(aside: Paths, git: Git, member: Member) -> None:
    """Make the directory of sources that of a Member; what stays the same is not touched."""
    Git(git.repo, aside.work, str(aside.root / "index"))("read-tree", "--reset", "-u",
                                                        member.commit)


def _try(paths: Paths, tests: bool) -> str:
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


def _result(name: str, problem: str, started: float) -> suites.Result:
    """Return the Result of a step that went well, or had a problem."""
    return suites.Result(name, suites.NO_MODE, int(not problem), int(bool(problem)), 0,
                         time.monotonic() - started, output=problem)
