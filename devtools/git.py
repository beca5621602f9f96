"""The git repository in work/, driven by plumbing commands.

The user's git configuration is ignored, and commits made here carry fixed
dates, so that the same patches always give the same commits and diffs.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.base import DevError, run

TOOL_AUTHOR = "dev <dev@localhost>"
FIXED_DATE = "2000-01-01T00:00:00Z"

# Mode and blob of a file.
Entry = tuple[str, str]


@dataclass(frozen=True)
class Git:
    """A repository, the working tree to use it on, and perhaps another index."""

    repo: Path
    tree: Path
    index: str = ""

    def raw(self, *args: object, data: bytes | None = None, check: bool = True,
            author: str = TOOL_AUTHOR) -> bytes:
        """Run git and return its standard output as bytes."""
        match = re.fullmatch(r"(.*?) *<(.*)>", author)
        if not match:
            raise DevError(f"{author!r} is not of the form NAME <ADDRESS>")
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
               "GIT_DIR": str(self.repo / ".git"), "GIT_WORK_TREE": str(self.tree),
               "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
               "GIT_AUTHOR_NAME": match[1], "GIT_AUTHOR_EMAIL": match[2],
               "GIT_AUTHOR_DATE": FIXED_DATE, "GIT_COMMITTER_DATE": FIXED_DATE,
               "GIT_COMMITTER_NAME": "dev", "GIT_COMMITTER_EMAIL": "dev@localhost"}
        if self.index:
            env["GIT_INDEX_FILE"] = self.index
        return run(["git", *args], cwd=self.tree, env=env, data=data,
                   capture=True, check=check).stdout

    def __call__(self, *args: object, **options: Any) -> str:
        """Run git and return its standard output as stripped text."""
        return self.raw(*args, **options).decode().strip()

    def init(self) -> None:
        """Create the repository unless it exists."""
        self.tree.mkdir(parents=True, exist_ok=True)
        if not (self.repo / ".git").is_dir():
            self("init", "-q")
            self("symbolic-ref", "HEAD", "refs/heads/main")

    @contextlib.contextmanager
    def scratch(self, treeish: str) -> Iterator["Git"]:
        """Give a Git with a temporary index that holds `treeish`."""
        with tempfile.TemporaryDirectory() as directory:
            scratch = replace(self, index=os.path.join(directory, "index"))
            scratch("read-tree", treeish)
            yield scratch

    def resolve(self, name: str) -> str | None:
        """Return the commit that `name` stands for, or None."""
        found = self("rev-parse", "-q", "--verify", f"{name}^{{commit}}", check=False)
        return found or None

    def files(self, treeish: str) -> dict[str, Entry]:
        """Return {path: (mode, blob)} of a commit or tree."""
        listing = self.raw("ls-tree", "-r", "-z", "--full-tree", treeish).decode()
        entries = (row.split("\t", 1) for row in listing.split("\0") if row)
        return {path: (meta.split()[0], meta.split()[2]) for meta, path in entries}

    def store(self, files: Mapping[str, Path]) -> dict[str, Entry]:
        """Store files as blobs; takes {path: Path}, returns {path: (mode, blob)}."""
        listing = "".join(f"{file}\n" for file in files.values()).encode()
        blobs = self("hash-object", "-w", "--no-filters", "--stdin-paths", data=listing).split()
        modes = ("100755" if os.access(f, os.X_OK) else "100644" for f in files.values())
        return dict(zip(files, zip(modes, blobs)))

    def stage(self, entries: Mapping[str, Entry | None]) -> None:
        """Put {path: (mode, blob)} into the index; None removes a path."""
        absent = ("0", "0" * 40)
        rows = ("{} {}\t{}\0".format(*(entry or absent), path)
                for path, entry in entries.items())
        self("update-index", "-z", "--index-info", data="".join(rows).encode())

    def commit(self, message: str, parents: Iterable[str], author: str = TOOL_AUTHOR) -> str:
        """Commit the index without moving any ref; returns the commit."""
        tree = self("write-tree")
        options = [option for parent in parents for option in ("-p", parent)]
        return self("commit-tree", *options, tree, data=message.encode(), author=author)

    def with_entries(self, treeish: str, entries: Mapping[str, Entry | None], message: str,
                     parents: Iterable[str]) -> str:
        """Commit `treeish` with some entries replaced; returns the commit."""
        with self.scratch(treeish) as scratch:
            scratch.stage(entries)
            return scratch.commit(message, parents)

    def modified(self) -> list[str]:
        """Return the paths of tracked files that differ from HEAD."""
        return self._status(lambda code: code not in ("??", "!!"))

    def strays(self) -> list[str]:
        """Return the paths of files that are not tracked, ignored ones included."""
        return self._status(lambda code: code in ("??", "!!"))

    def _status(self, wanted: Callable[[str], bool]) -> list[str]:
        rows = self.raw("status", "--porcelain", "-z", "--no-renames", "--ignored",
                        "--untracked-files=all").decode().split("\0")
        return [row[3:] for row in rows if row and wanted(row[:2])]

    def require_quiet(self) -> None:
        """Raise DevError while a rebase, merge or similar is half-done."""
        for name in ("rebase-merge", "rebase-apply", "MERGE_HEAD", "CHERRY_PICK_HEAD"):
            if (self.repo / ".git" / name).exists():
                raise DevError("a rebase or merge is under way in work/",
                               "finish it, or abort it, with git in work/")
