"""The gate: small checkers, each a generator of complaints.

To add one, write a function of a Tree and put `@checker` above it.
"""

import ast
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench import figures
from common.base import SYSTEM_PYTHON, DevError, Paths, output, run, say
from common.progress import Progress

from . import deps, english, generate, indent, layers, mutate, redo, series, suites, worktree
from . import patch as patches
from .git import Git
from .source import Source

CHECKERS = []

# What ruff and mypy are told.
CONFIGURATION = "pyproject.toml"


def checker(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a checker."""
    CHECKERS.append(function)
    return function


@dataclass(frozen=True)
class Tree:
    """What checkers look at: the repository, and PostgreSQL with it applied."""

    paths: Paths
    git: Git
    tip: str
    upstream: str

    @cached_property
    def overlay(self) -> dict[str, str]:
        """Text of the files of overlay/ by path."""
        base = self.paths.overlay
        return {path.relative_to(base).as_posix(): path.read_text(errors="replace")
                for path in sorted(base.rglob("*")) if path.is_file()}

    @cached_property
    def committed(self) -> dict[str, str]:
        """Text of the files that are, or would be, committed, by path."""
        # The checkout may belong to another user than ours.
        listing = output(["git", "-c", f"safe.directory={self.paths.repo}", "ls-files", "-z",
                          "--cached", "--others", "--exclude-standard"], cwd=self.paths.repo)
        names = (name for name in listing.split("\0") if name)
        return {name: (self.paths.repo / name).read_text(errors="replace")
                for name in names if (self.paths.repo / name).is_file()}

    def c_files(self, suffixes: tuple[str, ...] = (".c", ".h")) -> list[tuple[str, str]]:
        """Return [(path, text)] of the C files of overlay/."""
        return [(p, text) for p, text in self.overlay.items() if p.endswith(suffixes)]

    def applied(self, path: str) -> str:
        """Return the text of a file of PostgreSQL with our changes, or ''."""
        found = self.git.raw("cat-file", "blob", f"{self.tip}:{path}", check=False)
        return found.decode(errors="replace")


def run_all(paths: Paths, source: Source) -> list[tuple[str, list[str]]]:
    """Run every checker; returns [(name, [complaint])]."""
    git = worktree.repository(paths)
    upstream = worktree.upstream_commit(git, source)
    try:
        tip = worktree.assemble(git, paths, upstream)
    except DevError as exc:
        return [("patches_apply", [str(exc)])]
    tree = Tree(paths, git, tip, upstream)
    outcome: list[tuple[str, list[str]]] = [("patches_apply", [])]
    # Some wait for other programs for most of their time.
    with Progress("checking", len(CHECKERS)) as progress, ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda check: list(check(tree)), CHECKERS)
        for number, (check, complaints) in enumerate(zip(CHECKERS, found), 1):
            progress.step(number, detail=check.__name__)
            outcome.append((check.__name__, complaints))
    return outcome


def report(outcome: Sequence[tuple[str, list[str]]]) -> suites.Result:
    """Print the complaints; returns a Result that counts checkers as tests."""
    for name, complaints in outcome:
        for complaint in complaints:
            say(f"{name}: {complaint}")
    failed = sum(1 for _, complaints in outcome if complaints)
    return suites.Result("dev/check", suites.NO_MODE, len(outcome) - failed, failed, 0, 0,
                         again=("./dev check",))


@checker
def overlay_owned(tree: Tree) -> Iterator[str]:
    """A file of overlay/ belongs to exactly one patch of the review series."""
    yield from series.problems(patches.read_series(tree.paths.patches), tree.overlay)


@checker
def series_named(tree: Tree) -> Iterator[str]:
    """A patch names its series, lies in its directory, and the series stand in their order."""
    latest = 0
    for name, patch in patches.read_series(tree.paths.patches):
        if patch.series not in patches.NAMES:
            yield f"patches/{name} belongs to none of the series {', '.join(patches.NAMES)}"
            continue
        place = patches.NAMES.index(patch.series)
        if place < latest:
            yield f"patches/{name} comes after patches of the series {patches.NAMES[latest]}"
        if not name.startswith(f"{patch.series}/"):
            yield f"patches/{name} is of the series {patch.series}"
        latest = max(latest, place)


@checker
def covers_list_patches(tree: Tree) -> Iterator[str]:
    """The cover letter of a series lists its patches, in their order."""
    series_files = patches.read_series(tree.paths.patches)
    for name in patches.NAMES:
        path = f"patches/{name}/{series.COVER}"
        titles = [patch.title for file, patch in series_files if file.startswith(f"{name}/")]
        problem = series.cover_problem(tree.committed.get(path, ""), titles)
        if problem:
            yield f"{path}: {problem}"


@checker
def changes_fit(tree: Tree) -> Iterator[str]:
    """Hunks in files of overlay/ can be taken back, and what is left needs no later patch."""
    patch_files = patches.read_series(tree.paths.patches)
    named = {changes for _, patch in patch_files for changes in patch.changes}
    for path in sorted(tree.paths.patches.rglob("*.diff")):
        if path.relative_to(tree.paths.patches).as_posix() not in named:
            yield f"{path} is named by no patch"
    try:
        steps = series.steps(tree.git, patch_files,
                             worktree.overlay_entries(tree.git, tree.paths), tree.paths.patches)
    except DevError as exc:
        yield str(exc)
        return
    yield from series.early_uses(tree.git, patch_files, steps)


@checker
def fast_programs_exist(tree: Tree) -> Iterator[str]:
    """The programs of `./dev check --fast` exist."""
    directories = {path.split("/t/")[0].rpartition("/")[2] for path in tree.overlay if "/t/" in path}
    programs = mutate.programs(tree.overlay)
    for name in suites.FAST:
        if name.partition("/")[0] in directories and name not in programs:
            yield f"devtools/suites.py names {name}, which does not exist"


@checker
def mutations_remembered(tree: Tree) -> Iterator[str]:
    """What was seen of mutations is of those that exist."""
    names = {path.stem for path in mutate.directory(tree.paths).glob("*.patch")}
    for name in sorted(set(mutate.seen(tree.paths)) - names):
        yield f"{mutate.SEEN} names mutation {name}, which does not exist"


@checker
def generated_documents(tree: Tree) -> Iterator[str]:
    """Documents that are made of other files are up to date."""
    if (tree.paths.repo / "docs").is_dir():
        try:
            for path in generate.outdated(tree.paths):
                yield f"{path} is out of date: ./dev generate"
        except DevError as exc:
            yield str(exc)


@checker
def runs_shown(tree: Tree) -> Iterator[str]:
    """A run that is kept is the newest of a case, or a document links to it."""
    for name in figures.unused(tree.paths.repo, (text for path, text in tree.committed.items()
                                                 if path.endswith(".md"))):
        yield f"bench/results: nothing shows {name}, and git has it: remove it"


@checker
def header_comment(tree: Tree) -> Iterator[str]:
    """A C file starts with a comment that names it."""
    for path, text in tree.c_files():
        comment = text.partition("*/")[0]
        if not text.startswith("/*") or Path(path).name not in comment:
            yield f"overlay/{path} does not start with a comment that names it"


# The line of a file, by its suffix: as upstream's branch of 18 has it.
COPYRIGHT = {suffix: f"{words}, PostgreSQL Global Development Group\n"
             for words, suffixes in ((" * Portions Copyright (c) 1996-2025", (".c", ".h")),
                                     ("# Copyright (c) 2025", (".pl", ".pm", ".build")))
             for suffix in suffixes}


@checker
def copyright_lines(tree: Tree) -> Iterator[str]:
    """A file has the line about copyright that others of its kind have."""
    for path, text in tree.committed.items():
        if lacks_copyright(path, text):
            yield f"{path} lacks the line `{COPYRIGHT[Path(path).suffix].strip()}`"


def lacks_copyright(path: str, text: str) -> bool:
    """Return whether a file lacks the line that its kind has, or has another one."""
    wanted = COPYRIGHT.get(Path(path).suffix)
    return wanted is not None and re.findall(r".*Copyright \(c\).*\n", text) != [wanted]


@checker
def listed_in_meson(tree: Tree) -> Iterator[str]:
    """A C source is named in the meson.build of its directory."""
    for path, _ in tree.c_files((".c",)):
        directory, _, name = path.rpartition("/")
        if f"'{name}'" not in tree.applied(f"{directory}/meson.build"):
            yield f"overlay/{path} is not in the meson.build beside it"


@checker
def header_used(tree: Tree) -> Iterator[str]:
    """A header is included somewhere in our own code."""
    texts = [*(text for _, text in tree.c_files()),
             *(p.diff.decode(errors="replace")
               for _, p in patches.read_series(tree.paths.patches))]
    used = {Path(name).name for text in texts
            for name in re.findall(r'^\+?#include\s+[<"]([^">]+)', text, re.MULTILINE)}
    for path, _ in tree.c_files((".h",)):
        if Path(path).name not in used:
            yield f"overlay/{path} is included nowhere"


@checker
def typedefs_listed(tree: Tree) -> Iterator[str]:
    """A typedef is known to pgindent."""
    known = set(tree.applied("src/tools/pgindent/typedefs.list").split())
    pattern = re.compile(r"^typedef (?:struct|enum|union)[^;{]*\{.*?^\} *(\w+);"
                         r"|^typedef [^;{(]*?(\w+);", re.MULTILINE | re.DOTALL)
    for path, text in tree.c_files():
        for match in pattern.finditer(text):
            name = match[1] or match[2]
            if name not in known:
                yield f"typedef {name} (overlay/{path}) is not in typedefs.list"


@checker
def english_words(tree: Tree) -> Iterator[str]:
    """A comment names the process that acts; so do tests, documents, and messages of patches."""
    for path, text in tree.committed.items():
        if english.is_readme(path) or path.endswith(
                (".c", ".h", ".sgml", ".pl", ".pm", ".md", ".py", ".sql")):
            yield from english.of_file(path, text)
    for name, patch in patches.read_series(tree.paths.patches):
        yield from english.of_patch(f"patches/{name}", patch.diff.decode(errors="replace"),
                                    patch.message)


@checker
def engine_layers(tree: Tree) -> Iterator[str]:
    """A file of the engine calls only files below it, and is declared under its name."""
    engine = "src/backend/storage/doublewrite/"
    readme = tree.overlay.get(f"{engine}README.md")
    if readme is None:
        return
    sources = {path.removeprefix(engine): text for path, text in tree.c_files((".c",))
               if path.startswith(engine)}
    yield from layers.engine(layers.order_of_readme(readme), sources)
    for header in ("doublewrite.h", "doublewrite_stage.h", "doublewrite_log.h"):
        for complaint in layers.prototypes(tree.overlay[f"src/include/storage/{header}"], sources):
            yield f"{header}: {complaint}"


@checker
def mutex_is_brief(tree: Tree) -> Iterator[str]:
    """Under the engine's spinlock nothing is walked, moved, allocated, reported or waited for."""
    held = re.compile(r"DWLockMutex\(\);(.*?)DWUnlockMutex\(\);", re.DOTALL)
    long = re.compile(r"\b(while|dlist_foreach\w*|mem(?:cpy|move)|palloc\w*|pfree|ereport|elog"
                      r"|LWLock\w+|XLog\w+|pg_usleep|ConditionVariable\w+|GetCurrentTimestamp"
                      r"|INSTR_TIME_SET_CURRENT|bsearch|filter)\s*\(")
    for path, text in tree.c_files((".c",)):
        for match in held.finditer(text):
            for call in long.finditer(match[1]):
                yield f"overlay/{path}: {call[1]} between DWLockMutex() and DWUnlockMutex()"


@checker
def perl_layout(tree: Tree) -> Iterator[str]:
    """Perl is laid out as PostgreSQL's own, by perltidy."""
    profile = tree.applied(f"{indent.TOOLS}/perltidyrc")
    if profile:
        texts = {path: text for path, text in tree.overlay.items() if path.endswith((".pl", ".pm"))}
        try:
            found = indent.perl_differences(texts, profile, tree.paths.root / "perltidy")
        except DevError as exc:
            yield str(exc)
            return
        for diff in found.values():
            yield f"not as perltidy lays it out:\n{diff}"


@checker
def logs_awaited(tree: Tree) -> Iterator[str]:
    """A test takes the length of a log before it begins what it awaits there."""
    for path, text in tree.overlay.items():
        if path.endswith(".pl"):
            for match in re.finditer(r"wait_for_log\([^;]*, -s ", text):
                line = text.count("\n", 0, match.end()) + 1
                yield f"overlay/{path}:{line}: what is awaited may stand in the log already"


@checker
def module_layers(tree: Tree) -> Iterator[str]:
    """A module of our packages imports only what its package may, and what stands above it there."""
    for directory in layers.MAY_USE:
        package = {Path(path).stem: text for path, text in tree.committed.items()
                   if re.fullmatch(rf"{directory}/\w+\.py", path)}
        if "__init__" in package:
            order = layers.order_of_package(package.pop("__init__"))
            for complaint in layers.modules(order, package, layers.MAY_USE[directory]):
                yield f"{directory}: {complaint}"


@checker
def python_rules(tree: Tree) -> Iterator[str]:
    """Python keeps the rules of ruff that pyproject.toml selects."""
    if CONFIGURATION in tree.committed:
        yield from _said(tree, deps.from_pip(tree.paths, "ruff", deps.RUFF) / "ruff", "check",
                         "--quiet", "--no-cache", "--output-format=concise",
                         *(path for path in tree.committed
                           if path == "dev" or path.endswith(".py")))


@checker
def python_types(tree: Tree) -> Iterator[str]:
    """Annotations of Python agree with the code."""
    if CONFIGURATION in tree.committed:
        yield from _said(tree, SYSTEM_PYTHON, "-B", "-m", "mypy", "--no-error-summary",
                         f"--cache-dir={tree.paths.root / 'mypy'}")


def _said(tree, *command):
    """Give the lines of a checker of Python, or that it did not run."""
    done = run(command, cwd=tree.paths.repo, capture=True, check=False)
    lines = done.stdout.decode().splitlines()
    yield from lines
    if done.returncode and not lines:
        yield f"{' '.join(map(str, command[:4]))} failed: ./dev deps"


# Packages whose public functions have annotations.
ANNOTATED = ("bench/", "common/", "crash/pgcut/", "devtools/", "packaging/")


@checker
def functions_annotated(tree: Tree) -> Iterator[str]:
    """A public function says of which type its arguments are, and what it returns."""
    for path, text in tree.committed.items():
        if path.endswith(".py") and path.startswith(ANNOTATED):
            for line, name in unannotated(text):
                yield f"{path}:{line}: {name}() is public, and lacks annotations"


def unannotated(text: str) -> Iterator[tuple[int, str]]:
    """Give (line, name) of public functions and methods that lack an annotation."""
    tree = ast.parse(text)
    bodies: list[Any] = [tree, *(one for one in ast.walk(tree) if isinstance(one, ast.ClassDef))]
    for function in (node for body in bodies for node in body.body
                     if isinstance(node, ast.FunctionDef)):
        wanted = function.args
        named = [*wanted.posonlyargs, *wanted.args, *wanted.kwonlyargs, wanted.vararg, wanted.kwarg]
        lacks = [one for one in named if one and not one.annotation
                 and one.arg not in ("self", "cls")]
        is_public = not function.name.startswith("_") or function.name.endswith("__")
        if is_public and (lacks or not function.returns):
            yield function.lineno, function.name


@checker
def redo_by_page(tree: Tree) -> Iterator[str]:
    """What redo page by page must know of record types and of readers is written down."""
    document = tree.committed.get(redo.DOCUMENT)
    if document is None:
        return
    descriptions = [tree.applied(path) for path in tree.git.files(tree.tip)
                    if path.startswith(redo.DESCRIPTIONS) and path.endswith(".c")]
    types = redo.record_types(tree.applied(redo.MANAGERS), descriptions)
    callers = tree.git.raw("grep", "-lE", redo.READS, tree.tip, "--", *redo.CALLERS,
                           check=False).decode()
    for complaint in (*redo.missing_types(document, types),
                      *redo.missing_readers(document, redo.readers(callers, tree.tip))):
        yield f"{redo.DOCUMENT}: {complaint}"


@checker
def settings_explored(tree: Tree) -> Iterator[str]:
    """A setting of ours is drawn by the power-cut explorer, if it is not for developers."""
    matrix = tree.committed.get("crash/pgcut/matrix.py", "")
    for name, path in _settings(tree):
        if not name.startswith("debug_") and not re.search(rf'^    "{name}": \(', matrix, re.MULTILINE):
            yield f"{name} ({path}) is not in the matrix of crash/pgcut/matrix.py"


def _settings(tree):
    """Give (name, path of the patch) of each setting of ours."""
    for path, patch in patches.read_series(tree.paths.patches):
        for name in re.findall(r'^\+\t\t\{"(\w+)", PGC_', patch.diff.decode(errors="replace"),
                               re.MULTILINE):
            yield name, path


@checker
def settings_can_go(tree: Tree) -> Iterator[str]:
    """A setting of ours is known to `pg_doublewrite leave`, and in the file that can be removed."""
    places = ("overlay/src/bin/pg_doublewrite/leave.c", "packaging/double_writes.conf")
    for name, path in _settings(tree):
        for place in places:
            if place in tree.committed and not re.search(rf"\b{name}\b", tree.committed[place]):
                yield f"{name} ({path}) is not in {place}"


@checker
def defaults_agree(tree: Tree) -> Iterator[str]:
    """The file with our settings has the defaults of postgresql.conf.sample."""
    path, line = "packaging/double_writes.conf", r"^{}#(\w+) = (\S+)"
    values = re.findall(line.format(""), tree.committed.get(path, ""), re.MULTILINE)
    for name, patch in patches.read_series(tree.paths.patches):
        sample = dict(re.findall(line.format(r"\+"), patch.diff.decode(errors="replace"),
                                 re.MULTILINE))
        for setting, value in values:
            if sample.get(setting, value) != value:
                yield f"{path} has {setting} = {value}, patches/{name} {sample[setting]}"


@checker
def patches_announced(tree: Tree) -> Iterator[str]:
    """A fix of stock, or a patch that changes upstream files only, is in the release notes.

    Not one that only tests need.
    """
    path = "doc/src/sgml/release-double-writes.sgml"
    notes = tree.overlay.get(path)
    for name, patch in patches.read_series(tree.paths.patches):
        changed = re.findall(rb"^diff --git a/(\S+)", patch.diff, re.MULTILINE)
        tests = all(one.startswith((b"src/test/", b"src/tools/")) for one in changed)
        announced = patch.overlay and (tests or not name.startswith("fixes/")) or \
            f"<!-- {patch.title} -->" in (notes or "")
        if notes is not None and not announced:
            yield f"the release notes have no comment that names {name}"


@checker
def whitespace(tree: Tree) -> Iterator[str]:
    """No space at line ends, no space before a tab, a newline at the end."""
    for path, text in tree.committed.items():
        if path.endswith(".out"):
            continue
        mark = r"^\+.*" if path.endswith((".patch", ".diff")) else ""
        for pattern, what in (rf"{mark}[ \t]$", "space at a line's end"), \
                             (rf"{mark} \t", "space before a tab"):
            match = re.search(pattern, text, re.MULTILINE)
            if match:
                line = text.count("\n", 0, match.end() - 1) + 1
                yield f"{path}:{line}: {what}"
        if text and not text.endswith("\n"):
            yield f"{path}: no newline at the end"


@checker
def no_places(tree: Tree) -> Iterator[str]:
    """No committed file names a Debian mirror or a place on this machine."""
    mirror = re.compile(r"\b[\w.-]+\.(?:debian|ubuntu)\.(?:org|net|com)\b")
    ours = [str(tree.paths.repo), str(tree.paths.root)]
    for path, text in tree.committed.items():
        found = [*mirror.findall(text), *re.findall(r"/(?:home|root)/\w[\w./-]*", text),
                 *(place for place in ours if place in text)]
        for name in sorted(set(found)):
            yield f"{path} names {name}"
