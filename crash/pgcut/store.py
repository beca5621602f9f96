"""A data directory whose power can be cut: its writes are recorded, its image is what is left."""

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from . import server
from .disk import Disk
from .image import write_tree
from .mount import recorded, set_fault
from .recording import ROOT_INO, Recording
from .states import Places, State, choose

# Not the sign that a server runs; but that of a standby, which must stay one.
_LEFT_OUT = ("postmaster.pid",)

# A recording that is longer than this begins anew when the server stops.
LONG_BYTES = 300 << 20

# The owner file says of these two which files they are, by number and time of change.
OWNER = "pg_doublewrite/owner"
IDENTIFIED = ("PG_VERSION", "backup_label")
_IDENTITY = re.compile(r"inode (\d+) changed -?\d+\.\d+")
# What is added to the number of a file that is gone, so that no other has it.
_GONE = 1 << 40


def identified(file: Path, known: Any) -> None:
    """Let an owner file mean the same files as before.

    `known` has, for numbers of files, what is to be said of those that have taken their
    place.  Others are gone, for a copy is another file.
    """
    def other(match):
        inode = int(match[1])
        if inode in known:
            return known[inode]
        return match[0].replace(match[1], str(inode + _GONE), 1) if 0 < inode < _GONE else match[0]

    if not file.exists():
        return
    text = _IDENTITY.sub(other, file.read_text())
    with open(file, "w") as opened:         # which leaves it to its owner
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def _identities(directory):
    """Return {name: what an owner file says of that file}."""
    found = {}
    for name in IDENTIFIED:
        if (directory / name).exists():
            status = (directory / name).stat()
            seconds, rest = divmod(status.st_ctime_ns, 10 ** 9)
            found[name] = f"inode {status.st_ino} changed {seconds}.{rest:09d}"
    return found


class Store:
    """The recorded data directory of one server, always under the same path."""

    def __init__(self, recorder: str, place: Path) -> None:
        self._recorder = recorder
        self._place = Path(place)
        self._base = self._place / "base"
        self._recording = self._place / "recording"
        self._mounted = contextlib.ExitStack()
        self._place.mkdir()
        server.own(self._place)
        self.data = self._recording / "mnt"

    def fill(self, source: str | Path) -> None:
        """Let it hold a copy of a directory, all of which is durable."""
        self._unmount()
        shutil.rmtree(self._base, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(self._base)], check=True)
        self._mount({})

    def ended(self) -> Recording:
        """Return the Recording so far; no process may use the files any more."""
        self._unmount()
        shutil.move(self._base, self._recording / "base")
        return Recording(self._recording)

    def cut(self, recording: Recording, fault: str, seed: int, unit: int) -> Any:
        """Leave what is left of the files of a recording that has ended if the power fails.

        The files that are left are the same ones: returns what identified() has to know of
        them, for copies of the log that were made before.
        """
        disk = Disk(recording)
        disk.advance(len(recording.ops))
        choice = choose(disk, State(len(recording.ops), fault, seed, unit), Places(recording).areas)
        with server.as_user():
            write_tree(disk.tree(choice), self._base, _LEFT_OUT)
        return self._mount(disk.names(ROOT_INO, choice))

    def renew(self) -> Any:
        """Begin the recording anew if it is long, as though all there is were durable.

        Returns what cut() does.
        """
        if (self._recording / "ops.bin").stat().st_size <= LONG_BYTES:
            return None
        numbers = {name: (self.data / name).stat().st_ino for name in IDENTIFIED
                   if (self.data / name).exists()}
        copy = self._place / "copy"
        subprocess.run(["cp", "-a", str(self.data), str(copy)], check=True)
        self._unmount()
        shutil.rmtree(self._base)
        copy.rename(self._base)
        return self._mount(numbers)

    def set_fault(self, rule: str) -> None:
        """Make operations fail, as the recorder's attribute says."""
        set_fault(self.data, rule)

    def close(self) -> None:
        self._unmount()
        shutil.rmtree(self._place, ignore_errors=True)

    def _mount(self, numbers):
        """Mount what is to be recorded; `numbers` are those that its files had before."""
        shutil.rmtree(self._recording, ignore_errors=True)
        self._mounted.enter_context(recorded(self._recorder, self._base, self._recording))
        known = {numbers[name]: text for name, text in _identities(self.data).items()
                 if name in numbers}
        identified(self.data / OWNER, known)
        return known

    def _unmount(self):
        self._mounted.close()
