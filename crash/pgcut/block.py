"""The second layer: a block device whose every write and flush is recorded.

A file system (ext4 or xfs) lies on a loop device, and the loop device on one
file of a recorded mount.  What the file system does to its device, journal
included, is then a recording of that one file: a block write is a WRITE, a
discard a FALLOCATE, and a flush, which the loop driver turns into fsync(), a
SYNC.  From such a recording an image can be built for each cut, and mounted;
the file system's own recovery says what the power cut has left of the files.

    with BlockStore("ext4", 128, workdir, recorder) as store:
        ... use store.mountpoint ...
    recording = Recording(store.directory)
    image = block_image(recording, cut, lambda pending: Choice(512, LOST), path)
    with mounted(image, "ext4") as mountpoint:
        ... what is there? ...

One thing a device may do is not shown: forget a write that it has received but
not yet acknowledged when the flush arrives.  Here such a write is durable.
"""

import contextlib
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .content import KEPT, LOST, sectors
from .disk import Choice
from .mount import recorded
from .recording import Kind, Recording

IMAGE = "disk.img"
_COPY_BYTES = 1 << 20
_FALLOC_KEEP_SIZE, _FALLOC_PUNCH_HOLE = 1, 2


# What a command may take that makes, mounts or copies a file system.
COMMAND_SECONDS = 600

# How often a file system is unmounted that is still in use.
UNMOUNT_ATTEMPTS = 50


class BlockError(Exception):
    """A file system could not be made, mounted or unmounted."""


@dataclass(frozen=True)
class FileSystem:
    """How to make and mount one kind of file system."""

    mkfs: tuple
    least_mb: int               # smaller devices are refused by its tools
    options: str                # of each mount
    extra_options: str = ""     # of the recorded one only
    least_torn: int = 512       # a write must be that long to be torn


# A short commit interval makes the journal work without being asked to.
# Nothing is initialised in the background: that would only fill the recording.
# Copies of an xfs have the same identifier, which its mount would refuse.
# The superblock of ext4, 1 kB, is written over in place, outside of what the
# journal protects, and one that is torn between its two sectors is refused by
# mount ("invalid superblock checksum") until e2fsck takes a spare one.  That
# says nothing about the files, so such short writes stay whole.
FILE_SYSTEMS = {
    "ext4": FileSystem(("mkfs.ext4", "-q", "-F", "-J", "size=4",
                        "-E", "lazy_itable_init=0,lazy_journal_init=0"),
                       16, "noatime", ",commit=1", 4096),
    "xfs": FileSystem(("mkfs.xfs", "-q", "-f"), 300, "noatime,nouuid"),
}


def why_not(fstype: str) -> str | None:
    """Return why this file system cannot be used here, or None."""
    program = FILE_SYSTEMS[fstype].mkfs[0]
    if shutil.which(program, path=_path()) is None:
        return f"{program} is not installed"
    if f"\t{fstype}\n" not in Path("/proc/filesystems").read_text():
        return f"the kernel has no {fstype}"
    try:
        os.close(os.open("/dev/loop-control", os.O_RDWR))
    except OSError as error:
        return f"loop devices cannot be used: {error.strerror}"
    return None


