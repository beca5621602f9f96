"""A repository of ours in miniature, over an upstream of a few files."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from common.base import Paths
from devtools import worktree
from devtools.source import Source

UPSTREAM = {
    "src/main.c": "".join(f"line {number}\n" for number in range(1, 41)),
    "src/other.c": "other\n",
    "src/latin1.txt": b"caf\xe9\nsecond\n",
    ".gitignore": "*.o\n",
    "configure": "#!/bin/sh\n",
}


class RepositoryCase(unittest.TestCase):
    """Gives each test `self.paths`, `self.source` and helpers to edit."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        base = Path(scratch.name)
        self.paths = Paths(base / "repo", base / "root")
        self.paths.root.mkdir()
        self.paths.overlay.mkdir(parents=True)
        self.write(self.paths.patches / "series", "# comment\n")
        pristine = base / "pristine"
        for name, text in UPSTREAM.items():
            self.write(pristine / name, text)
        (pristine / "configure").chmod(0o755)
        self.source = Source("18.6", "0" * 64, str(pristine))
        self.silence()

    def silence(self):
        """Drop standard error, that of child processes included, in this test."""
        kept = os.dup(2)
        self.addCleanup(os.close, kept)
        self.addCleanup(os.dup2, kept, 2)
        with open(os.devnull, "wb") as sink:
            os.dup2(sink.fileno(), 2)

    @staticmethod
    def write(path, text):
        """Write text or bytes to a file, making its directory."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def git(self, *args):
        """Run git in work/ as a user would; returns its output."""
        identity = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER")
                    for what, value in (("NAME", "Ann Example"), ("EMAIL", "ann@example.org"))}
        return subprocess.run(["git", "-C", str(self.paths.work), *args], check=True,
                              capture_output=True, env={**os.environ, **identity}).stdout.decode()

    def commit(self, title, files, body=""):
        """Write {path: text} in work/ (None deletes) and commit it."""
        for name, text in files.items():
            if text is None:
                (self.paths.work / name).unlink()
            else:
                self.write(self.paths.work / name, text)
        self.git("add", "--all")
        self.git("commit", "-q", "-m", f"{title}\n\n{body}".strip())

    def import_(self, **options):
        return worktree.import_(self.paths, self.source, **options)

    def sync(self):
        worktree.sync(self.paths, self.source)

    def export(self, **options):
        worktree.export(self.paths, **options)

    def edited_main(self, number=20, text="our line"):
        """Return main.c with one line replaced, on top of what work/ has."""
        return (self.paths.work / "src/main.c").read_text().replace(
            f"line {number}\n", f"{text}\n")

    def stored(self):
        """Return {path: bytes} of patches/ and overlay/."""
        files = [path for top in (self.paths.patches, self.paths.overlay)
                 for path in top.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.paths.repo)): path.read_bytes() for path in files}

    def tree(self):
        """Return the identifier of the tree at HEAD of work/."""
        return self.git("rev-parse", "HEAD^{tree}").strip()
