"""The format of the files in patches/.

A patch is a mail that `git am` understands, reduced to what stays the same
when it is exported again: author, subject, body, diff.  No commit or blob
identifiers, no dates, no counts, no version of git.

A patch lies in the directory of the series that its message names, in a line
that is for us alone:

    Series: recovery

Series stand on each other in the order of NAMES, which patches/series repeats.
"""

import collections
import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from common.base import DevError, write_if_changed

SERIES = "series"
NAMES = ("fixes", "recovery", "stage", "doublewrite", "instant", "atomic")
DIFF_START = b"diff --git "

# Lines at the end of a message that are for us alone; see series.py.
TRAILER = re.compile(r"^(Series|Overlay|Changes): +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Patch:
    """One commit's hunks in upstream files; `diff` is bytes, as sources may be."""

    author: str
    title: str
    body: str
    diff: bytes

    @property
    def slug(self) -> str:
        """Return the title as a file name part."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")[:52].rstrip("-")

    @property
    def message(self) -> str:
        """Return the commit message."""
        return f"{self.title}\n\n{self.body}".rstrip("\n") + "\n"

    @property
    def prose(self) -> str:
        """Return the body as it is sent for review."""
        return TRAILER.sub("", self.body).strip("\n")

    @property
    def series(self) -> str:
        """Return the name of the series that this patch belongs to, or ""."""
        return "".join(self._named("Series")[:1])

    @property
    def overlay(self) -> tuple[str, ...]:
        """Return patterns of the new files that belong to this patch."""
        return tuple(self._named("Overlay"))

    @property
    def changes(self) -> tuple[str, ...]:
        """Return the files, below patches/, with hunks of this patch in files of overlay/."""
        return tuple(f"{self.series}/{name}" for name in self._named("Changes"))

    def _named(self, key: str) -> list[str]:
        """Return what the trailers `key` say."""
        return [value for name, value in TRAILER.findall(self.body) if name == key]

    def owns(self, path: str) -> bool:
        """Say whether a file of overlay/ belongs to this patch."""
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.overlay)

    def encode(self) -> bytes:
        """Return the bytes of the patch file."""
        body = f"{self.body}\n" if self.body else ""
        head = f"From: {self.author}\nSubject: [PATCH] {self.title}\n\n{body}---\n"
        return head.encode() + self.diff


def without_blobs(diff: bytes) -> bytes:
    """Return a diff in git's format without the names of blobs."""
    return re.sub(rb"^index [0-9a-f]+\.\.[0-9a-f]+(?: [0-7]+)?\n", b"", diff, flags=re.MULTILINE)


def from_commit(author: str, message: str, diff: bytes) -> Patch:
    """Make a Patch of a commit's author, message and `git diff` output."""
    title, _, body = message.strip("\n").partition("\n")
    return Patch(author, title.strip(), body.strip("\n"), without_blobs(diff))


def decode(name: str, data: bytes) -> Patch:
    """Parse a patch file; raises DevError if a part is missing.

    A patch that brings files of overlay/ may do without hunks.
    """
    start = data.find(b"\n" + DIFF_START) + 1 or len(data)
    head, _, rest = data[:start].decode().partition("\n\n")
    fields = dict(re.findall(r"^(From|Subject): (.+)$", head, re.MULTILINE))
    if set(fields) != {"From", "Subject"}:
        raise DevError(f"{name} lacks a From or Subject line")
    title = re.sub(r"^\[PATCH[^]]*\] *", "", fields["Subject"])
    body = re.split(r"^---$", rest, maxsplit=1, flags=re.MULTILINE)[0]
    patch = Patch(fields["From"], title, body.strip("\n"), data[start:])
    if not patch.diff and not patch.overlay:
        raise DevError(f"{name} has no diff in git's format")
    return patch


def read_series(directory: Path) -> list[tuple[str, Patch]]:
    """Return [(file name, Patch)] in the order of the series file."""
    listing = (directory / SERIES).read_text()
    names = [line.strip() for line in listing.splitlines()
             if line.strip() and not line.startswith("#")]
    on_disk = set(files(directory))
    for name in names:
        if name not in on_disk:
            raise DevError(f"patches/series names {name}, which does not exist")
    forgotten = on_disk - set(names)
    if forgotten:
        raise DevError("patches/series does not name " + ", ".join(sorted(forgotten)))
    return [(name, decode(name, (directory / name).read_bytes())) for name in names]


def files(directory: Path) -> list[str]:
    """Return the names of the patch files, below `directory`."""
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.patch"))


def write_series(directory: Path, patches: Iterable[Patch]) -> list[str]:
    """Make `directory` hold exactly `patches`; returns the file names."""
    series = directory / SERIES
    comments = [line for line in series.read_text().splitlines() if line.startswith("#")]
    patches = list(patches)
    numbers: collections.Counter[str] = collections.Counter()
    names = []
    for patch in patches:
        numbers[patch.series] += 1
        name = f"{numbers[patch.series]:04d}-{patch.slug}.patch"
        names.append(f"{patch.series}/{name}" if patch.series else name)
    for stale in set(files(directory)) - set(names):
        (directory / stale).unlink()
    for name, patch in zip(names, patches):
        (directory / name).parent.mkdir(exist_ok=True)
        write_if_changed(directory / name, patch.encode())
    write_if_changed(series, "".join(f"{line}\n" for line in comments + names).encode())
    return names