class BlockStore:
    """A recorded device with a file system on it, mounted while in a `with`.

    Afterwards `directory` is a recording.  Writing to the device starts at the
    operation after `first`; before that the mount itself was at work.
    """

    def __init__(self, fstype: str, size_mb: int, workdir: Path, recorder_binary: str,
                 seed: int = 0, sync_delay_us: Any = (0, 0)) -> None:
        self.fstype = fstype
        self.directory = Path(workdir) / "recording"
        self.mountpoint = Path(workdir) / "fs"
        self.first = 0
        self._size_mb = max(size_mb, FILE_SYSTEMS[fstype].least_mb)
        self._recorder = recorder_binary
        self._recorder_arguments = {"seed": seed, "sync_delay_us": sync_delay_us}
        self._stack = contextlib.ExitStack()
        self._recorded_mount: Any = None

    def __enter__(self) -> "BlockStore":
        base = self.directory / "base"
        base.mkdir(parents=True)
        self.mountpoint.mkdir()
        make_image(base / IMAGE, self.fstype, self._size_mb)
        with contextlib.ExitStack() as stack:
            self._recorded_mount = stack.enter_context(
                recorded(self._recorder, base, self.directory, **self._recorder_arguments))
            kind = FILE_SYSTEMS[self.fstype]
            stack.enter_context(_mount(self._recorded_mount / IMAGE, self.fstype,
                                       self.mountpoint, kind.options + kind.extra_options))
            self.sync()
            self.first = self.operations()
            self._stack = stack.pop_all()       # all is well: keep them
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def operations(self) -> int:
        """Return how many operations the recording has by now."""
        prefix = "user.pgcut.seq="
        return next(int(name[len(prefix):]) for name in os.listxattr(self._recorded_mount)
                    if name.startswith(prefix))

    def sync(self) -> None:
        """Have all that was done so far made durable."""
        _run("sync", "-f", self.mountpoint)
        fd = os.open(self._recorded_mount / IMAGE, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


class BlockDisk:
    """The device of a recording: durable bytes in a file, pending writes beside.

    The same model as disk.py for data (M1, M2), for one file that is too large
    to be kept in memory.  A device that is not `honest` forgets what it was
    told to flush after operation `first`: with it, findings must appear.
    """

    def __init__(self, recording: Recording, durable: Any, honest: bool = True,
                 first: Any = 0) -> None:
        self.recording = recording
        self.cut = 0
        self._last_flush = len(recording.ops) if honest else first
        self._durable = Path(durable)
        self._pending = []
        copy_sparse(recording.base / IMAGE, self._durable)

    def advance(self, cut: int) -> None:
        """Let everything up to operation `cut` take effect; never goes back."""
        if cut < self.cut:
            raise ValueError(f"cannot go back from {self.cut} to {cut}")
        with open(self._durable, "r+b", buffering=0) as file:
            for op in self.recording.ops[self.cut:cut]:
                if op.kind in (Kind.WRITE, Kind.FALLOCATE):
                    self._pending.append(op)
                elif op.kind == Kind.SYNC:
                    self._flush(file, min(op.begin, self._last_flush))
                elif op.kind not in (Kind.SYNCFAILED, Kind.FAULT):
                    raise BlockError(f"operation {op.seq} is not one of a block device: {op}")
        self.cut = cut

    def pending(self) -> list:
        """Return the pending writes and discards, in order."""
        return list(self._pending)

    def image(self, choice: Choice, path: str | Path) -> Path:
        """Write the image that a cut here leaves, with this choice."""
        copy_sparse(self._durable, path)
        with open(path, "r+b", buffering=0) as file:
            for op in self._pending:
                self._apply(file, op, choice.fate(op), choice.unit)
        return Path(path)

    def _flush(self, file, covered):
        """Make all up to an operation durable."""
        for op in self._pending:
            if op.seq <= covered:
                self._apply(file, op, KEPT, 512)
        self._pending = [op for op in self._pending if op.seq > covered]

    def _apply(self, file, op, fate, unit):
        if fate == LOST:
            return
        if op.kind == Kind.FALLOCATE:
            self._discard(file, op)
            return
        data = self.recording.data(op)
        if fate == KEPT:
            os.pwrite(file.fileno(), data, op.a)
            return
        # The size of a device is fixed: SIZE_ONLY means nothing here.
        for sector in range(sectors(op, unit)):
            if fate > 0 and fate >> sector & 1:
                low = max(op.a, (op.a // unit + sector) * unit)
                high = min(op.a + op.length, (op.a // unit + sector + 1) * unit)
                os.pwrite(file.fileno(), data[low - op.a:high - op.a], low)

    @staticmethod
    def _discard(file, op):
        """Discarded blocks read as zeroes."""
        if op.flags & _FALLOC_PUNCH_HOLE:
            for at in range(op.a, op.a + op.b, _COPY_BYTES):
                os.pwrite(file.fileno(), bytes(min(_COPY_BYTES, op.a + op.b - at)), at)


def block_image(recording: Recording, cut: int, choose: Callable[..., Any], path: str | Path) -> Any:
    """Write the image of the device after a power cut behind operation `cut`.

    `choose` gets the list of pending operations and returns a Choice.  For many
    cuts of one recording a BlockDisk that is advanced is cheaper.
    """
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as scratch:
        disk = BlockDisk(recording, Path(scratch) / "durable")
        disk.advance(cut)
        return disk.image(choose(disk.pending()), path)


def random_choice(rng: random.Random, pending: Any, fstype: str, unit: int = 512) -> Choice:
    """Return a Choice that keeps some writes, loses some, and tears some."""
    least = FILE_SYSTEMS[fstype].least_torn
    kept, torn = rng.choice((0.2, 0.5, 0.8)), rng.choice((0, 0.2, 0.5))
    fates = {}
    for op in pending:
        fates[op.seq] = KEPT if rng.random() < kept else LOST
        if op.kind == Kind.WRITE and op.length >= least and rng.random() < torn:
            fates[op.seq] = rng.getrandbits(sectors(op, unit))
    return Choice(unit, LOST, fates)


def make_image(path: str | Path, fstype: str, size_mb: int) -> None:
    """Make an image file with an empty file system on it."""
    with open(path, "wb") as file:
        file.truncate(max(size_mb, FILE_SYSTEMS[fstype].least_mb) << 20)
    _run(*FILE_SYSTEMS[fstype].mkfs, path)


@contextlib.contextmanager
def mounted(image: Any, fstype: str) -> Iterator[Path]:
    """Mount an image on a directory of its own; yields that directory.

    Recovery of the file system's journal happens here.  Raises BlockError if
    the file system finds itself damaged.
    """
    mountpoint = tempfile.mkdtemp(prefix="pgcut-mount-")
    try:
        with _mount(image, fstype, mountpoint, FILE_SYSTEMS[fstype].options):
            yield Path(mountpoint)
    finally:
        os.rmdir(mountpoint)


@contextlib.contextmanager
def _mount(image, fstype, mountpoint, options):
    """Mount an image; the kernel frees the loop device with the last use of it."""
    _run("mount", "-t", fstype, "-o", f"loop,{options}", image, mountpoint)
    try:
        yield
    finally:
        _unmount(mountpoint)


def _unmount(mountpoint):
    # A process that another thread has forked keeps our files open until it has begun a program.
    for _ in range(UNMOUNT_ATTEMPTS - 1):
        with contextlib.suppress(BlockError):
            _run("umount", mountpoint)
            return
        time.sleep(0.2)
    try:
        _run("umount", mountpoint)
    except BlockError:
        # A process still has files open there.  The loop device goes when it closes them.
        _run("umount", "--lazy", mountpoint)
        raise


def copy_sparse(source: str | Path, target: str | Path) -> None:
    """Copy an image, holes staying holes."""
    _run("cp", "--sparse=always", source, target)


def _path():
    """Return the search path, with the directories of system programs in it."""
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def _run(*command):
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=COMMAND_SECONDS,
                          env={**os.environ, "LC_ALL": "C", "PATH": _path()})
    if done.returncode:
        raise BlockError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()}")
