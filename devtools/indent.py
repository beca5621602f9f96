"""C as PostgreSQL's own pgindent lays it out, with the pg_bsd_indent of the test build; Perl.

C is that of overlay/, and files of upstream that patches change.  Releases of PostgreSQL are laid
out so already, thus each difference is ours.  Of Perl, which releases have as it was written here and
there, it is only files of overlay/, with PostgreSQL's settings of perltidy.
"""

import concurrent.futures
import difflib
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from common.base import DevError, Paths, output, run, say

from . import worktree
from .git import Git
from .source import Source
from .suites import NO_MODE, Result

TOOLS = "src/tools/pgindent"


def program(paths: Paths) -> Path:
    """Return where the test build has pg_bsd_indent, once it is built."""
    return paths.build("test") / "src/tools/pg_bsd_indent/pg_bsd_indent"


def check(paths: Paths, source: Source) -> Result:
    """Print what pgindent would change; returns a Result that counts files as tests."""
    git = worktree.repository(paths)
    upstream = worktree.upstream_commit(git, source)
    tip = worktree.assemble(git, paths, upstream)
    changed = git.raw("diff", "--name-only", "--diff-filter=d", upstream, tip, "--", "*.c", "*.h")
    texts = {name: git.raw("cat-file", "blob", f"{tip}:{name}").decode()
             for name in changed.decode().split()}
    with tempfile.TemporaryDirectory(prefix="pgdw-indent-") as place:
        found = differences(texts, laid_out(texts, Path(source.tree) / TOOLS, _typedefs(git, tip),
                                            program(paths).parent, Path(place)))
    for text in found.values():
        say(f"not as pgindent lays it out:\n{text}")
    return Result("dev/indent", NO_MODE, len(texts) - len(found), len(found), 0, 0,
                  again=("./dev test --suite dev/indent",))


def _typedefs(git: Git, tip: str) -> str:
    return git.raw("cat-file", "blob", f"{tip}:{TOOLS}/typedefs.list").decode()


def laid_out(texts: dict[str, str], tools: Path, typedefs: str, programs: Path,
             place: Path) -> dict[str, str]:
    """Return {path: text} as pgindent makes it, in a directory to work in.

    `tools` has pgindent, `programs` is the directory of pg_bsd_indent, `typedefs` are the names
    that it is to take for types, a line each.
    """
    for name, text in texts.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    listing = place / "typedefs.list"
    listing.write_text(typedefs)
    run(["perl", tools / "pgindent", f"--typedefs={listing}", *(place / name for name in texts)],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})
    return {name: (place / name).read_text() for name in texts}


def differences(texts: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    """Return {path: diff} of the files that differ."""
    return {name: "".join(difflib.unified_diff(
                text.splitlines(True), wanted[name].splitlines(True), name, f"{name}, laid out"))
            for name, text in texts.items() if text != wanted[name]}


def perl_differences(texts: dict[str, str], profile: str, laid_out_before: Path) -> dict[str, str]:
    """Return {path: diff} of the Perl files that perltidy would change, with these settings.

    The file keeps which texts were laid out, as perltidy takes half a minute for a hundred thousand
    lines.
    """
    settings = output(["perltidy", "--version"]) + profile
    digests = {name: hashlib.sha256((settings + text).encode()).hexdigest()
               for name, text in texts.items()}
    known = set(laid_out_before.read_text().split()) if laid_out_before.exists() else set()
    unknown = {name: text for name, text in texts.items() if digests[name] not in known}
    found = differences(unknown, _tidied(unknown, profile)) if unknown else {}
    laid_out_before.write_text("\n".join(digests[name] for name in texts if name not in found))
    return found


def _tidied(texts: dict[str, str], profile: str) -> dict[str, str]:
    """Return {path: text} as perltidy makes it, with one process for each processor."""
    processes = os.cpu_count() or 1
    names = sorted(texts, key=lambda name: len(texts[name]))
    with tempfile.TemporaryDirectory(prefix="pgdw-perltidy-") as scratch, \
            concurrent.futures.ThreadPoolExecutor(processes) as pool:
        place = Path(scratch)
        for name, text in texts.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        (place / "perltidyrc").write_text(profile)
        errors = "".join(pool.map(functools.partial(_tidy, place),
                                  filter(None, (names[i::processes] for i in range(processes)))))
        if errors:
            raise DevError(f"perltidy cannot read what it is given:\n{errors}")
        return {name: (place / name).read_text() for name in texts}


def _tidy(place: Path, names: list[str]) -> str:
    """Have perltidy lay out files in a directory; returns what it has complained of."""
    return subprocess.run(["perltidy", "--profile=perltidyrc", "--standard-error-output", *names],
                          cwd=place, stderr=subprocess.PIPE, text=True).stderr
